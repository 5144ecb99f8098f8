"""Explains step anomalies: a slow machine, a slow data loader, or a slowdown that no machine causes."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from tocsin.pipeline.job.graph import JobGraph
from tocsin.pipeline.rca.common import (
    common_component,
    few_hosts,
    gpus_of,
    names_of,
    suspects_of,
)
from tocsin.pipeline.rca.costs import longer_by_ratio
from tocsin.pipeline.rca.finding import Finding
from tocsin.pipeline.rca.job_progress import JobProgress
from tocsin.pipeline.rca.rules.deviations import (
    SILENT_FAMILIES,
    families,
)
from tocsin.pipeline.rca.rules.timing import TELLING_WINDOWS, longest_window_ns
from tocsin.schemas.reasons import Reason
from tocsin.schemas.records import NS_PER_SECOND
from tocsin.schemas.verdicts import Anomaly, Component, ComponentKind, Evidence, FaultKind

_TOGETHER_NS = 8 * NS_PER_SECOND
"""Hosts that became slow within this time, or three steps if that is longer, are slow together.

An onset is not known more exactly than that.
"""
_LONE_PHASE_RATIO = 0.8
"""From this share of an excess in the forward pass on, it is software jitter such as garbage collection.

Garbage collection lengthens only the forward pass: the backward pass is launched from C++ (What-if, OSDI'25).
"""


@dataclass(frozen=True, slots=True)
class SlowRules:
    """Settings.

    Attributes:
        loader_share_ratio: from this share of the excess on, waiting for data explains it.
        shared_data_ratio: from this share of the steps' growth on, waiting for data excludes machines that are only
            busier than others. Nearly all ranks wait longer for data, and then for the last of them.
        from_start_strength_ratio: a smaller excess that was there from the start is ``degraded``.
        stop_window_ns: a process that makes steps and was seen stopped within this time lacks CPU time.
        max_host_ratio: when more than this share of the hosts are slow together (two of 16), no machine is at fault.
        explained_for_ns: time after which a job-wide slowdown gets no cause from the ranks' own time any more. The
            work of the machines before it, which tells whether ranks wait, is kept for a quarter of an hour.
        nobody_lasting_ns: time after which a job-wide slowdown without a known reason is a finding.
    """

    loader_share_ratio: float = 0.6
    shared_data_ratio: float = 0.3
    from_start_strength_ratio: float = 0.5
    stop_window_ns: int = 15 * NS_PER_SECOND
    max_host_ratio: float = 0.125
    explained_for_ns: int = 600 * NS_PER_SECOND
    nobody_lasting_ns: int = 30 * NS_PER_SECOND

    def tells_own(self, lasting_ns: int, own_ratio: float) -> bool:
        """Return whether the ranks' own time explains a slowdown, by its age and the share of the growth."""
        return own_ratio >= self.loader_share_ratio and self.nobody_lasting_ns <= lasting_ns < self.explained_for_ns


def find_slow_findings(
    graph: JobGraph, now_ns: int, anomalies: Sequence[Anomaly], pace: JobProgress, rules: SlowRules
) -> tuple[list[Finding], list[Reason]]:
    """Return findings that explain the step anomalies of one slice, and reasons where one is no finding.

    Args:
        graph: the job.
        now_ns: the slice's end.
        anomalies: the step anomalies.
        pace: the job's progress.
        rules: settings.
    """
    hosts = [a for a in anomalies if a.component.kind is ComponentKind.HOST and a.metric == "own_seconds"]
    if hosts:
        return [_slow_hosts(graph, now_ns, together, rules) for together in _together(hosts, pace.median_step_ns)], []
    rotating = [anomaly for anomaly in anomalies if anomaly.metric == "rotating_seconds"]
    if rotating:
        return [_rotating(graph, rotating)], []
    findings: list[Finding] = []
    reasons: list[Reason] = []
    for anomaly in anomalies:
        if anomaly.metric != "step_seconds":
            continue
        finding = _slow_job(anomaly, rules, they_wait=pace.self_time_holds_waits)
        if finding is None:
            reasons.append(Reason.WITHIN_PATIENCE)
        else:
            findings.append(finding)
    return findings, reasons


def tells_later(anomalies: Sequence[Anomaly], rules: SlowRules) -> bool:
    """Return whether the job's steps are longer for too short a time to tell why, and no host stands out."""
    lasting_ns = [a.end_ns - a.start_ns for a in anomalies if a.metric == "step_seconds"]
    named = any(a.metric == "own_seconds" and a.component.kind is ComponentKind.HOST for a in anomalies)
    return bool(lasting_ns) and not named and min(lasting_ns) < rules.nobody_lasting_ns


def _together(anomalies: Sequence[Anomaly], step_ns: int) -> list[list[Anomaly]]:
    """Return slow hosts in groups, the earliest group first, the slowest host of each group first.

    A group holds the hosts that became slow within 8 s of its first one, or within three steps if that is longer: one
    cause makes them slow, such as a switch, or a rank that the others wait for within the time that their timers
    measure. A host that becomes slow later begins the next group.

    Args:
        anomalies: of hosts.
        step_ns: the job's usual step, 0: not known.
    """
    found: list[list[Anomaly]] = []
    for anomaly in sorted(anomalies, key=lambda anomaly: (anomaly.start_ns, anomaly.component.name)):
        if found and anomaly.start_ns - found[-1][0].start_ns <= max(_TOGETHER_NS, 3 * step_ns):
            found[-1].append(anomaly)
        else:
            found.append([anomaly])
    return [sorted(ones, key=lambda one: (-one.detail["excess_seconds"], one.component.name)) for ones in found]


def can_be_at_fault(graph: JobGraph, finding: Finding, rules: SlowRules) -> bool:
    """Return whether the hosts of a finding can be slow together: few, or on one switch, and in different pipelines."""
    if finding.reason not in (Reason.SAME_RANK_SLOWEST, Reason.OWN_LOADER_SLOW) or len(finding.suspects) < 2:
        return True
    few = finding.common is not None or len(finding.suspects) <= few_hosts(graph, rules.max_host_ratio)
    return few and not _are_one_pipeline(graph, [rank for suspect in finding.suspects for rank in suspect.ranks])


def _are_one_pipeline(graph: JobGraph, ranks: Sequence[int]) -> bool:
    """Return whether two of these ranks are stages of one pipeline.

    Then one of them is slow, and the other waits for it within the time that its timers measure as its own.
    """
    stages: dict[tuple[int, int], set[int]] = {}
    for place in (graph.places[rank] for rank in ranks if rank in graph.places):
        stages.setdefault((place.dp, place.tp), set()).add(place.pp)
    return any(len(found) > 1 for found in stages.values())


def filter_shared_data(steps: Sequence[Anomaly], peers: Sequence[Anomaly], rules: SlowRules) -> list[Anomaly]:
    """Return the machines' anomalies; in a job that waits for data without machines that are only busier or idler.

    Args:
        steps: step anomalies.
        peers: anomalies of the machines' metrics.
        rules: settings.
    """
    shares = [anomaly.detail["data_ratio"] for anomaly in steps if anomaly.metric == "step_seconds"]
    if max(shares, default=0.0) < rules.shared_data_ratio:
        return list(peers)
    return [anomaly for anomaly in peers if families(anomaly) - SILENT_FAMILIES != {"activity"}]


def _rotating(graph: JobGraph, anomalies: Sequence[Anomaly]) -> Finding:
    """Return a finding about hosts that are slow in turn, by the first of their anomalies.

    Where forward and backward pass grow together the data is uneven; where only the forward pass grows it is jitter of
    the program. Hosts whose slowness passed on to others are not at fault.
    """
    anomaly = anomalies[0]
    detail = anomaly.detail
    passed_on = sorted({host for one in anomalies for host in one.detail["passed_on"]})
    lone_forward = detail["phase"] == "forward" and detail["phase_share_ratio"] >= _LONE_PHASE_RATIO
    cause = "software_jitter" if lone_forward else "data_imbalance"
    before = ", ".join(detail["before"][:5])
    text = (
        f"the slowest is another one than before ({before}): now {names_of(graph, detail['ranks'])}, "
        f"{detail['own_seconds'] * 1e3:.0f} ms of its own a step, its peers {detail['peer_seconds'] * 1e3:.0f} ms"
    )
    evidence = Evidence(
        anomaly.detector,
        "own_seconds",
        anomaly.score,
        anomaly.start_ns,
        anomaly.end_ns,
        text,
        suspect_value=float(detail["own_seconds"]),
        peer_value=float(detail["peer_seconds"]),
        model_version=anomaly.model_version,
    )
    return Finding(
        FaultKind.FAIL_SLOW,
        cause,
        (),
        anomaly.start_ns,
        0.7,
        Reason.SLOWEST_RANK_CHANGES,
        (evidence,),
        seen_ns=anomaly.end_ns,
        passed_on=tuple(Component(ComponentKind.HOST, host) for host in passed_on),
        costs_ratio=longer_by_ratio(anomaly),
    )


def _slow_hosts(graph: JobGraph, now_ns: int, anomalies: Sequence[Anomaly], rules: SlowRules) -> Finding:
    """Return a finding about hosts that are slow together, by the anomaly of the slowest of them (the first)."""
    anomaly = anomalies[0]
    detail = anomaly.detail
    ranks = tuple(sorted(rank for one in anomalies for rank in one.detail["ranks"]))
    phase, share = str(detail["phase"]), float(detail["phase_share_ratio"])
    stopped = _stopped_ratio(graph, ranks, now_ns, rules)
    cause, reason = "unknown", Reason.SAME_RANK_SLOWEST
    if stopped is not None:
        cause = "cpu_contention"
    elif phase == "data" and share >= rules.loader_share_ratio:
        cause, reason = "loader_stall", Reason.OWN_LOADER_SLOW
    # What was always a little slower may be how the work is split: said, but no accusation.
    weak = detail["from_start"] and detail["strength_ratio"] < rules.from_start_strength_ratio
    suspects = suspects_of(graph, ranks)
    return Finding(
        FaultKind.DEGRADED if weak else FaultKind.FAIL_SLOW,
        cause,
        suspects,
        min(one.start_ns for one in anomalies),
        min(0.97, 0.6 + 0.2 * min(anomaly.score, 1.8)),
        reason,
        _slow_evidence(graph, now_ns, anomaly, ranks, stopped, rules),
        common=common_component(graph, {graph.host_of(rank) for rank in ranks}),
        seen_ns=anomaly.end_ns,
        is_soft=bool(detail["from_start"]),
        hard_ns=TELLING_WINDOWS * longest_window_ns(graph, {graph.host_of(rank) for rank in ranks}),
    )


def _slow_evidence(
    graph: JobGraph, now_ns: int, anomaly: Anomaly, ranks: Sequence[int], stopped: float | None, rules: SlowRules
) -> tuple[Evidence, ...]:
    """Return the evidence of slow ranks: their own time a step, and how much of the time they were stopped."""
    detail = anomaly.detail
    phase = str(detail["phase"])
    slow = Evidence(
        anomaly.detector,
        f"{phase}_seconds" if phase else "own_seconds",
        anomaly.score,
        anomaly.start_ns,
        anomaly.end_ns,
        f"{names_of(graph, ranks)}{gpus_of(graph, ranks)}: {detail['own_seconds'] * 1e3:.0f} ms of its own a step, its "
        f"peers {detail['peer_seconds'] * 1e3:.0f} ms; slowest in {detail['share_ratio']:.0%} of the steps"
        + (f", mostly in {phase}" if phase else ""),
        suspect_value=float(detail["own_seconds"]),
        peer_value=float(detail["peer_seconds"]),
        model_version=anomaly.model_version,
    )
    if stopped is None:
        return (slow,)
    text = f"its process is stopped and continued from outside, {stopped:.0%} of the time"
    return slow, Evidence("process", "stopped", 1.0 + stopped, now_ns - rules.stop_window_ns, now_ns, text)


def _stopped_ratio(graph: JobGraph, ranks: Sequence[int], now_ns: int, rules: SlowRules) -> float | None:
    """Return the largest share of time for which one of these ranks was stopped lately; None: none was."""
    ratios = [
        facts.stopped_ratio
        for rank in ranks
        if (facts := graph.ranks.get(rank)) is not None
        and (facts.stopped_since_ns or any(now_ns - edge <= rules.stop_window_ns for edge in facts.stop_edges_ns))
    ]
    return max(ratios, default=None)


def _slow_job(anomaly: Anomaly, rules: SlowRules, *, they_wait: bool) -> Finding | None:
    """Return a finding about a slowdown of the whole job, which blames no rank; None: it has not lasted long enough.

    Args:
        anomaly: the anomaly of the job's step time.
        rules: settings.
        they_wait: whether the ranks' own time contains waiting for others.
    """
    detail = anomaly.detail
    lasting_ns = anomaly.end_ns - anomaly.start_ns
    if detail["data_ratio"] >= rules.loader_share_ratio:
        cause, reason, what = "shared_service", Reason.ALL_LOADERS_SLOW, "all ranks wait longer for data"
    elif rules.tells_own(lasting_ns, detail["own_ratio"]) and not they_wait:
        cause, reason, what = "workload_change", Reason.JOB_WIDE_SLOWDOWN, "all ranks compute longer"
    elif lasting_ns >= rules.nobody_lasting_ns:
        cause, reason, what = "unknown", Reason.JOB_WIDE_SLOWDOWN, "the steps take longer and no rank stands out"
        if not detail.get("is_compared", True):
            what = "the steps take longer, and too few ranks have the same role to say which one is slow"
    else:
        return None
    text = f"{what}: {detail['step_seconds'] * 1e3:.0f} ms a step, before {detail['baseline_seconds'] * 1e3:.0f} ms"
    accepted_seconds = float(detail.get("accepted_seconds", 0.0))
    if accepted_seconds:
        text += f"; this pace has lasted {accepted_seconds / 60:.0f} minutes and is the job's normal now"
    evidence = Evidence(
        anomaly.detector,
        "data_seconds" if cause == "shared_service" else "step_seconds",
        anomaly.score,
        anomaly.start_ns,
        anomaly.end_ns,
        text,
        suspect_value=float(detail["step_seconds"]),
        peer_value=float(detail["baseline_seconds"]),
        model_version=anomaly.model_version,
    )
    ends = Reason.NEW_NORMAL if accepted_seconds else None
    lost_ratio = longer_by_ratio(anomaly)
    return Finding(
        FaultKind.FAIL_SLOW, cause, (), anomaly.start_ns, 0.8, reason, (evidence,), ends=ends, costs_ratio=lost_ratio
    )
