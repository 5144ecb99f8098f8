"""What the first update of a verdict fixes for its rows: when it was opened, and which detector raised it."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from tocsin.schemas.verdicts import Verdict


@dataclass(frozen=True, slots=True)
class VerdictOpening:
    """The opening of one verdict.

    Attributes:
        opened_ns: ``detected_ns`` of the first update; it chooses the partition.
        detector: detector of the strongest evidence of the first update that has any, "": none has.
        model_version: version of that detector's model, "": it has none.
    """

    opened_ns: int
    detector: str = ""
    model_version: str = ""

    def joined(self, later: VerdictOpening) -> VerdictOpening:
        """Return this opening with what only a later update knows."""
        opened_ns = min(self.opened_ns, later.opened_ns)
        first = self if self.detector else later
        return VerdictOpening(opened_ns, first.detector, first.model_version)


def opening_of(verdict: Verdict) -> VerdictOpening:
    """Return the opening that one update tells of."""
    if not verdict.evidence:
        return VerdictOpening(verdict.detected_ns)
    strongest = verdict.evidence[0]
    return VerdictOpening(verdict.detected_ns, strongest.detector, strongest.model_version)


def openings_of(verdicts: Iterable[Verdict]) -> dict[str, VerdictOpening]:
    """Return verdict id -> the opening that the earliest of its updates tells of."""
    found: dict[str, VerdictOpening] = {}
    for verdict in sorted(verdicts, key=lambda one: one.update):
        new = opening_of(verdict)
        known = found.get(verdict.verdict_id)
        found[verdict.verdict_id] = new if known is None else known.joined(new)
    return found
