"""When the steps of a job were made, as most of its ranks tell it."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from statistics import median_low
from typing import Any, Final, NamedTuple

from tocsin.schemas.records import NS_PER_SECOND, StepRecord

MAX_FOLLOWED_RANKS: Final = 1024
"""Ranks that are followed: those that were heard first. The ranks of a job make its steps together."""
_KEPT_OPEN: Final = 16
"""Steps that wait for more ranks."""
_FORGET_NS: Final = 60 * NS_PER_SECOND
_FORGET_STEPS: Final = 3
"""A rank that was not heard for a minute, and for three steps of the job, is waited for no longer."""


class MadeStep(NamedTuple):
    """A step that half of the ranks made.

    Attributes:
        step: its number.
        begin_ns: median of the ranks' begins.
        end_ns: median of the ranks' ends.
    """

    step: int
    begin_ns: int
    end_ns: int


class MadeSteps:
    """Finds the steps that at least half of the followed ranks report.

    A single rank with wrong numbers can neither make a step nor keep one from being made.
    """

    def __init__(self) -> None:
        """Start without steps."""
        self._newest_end_ns = 0
        self._length_ns = 0
        self._open: dict[int, dict[int, tuple[int, int]]] = {}
        self._heard_ns: dict[int, int] = {}
        self._pruned_ns = 0

    @property
    def newest_end_ns(self) -> int:
        """Latest end of a step that was made, 0 = none was."""
        return self._newest_end_ns

    def take(self, rows: Iterable[StepRecord]) -> list[MadeStep]:
        """Take the steps of all hosts in one slice; return those that are made now, in the order of their ends."""
        heard = self._heard_ns
        for row in rows:
            if row.rank not in heard and len(heard) >= MAX_FOLLOWED_RANKS:
                continue
            heard[row.rank] = max(heard.get(row.rank, 0), row.ts_ns)
            begin_ns = row.ts_ns - int(max(0.0, row.duration_seconds) * NS_PER_SECOND)
            if (begin_ns + row.ts_ns) // 2 >= self._newest_end_ns:  # else it is a step that was made before
                self._open.setdefault(row.step, {})[row.rank] = (begin_ns, row.ts_ns)
        self._prune()
        return self._made()

    def _made(self) -> list[MadeStep]:
        """Return the open steps that enough ranks report, and close them and what lies before them."""
        enough = [
            MadeStep(step, median_low(begin for begin, _ in told.values()), median_low(end for _, end in told.values()))
            for step, told in self._open.items()
            if 2 * len(told) >= len(self._heard_ns)
        ]
        for one in (made := sorted(enough, key=lambda one: (one.end_ns, one.step))):
            del self._open[one.step]
            self._newest_end_ns = max(self._newest_end_ns, one.end_ns)
            self._length_ns = one.end_ns - one.begin_ns
        for step, told in list(self._open.items()):
            left = {rank: span for rank, span in told.items() if sum(span) // 2 >= self._newest_end_ns}
            if left:
                self._open[step] = left
            else:
                del self._open[step]
        for step in sorted(self._open)[:-_KEPT_OPEN]:
            del self._open[step]
        return made

    def _prune(self) -> None:
        """Forget ranks that were not heard for long, at most once a minute."""
        newest_ns = max(self._heard_ns.values(), default=0)
        if newest_ns - self._pruned_ns < _FORGET_NS:
            return
        self._pruned_ns = newest_ns
        oldest_ns = newest_ns - max(_FORGET_NS, _FORGET_STEPS * self._length_ns)
        self._heard_ns = {rank: ts_ns for rank, ts_ns in self._heard_ns.items() if ts_ns >= oldest_ns}

    def to_state(self) -> list[Any]:
        """Return the state as JSON-serialisable values, for a snapshot."""
        return [
            self._newest_end_ns,
            self._length_ns,
            [[step, [[rank, *span] for rank, span in told.items()]] for step, told in self._open.items()],
            [list(self._heard_ns), list(self._heard_ns.values())],
            self._pruned_ns,
        ]

    @classmethod
    def from_state(cls, state: Sequence[Any]) -> MadeSteps:
        """Return the object that ``to_state`` described."""
        found = cls()
        found._newest_end_ns, found._length_ns, opened, heard, found._pruned_ns = state
        found._open = {step: {rank: (begin, end) for rank, begin, end in told} for step, told in opened}
        found._heard_ns = dict(zip(*heard, strict=True))
        return found
