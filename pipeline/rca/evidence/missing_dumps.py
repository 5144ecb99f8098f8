"""Correction of a hang analysis where Flight Recorder dumps are missing because they were not collected."""

from __future__ import annotations

from dataclasses import replace

from tocsin.models.hang import HangFinding
from tocsin.schemas.reasons import Reason


def without_the_uncollected(finding: HangFinding, rank_count: int) -> HangFinding:
    """Return the analysis without ranks that are accused only for a missing dump, where other dumps are missing too.

    A rank without a dump stays accused if it is the only one. It also does if fewer than half of all dumps are missing,
    and at least half of the missing ranks are waited for.

    Args:
        finding: analysis of a folder of dumps.
        rank_count: number of ranks with a dump plus those without.
    """
    missing = set(finding.missing_ranks)
    by_silence = {rank for rank, reason in finding.reasons if reason == Reason.SILENT_AND_PEERS_STALLED.value}
    are_few = len(missing) == 1 or 2 * len(missing) < rank_count
    text = f"{len(missing)} of {rank_count} dumps are missing: collect them, too"
    if not by_silence or (are_few and 2 * len(by_silence) >= len(missing)):
        return finding if are_few else replace(finding, evidence=(text, *finding.evidence))
    kept = tuple(one for one in finding.reasons if one[0] not in by_silence)
    text += "; nobody is named for the lack of a dump alone"
    return replace(
        finding,
        culprits=tuple(rank for rank, _ in kept),
        reason=kept[0][1] if kept else Reason.AMBIGUOUS.value,
        reasons=kept,
        ambiguous=tuple(sorted({*finding.ambiguous, *by_silence})),
        evidence=(text, *finding.evidence),
    )
