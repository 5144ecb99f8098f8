"""Rules about self time: machines whose ranks compute longer than before, by as much as the steps have grown.

Such growth is measured over a dozen steps, beyond the noise of all hosts, and on one host alone. No healthy host shows
that by chance.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from tocsin.models.pace import Slowdown
from tocsin.pipeline.rca.job_progress import JobProgress
from tocsin.pipeline.rca.rules.deviations import (
    SILENT_FAMILIES,
    MachineRules,
    begin_ns,
    differs_now,
    family_of,
    present_ratio,
    reported_metrics,
)
from tocsin.schemas.verdicts import Anomaly, Evidence

_LEAST_RATIO = 0.01
"""Least growth of self time that counts, as a share of a step; step times cannot resolve less."""
_MOST_SHARE_RATIO = 0.6
"""Share of the steps' growth from which on a host's self time explains most of it."""
_WORKLESS_FAMILIES = frozenset({"memory", "disk", "tcp"})
"""Metric families of which a low value is no sign of more work. A high value may be one: longer sequences, or another
shard."""


def computes_longer(anomaly: Anomaly, slowdown: Slowdown, pace: JobProgress) -> bool:
    """Return whether a host's self time has grown since its anomaly began, by at least 1 % of a step.

    It matters even where the other ranks had time to wait for the host.
    """
    grown_seconds = pace.grown_self_time_seconds(anomaly.component.name, begin_ns(anomaly))
    return grown_seconds > 0.0 and grown_seconds >= _LEAST_RATIO * slowdown.before_seconds


def silent_but_slow(anomalies: Sequence[Anomaly], now_ns: int, pace: JobProgress, rules: MachineRules) -> list[Anomaly]:
    """Return the anomalies of hosts that are slow though only metrics deviate that also deviate on healthy hosts.

    The host's grown self time must explain most of the longer steps, and its deviation must be steady and last. Hosts
    that may have more work to do are left out: more work raises the use of everything.
    """
    return [
        anomaly
        for anomaly in anomalies
        if not anomaly.detail.get("leaning")
        and present_ratio(anomaly) >= rules.steady_ratio
        and anomaly.end_ns - begin_ns(anomaly) >= rules.sure_ns
        and differs_now(anomaly)
        and _is_no_more_work(anomaly, pace)
        and _explains_steps(anomaly, now_ns, pace, rules)
    ]


def _is_no_more_work(anomaly: Anomaly, pace: JobProgress) -> bool:
    """Return whether an anomaly is certainly no sign that its host does more work than usual.

    That is so if all alarming metrics are of silent families and either the host is known to do no more work than
    expected, or all of them are low values of memory, disk or TCP.
    """
    metrics = reported_metrics(anomaly)
    if not all(family_of(metric) in SILENT_FAMILIES for metric in metrics):
        return False
    return pace.moves_no_more(anomaly.component.name) or all(_is_less(metric) for metric in metrics)


def _is_less(metric: Mapping[str, Any]) -> bool:
    """Return whether a metric is low and belongs to a family of which a low value is no sign of more work."""
    return metric["direction"] == "low" and family_of(metric) in _WORKLESS_FAMILIES


def _explains_steps(anomaly: Anomaly, now_ns: int, pace: JobProgress, rules: MachineRules) -> bool:
    """Return whether the job is certainly slower since the anomaly, and the host's grown self time is most of it."""
    slowdown = pace.slowdown_since(begin_ns(anomaly) - rules.before_onset_ns, now_ns)
    if slowdown is None or not slowdown.is_certain or slowdown.is_of_work or slowdown.ratio == float("inf"):
        return False
    growth_seconds = slowdown.step_seconds - slowdown.before_seconds
    grown_seconds = pace.grown_self_time_seconds(anomaly.component.name, begin_ns(anomaly))
    return computes_longer(anomaly, slowdown, pace) and grown_seconds >= _MOST_SHARE_RATIO * growth_seconds


def own_evidence(anomaly: Anomaly, pace: JobProgress) -> tuple[Evidence, ...]:
    """Return one piece of evidence that a host's ranks compute longer than before; empty where they do not."""
    host, onset_ns = anomaly.component.name, begin_ns(anomaly)
    grown_seconds = pace.grown_self_time_seconds(host, onset_ns)
    if not grown_seconds > 0.0:
        return ()
    text = f"{host}: a rank computes {grown_seconds * 1e3:.0f} ms a step longer than before, and its peers do not"
    return (Evidence("steps", "own_seconds", 1.0, onset_ns, anomaly.end_ns, text, grown_seconds, 0.0),)
