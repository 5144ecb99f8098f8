"""From step anomalies to explanations: a slow machine, a slow loader, or nobody."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from tocsin.pipeline.operators.diagnose.common import names_of
from tocsin.pipeline.operators.findings import Finding
from tocsin.pipeline.operators.graph import JobGraph
from tocsin.schemas.reasons import Reason
from tocsin.schemas.records import NS_PER_SECOND
from tocsin.schemas.verdicts import Anomaly, ComponentKind, Evidence, FaultKind, Suspect


@dataclass(frozen=True, slots=True)
class SlowRules:
    """Settings.

    Attributes:
        loader_share_ratio: from this share of the excess on, waiting for data explains it.
        stop_edges_count: a process that was stopped and continued this often within
            ``stop_window_ns`` does not get the CPU it needs.
        stop_window_ns: see above.
        nobody_lasting_ns: a job-wide slowdown without a known reason is worth a word after this.
    """

    loader_share_ratio: float = 0.6
    stop_edges_count: int = 2
    stop_window_ns: int = 15 * NS_PER_SECOND
    nobody_lasting_ns: int = 30 * NS_PER_SECOND


def find_slow_findings(
    graph: JobGraph, now_ns: int, anomalies: Sequence[Anomaly], rules: SlowRules
) -> tuple[list[Finding], list[Reason]]:
    """Explain the step anomalies of one slice; reasons where one is not worth a verdict."""
    hosts = [a for a in anomalies if a.component.kind is ComponentKind.HOST and a.metric == "own_seconds"]
    if hosts:
        return [_slow_host(graph, now_ns, anomaly, rules) for anomaly in hosts], []
    findings: list[Finding] = []
    reasons: list[Reason] = []
    for anomaly in anomalies:
        if anomaly.metric != "step_seconds":
            continue
        finding = _slow_job(anomaly, rules)
        if finding is None:
            reasons.append(Reason.WITHIN_PATIENCE)
        else:
            findings.append(finding)
    return findings, reasons


def _slow_host(graph: JobGraph, now_ns: int, anomaly: Anomaly, rules: SlowRules) -> Finding:
    detail = anomaly.detail
    ranks = tuple(detail["ranks"])
    phase, share = str(detail["phase"]), float(detail["phase_share_ratio"])
    stops = _stop_edges(graph, ranks, now_ns, rules)
    cause, reason = "unknown", Reason.SAME_RANK_SLOWEST
    if stops >= rules.stop_edges_count:
        cause = "cpu_contention"
    elif phase == "data" and share >= rules.loader_share_ratio:
        cause, reason = "loader_stall", Reason.OWN_LOADER_SLOW
    evidence = [
        Evidence(
            anomaly.detector,
            f"{phase}_seconds" if phase else "own_seconds",
            anomaly.score,
            anomaly.start_ns,
            anomaly.end_ns,
            f"{names_of(graph, ranks)}: {detail['own_seconds'] * 1e3:.0f} ms of its own a step, its peers "
            f"{detail['peer_seconds'] * 1e3:.0f} ms; slowest in {detail['share_ratio']:.0%} of the steps"
            + (f", mostly in {phase}" if phase else ""),
            suspect_value=float(detail["own_seconds"]),
            peer_value=float(detail["peer_seconds"]),
        )
    ]
    if cause == "cpu_contention":
        evidence.append(
            Evidence(
                "process",
                "stopped",
                stops / rules.stop_edges_count,
                now_ns - rules.stop_window_ns,
                now_ns,
                f"its process was stopped and continued {stops} times within {rules.stop_window_ns / 1e9:.0f} s",
            )
        )
    return Finding(
        FaultKind.FAIL_SLOW,
        cause,
        (Suspect(anomaly.component, ranks),),
        anomaly.start_ns,
        min(0.97, 0.6 + 0.2 * min(anomaly.score, 1.8)),
        reason,
        tuple(evidence),
    )


def _stop_edges(graph: JobGraph, ranks: Sequence[int], now_ns: int, rules: SlowRules) -> int:
    """How often the most often stopped of these ranks changed between stopped and running."""
    return max(
        (
            sum(1 for edge_ns in graph.ranks[rank].stop_edges_ns if now_ns - edge_ns <= rules.stop_window_ns)
            for rank in ranks
            if rank in graph.ranks
        ),
        default=0,
    )


def _slow_job(anomaly: Anomaly, rules: SlowRules) -> Finding | None:
    """The whole job slowed down: what all ranks share is to blame, never one of them."""
    detail = anomaly.detail
    lasting_ns = anomaly.end_ns - anomaly.start_ns
    if detail["data_ratio"] >= rules.loader_share_ratio:
        cause, reason, what = "shared_service", Reason.ALL_LOADERS_SLOW, "all ranks wait longer for data"
    elif detail["own_ratio"] >= rules.loader_share_ratio and lasting_ns >= rules.nobody_lasting_ns:
        cause, reason, what = "workload_change", Reason.JOB_WIDE_SLOWDOWN, "all ranks compute longer"
    elif lasting_ns >= rules.nobody_lasting_ns:
        cause, reason, what = (
            "unknown",
            Reason.JOB_WIDE_SLOWDOWN,
            "the steps take longer and no rank stands out",
        )
    else:
        return None
    text = f"{what}: {detail['step_seconds'] * 1e3:.0f} ms a step, before {detail['baseline_seconds'] * 1e3:.0f} ms"
    evidence = Evidence(
        anomaly.detector,
        "data_seconds" if cause == "shared_service" else "step_seconds",
        anomaly.score,
        anomaly.start_ns,
        anomaly.end_ns,
        text,
        suspect_value=float(detail["step_seconds"]),
        peer_value=float(detail["baseline_seconds"]),
    )
    return Finding(FaultKind.FAIL_SLOW, cause, (), anomaly.start_ns, 0.8, reason, (evidence,))
