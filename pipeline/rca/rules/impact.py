"""Whether a job suffers from what a machine shows: as much, for as long, and as steadily as it must to be believed."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

from tocsin.models.pace import Slowdown
from tocsin.pipeline.detect.peers.anomalies import JAM_METRICS
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
from tocsin.pipeline.rca.rules.timing import OWN_SHARE_RATIO, own_excess_of, window_ns
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
_STEADY_SIGMAS, _DOWN_SIGMAS = 4.0, 20.0
"""GPUs that idle beside spinning ones were 34 to 50 sigmas down; phases of a step gave up to 15."""
_FAR_SIGMAS, _FAR_METRIC_COUNT = 8.0, 2
_NOTHING_SIGMAS = 0.5
"""The weakest jams that half minutes tell show as one to two sigmas in each window; a burst that is over as none."""
_LEAST_SHARE_RATIO = 1 / 12
"""Of what the job lost: two thirds of what one slow GPU of eight shows in its machine's mean."""
_LEAST_CPU_RATIO = 0.07
"""Of a machine's CPUs, seven cores of a hundred: less than that leaves the job enough of them."""
_HARDLY_SIGMAS = 1.0
"""Whatever hurt a job showed as 1.2 sigmas or more in one of its metrics when it was told."""
_SLIGHT_RATIO = 0.03
"""Levels of healthy machines drift by one or two percent; of sixty slow ones in jobs without steps all showed 5 % or
more in something, but for clocks, which seldom move at all."""
_FEWEST_STEPS = 3
"""The median of three is as ever where one of them was late."""
_MEASURED_STEPS = 8
"""The five that a rank's own time is measured in are all later than the onset then."""
_MEASURED_SECONDS = 30.0
"""And windows have shown whether the machines do less work a second: then they may wait within their own time."""
_SHORT_WINDOW_NS, _STEADY_RATIO = 10 * NS_PER_SECOND, 0.6
"""Without steps: of windows so long that a stall or two fall into each, every other one may show the same machine."""
_ALL_THE_TIME_RATIO = 0.8
"""Two bursts of a daemon in forty seconds are three of four windows."""


def has_impact(  # what is known of it
    graph: JobGraph,
    chosen: Sequence[Anomaly],
    slowdown: Slowdown | None,
    pace: JobProgress,
    lasted_ns: int,
    rules: MachineRules,
) -> bool:
    """Whether the job suffers from it: for sure, or likely where something tells of it all the time."""
    if other_program(chosen) and not pace.median_step_ns:
        # Other programs use CPUs every day, and jobs do less work for many reasons: without steps to tell since when,
        # the one does not explain the other. A machine that is slow for want of CPU shows it on its GPUs as well.
        return False
    if slowdown is None:
        return is_loud(chosen) and not _is_slight(chosen)
    if not pace.median_step_ns and window_ns(graph, chosen) > _SHORT_WINDOW_NS:
        told = [metric["present_ratio"] for metric in reported_metrics(*chosen)]
        if max(told, default=0.0) < _STEADY_RATIO:
            return False
    if _is_too_small(chosen, slowdown) or _is_over(chosen):
        return False
    if other_program(chosen) and (slowdown.is_of_bursts or _is_of_few_steps(chosen, slowdown, pace)):
        return False  # daemons come and go as well
    steady = not only_cpu(chosen) and is_loud(chosen) and lasted_ns >= rules.undecided_ns and is_steady(chosen, rules)
    return (slowdown.is_certain or (steady and slowdown.is_likely)) and _explains(chosen, slowdown, pace)


def is_cleared_by_steps(chosen: Sequence[Anomaly], slowdown: Slowdown | None, pace: JobProgress) -> bool:
    """Whether these hosts' own time, measured in steps enough, shows that they are not why.

    It does where another program's CPU is all that speaks for it, or where all ranks compute longer, whatever differs.
    Some steps later a rank's rows may be lost, and nobody can measure it: it is no more why than before.
    """
    if slowdown is None or not slowdown.is_certain or slowdown.step_count < _MEASURED_STEPS:
        return False
    if slowdown.step_count * slowdown.step_seconds < _MEASURED_SECONDS:
        return False
    measured = (slowdown.is_of_own or other_program(chosen)) and own_excess_of(chosen, pace) is not None
    return measured and not _explains(chosen, slowdown, pace)


def _is_of_few_steps(chosen: Sequence[Anomaly], slowdown: Slowdown, pace: JobProgress) -> bool:
    """Whether so few steps say that the job is slower that one late one does, and no rank's own time says more."""
    return 0 < slowdown.step_count < _FEWEST_STEPS and own_excess_of(chosen, pace) is None


