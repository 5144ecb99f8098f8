"""Flight Recorder dumps that are missing because nobody collected them: their ranks are not named for that."""

from __future__ import annotations

from dataclasses import replace

from tocsin.models.hang import HangFinding
from tocsin.schemas.reasons import Reason


def without_the_uncollected(finding: HangFinding, rank_count: int) -> HangFinding:
    """Name nobody for the lack of a dump alone where the dumps of others lack as well.

    A rank without a dump is named where it is the only one, or where the missing are fewer than half of the job and
    at least half of them are what the others wait for.

    Args:
        finding: of a folder of dumps.
        rank_count: ranks that left a dump, and ranks that did not.
    """
    missing = set(finding.missing_ranks)
    by_silence = {rank for rank, reason in finding.reasons if reason == Reason.SILENT_AND_PEERS_STALLED.value}
    are_few = len(missing) == 1 or 2 * len(missing) < rank_count
    told = f"{len(missing)} of {rank_count} dumps are missing: collect them, too"
    if not by_silence or (are_few and 2 * len(by_silence) >= len(missing)):
        return finding if are_few else replace(finding, evidence=(told, *finding.evidence))
    kept = tuple(one for one in finding.reasons if one[0] not in by_silence)
    told += "; nobody is named for the lack of a dump alone"
    return replace(
        finding,
        culprits=tuple(rank for rank, _ in kept),
        reason=kept[0][1] if kept else Reason.AMBIGUOUS.value,
        reasons=kept,
        ambiguous=tuple(sorted({*finding.ambiguous, *by_silence})),
        evidence=(told, *finding.evidence),
    )
