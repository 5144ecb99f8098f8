"""The judgements of verdicts by people that an engine remembers."""

from __future__ import annotations

from typing import Final

from tocsin.schemas.operator_notes import Feedback
from tocsin.schemas.records import NS_PER_SECOND

KEPT_NS: Final = 400 * 86_400 * NS_PER_SECOND
"""How long a judgement is remembered, as long as its row in the database."""
KEPT_COUNT: Final = 50_000


class FeedbackBook:
    """The latest judgement of each verdict; of too many the oldest is forgotten."""

    def __init__(self, kept_count: int = KEPT_COUNT) -> None:
        """Start without judgements.

        Args:
            kept_count: how many are remembered at most.
        """
        self._kept_count = kept_count
        self._all: dict[tuple[str, str], Feedback] = {}

    def take(self, said: Feedback) -> None:
        """Take a judgement; of two on one verdict the later counts."""
        key = said.cluster, said.verdict_id
        known = self._all.get(key)
        if known is not None and known.ts_ns > said.ts_ns:
            return
        self._all.pop(key, None)  # the newest comes last
        self._all[key] = said
        while len(self._all) > self._kept_count:
            del self._all[next(iter(self._all))]

    def forget_before(self, at_ns: int) -> None:
        """Forget the judgements that were said before a time."""
        self._all = {key: said for key, said in self._all.items() if said.ts_ns >= at_ns}

    def latest(self) -> tuple[Feedback, ...]:
        """Return the latest judgement of each verdict, in the order in which they were said."""
        return tuple(self._all.values())
