"""Impact of a machine's deviation on the job: whether the job is slower by enough, for long enough, and steadily."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

from tocsin.models.pace import Slowdown
from tocsin.pipeline.detect.peers.anomalies import CONGESTION_METRICS
from tocsin.pipeline.job.graph import JobGraph
from tocsin.pipeline.rca.job_progress import JobProgress
from tocsin.pipeline.rca.rules.deviations import (
    SILENT_FAMILIES,
    MachineRules,
    families,
    family_of,
    only_cpu,
    other_program,
    reported_metrics,
)
from tocsin.pipeline.rca.rules.timing import SELF_TIME_SHARE_RATIO, self_time_excess_of, window_ns
from tocsin.schemas.records import NS_PER_SECOND
from tocsin.schemas.verdicts import Anomaly

_CLOCK = "gpu_sm_clock_hertz"
_STEADY_METRICS = frozenset(
    {
        _CLOCK,
        "pfc_tx_packets_per_second",
        "ecn_packets_per_second",
        "cnp_packets_per_second",
        "cpu_util_ratio",
        "rdma_bytes_per_second",
    }
)
"""Metrics that do not follow the phases of a step."""
_STEADY_SIGMAS, _DOWN_SIGMAS = 4.0, 20.0
"""Least deviation of a steady metric, and of GPU utilisation that is low, in standard deviations. GPUs that idle while
others spin were 34 to 50 sigmas low; phases of a step gave up to 15."""
_FAR_SIGMAS, _FAR_METRIC_COUNT = 8.0, 2
"""Number of metrics that must deviate by so many standard deviations for an overwhelming anomaly."""
_LEAST_CONGESTION_SIGMAS = 0.5
"""Deviation of a congestion metric below which it counts as ended. The weakest congestion that half-minute means reveal
shows one to two sigmas per window; a burst that is over shows none."""
_LEAST_SHARE_RATIO = 1 / 12
"""Least deviation of GPU activity that can explain a slowdown, as a share of the job's loss. One slow GPU of eight
shows an eighth in its machine's mean; this is two thirds of that."""
_LEAST_CPU_RATIO = 0.07
"""Least additional CPU use that can slow a job, as a share of the machine's CPUs; below it the job has cores enough."""
_LEAST_SIGMAS = 1.0
"""Deviation below which a metric counts as ended. Every measured harmful deviation showed 1.2 sigmas or more in some
metric."""
_SLIGHT_RATIO = 0.03
"""Relative deviation up to which a level may just have drifted. Healthy machines drift by 1 to 2 %; sixty slow ones all
showed 5 % or more in some metric, clocks excepted, which seldom move."""
_FEWEST_STEPS = 3
"""Fewest steps since the onset whose median is robust against one late step."""
_MEASURED_STEPS = 8
"""Fewest steps since the onset after which all five steps of the self-time measurement are later than it."""
_MEASURED_SECONDS = 30.0
"""Seconds after which metric windows have shown whether machines do less work; if so, self time may include waiting."""
_SHORT_WINDOW_NS, _STEADY_RATIO = 10 * NS_PER_SECOND, 0.6
"""Window length in nanoseconds above which, without steps, a metric must deviate for this share of the time. Several
stalls fall into each such window, so the same machine may show in every other one by chance."""
_ALL_THE_TIME_RATIO = 0.8
"""Share of the time that a CPU metric must deviate; two bursts of a daemon in forty seconds fill three of four
windows."""


def has_impact(  # what is known of it
    graph: JobGraph,
    chosen: Sequence[Anomaly],
    slowdown: Slowdown | None,
    pace: JobProgress,
    lasted_ns: int,
    rules: MachineRules,
) -> bool:
    """Return whether the job suffers from what the chosen hosts show.

    The job must certainly be slower, or likely be slower while a steady deviation lasts. Self time or a link of these
    hosts must also explain the slowdown. Without a slowdown measurement, an alarming deviation beyond ordinary drift is
    enough.

    Args:
        graph: the job's ranks and hosts.
        chosen: anomalies of the suspected hosts.
        slowdown: change of the job's pace since the onset; None if not measurable.
        pace: the job's step times and work.
        lasted_ns: duration of the deviation.
        rules: thresholds.
    """
    if other_program(chosen) and not pace.median_step_ns:
        # Other programs use CPUs every day, and jobs do less work for many reasons: without steps to tell since when,
        # the one does not explain the other. A machine that is slow for want of CPU shows it on its GPUs as well.
        return False
    if slowdown is None:
        return is_loud(chosen) and not _is_within_drift(chosen)
    if not pace.median_step_ns and window_ns(graph, chosen) > _SHORT_WINDOW_NS:
        ratios = [metric["present_ratio"] for metric in reported_metrics(*chosen)]
        if max(ratios, default=0.0) < _STEADY_RATIO:
            return False
    if _is_too_small(chosen, slowdown) or _has_ended(chosen):
        return False
    if other_program(chosen) and (slowdown.is_of_bursts or _is_of_few_steps(chosen, slowdown, pace)):
        return False  # daemons come and go as well
    steady = not only_cpu(chosen) and is_loud(chosen) and lasted_ns >= rules.undecided_ns and is_steady(chosen, rules)
    return (slowdown.is_certain or (steady and slowdown.is_likely)) and _explains(chosen, slowdown, pace)


