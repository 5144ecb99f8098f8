"""Merge of two explanations of a slow job: what step times show, and what the machines' metrics show."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from tocsin.pipeline.rca.common import TOGETHER_NS
from tocsin.pipeline.rca.finding import Finding
from tocsin.pipeline.rca.rules.deviations import SHOWN_METRICS
from tocsin.schemas.verdicts import ComponentKind, FaultKind, Suspect

_OUTWEIGHED_CAUSES = ("workload_change",)
"""Causes derived from steps that strong metrics overrule. Where timers include waiting, one slow link makes all ranks
seem to compute longer."""
_OUTWEIGHING_METRICS = frozenset(
    {"rdma_bytes_per_second", "pfc_tx_packets_per_second", "nvlink_bytes_per_second", "gpu_sm_clock_hertz"}
)
"""Metrics whose deviation on one machine no larger batch and no longer sequence explains."""


def _outweighs(finding: Finding) -> bool:
    """Return whether a machine is named for metrics that a mere workload change does not explain."""
    metrics = {evidence.metric for evidence in finding.evidence if evidence.score >= 1.0}
    return finding.fault is FaultKind.FAIL_SLOW and bool(finding.suspects) and bool(metrics & _OUTWEIGHING_METRICS)


def join(slow: Sequence[Finding], machine: Sequence[Finding]) -> list[Finding]:
    """Merge the findings from steps with those from metrics.

    Where steps name a host, that host is named, and metrics on the same host only add cause and evidence. Where steps
    explain the slowdown by data, loaders or workload, no machine is named for its metrics. Where steps only show that
    the job is slower, metrics may name the machine.

    Args:
        slow: findings from step times.
        machine: findings from machine metrics.

    Returns:
        The findings to report; hangs found by metrics come before findings from steps.
    """
    if not slow:
        return list(machine)
    if all(finding.only_holds for finding in machine):
        return [*slow, *machine]
    if any(finding.fault is FaultKind.HANG for finding in machine):
        return [*machine, *slow]
    named = [finding for finding in slow if finding.suspects]
    if not named:
        explained = [finding for finding in slow if finding.cause not in ("unknown", *_OUTWEIGHED_CAUSES)]
        if not explained and not any(_outweighs(finding) for finding in machine):
            explained = [finding for finding in slow if finding.cause in _OUTWEIGHED_CAUSES]
        if all(finding.only_holds or finding.fault is FaultKind.DEGRADED for finding in machine):
            return [*(explained or slow), *machine]  # a machine that differs and is not why makes nobody faster
        return explained or list(machine)
    joined = []
    for finding in (_narrowed_by_metrics(_with_known_host(finding, machine), machine) for finding in named):
        on_machine = [m for m in machine if finding.suspects[0].component in {s.component for s in m.suspects}]
        if on_machine and finding.fault is FaultKind.FAIL_SLOW:
            # A loader that is slow because the host's storage is: the metric says more than the phase.
            is_better_explained = on_machine[0].cause == "hdfs_error" or finding.cause == "unknown"
            cause = on_machine[0].cause if is_better_explained else finding.cause
            confidence = min(0.98, finding.confidence + 0.1)
            evidence = (*finding.evidence, *on_machine[0].evidence)[: SHOWN_METRICS + 2]
            suspects = _with_failing_pair(finding, on_machine[0])
            joined.append(replace(finding, cause=cause, confidence=confidence, evidence=evidence, suspects=suspects))
        else:
            joined.append(finding)
    return joined


def _with_known_host(finding: Finding, machine: Sequence[Finding]) -> Finding:
    """Return the finding with its hostless ranks assigned to the one machine that metrics show to be slow.

    The machine must have become slow within ``TOGETHER_NS`` of the ranks.

    Unchanged if a suspect already has a host, or if not exactly one machine matches.
    """
    if any(suspect.component.kind is not ComponentKind.RANK for suspect in finding.suspects):
        return finding
    slow = [m for m in machine if m.fault is FaultKind.FAIL_SLOW and not m.only_holds]
    if len(slow) != 1 or len(slow[0].suspects) != 1 or abs(slow[0].onset_ns - finding.onset_ns) > TOGETHER_NS:
        return finding
    ranks = tuple(sorted(rank for suspect in finding.suspects for rank in suspect.ranks))
    return replace(finding, suspects=(replace(slow[0].suspects[0], ranks=ranks),))


def _with_failing_pair(finding: Finding, other: Finding) -> tuple[Suspect, ...]:
    """Return the suspects of a finding from steps, extended by those of a metric finding that contains them all.

    Of two slow machines, each looks less slow in step times, so steps may name only one of them.
    """
    named = {suspect.component for suspect in finding.suspects}
    if other.fault is not FaultKind.FAIL_SLOW or not named < {suspect.component for suspect in other.suspects}:
        return finding.suspects
    return (*finding.suspects, *(suspect for suspect in other.suspects if suspect.component not in named))


def _narrowed_by_metrics(finding: Finding, machine: Sequence[Finding]) -> Finding:
    """Return the finding reduced to the one suspect that metrics name as well.

    Few or uneven steps may add a host by chance. Unchanged where the suspects share a switch, as that may be the cause,
    and where metrics support none or several of them.
    """
    if finding.common is not None:
        return finding
    singles = {m.suspects[0].component for m in machine if m.fault is FaultKind.FAIL_SLOW and len(m.suspects) == 1}
    supported = [suspect for suspect in finding.suspects if suspect.component in singles]
    return replace(finding, suspects=tuple(supported)) if len(supported) == 1 else finding
