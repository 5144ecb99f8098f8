"""What steps say of a slow job and what metrics say of its machines, joined."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from tocsin.pipeline.rca.common import TOGETHER_NS
from tocsin.pipeline.rca.finding import Finding
from tocsin.pipeline.rca.rules.deviations import SHOWN_METRICS
from tocsin.schemas.verdicts import ComponentKind, FaultKind, Suspect

_OUTWEIGHED_CAUSES = ("workload_change",)
"""Where timers hold what ranks wait for, all compute longer when one link is slow."""
_OUTWEIGHING_METRICS = frozenset(
    {"rdma_bytes_per_second", "pfc_tx_packets_per_second", "nvlink_bytes_per_second", "gpu_sm_clock_hertz"}
)
"""No other batch, no longer sequence makes a machine differ from all others in these."""


def _outweighs(finding: Finding) -> bool:
    """Whether a machine's metrics tell more than that all ranks compute longer since then."""
    told = {evidence.metric for evidence in finding.evidence if evidence.score >= 1.0}
    return finding.fault is FaultKind.FAIL_SLOW and bool(finding.suspects) and bool(told & _OUTWEIGHING_METRICS)


def join(slow: Sequence[Finding], machine: Sequence[Finding]) -> list[Finding]:
    """Steps say whom the others wait for: where they name a host, the metrics only add why.

    What the steps lay to the data, the loaders or the workload is no machine's fault, whatever
    its metrics show; where they only see that the job is slower, the metrics may name who. How slow
    it was does not matter where it stands.
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
    for finding in (_narrowed(_placed(finding, machine), machine) for finding in named):
        same = [m for m in machine if finding.suspects[0].component in {s.component for s in m.suspects}]
        if same and finding.fault is FaultKind.FAIL_SLOW:
            # A loader that is slow because the host's storage is: the metric says more than the phase.
            said = same[0].cause == "hdfs_error" or finding.cause == "unknown"
            cause = same[0].cause if said else finding.cause
            confidence = min(0.98, finding.confidence + 0.1)
            evidence = (*finding.evidence, *same[0].evidence)[: SHOWN_METRICS + 2]
            suspects = _with_twins(finding, same[0])
            joined.append(replace(finding, cause=cause, confidence=confidence, evidence=evidence, suspects=suspects))
        else:
            joined.append(finding)
    return joined


def _placed(finding: Finding, machine: Sequence[Finding]) -> Finding:
    """Slow ranks of which nobody knows the machine run on the one whose metrics tell why since then, if one does."""
    if any(suspect.component.kind is not ComponentKind.RANK for suspect in finding.suspects):
        return finding
    told = [m for m in machine if m.fault is FaultKind.FAIL_SLOW and not m.only_holds]
    if len(told) != 1 or len(told[0].suspects) != 1 or abs(told[0].onset_ns - finding.onset_ns) > TOGETHER_NS:
        return finding
    ranks = tuple(sorted(rank for suspect in finding.suspects for rank in suspect.ranks))
    return replace(finding, suspects=(replace(told[0].suspects[0], ranks=ranks),))


def _with_twins(finding: Finding, told: Finding) -> tuple[Suspect, ...]:
    """Whom steps name, and the one that fails as it does: two that are slow look a little less so to each other."""
    named = {suspect.component for suspect in finding.suspects}
    if told.fault is not FaultKind.FAIL_SLOW or not named < {suspect.component for suspect in told.suspects}:
        return finding.suspects
    return (*finding.suspects, *(suspect for suspect in told.suspects if suspect.component not in named))


def _narrowed(finding: Finding, machine: Sequence[Finding]) -> Finding:
    """Of several machines that steps name alike, the one whose metrics tell why, where it is one.

    Few or uneven steps name others beside it by chance. Not where all hang on one switch: that may be why.
    """
    if finding.common is not None:
        return finding
    told = {m.suspects[0].component for m in machine if m.fault is FaultKind.FAIL_SLOW and len(m.suspects) == 1}
    both = [suspect for suspect in finding.suspects if suspect.component in told]
    return replace(finding, suspects=tuple(both)) if len(both) == 1 else finding