def is_cleared_by_steps(chosen: Sequence[Anomaly], slowdown: Slowdown | None, pace: JobProgress) -> bool:
    """Return whether enough measured steps show that these hosts' self time does not explain the slowdown.

    It counts where only another program's CPU use speaks against them, or where all ranks compute longer. Steps must be
    at least 8 and span 30 s. False where no self time was measured.
    """
    if slowdown is None or not slowdown.is_certain or slowdown.step_count < _MEASURED_STEPS:
        return False
    if slowdown.step_count * slowdown.step_seconds < _MEASURED_SECONDS:
        return False
    measured = (slowdown.is_of_own or other_program(chosen)) and self_time_excess_of(chosen, pace) is not None
    return measured and not _explains(chosen, slowdown, pace)


def _is_of_few_steps(chosen: Sequence[Anomaly], slowdown: Slowdown, pace: JobProgress) -> bool:
    """Return whether only one or two steps show the slowdown, and no self time of these hosts was measured."""
    return 0 < slowdown.step_count < _FEWEST_STEPS and self_time_excess_of(chosen, pace) is None


def _is_too_small(chosen: Sequence[Anomaly], slowdown: Slowdown) -> bool:
    """Return whether the hosts deviate only in GPU activity or CPU use, and by too little to explain the job's loss.

    Other machines wait for a slow one and are less busy by what the job lost. Where one GPU of eight is slow, the
    host's mean lies above theirs by an eighth of that.
    """
    metrics = [metric for metric in reported_metrics(*chosen) if family_of(metric) not in SILENT_FAMILIES]
    if {family_of(metric) for metric in metrics} == {"cpu"}:
        used = [
            m["value"] - m["expected"] for m in metrics if m.get("value") is not None and m.get("expected") is not None
        ]
        return max(used, default=math.inf) < _LEAST_CPU_RATIO
    if slowdown.ratio == float("inf") or {family_of(metric) for metric in metrics} != {"activity"}:
        return False
    known = [m for m in metrics if m.get("value") is not None and m.get("expected")]
    shares = [abs(m["value"] - m["expected"]) / m["expected"] for m in known]
    return max(shares, default=math.inf) < _LEAST_SHARE_RATIO * slowdown.ratio / (1 + slowdown.ratio)


def _is_within_drift(chosen: Sequence[Anomaly]) -> bool:
    """Return whether no alarming metric deviates by 3 % or more of its expected value.

    The clock and metrics of ``SILENT_FAMILIES`` do not count. False where a value or expectation is unknown.
    """
    metrics = [metric for metric in reported_metrics(*chosen) if family_of(metric) not in SILENT_FAMILIES]
    known = [m for m in metrics if m["metric"] != _CLOCK and m.get("value") is not None and m.get("expected")]
    if len(known) < len(metrics):
        return False
    return all(abs(m["value"] - m["expected"]) < _SLIGHT_RATIO * abs(m["expected"]) for m in known)


def _has_ended(chosen: Sequence[Anomaly]) -> bool:
    """Return whether no alarming metric deviates any more in the last window."""
    return all(
        m.get("sigmas", math.inf) < (_LEAST_CONGESTION_SIGMAS if m["metric"] in CONGESTION_METRICS else _LEAST_SIGMAS)
        for m in reported_metrics(*chosen)
    )


def one_stall_ns(graph: JobGraph, chosen: Sequence[Anomaly], pace: JobProgress) -> int:
    """Return for how many nanoseconds a single hiccup of these hosts may show in windows.

    One window length where steps are recorded, as they tell which step it was; else two.
    """
    return (1 if pace.median_step_ns else 2) * window_ns(graph, chosen)


