"""Joins what machines report of themselves with what their job shows."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import replace

from tocsin.pipeline.job.graph import JobGraph
from tocsin.pipeline.rca.evidence.contradicted import went_on
from tocsin.pipeline.rca.evidence.hardware_log import HardwareLog
from tocsin.pipeline.rca.finding import Finding
from tocsin.schemas.records import NS_PER_SECOND
from tocsin.schemas.verdicts import FaultKind

_NOBODYS = frozenset({"shared_service", "workload_change", "data_imbalance", "software_jitter"})
"""Causes of a slow job that steps show and that blame no machine.

Slow groups (``placement``) and a slow pipeline stage are not among them: a slow part may be why.
"""


def filter_explained_by_steps(
    log: HardwareLog, findings: Sequence[Finding], broken: Sequence[Finding], *, steps_will_tell: bool
) -> tuple[list[Finding], list[Finding]]:
    """Lower reports of slow parts to ``degraded`` where steps explain why the job is slow (all wait for data).

    What these machines have reported so far accuses nobody later either. Until steps explain the slowdown, such a
    report stays tentative.

    Args:
        log: the machines' hardware events; reports that steps explain are lowered there, too.
        findings: what the job shows.
        broken: what the machines report.
        steps_will_tell: whether the job's steps are longer, for too short a time to tell why.

    Returns:
        The findings of the job, and the reports of the machines.
    """
    slow = [report for report in broken if report.fault is FaultKind.FAIL_SLOW]
    others = [report for report in broken if report.fault is not FaultKind.FAIL_SLOW]
    why = [f for f in findings if f.fault is FaultKind.FAIL_SLOW and not f.suspects and f.cause in _NOBODYS]
    if not slow or not why:
        return list(findings), [*others, *(replace(r, tentative=r.tentative or steps_will_tell) for r in slow)]
    freed = tuple(suspect.component for report in slow for suspect in report.suspects)
    for component in freed:
        log.degrade(component.name)
    reported = [replace(f, clears=(*f.clears, *freed)) if f in why else f for f in findings]
    degraded = [replace(report, fault=FaultKind.DEGRADED, confidence=0.6, tentative=False) for report in slow]
    return reported, [*others, *degraded]


def filter_contradicted(
    graph: JobGraph,
    findings: Sequence[Finding],
    broken: Sequence[Finding],
    median_step_ns: int,
    doubted: Collection[str] = (),
) -> list[Finding]:
    """Return the machines' reports without those that the job contradicts while it shows that another one is at fault.

    Args:
        graph: the job.
        findings: what the job shows.
        broken: what the machines report.
        median_step_ns: the job's step time, 0: not known.
        doubted: machines of which other reports were contradicted.
    """
    named = {s.component.name for f in findings if f.fault is not FaultKind.DEGRADED for s in f.suspects}

    def is_belied(report: Finding) -> bool:
        """Return whether the job contradicts a report."""
        hosts = {suspect.component.name for suspect in report.suspects}
        return hosts <= set(doubted) or went_on(graph, hosts, report.onset_ns, median_step_ns)

    return [
        report
        for report in broken
        if report.fault is FaultKind.DEGRADED
        or not named - {suspect.component.name for suspect in report.suspects}
        or not is_belied(report)
    ]


def add_broken(findings: Sequence[Finding], broken: Sequence[Finding]) -> list[Finding]:
    """Return what the job shows joined with what the machines report.

    For the same machine the job's finding stays. A report of another machine replaces the job's findings where it is
    older, or as old as clocks can tell. A report of a deviation without impact is added.

    Args:
        findings: what the job shows.
        broken: what the machines report.
    """
    found = list(findings)
    for report in broken:
        named = [f for f in found if f.suspects]
        same = [f for f in named if report.suspects[0].component in {suspect.component for suspect in f.suspects}]
        if any(f.fault is not FaultKind.DEGRADED for f in same):
            continue
        if same and report.fault is not FaultKind.DEGRADED:
            # Its metrics differ, nobody can say yet whether it hurts; the part that broke says more.
            found = [f for f in found if f not in same]
        elif same:
            continue
        if report.fault is FaultKind.DEGRADED:
            found.append(report)
            continue
        others = [f for f in named if f.fault is not FaultKind.DEGRADED]
        if all(report.onset_ns <= f.onset_ns + 2 * NS_PER_SECOND for f in others):
            found = [report, *(f for f in found if f.fault is FaultKind.DEGRADED)]
    return found
