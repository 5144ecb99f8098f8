"""What the slowness that a finding explains costs the job now."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from tocsin.pipeline.job.graph import JobGraph
from tocsin.pipeline.rca.finding import Finding
from tocsin.pipeline.rca.job_progress import JobProgress
from tocsin.schemas.reasons import Reason
from tocsin.schemas.verdicts import Anomaly, FaultKind


def with_costs(graph: JobGraph, findings: Sequence[Finding], pace: JobProgress, now_ns: int) -> tuple[Finding, ...]:
    """Return the findings, those of slowness with their share of the job's step time where it can be told.

    Args:
        graph: the job.
        findings: the findings of one slice.
        pace: the job's progress.
        now_ns: the slice's end.
    """
    return tuple(
        replace(one, costs_ratio=pace.costs_ratio(_ranks_of(graph, one), one.onset_ns, now_ns))
        if _is_slowness(one) and one.costs_ratio is None and not one.only_holds
        else one
        for one in findings
    )


def longer_by_ratio(anomaly: Anomaly) -> float:
    """Return the share of the job's step time that an anomaly of its steps makes longer, 0 to 1.

    Of the whole job it is 1 - before / now; of hosts it is what the slowest of them takes longer than its peers.

    Args:
        anomaly: of the step detector.
    """
    strength_ratio = max(0.0, float(anomaly.detail["strength_ratio"]))
    return strength_ratio / (1.0 + strength_ratio)


def _is_slowness(finding: Finding) -> bool:
    """Return whether a finding is about slowness; also that of ranks which have been slower since the job began."""
    is_of_ranks = finding.reason in (Reason.SAME_RANK_SLOWEST, Reason.OWN_LOADER_SLOW) and bool(finding.suspects)
    return finding.fault is FaultKind.FAIL_SLOW or (finding.fault is FaultKind.DEGRADED and is_of_ranks)


def _ranks_of(graph: JobGraph, finding: Finding) -> set[int]:
    """Return the ranks that a finding names; of a host without named ranks, all that run on it."""
    return {
        rank for suspect in finding.suspects for rank in suspect.ranks or graph.ranks_of_host(suspect.component.name)
    }