def one_step_ns(graph: JobGraph, chosen: Sequence[Anomaly], slowdown: Slowdown | None) -> int:
    """Return for how many nanoseconds a single late step may show in the windows that it touches.

    0 where the slowdown rests on no step, or on more than two: of two, one may be the long one.
    """
    if slowdown is None or not 0 < slowdown.step_count <= 2:
        return 0
    longer = slowdown.step_count * slowdown.step_seconds - (slowdown.step_count - 1) * slowdown.before_seconds
    return round(longer * NS_PER_SECOND) + window_ns(graph, chosen)


def is_loud(chosen: Sequence[Anomaly]) -> bool:
    """Return whether some alarming metric belongs to a family outside ``SILENT_FAMILIES``.

    Such metrics rarely deviate on healthy machines.
    """
    return any(families(anomaly) - SILENT_FAMILIES for anomaly in chosen)


def lasts(chosen: Sequence[Anomaly], lasted_ns: int, graph: JobGraph, pace: JobProgress, rules: MachineRules) -> bool:
    """Return whether a CPU deviation has lasted longer than a daemon's run, and longer than two windows.

    Where the host's self time is not measured, it must last twice as long and fill 80 % of the time.
    """
    shown = pace.self_time_excess_seconds(chosen[0].component.name) is not None
    cpu_lasting_ns = rules.cpu_lasting_ns if shown else 2 * rules.cpu_lasting_ns
    ratios = [metric["present_ratio"] for metric in reported_metrics(*chosen) if family_of(metric) == "cpu"]
    all_the_time = shown or max(ratios, default=0.0) >= _ALL_THE_TIME_RATIO
    return all_the_time and lasted_ns >= cpu_lasting_ns and lasted_ns > 2 * window_ns(graph, chosen)


def is_undecided(slowdown: Slowdown | None, pace: JobProgress) -> bool:
    """Return whether a measured slowdown leaves open if the job is slower.

    It does where the job records no steps and its work per second varies too much. Without a measurement (None) the
    answer is False.
    """
    return slowdown is not None and not pace.median_step_ns and not slowdown.is_certain and not slowdown.is_gone


def is_overwhelming(chosen: Sequence[Anomaly]) -> bool:
    """Return whether two or more metrics of one host alarm and deviate by 8 standard deviations or more.

    Metrics of ``SILENT_FAMILIES`` do not count.
    """
    return any(
        sum(
            family_of(metric) not in SILENT_FAMILIES
            and metric["score"] >= 1.0
            and metric.get("sigmas", 0.0) >= _FAR_SIGMAS
            for metric in anomaly.detail["metrics"]
        )
        >= _FAR_METRIC_COUNT
        for anomaly in chosen
    )


def is_steady(chosen: Sequence[Anomaly], rules: MachineRules) -> bool:
    """Return whether some metric that does not follow the phases of a step deviates most of the time.

    The deviation must reach 4 standard deviations and last. Steps longer than a window move most metrics up and down,
    on different machines at different times. GPU utilisation counts only if it is lower than any phase of a step
    explains.
    """
    return any(
        (metric["metric"] in _STEADY_METRICS or _is_far_down(metric))
        and metric["present_ratio"] >= rules.steady_ratio
        and metric.get("sigmas", 0.0) >= _STEADY_SIGMAS
        and anomaly.end_ns - metric["since_ns"] >= rules.lasting_ns
        for anomaly in chosen
        for metric in anomaly.detail["metrics"]
    )


def _is_far_down(metric: Mapping[str, Any]) -> bool:
    """Return whether a metric is GPU utilisation that is low by at least 20 standard deviations."""
    is_down = (metric["metric"], metric["direction"]) == ("gpu_util_ratio", "low")
    return is_down and float(metric.get("sigmas", 0.0)) >= _DOWN_SIGMAS


def _explains(chosen: Sequence[Anomaly], slowdown: Slowdown, pace: JobProgress) -> bool:
    """Return whether these hosts can explain the slowdown, by their self time or by one of their links.

    A link makes others wait in communication, so it does not explain that all ranks compute longer. True where self
    time is unknown, or where no steps end any more.
    """
    of_links = any({"link", "congestion"} & families(anomaly) for anomaly in chosen)
    if slowdown.ratio == float("inf") or (of_links and not slowdown.is_of_own):
        return True
    growth_seconds = slowdown.step_seconds - slowdown.before_seconds
    excess_seconds = self_time_excess_of(chosen, pace)
    return excess_seconds is None or excess_seconds >= SELF_TIME_SHARE_RATIO * growth_seconds
