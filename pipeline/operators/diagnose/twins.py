"""Two machines of one job that fail alike at the same time: both are at fault, though they share no switch.

One power feed, one air duct, one batch of cables. What is asked of them keeps chance out: both show what no work that a
job has to do makes a machine show, from the same moment on, and nobody else does.
"""

from __future__ import annotations

from collections.abc import Sequence

from tocsin.pipeline.operators.diagnose.common import can_be_twins, common_component
from tocsin.pipeline.operators.diagnose.deviations import MachineRules, family_of, told_by
from tocsin.pipeline.operators.diagnose.timing import window_ns
from tocsin.pipeline.operators.graph import JobGraph
from tocsin.schemas.verdicts import Anomaly

_Limit = tuple[str, str]
_CLOCK: _Limit = ("gpu_sm_clock_hertz", "low")
_JAM: _Limit = ("pfc_tx_packets_per_second", "high")
_BUS: _Limit = ("pcie_usage_ratio", "high")
"""Limits of a machine's own: a clock that is held down, a NIC that cannot hand on what it receives, a narrow bus."""
_LIMIT_SIGMAS = 1.0
"""In the last window, so that it is not over: pairs lay 1.5 to 39 sigmas out, their clocks 12 or more."""


def find_twins(graph: JobGraph, anomalies: Sequence[Anomaly], rules: MachineRules) -> list[Anomaly]:
    """The two that one kind of limit holds since the same moment; [] = there are none."""
    for limit in (_CLOCK, _JAM):
        held = [anomaly for anomaly in anomalies if _is_held(anomaly, limit)]
        if not can_be_twins(graph, [anomaly.component.name for anomaly in held]):
            continue
        begins = [since_ns for anomaly in held for since_ns in _held_since(anomaly, limit)]
        if max(begins) - min(begins) > max(rules.first_by_ns, window_ns(graph, held)):
            continue
        if limit == _CLOCK or not _are_congested(graph, held):
            return sorted(held, key=lambda anomaly: anomaly.component.name)
    return []


def _are_congested(graph: JobGraph, jammed: Sequence[Anomaly]) -> bool:
    """Whether the network that they share may be why they are jammed: unless their buses are as full."""
    shared = common_component(graph, {anomaly.component.name for anomaly in jammed})
    return shared is not None and not all(_held_since(anomaly, _BUS) for anomaly in jammed)


def _is_held(anomaly: Anomaly, limit: _Limit) -> bool:
    """Whether this limit speaks against it, and it is not that its GPUs have nothing to do, or more than others."""
    told = {(family_of(metric), metric["direction"]) for metric in told_by(anomaly) if metric["metric"] != limit[0]}
    busy_or_idle = {("activity", "low"), ("power", "high")} & told
    return not busy_or_idle and bool(_held_since(anomaly, limit))


def _held_since(anomaly: Anomaly, limit: _Limit) -> list[int]:
    return [
        int(metric["since_ns"])
        for metric in told_by(anomaly)
        if (metric["metric"], metric["direction"]) == limit and metric.get("sigmas", 0.0) >= _LIMIT_SIGMAS
    ]
