"""Concurrent failures: two machines of one job that fail alike at the same time without sharing a switch.

They may share a power feed, an air duct or a batch of cables. To rule out chance, both must show the same hardware
limit from the same moment on, and no third machine may show it. Alternatively both deviate in the same way, and their
self time explains the job's loss.
"""

from __future__ import annotations

from collections.abc import Sequence

from tocsin.pipeline.detect.peers.anomalies import CONGESTION_METRICS
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
"""A metric and the direction in which it deviates at a hardware limit."""
_CLOCK: _Limit = ("gpu_sm_clock_hertz", "low")
_PFC: _Limit = ("pfc_tx_packets_per_second", "high")
_BUS: _Limit = ("pcie_usage_ratio", "high")
"""The three limits of a machine's own hardware, as (metric, direction): a low GPU clock, a NIC that cannot pass on what
it receives, and a full PCIe bus."""
_LIMIT_SIGMAS = 1.0
"""Least deviation in the last window, in standard deviations, so that the limit still holds. Faulty pairs showed 1.5 to
39, their clocks 12 or more."""
_VICTIM_FACTOR = 5.0
"""Ratio of pause frames above which one host of two is the victim of the other. A victim had a twentieth of the frames;
two hosts at fault differed by at most two."""
_FAINT_SCORE = 0.5
"""Anomaly score, as a share of the alarm threshold, that about two windows add up to."""
_SELF_TIME_SHARE_RATIO = 0.5
"""Least share of the steps' growth that the self time of each host of a pair must explain."""


def find_concurrent_failures(
    graph: JobGraph,
    now_ns: int,
    anomalies: Sequence[Anomaly],
    seen: Sequence[Anomaly],
    pace: JobProgress,
    rules: MachineRules,
) -> list[Anomaly]:
    """Return the anomalies of two machines that fail alike at the same time, by host name; [] if there are none.

    Args:
        graph: the job's ranks and hosts.
        now_ns: end of the slice.
        anomalies: anomalies that may accuse a machine.
        seen: all anomalies; a third machine with a little of the same deviation shows an outside cause.
        pace: the job's step times and work.
        rules: thresholds.
    """
    for limit in (_CLOCK, _PFC):
        limited = [anomaly for anomaly in anomalies if _is_limited(anomaly, limit)]
        begins = [since_ns for anomaly in limited for since_ns in _limited_since(anomaly, limit)]
        if not _are_pair(graph, limited, begins, rules) or _is_shared(limited, seen, limit):
            continue
        if limit == _CLOCK or not _are_congested(graph, limited):
            return _by_name(limited)
    slow = _slow_by_self_time(graph, now_ns, anomalies, pace, rules)
    return _by_name(slow) if _are_pair(graph, slow, [begin_ns(anomaly) for anomaly in slow], rules) else []


def _by_name(anomalies: Sequence[Anomaly]) -> list[Anomaly]:
    """Return the anomalies ordered by host name."""
    return sorted(anomalies, key=lambda anomaly: anomaly.component.name)


def _are_pair(graph: JobGraph, anomalies: Sequence[Anomaly], begins: Sequence[int], rules: MachineRules) -> bool:
    """Return whether the anomalies are of two hosts that may fail together, and began within 10 s or one window."""
    if not may_fail_together(graph, [anomaly.component.name for anomaly in anomalies]):
        return False
    near_ns = max(rules.first_by_ns, window_ns(graph, anomalies))
    firsts = [anomaly.start_ns for anomaly in anomalies]  # one of them may have paused since
    return min(max(times) - min(times) for times in (begins, firsts)) <= near_ns


