"""Verdict lines that planned work keeps from people, given back when it ends and they still stand."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Final

from tocsin.pipeline.incidents.maintenance import MaintenanceBook
from tocsin.schemas.cloudevents import decode_verdict, encode_verdict
from tocsin.schemas.verdicts import Verdict, VerdictState

MAX_HELD_COUNT: Final = 10_000
_STANDING: Final = frozenset({VerdictState.OPEN, VerdictState.CONFIRMED})


class HeldLines:
    """The newest line of each standing verdict that planned work covers; of too many the oldest are forgotten.

    Without it people would learn of a fault that outlasts the work only by its next line, up to ten minutes later.
    """

    def __init__(self, book: MaintenanceBook, max_count: int = MAX_HELD_COUNT) -> None:
        """Start without lines.

        Args:
            book: the planned work.
            max_count: how many lines are held at most.
        """
        self._book = book
        self._max_count = max_count
        self._held: dict[str, Verdict] = {}
        self._active: frozenset[str] | None = None

    def on_verdicts(self, verdicts: Iterable[Verdict], now_ns: int) -> list[Verdict]:
        """Take the lines of one tick; return the held lines that no work covers any more and that still stand.

        Args:
            verdicts: the lines, in stream order.
            now_ns: the tick's time.
        """
        for one in verdicts:
            self._held.pop(one.verdict_id, None)
            if one.state in _STANDING and self._book.silence(one, now_ns):
                self._held[one.verdict_id] = one
        while len(self._held) > self._max_count:
            del self._held[next(iter(self._held))]
        active = self._book.active(now_ns)
        if active == self._active:
            return []
        self._active = active
        free = [one for one in self._held.values() if not self._book.silence(one, now_ns)]
        for one in free:
            del self._held[one.verdict_id]
        return [one for one in free if one.expires_ns > now_ns]

    def to_state(self) -> list[str]:
        """Return the held lines as JSON-able values."""
        return [encode_verdict(one).decode() for one in self._held.values()]

    def load_state(self, state: Sequence[str]) -> None:
        """Replace the held lines by what ``to_state`` returned."""
        lines = [decode_verdict(text.encode()) for text in state]
        self._held = {one.verdict_id: one for one in lines}
        self._active = None


def parts_of(state: Any) -> Mapping[str, Any]:
    """Return the named values of a stored state; an older version stored the verdicts that were told only."""
    return state if isinstance(state, dict) else {"told": state, "held": []}