def _is_too_small(chosen: Sequence[Anomaly], slowdown: Slowdown) -> bool:
    """Whether all that differs is how busy their GPUs are, and by much less than what the job lost; or a few CPU cores.

    The others wait for a slow machine, and are less busy than it by what the job lost; where one GPU of its eight is
    slow, its mean is above theirs by an eighth of that.
    """
    told = [metric for metric in reported_metrics(*chosen) if family_of(metric) not in SILENT_FAMILIES]
    if {family_of(metric) for metric in told} == {"cpu"}:
        used = [
            m["value"] - m["expected"] for m in told if m.get("value") is not None and m.get("expected") is not None
        ]
        return max(used, default=math.inf) < _LEAST_CPU_RATIO
    if slowdown.ratio == float("inf") or {family_of(metric) for metric in told} != {"activity"}:
        return False
    known = [m for m in told if m.get("value") is not None and m.get("expected")]
    shares = [abs(m["value"] - m["expected"]) / m["expected"] for m in known]
    return max(shares, default=math.inf) < _LEAST_SHARE_RATIO * slowdown.ratio / (1 + slowdown.ratio)


def _is_slight(chosen: Sequence[Anomaly]) -> bool:
    """Whether nothing differs by more than levels drift, be it ever so sure: too little where nobody knows its cost."""
    told = [metric for metric in reported_metrics(*chosen) if family_of(metric) not in SILENT_FAMILIES]
    known = [m for m in told if m["metric"] != _CLOCK and m.get("value") is not None and m.get("expected")]
    if len(known) < len(told):
        return False
    return all(abs(m["value"] - m["expected"]) < _SLIGHT_RATIO * abs(m["expected"]) for m in known)


def _is_over(chosen: Sequence[Anomaly]) -> bool:
    """Whether nothing of it is seen now: a burst of packets may lie in two half minutes, another job's work too."""
    return all(
        m.get("sigmas", math.inf) < (_NOTHING_SIGMAS if m["metric"] in JAM_METRICS else _HARDLY_SIGMAS)
        for m in reported_metrics(*chosen)
    )


def one_stall_ns(graph: JobGraph, chosen: Sequence[Anomaly], pace: JobProgress) -> int:
    """How long one hiccup of theirs may show: in two windows, without step records to tell that it was one step."""
    return (1 if pace.median_step_ns else 2) * window_ns(graph, chosen)


def one_step_ns(graph: JobGraph, chosen: Sequence[Anomaly], slowdown: Slowdown | None) -> int:
    """How long one late start may show: in all windows that its step touches. Of two steps one may be the long one."""
    if slowdown is None or not 0 < slowdown.step_count <= 2:
        return 0
    longer = slowdown.step_count * slowdown.step_seconds - (slowdown.step_count - 1) * slowdown.before_seconds
    return round(longer * NS_PER_SECOND) + window_ns(graph, chosen)


def is_loud(chosen: Sequence[Anomaly]) -> bool:
    """Whether something differs that healthy machines seldom differ in."""
    return any(families(anomaly) - SILENT_FAMILIES for anomaly in chosen)


def lasts(chosen: Sequence[Anomaly], lasted_ns: int, graph: JobGraph, pace: JobProgress, rules: MachineRules) -> bool:
    """Whether it has gone on for longer than a daemon runs, which may lie on both sides of a window's end.

    Where no rank's own time shows that it matters, for twice as long, and all the time: a daemon comes again.
    """
    shown = pace.own_excess_seconds(chosen[0].component.name) is not None
    cpu_lasting_ns = rules.cpu_lasting_ns if shown else 2 * rules.cpu_lasting_ns
    ratios = [metric["present_ratio"] for metric in reported_metrics(*chosen) if family_of(metric) == "cpu"]
    all_the_time = shown or max(ratios, default=0.0) >= _ALL_THE_TIME_RATIO
    return all_the_time and lasted_ns >= cpu_lasting_ns and lasted_ns > 2 * window_ns(graph, chosen)


def is_undecided(slowdown: Slowdown | None, pace: JobProgress) -> bool:
    """Whether nobody can say if the job is slower: no step records, and the work per second varies too much."""
    return slowdown is not None and not pace.median_step_ns and not slowdown.is_certain and not slowdown.is_gone


def is_overwhelming(chosen: Sequence[Anomaly]) -> bool:
    """Whether several things differ by far, and all the time: a clock held at half, and the power with it."""
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
    """Whether something differs most of the time that does not follow the phases of a step.

    Steps longer than a window show in most metrics as ups and downs, at other times on other machines; a burst of
    packets or of a daemon's CPU in the midst of them is nothing steady. GPUs that idle while all others spin in a
    collective are beyond any phase.
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
    is_down = (metric["metric"], metric["direction"]) == ("gpu_util_ratio", "low")
    return is_down and float(metric.get("sigmas", 0.0)) >= _DOWN_SIGMAS


def _explains(chosen: Sequence[Anomaly], slowdown: Slowdown, pace: JobProgress) -> bool:
    """Whether what these hosts show can be why the steps are slower: their own time, or a link of theirs.

    A link makes others wait in their communication: it is not why all of them compute longer.
    """
    of_links = any({"link", "congestion"} & families(anomaly) for anomaly in chosen)
    if slowdown.ratio == float("inf") or (of_links and not slowdown.is_of_own):
        return True
    growth_seconds = slowdown.step_seconds - slowdown.before_seconds
    excess_seconds = own_excess_of(chosen, pace)
    return excess_seconds is None or excess_seconds >= OWN_SHARE_RATIO * growth_seconds
