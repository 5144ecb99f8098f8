"""Machines whose ranks compute longer than before, and by as much as the steps have grown: what else they show is why.

Nobody's own time is as even as this asks by chance: over a dozen steps, beyond the noise of all hosts, and alone.
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
"""Of a step: less slows nobody down as far as steps can tell."""
_MOST_SHARE_RATIO = 0.6
"""From this share of the steps' growth on it is most of why they are longer."""
_WORKLESS_FAMILIES = frozenset({"memory", "disk", "tcp"})
"""Less of these is no sign of more work. More of them may be: longer sequences, another shard."""


def computes_longer(anomaly: Anomaly, slowdown: Slowdown, pace: JobProgress) -> bool:
    """Whether a host's ranks compute longer since it differs: that others had time to wait makes it no less slow."""
    grown_seconds = pace.grown_excess_seconds(anomaly.component.name, begin_ns(anomaly))
    return grown_seconds > 0.0 and grown_seconds >= _LEAST_RATIO * slowdown.before_seconds


def silent_but_slow(anomalies: Sequence[Anomaly], now_ns: int, pace: JobProgress, rules: MachineRules) -> list[Anomaly]:
    """The one host that differs only in what healthy ones differ in, too, and whose own time explains longer steps.

    Not where it may have more to do instead, which makes it use more of everything: what it shows is low, or its tensor
    cores and links are known to do no more.
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
    told = reported_metrics(anomaly)
    if not all(family_of(metric) in SILENT_FAMILIES for metric in told):
        return False
    return pace.moves_no_more(anomaly.component.name) or all(_is_less(metric) for metric in told)


def _is_less(metric: Mapping[str, Any]) -> bool:
    return metric["direction"] == "low" and family_of(metric) in _WORKLESS_FAMILIES


def _explains_steps(anomaly: Anomaly, now_ns: int, pace: JobProgress, rules: MachineRules) -> bool:
    slowdown = pace.slowdown_since(begin_ns(anomaly) - rules.before_onset_ns, now_ns)
    if slowdown is None or not slowdown.is_certain or slowdown.is_of_work or slowdown.ratio == float("inf"):
        return False
    growth_seconds = slowdown.step_seconds - slowdown.before_seconds
    grown_seconds = pace.grown_excess_seconds(anomaly.component.name, begin_ns(anomaly))
    return computes_longer(anomaly, slowdown, pace) and grown_seconds >= _MOST_SHARE_RATIO * growth_seconds


def own_evidence(anomaly: Anomaly, pace: JobProgress) -> tuple[Evidence, ...]:
    """That a host's ranks compute longer than before, where they do."""
    host, onset_ns = anomaly.component.name, begin_ns(anomaly)
    grown_seconds = pace.grown_excess_seconds(host, onset_ns)
    if not grown_seconds > 0.0:
        return ()
    text = f"{host}: a rank computes {grown_seconds * 1e3:.0f} ms a step longer than before, and its peers do not"
    return (Evidence("steps", "own_seconds", 1.0, onset_ns, anomaly.end_ns, text, grown_seconds, 0.0),)
