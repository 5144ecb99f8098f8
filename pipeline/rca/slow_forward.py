"""Finding about a host whose forward pass became longer than its peers', though the job's steps hardly did."""

from __future__ import annotations

from collections.abc import Sequence

from tocsin.pipeline.detect.forward.detector import DETECTOR
from tocsin.pipeline.job.graph import JobGraph
from tocsin.pipeline.rca.common import suspects_of
from tocsin.pipeline.rca.finding import Finding
from tocsin.schemas.reasons import Reason
from tocsin.schemas.verdicts import Anomaly, Evidence, FaultKind


def split_forward(anomalies: Sequence[Anomaly]) -> tuple[list[Anomaly], list[Anomaly]]:
    """Return the anomalies of hosts with long forward passes, and all other anomalies."""
    forward = [anomaly for anomaly in anomalies if anomaly.detector == DETECTOR]
    return forward, [anomaly for anomaly in anomalies if anomaly.detector != DETECTOR]


def add_slow_forward(
    graph: JobGraph,
    findings: Sequence[Finding],
    forward: Sequence[Anomaly],
    explained_by: tuple[Sequence[Anomaly], Sequence[Anomaly]],
) -> list[Finding]:
    """Return the findings with those of hosts whose forward pass is longer, as information that accuses nobody.

    Args:
        graph: the job.
        findings: what was found.
        forward: anomalies of forward passes.
        explained_by: causes that name no machine, and anomalies of the job's steps; if there are any, they explain
            longer passes.
    """
    if any(explained_by) or any(finding.fault is not FaultKind.DEGRADED for finding in findings):
        return list(findings)
    named = {name for finding in findings for name in finding.accused}
    return [*findings, *(_finding(graph, one) for one in forward if one.component.name not in named)]


def _finding(graph: JobGraph, anomaly: Anomaly) -> Finding:
    """Return the finding of one host."""
    excess, step, rank = (anomaly.detail[name] for name in ("excess_ratio", "step_ratio", "rank"))
    text = (
        f"rank {rank}'s forward pass is {100 * excess:.0f} % longer than its peers', step after step; "
        f"that is {100 * step:.1f} % of a step"
    )
    span = anomaly.start_ns, anomaly.end_ns
    evidence = Evidence(anomaly.detector, anomaly.metric, anomaly.score, *span, text, 1.0 + excess, 1.0)
    return Finding(
        FaultKind.DEGRADED,
        "unknown",
        suspects_of(graph, (rank,)),
        anomaly.start_ns,
        0.6,
        Reason.SLOW_FORWARD,
        (evidence,),
        is_soft=True,
        seen_ns=anomaly.end_ns,
    )
