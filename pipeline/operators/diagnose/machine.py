"""A machine whose metrics differ from its peers': is it at fault?

A counter that deviates is no fault by itself: the job must suffer. With step records that means
slower steps since the deviation began; without them the deviation must last. Many machines at once
are no machine's fault, unless they share one component.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from tocsin.models.pace import Slowdown
from tocsin.pipeline.operators.diagnose.common import few_hosts
from tocsin.pipeline.operators.diagnose.pace import Pace
from tocsin.pipeline.operators.findings import Finding
from tocsin.pipeline.operators.graph import JobGraph
from tocsin.pipeline.operators.peers import DETECTOR
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
        cpu_lasting_ns: a CPU that alone differs must do so for so long: daemons run for 10 s; twice as
            long where no rank's own time shows that it matters.
        standing_ns: patience with machines that stand (an unannounced checkpoint).
        leaning_ns: who fell first fell within this before the others.
        sure_standing_ns: what is said of machines that stand is confirmed after this (or twice the patience).
        fresh_ns: what a machine showed longer ago confirms nothing.
        cleared_after_ns: a deviation that has not slowed the job after this is not why it is slower later.
        sure_ns: what the metrics alone say is confirmed when they have said it for so long.
        learned_factor: patience is at least this many times the longest such time that ended.
        max_patience_ns: learned patience ends here.
    """

    max_host_ratio: float = 0.125
    first_by_ns: int = 10 * NS_PER_SECOND
    lasting_ns: int = 40 * NS_PER_SECOND
    before_onset_ns: int = 5 * NS_PER_SECOND
    cpu_lasting_ns: int = 13 * NS_PER_SECOND
    standing_ns: int = 25 * NS_PER_SECOND
    leaning_ns: int = 10 * NS_PER_SECOND
    sure_standing_ns: int = 90 * NS_PER_SECOND
    fresh_ns: int = 15 * NS_PER_SECOND
    cleared_after_ns: int = 60 * NS_PER_SECOND
    sure_ns: int = 40 * NS_PER_SECOND
    learned_factor: float = 1.5
    max_patience_ns: int = 600 * NS_PER_SECOND


_FAMILIES: dict[str, str] = {
    "cpu_util_ratio": "cpu",
    "gpu_temperature_celsius": "temperature",
    "memory_used_ratio": "memory",
    "gpu_memory_used_bytes": "memory",
    "disk_used_ratio": "disk",
    "tcp_bytes_per_second": "tcp",
    "ecn_packets_per_second": "congestion",
    "cnp_packets_per_second": "congestion",
    "pfc_tx_packets_per_second": "link",
    "rdma_bytes_per_second": "link",
    "nvlink_bytes_per_second": "link",
    "pcie_bytes_per_second": "link",
    "pcie_usage_ratio": "link",
    "gpu_samples_ratio": "samples",
    "gpu_power_watts": "power",
    "gpu_sm_clock_hertz": "power",
}
"""Metrics that move together; all others of a GPU are "activity", a user's own is a family of its own."""
_SILENT_FAMILIES = frozenset({"temperature", "memory", "disk", "tcp", "congestion", "samples"})
"""They differ between healthy machines for many reasons: alone they accuse nobody."""
_OWN_SHARE_RATIO = 0.3
"""From this share of the steps' growth on, a machine's own time explains it."""


def _families(anomaly: Anomaly) -> set[str]:
    """Families of the metrics that are beyond their alarm line."""
    found = set()
    for metric in anomaly.detail["metrics"]:
        if metric["score"] >= 1.0:
            name = str(metric["metric"])
            found.add(_FAMILIES.get(name, "activity" if name.startswith("gpu_") else name))
    return found


@dataclass(slots=True)
class Cleared:
    """Deviations that were seen not to hurt: they are not why the job is slower later.

    Attributes:
        since_ns: host -> begin of the deviation that was cleared.
    """

    since_ns: dict[str, int] = field(default_factory=dict)

    def judge(self, anomalies: Sequence[Anomaly], now_ns: int, pace: Pace, rules: MachineRules) -> list[Anomaly]:
        """The anomalies that may still be why; the others are remembered until they end."""
        self.since_ns = {
            anomaly.component.name: self.since_ns[anomaly.component.name]
            for anomaly in anomalies
            if self.since_ns.get(anomaly.component.name) == anomaly.start_ns
        }
        for anomaly in anomalies:
            if now_ns - anomaly.start_ns < rules.cleared_after_ns or anomaly.component.name in self.since_ns:
                continue
            slowdown = pace.slowdown_since(anomaly.start_ns - rules.before_onset_ns, now_ns)
            if slowdown is not None and slowdown.is_gone:
                self.since_ns[anomaly.component.name] = anomaly.start_ns
        return [anomaly for anomaly in anomalies if anomaly.component.name not in self.since_ns]


