"""A machine whose metrics differ from its peers': is it at fault?

A counter that deviates is no fault by itself: the job must suffer. With step records that means
slower steps since the deviation began; without them the deviation must last. Many machines at once
are no machine's fault, unless they share one component.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

from tocsin.models.steps import Slowdown
from tocsin.pipeline.operators.diagnose.pace import Pace
from tocsin.pipeline.operators.findings import Finding
from tocsin.pipeline.operators.graph import JobGraph
from tocsin.schemas.reasons import Reason
from tocsin.schemas.records import NS_PER_SECOND
from tocsin.schemas.verdicts import Anomaly, Component, ComponentKind, Evidence, FaultKind, Suspect

_SHOWN_METRICS = 6


@dataclass(frozen=True, slots=True)
class MachineRules:
    """Settings.

    Attributes:
        max_host_ratio: more hosts that differ together (of 16: two) are no machine's fault.
        first_by_ns: of two that differ, the first is suspected when it was first by this.
        lasting_ns: without step records the deviation must last so long.
        before_onset_ns: steps may have become slower this long before the metrics showed it (a
            metric slice).
    """

    max_host_ratio: float = 0.125
    first_by_ns: int = 10 * NS_PER_SECOND
    lasting_ns: int = 40 * NS_PER_SECOND
    before_onset_ns: int = 5 * NS_PER_SECOND


def find_machine(
    graph: JobGraph, now_ns: int, anomalies: Sequence[Anomaly], pace: Pace, rules: MachineRules
) -> tuple[list[Finding], list[Reason]]:
    """Explain the peer anomalies that hold now; reasons where one is not worth a verdict."""
    if not anomalies:
        return [], []
    chosen = _single_out(graph, anomalies, rules)
    if not chosen:
        return [], [Reason.AMBIGUOUS]
    onset_ns = min(anomaly.start_ns for anomaly in chosen)
    slowdown = pace.slowdown_since(onset_ns - rules.before_onset_ns, now_ns)
    if slowdown is None and now_ns - onset_ns < rules.lasting_ns:
        return [], [Reason.NOT_CONTINUOUS]
    return [_finding(graph, chosen, onset_ns, slowdown)], []


def _single_out(graph: JobGraph, anomalies: Sequence[Anomaly], rules: MachineRules) -> list[Anomaly]:
    """Whom the anomalies name: one host, or the few that share a switch; [] = nobody in particular."""
    few = max(1, int(rules.max_host_ratio * len(graph.hosts)))
    ordered = sorted(anomalies, key=lambda anomaly: (anomaly.start_ns, anomaly.component.name))
    if len(ordered) == 1:
        return ordered
    first, second = ordered[0], ordered[1]
    if second.start_ns - first.start_ns >= rules.first_by_ns:
        return [first]
    strongest = sorted(anomalies, key=lambda anomaly: -_strength(anomaly))
    if _strength(strongest[0]) >= 2 * _strength(strongest[1]):
        return [strongest[0]]
    if len(ordered) <= few and _common_leaf(graph, ordered) is not None:
        return ordered
    return []


def _strength(anomaly: Anomaly) -> float:
    """How far the metrics of an anomaly lie out, all together."""
    return float(sum(metric.get("sigmas", 0.0) for metric in anomaly.detail["metrics"])) + anomaly.score


def _common_leaf(graph: JobGraph, anomalies: Sequence[Anomaly]) -> Component | None:
    hosts = {anomaly.component.name for anomaly in anomalies}
    leaves = {place.leaf for place in graph.places.values() if place.host in hosts}
    leaf = leaves.pop() if len(leaves) == 1 else ""
    return Component(ComponentKind.LEAF, leaf) if leaf else None


def _finding(graph: JobGraph, chosen: Sequence[Anomaly], onset_ns: int, slowdown: Slowdown | None) -> Finding:
    hurts = slowdown is None or slowdown.is_certain
    metrics = [metric for anomaly in chosen for metric in anomaly.detail["metrics"]]
    suspects = [Suspect(anomaly.component) for anomaly in chosen]
    evidence = [_evidence(anomaly, metric) for anomaly in chosen for metric in anomaly.detail["metrics"]]
    if slowdown is not None:
        evidence.append(_pace_evidence(slowdown, onset_ns, chosen[0].end_ns))
    if slowdown is None:
        reason, confidence = Reason.METRICS_DIFFER, 0.7
    elif hurts:
        reason, confidence = Reason.METRICS_DIFFER_STEPS_SLOWER, 0.85
    else:
        reason, confidence = Reason.NO_IMPACT, 0.6
    return Finding(
        FaultKind.FAIL_SLOW if hurts else FaultKind.DEGRADED,
        cause_of_metrics(metrics),
        tuple(suspects),
        onset_ns,
        confidence,
        reason,
        tuple(evidence[:_SHOWN_METRICS] + evidence[-1:] if len(evidence) > _SHOWN_METRICS else evidence),
        common=_common_leaf(graph, chosen) if len(chosen) > 1 else None,
        seen_ns=max(anomaly.end_ns for anomaly in chosen),
    )


def _evidence(anomaly: Anomaly, metric: dict[str, Any]) -> Evidence:
    name = str(metric["metric"])
    value, expected = metric.get("value"), metric.get("expected")
    numbers = "" if value is None or expected is None else f": {value:.4g} where {expected:.4g} is expected"
    return Evidence(
        anomaly.detector,
        name,
        float(metric["score"]),
        int(metric["since_ns"]),
        anomaly.end_ns,
        f"{anomaly.component.name}: {name} is {metric['direction']}{numbers}",
        suspect_value=value,
        peer_value=expected,
    )


def _pace_evidence(slowdown: Slowdown, onset_ns: int, end_ns: int) -> Evidence:
    if slowdown.ratio == float("inf"):
        text = f"no step has ended in time since (usually {slowdown.before_seconds:.3g} s each)"
        return Evidence("steps", "step_seconds", 2.0, onset_ns, end_ns, text, peer_value=slowdown.before_seconds)
    text = f"the job's steps take {slowdown.step_seconds:.3g} s since then, before {slowdown.before_seconds:.3g} s"
    score = 1.0 + max(0.0, slowdown.ratio) if slowdown.is_certain else max(0.0, min(0.99, slowdown.ratio))
    return Evidence(
        "steps",
        "step_seconds",
        score,
        onset_ns,
        end_ns,
        text,
        suspect_value=slowdown.step_seconds,
        peer_value=slowdown.before_seconds,
    )


def cause_of_metrics(metrics: Sequence[dict[str, Any]]) -> str:
    """The cause that the pattern of deviating metrics tells, ``unknown`` where it tells none."""
    seen = {(str(metric["metric"]), str(metric["direction"])) for metric in metrics}
    if ("gpu_temperature_celsius", "high") in seen and ("gpu_sm_clock_hertz", "low") in seen:
        return "thermal_throttle"
    if ("gpu_sm_clock_hertz", "low") in seen and ("gpu_power_watts", "low") in seen:
        return "power_cap"
    if ("pfc_tx_packets_per_second", "high") in seen and (
        ("pcie_bytes_per_second", "low") in seen or ("pcie_usage_ratio", "high") in seen
    ):
        return "pcie_downgrade"
    if seen == {("cpu_util_ratio", "high")}:
        return "cpu_contention"
    return "unknown"


def join(slow: Sequence[Finding], machine: Sequence[Finding]) -> list[Finding]:
    """Steps say whom the others wait for: where they name a host, the metrics only add why.

    What the steps lay to the data, the loaders or the workload is no machine's fault, whatever
    its metrics show; where they only see that the job is slower, the metrics may name who.
    """
    if not slow:
        return list(machine)
    if not machine:
        return list(slow)
    named = [finding for finding in slow if finding.suspects]
    if not named:
        explained = [finding for finding in slow if finding.cause != "unknown"]
        return explained or list(machine)
    joined = []
    for finding in named:
        same = [m for m in machine if m.suspects and m.suspects[0].component == finding.suspects[0].component]
        if same and finding.fault is FaultKind.FAIL_SLOW:
            cause = finding.cause if finding.cause != "unknown" else same[0].cause
            confidence = min(0.98, finding.confidence + 0.1)
            evidence = (*finding.evidence, *same[0].evidence)[: _SHOWN_METRICS + 2]
            joined.append(replace(finding, cause=cause, confidence=confidence, evidence=evidence))
        else:
            joined.append(finding)
    return joined