def _slow_by_self_time(
    graph: JobGraph, now_ns: int, anomalies: Sequence[Anomaly], pace: JobProgress, rules: MachineRules
) -> list[Anomaly]:
    """Return the anomalies of hosts that deviate alike and whose self time each explains half of the steps' growth.

    [] where they serve the same replica: timers that include waiting make a rank seem as slow as the one it waits for.
    """
    if len(anomalies) < 2:
        return []
    onset_ns = min(begin_ns(anomaly) for anomaly in anomalies)
    slowdown = pace.slowdown_since(onset_ns - rules.before_onset_ns, now_ns)
    if slowdown is None or not slowdown.is_certain or slowdown.ratio == float("inf"):
        return []
    least_seconds = _SELF_TIME_SHARE_RATIO * (slowdown.step_seconds - slowdown.before_seconds)
    found = [a for a in anomalies if (pace.self_time_excess_seconds(a.component.name) or 0.0) >= least_seconds]
    deviations = [_deviations_of(anomaly) for anomaly in found]
    replicas = [_replicas_of(graph, anomaly.component.name) for anomaly in found]
    are_alike = bool(deviations) and bool(set.intersection(*deviations))
    return found if are_alike and not set.intersection(*replicas) else []


def _deviations_of(anomaly: Anomaly) -> set[tuple[str, str]]:
    """Return the (metric, direction) pairs of an anomaly that alarm, without busier GPUs and higher power.

    Two machines with hot experts are both busier, and healthy.
    """
    return {
        (metric["metric"], metric["direction"])
        for metric in reported_metrics(anomaly)
        if metric["direction"] == "low" or family_of(metric) not in ("activity", "power")
    }


def _replicas_of(graph: JobGraph, host: str) -> set[int]:
    """Return the data-parallel indices of the model replicas that a host serves; {-1} if unknown."""
    return {place.dp for place in graph.places.values() if place.host == host} or {-1}


def _is_shared(limited: Sequence[Anomaly], seen: Sequence[Anomaly], limit: _Limit) -> bool:
    """Return whether a third host shows some of the same limit."""
    names = CONGESTION_METRICS if limit == _PFC else {limit[0]}
    hosts = {anomaly.component.name for anomaly in limited}
    return any(
        metric["metric"] in names and metric["direction"] == limit[1] and metric["score"] >= _FAINT_SCORE
        for anomaly in seen
        if anomaly.component.name not in hosts
        for metric in anomaly.detail["metrics"]
    )


def _are_congested(graph: JobGraph, limited: Sequence[Anomaly]) -> bool:
    """Return whether shared network congestion, or congestion by one of the two, explains the pause frames of both.

    False where the PCIe buses of both are full: then each host is its own bottleneck.
    """
    if all(_limited_since(anomaly, _BUS) for anomaly in limited):
        return False
    packets = [_value(anomaly, _PFC) for anomaly in limited]
    is_victim = max(packets) > _VICTIM_FACTOR * min(packets)
    return is_victim or common_component(graph, {anomaly.component.name for anomaly in limited}) is not None


def _value(anomaly: Anomaly, limit: _Limit) -> float:
    """Return the largest value among alarming metrics that show this limit; the anomaly must have one."""
    return max(
        float(m.get("value") or 0.0) for m in reported_metrics(anomaly) if (m["metric"], m["direction"]) == limit
    )


def _is_limited(anomaly: Anomaly, limit: _Limit) -> bool:
    """Return whether this limit alarms on a host, and its GPUs are neither less active nor drawing more power."""
    others = {
        (family_of(metric), metric["direction"]) for metric in reported_metrics(anomaly) if metric["metric"] != limit[0]
    }
    busy_or_idle = {("activity", "low"), ("power", "high")} & others
    return not busy_or_idle and bool(_limited_since(anomaly, limit))


def _limited_since(anomaly: Anomaly, limit: _Limit) -> list[int]:
    """Return the times in nanoseconds since when this limit alarms; [] if it does not deviate in the last window."""
    return [
        int(metric["since_ns"])
        for metric in reported_metrics(anomaly)
        if (metric["metric"], metric["direction"]) == limit and metric.get("sigmas", 0.0) >= _LIMIT_SIGMAS
    ]