def find_machine(  # what is known, and what is remembered
    graph: JobGraph, now_ns: int, anomalies: Sequence[Anomaly], pace: Pace, rules: MachineRules, cleared: Cleared
) -> tuple[list[Finding], list[Reason]]:
    """Explain the peer anomalies that hold now; reasons where one is not worth a verdict."""
    if pace.standing_since_ns:
        found, reasons = _stopped_alone(graph, now_ns, _since_standing(anomalies, pace, rules), pace, rules)
        return found, reasons
    telling = [anomaly for anomaly in anomalies if not anomaly.detail.get("leaning")]
    telling = [anomaly for anomaly in telling if _families(anomaly) - _SILENT_FAMILIES]
    if not telling:
        return [], [Reason.NO_IMPACT] if anomalies else []
    open_ones = cleared.judge(telling, now_ns, pace, rules)
    chosen = _single_out(graph, open_ones or telling, rules)
    if not chosen:
        return [], [Reason.AMBIGUOUS]
    onset_ns = min(anomaly.start_ns for anomaly in chosen)
    slowdown = pace.slowdown_since(onset_ns - rules.before_onset_ns, now_ns)
    if slowdown is None and now_ns - onset_ns < rules.lasting_ns:
        return [], [Reason.NOT_CONTINUOUS]
    hurts = slowdown is None or (slowdown.is_certain and _explains(chosen, slowdown, pace))
    hurts = hurts and bool(open_ones)
    weak = all(_families(anomaly) - _SILENT_FAMILIES == {"cpu"} for anomaly in chosen)
    shown = pace.own_excess_seconds(chosen[0].component.name) is not None
    lasting_ns = rules.cpu_lasting_ns if shown else 2 * rules.cpu_lasting_ns
    if hurts and weak and max(anomaly.end_ns for anomaly in chosen) - onset_ns < lasting_ns:
        return [], [Reason.NOT_CONTINUOUS]
    return [_finding(graph, chosen, onset_ns, slowdown, hurts=hurts, sure_ns=rules.sure_ns)], []


def _explains(chosen: Sequence[Anomaly], slowdown: Slowdown, pace: Pace) -> bool:
    """Whether what these hosts show can be why the steps are slower: their own time, or a link of theirs."""
    if slowdown.ratio == float("inf") or any("link" in _families(anomaly) for anomaly in chosen):
        return True
    excesses = [pace.own_excess_seconds(anomaly.component.name) for anomaly in chosen]
    known = [excess for excess in excesses if excess is not None]
    growth = slowdown.step_seconds - slowdown.before_seconds
    return not known or max(known) >= _OWN_SHARE_RATIO * growth


def _since_standing(anomalies: Sequence[Anomaly], pace: Pace, rules: MachineRules) -> list[Anomaly]:
    """One anomaly per host of what differs since the standstill began: what begins later is not why it began."""
    since_ns = pace.standing_since_ns
    standing, working, leaning = [], [], []
    for anomaly in anomalies:
        near = abs(anomaly.start_ns - since_ns) <= rules.standing_ns
        if anomaly.detail.get("standing"):
            if anomaly.start_ns <= since_ns + rules.standing_ns:
                standing.append(anomaly)
        elif anomaly.detail.get("leaning"):
            if 0 <= since_ns - anomaly.start_ns <= rules.leaning_ns:
                leaning.append(anomaly)
        elif near and _families(anomaly) - _SILENT_FAMILIES:
            working.append(anomaly)
    named = {anomaly.component.name: anomaly for anomaly in (*working, *standing)}
    return list(named.values()) or leaning


def still_standing(pace: Pace, now_ns: int) -> Finding:
    """The machines stand: whoever was named for it stays named."""
    since_ns = pace.standing_since_ns
    text = f"the machines do no work for {(now_ns - since_ns) / 1e9:.0f} s"
    evidence = Evidence("peers", "work", 1.0, since_ns, now_ns, text)
    reason = Reason.JOB_STALLED_UNEXPLAINED
    return Finding(FaultKind.HANG, "unknown", (), since_ns, 0.5, reason, (evidence,), only_holds=True)


def _lost_gpu(anomaly: Anomaly) -> bool:
    return any(metric["metric"] == "gpu_samples_ratio" for metric in anomaly.detail["metrics"])


def explain_by_metrics(findings: Sequence[Finding], anomalies: Sequence[Anomaly]) -> list[Finding]:
    """A process that ended on a machine whose GPU gives no samples any more: the card dropped."""
    lost = {anomaly.component.name for anomaly in anomalies if anomaly.detector == DETECTOR and _lost_gpu(anomaly)}
    return [
        replace(finding, cause="gpu_card_drop")
        if finding.cause == "process_exit" and [s.component.name for s in finding.suspects if s.component.name in lost]
        else finding
        for finding in findings
    ]


