"""Two machines of one job that fail alike at the same time: both are at fault, though they share no switch.

One power feed, one air duct, one batch of cables. What is asked of them keeps chance out: both show what no work that a
job has to do makes a machine show, from the same moment on, and nobody else does; or both differ in the same way, and
the time that both take explains what the job lost.
"""

from __future__ import annotations

from collections.abc import Sequence

from tocsin.pipeline.detect.peers.anomalies import JAM_METRICS
from tocsin.pipeline.job.graph import JobGraph
from tocsin.pipeline.rca.common import common_component, may_fail_together
from tocsin.pipeline.rca.job_progress import JobProgress
from tocsin.pipeline.rca.rules.deviations import (
    MachineRules,
    begin_ns,
    family_of,
    reported_metrics,
)
from tocsin.pipeline.rca.rules.timing import window_ns
from tocsin.schemas.verdicts import Anomaly

_Limit = tuple[str, str]
_CLOCK: _Limit = ("gpu_sm_clock_hertz", "low")
_JAM: _Limit = ("pfc_tx_packets_per_second", "high")
_BUS: _Limit = ("pcie_usage_ratio", "high")
"""Limits of a machine's own: a clock that is held down, a NIC that cannot hand on what it receives, a narrow bus."""
_LIMIT_SIGMAS = 1.0
"""In the last window, so that it is not over: pairs lay 1.5 to 39 sigmas out, their clocks 12 or more."""
_VICTIM_FACTOR = 5.0
"""Who is jammed because another one is had a twentieth of its pause frames; two that were at fault, half of them."""
_FAINT_SCORE = 0.5
"""Two windows of it."""
_OWN_SHARE_RATIO = 0.5
"""The slower of two explains all of what the job lost, the other one must be nearly as slow."""


def find_twins(
    graph: JobGraph,
    now_ns: int,
    anomalies: Sequence[Anomaly],
    seen: Sequence[Anomaly],
    pace: JobProgress,
    rules: MachineRules,
) -> list[Anomaly]:
    """The two that one kind of limit holds since the same moment, or that both take so much longer; [] = none.

    Args:
        graph: the job.
        now_ns: the slice's end.
        anomalies: those that may accuse.
        seen: all: where a third one shows a little of the same, something outside holds all of them.
        pace: the job's pace.
        rules: settings.
    """
    for limit in (_CLOCK, _JAM):
        held = [anomaly for anomaly in anomalies if _is_held(anomaly, limit)]
        begins = [since_ns for anomaly in held for since_ns in _held_since(anomaly, limit)]
        if not _are_twins(graph, held, begins, rules) or _is_shared(held, seen, limit):
            continue
        if limit == _CLOCK or not _are_congested(graph, held):
            return _by_name(held)
    slow = _slow_by_own_time(graph, now_ns, anomalies, pace, rules)
    return _by_name(slow) if _are_twins(graph, slow, [begin_ns(anomaly) for anomaly in slow], rules) else []


def _by_name(anomalies: Sequence[Anomaly]) -> list[Anomaly]:
    return sorted(anomalies, key=lambda anomaly: anomaly.component.name)


def _are_twins(graph: JobGraph, anomalies: Sequence[Anomaly], begins: Sequence[int], rules: MachineRules) -> bool:
    if not may_fail_together(graph, [anomaly.component.name for anomaly in anomalies]):
        return False
    near_ns = max(rules.first_by_ns, window_ns(graph, anomalies))
    firsts = [anomaly.start_ns for anomaly in anomalies]  # one of them may have paused since
    return min(max(times) - min(times) for times in (begins, firsts)) <= near_ns


def _slow_by_own_time(
    graph: JobGraph, now_ns: int, anomalies: Sequence[Anomaly], pace: JobProgress, rules: MachineRules
) -> list[Anomaly]:
    """Those that differ in the same way, and whose own time in the steps explains most of what the job lost.

    Not two of one replica: where timers hold what ranks wait for, one looks as slow as the one that it waits for.
    """
    if len(anomalies) < 2:
        return []
    onset_ns = min(begin_ns(anomaly) for anomaly in anomalies)
    slowdown = pace.slowdown_since(onset_ns - rules.before_onset_ns, now_ns)
    if slowdown is None or not slowdown.is_certain or slowdown.ratio == float("inf"):
        return []
    least_seconds = _OWN_SHARE_RATIO * (slowdown.step_seconds - slowdown.before_seconds)
    found = [a for a in anomalies if (pace.own_excess_seconds(a.component.name) or 0.0) >= least_seconds]
    ways = [_ways(anomaly) for anomaly in found]
    replicas = [_replicas_of(graph, anomaly.component.name) for anomaly in found]
    alike = bool(ways) and bool(set.intersection(*ways))
    return found if alike and not set.intersection(*replicas) else []


def _ways(anomaly: Anomaly) -> set[tuple[str, str]]:
    """In what it differs, but for being busier: two hot experts are."""
    return {
        (metric["metric"], metric["direction"])
        for metric in reported_metrics(anomaly)
        if metric["direction"] == "low" or family_of(metric) not in ("activity", "power")
    }


def _replicas_of(graph: JobGraph, host: str) -> set[int]:
    """The model replicas that a host works for; -1: nobody said which."""
    return {place.dp for place in graph.places.values() if place.host == host} or {-1}


def _is_shared(held: Sequence[Anomaly], seen: Sequence[Anomaly], limit: _Limit) -> bool:
    """Whether a third one shows some of what these show."""
    names = JAM_METRICS if limit == _JAM else {limit[0]}
    hosts = {anomaly.component.name for anomaly in held}
    return any(
        metric["metric"] in names and metric["direction"] == limit[1] and metric["score"] >= _FAINT_SCORE
        for anomaly in seen
        if anomaly.component.name not in hosts
        for metric in anomaly.detail["metrics"]
    )


def _are_congested(graph: JobGraph, jammed: Sequence[Anomaly]) -> bool:
    """Whether the network that they share may be why, or one of them: unless their buses are as full."""
    if all(_held_since(anomaly, _BUS) for anomaly in jammed):
        return False
    packets = [_value(anomaly, _JAM) for anomaly in jammed]
    is_victim = max(packets) > _VICTIM_FACTOR * min(packets)
    return is_victim or common_component(graph, {anomaly.component.name for anomaly in jammed}) is not None


def _value(anomaly: Anomaly, limit: _Limit) -> float:
    return max(
        float(m.get("value") or 0.0) for m in reported_metrics(anomaly) if (m["metric"], m["direction"]) == limit
    )


def _is_held(anomaly: Anomaly, limit: _Limit) -> bool:
    """Whether this limit speaks against it, and it is not that its GPUs have nothing to do, or more than others."""
    told = {
        (family_of(metric), metric["direction"]) for metric in reported_metrics(anomaly) if metric["metric"] != limit[0]
    }
    busy_or_idle = {("activity", "low"), ("power", "high")} & told
    return not busy_or_idle and bool(_held_since(anomaly, limit))


def _held_since(anomaly: Anomaly, limit: _Limit) -> list[int]:
    return [
        int(metric["since_ns"])
        for metric in reported_metrics(anomaly)
        if (metric["metric"], metric["direction"]) == limit and metric.get("sigmas", 0.0) >= _LIMIT_SIGMAS
    ]
