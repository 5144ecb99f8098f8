"""Counts of what a detector did not judge, by reason."""

from __future__ import annotations

from tocsin.schemas.reasons import Reason


class Abstaining:
    """Base of a detector, or of a part of it, that counts why it judged nothing.

    Attributes:
        abstained: reason -> how often nothing was judged for it; the subclass creates, saves and restores it.
    """

    __slots__ = ()

    abstained: dict[str, int]

    def _abstain(self, reason: Reason, count: int = 1) -> None:
        """Add ``count`` abstentions for this reason; a count of 0 adds none."""
        if count:
            self.abstained[reason.value] = self.abstained.get(reason.value, 0) + count