def _stopped_alone(
    graph: JobGraph, now_ns: int, anomalies: Sequence[Anomaly], pace: Pace, rules: MachineRules
) -> tuple[list[Finding], list[Reason]]:
    """The machines stand, and one of them is not where the others are."""
    since_ns = pace.standing_since_ns
    patience_ns = max(rules.standing_ns, int(rules.learned_factor * pace.longest_standing_ns))
    patience_ns = min(patience_ns, rules.max_patience_ns)
    if not since_ns or now_ns - since_ns < patience_ns:
        return [], [Reason.WITHIN_PATIENCE]
    stands_ns = now_ns - since_ns
    chosen = _single_out(graph, anomalies, rules) if anomalies else []
    if len(chosen) != 1:
        return [], [Reason.AMBIGUOUS]
    metrics = chosen[0].detail["metrics"]
    stands = still_standing(pace, now_ns).evidence
    evidence = (*(_evidence(chosen[0], metric) for metric in metrics[:_SHOWN_METRICS]), *stands)
    finding = Finding(
        FaultKind.HANG,
        "gpu_card_drop" if _lost_gpu(chosen[0]) else "unknown",
        (Suspect(chosen[0].component),),
        since_ns,
        0.75,
        Reason.DIFFERS_WHILE_JOB_STANDS,
        evidence,
        tentative=stands_ns < max(rules.sure_standing_ns, 2 * patience_ns)
        or now_ns - chosen[0].end_ns > rules.fresh_ns,
    )
    return [finding], []


def _single_out(graph: JobGraph, anomalies: Sequence[Anomaly], rules: MachineRules) -> list[Anomaly]:
    """Whom the anomalies name: one host, or the few that share a switch; [] = nobody in particular."""
    few = few_hosts(graph, rules.max_host_ratio)
    ordered = sorted(anomalies, key=lambda anomaly: (anomaly.start_ns, anomaly.component.name))
    if len(ordered) == 1:
        return ordered
    strongest = sorted(anomalies, key=lambda anomaly: -_strength(anomaly))
    if _strength(strongest[0]) >= 2 * _strength(strongest[1]):
        return [strongest[0]]
    if len(ordered) == 2 and ordered[1].start_ns - ordered[0].start_ns >= rules.first_by_ns:  # a pair
        return [ordered[0]]
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


def _finding(
    graph: JobGraph, chosen: Sequence[Anomaly], onset_ns: int, slowdown: Slowdown | None, *, hurts: bool, sure_ns: int
) -> Finding:
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
        tentative=max(anomaly.end_ns for anomaly in chosen) - onset_ns < sure_ns,
        is_harmless=slowdown is not None and slowdown.is_gone,
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
    """The cause that the pattern of deviating metrics tells, ``unknown`` where it tells none.

    PFC frames are sent by a host that cannot take what it receives (its PCIe is the bottleneck: Minder,
    section 2); marks and notifications of congestion rise where packets are repeated.
    """
    seen = {(str(metric["metric"]), str(metric["direction"])) for metric in metrics}
    for cause, wanted, unwanted in _PATTERNS:
        if wanted <= seen and not unwanted & seen:
            return cause
    return "unknown"


_TEMPERATURE, _CLOCK = ("gpu_temperature_celsius", "high"), ("gpu_sm_clock_hertz", "low")
_PFC, _ECN = ("pfc_tx_packets_per_second", "high"), ("ecn_packets_per_second", "high")
_CNP, _RDMA = ("cnp_packets_per_second", "high"), ("rdma_bytes_per_second", "low")
_PCIE_USAGE, _PCIE = ("pcie_usage_ratio", "high"), ("pcie_bytes_per_second", "low")
_NVLINK, _CPU = ("nvlink_bytes_per_second", "low"), ("cpu_util_ratio", "high")
_Pattern = frozenset[tuple[str, str]]
_PATTERNS: tuple[tuple[str, _Pattern, _Pattern], ...] = (
    ("thermal_throttle", frozenset({_TEMPERATURE, _CLOCK}), frozenset()),
    ("power_cap", frozenset({_CLOCK}), frozenset({_TEMPERATURE, _CPU})),
    ("pcie_downgrade", frozenset({_PFC, _PCIE_USAGE}), frozenset()),
    ("pcie_downgrade", frozenset({_PFC, _PCIE}), frozenset({_CNP})),
    ("pcie_downgrade", frozenset({_PCIE_USAGE}), frozenset({_CPU})),
    ("aoc_error", frozenset({_PFC, _CNP}), frozenset()),
    ("aoc_error", frozenset({_ECN, _RDMA}), frozenset()),
    ("aoc_error", frozenset({_CNP, _RDMA}), frozenset()),
    ("pcie_downgrade", frozenset({_PFC}), frozenset({_ECN, _CNP, _CPU})),
    ("nvlink_error", frozenset({_NVLINK}), frozenset({_PFC, _RDMA, _CPU, _CLOCK})),
    ("cpu_contention", frozenset({_CPU}), frozenset({_PFC, _CLOCK, _TEMPERATURE})),
)
"""(cause, deviations that must be there, deviations that must not), the most telling first."""


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
