"""The numbers of each of a job's steps as its middle rank tells them: loss, gradient norm and step time."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from statistics import median
from typing import Any, Final, NamedTuple

from tocsin.schemas.records import NS_PER_SECOND, StepRecord

NUMBERS: Final = ("loss", "grad_norm", "step_seconds")
"""The numbers of a step, in the order in which they are kept."""
_MAX_FOLLOWED_RANKS: Final = 64
"""Ranks whose numbers are kept, for each number: those that told it first. The middle of 64 is the job's."""
_SETTLE_NS: Final = 3 * NS_PER_SECOND
_KEPT_OPEN: Final = 16
_BACK_COUNT: Final = 200
"""A step so many steps back shows that the job went back to a checkpoint."""


class JobStep(NamedTuple):
    """The numbers of one step of the job.

    Attributes:
        step: its number.
        ts_ns: when its first rank ended it.
        begin_ns: when that rank began it.
        values: number -> its median over ranks; a number that nobody told is absent.
    """

    step: int
    ts_ns: int
    begin_ns: int
    values: Mapping[str, float]


@dataclass(slots=True)
class _OpenStep:
    """A step that is not settled yet: when its first rank ended and began it, and number -> the ranks' values."""

    first_ns: int
    begin_ns: int
    told: dict[str, list[float]] = field(default_factory=lambda: {name: [] for name in NUMBERS})


class JobNumbers:
    """Collects the ranks' numbers step by step; numbers that are not finite are left out."""

    def __init__(self) -> None:
        """Start without steps."""
        self._followed: dict[str, set[int]] = {name: set() for name in NUMBERS}
        self._any: set[int] = set()
        """Ranks that are followed for any number; a large job brings 80,000 rows at once."""
        self._wants = (True, True, True)
        """Whether more ranks are wanted, for each number."""
        self._open: dict[int, _OpenStep] = {}
        self._settled_step = -1

    def take_steps(self, rows: Iterable[StepRecord]) -> None:
        """Take steps of one host."""
        for row in rows:
            if row.rank not in self._any and not self._is_wanted(row):
                continue
            if row.step < self._settled_step - _BACK_COUNT:
                self._settled_step, self._open = row.step - 1, {}
            if row.step <= self._settled_step:
                continue
            for name, value in zip(NUMBERS, (row.loss, row.grad_norm, row.duration_seconds), strict=True):
                if value is not None and math.isfinite(value) and self._is_followed(name, row.rank):
                    self._open_step(row).told[name].append(value)
        for step in sorted(self._open)[:-_KEPT_OPEN] if len(self._open) > 2 * _KEPT_OPEN else ():
            self._open[step].first_ns = 0  # settled at once

    def _is_wanted(self, row: StepRecord) -> bool:
        """Return whether a rank that is not followed yet tells a number of which more ranks are wanted."""
        wants_loss, wants_norm, wants_time = self._wants
        return wants_time or (wants_loss and row.loss is not None) or (wants_norm and row.grad_norm is not None)

    def _is_followed(self, name: str, rank: int) -> bool:
        """Return whether a rank's number counts; the first ranks that tell it are followed."""
        known = self._followed[name]
        if rank in known:
            return True
        if len(known) >= _MAX_FOLLOWED_RANKS:
            return False
        known.add(rank)
        self._any.add(rank)
        self._count()
        return True

    def _count(self) -> None:
        """Note for which numbers more ranks are wanted."""
        loss, norm, time = (len(self._followed[name]) < _MAX_FOLLOWED_RANKS for name in NUMBERS)
        self._wants = (loss, norm, time)

    def _open_step(self, row: StepRecord) -> _OpenStep:
        """Return the open step of a row; a new one begins with it."""
        if row.step not in self._open:
            begin_ns = row.ts_ns - int(row.duration_seconds * NS_PER_SECOND)
            self._open[row.step] = _OpenStep(row.ts_ns, begin_ns)
        return self._open[row.step]

    def settled(self, now_ns: int) -> list[JobStep]:
        """Return the steps that have settled since the last call, in their order.

        Args:
            now_ns: the slice's end.
        """
        found = []
        for step in sorted(self._open):
            one = self._open[step]
            if now_ns - one.first_ns < _SETTLE_NS:
                break
            del self._open[step]
            self._settled_step = max(self._settled_step, step)
            values = {name: median(told) for name, told in one.told.items() if told}
            found.append(JobStep(step, one.first_ns or now_ns, one.begin_ns, values))
        return found

    def to_state(self) -> dict[str, Any]:
        """Return the state as JSON-serialisable values, for a snapshot."""
        return {
            "followed": [sorted(self._followed[name]) for name in NUMBERS],
            "open": [
                [step, one.first_ns, one.begin_ns, [one.told[name] for name in NUMBERS]]
                for step, one in self._open.items()
            ],
            "settled_step": self._settled_step,
        }

    def load_state(self, state: Mapping[str, Any]) -> None:
        """Replace the state by values that ``to_state`` returned."""
        self._followed = {name: set(ranks) for name, ranks in zip(NUMBERS, state["followed"], strict=True)}
        self._any = set().union(*self._followed.values())
        self._count()
        self._open = {
            step: _OpenStep(first_ns, begin_ns, {n: list(v) for n, v in zip(NUMBERS, told, strict=True)})
            for step, first_ns, begin_ns, told in state["open"]
        }
        self._settled_step = state["settled_step"]
