"""Exclusive times of the phases of a step, the hot path of the hook.

An inner phase's time does not count for its outer one. Only one thread is timed, the one that trains (it opened
the last step or attached the hook); phases of other threads run in parallel to the step and are not part of it.
"""

import time
from threading import get_ident
from types import TracebackType
from typing import Protocol

STEP_PHASES = ("data", "forward", "backward", "optimizer", "communication")
ANNOUNCED_PHASES = ("checkpoint", "evaluation", "compile")
NAMES = ("", *STEP_PHASES, *ANNOUNCED_PHASES)
"""Name of each phase index; index 0 is the time outside all phases."""

DATA, FORWARD, BACKWARD, OPTIMIZER, COMMUNICATION = range(1, 6)

_now_ns = time.perf_counter_ns


class PhaseTimer:
    """A stack of open phases, and the nanoseconds of each phase index since the last ``take``.

    Attributes:
        owner: id of the thread that is timed; 0: the first one that enters a phase.
        announced: number of open announced phases; step phases inside them are not timed (the forward passes of an
            evaluation are no training).
        current: index of the innermost open phase.
        began: begin of that phase (``perf_counter_ns``).
        first_data: begin of the first data phase since the last ``take``; 0 for none.
        stack: outer open phases, as (index, began).
    """

    __slots__ = ("_mark", "_totals", "announced", "began", "current", "first_data", "owner", "stack")

    def __init__(self) -> None:
        self.owner = 0
        self.announced = 0
        self.current = 0
        self.began = 0
        self.first_data = 0
        self.stack: list[tuple[int, int]] = []
        self._mark = _now_ns()
        self._totals = [0] * len(NAMES)

    def enter(self, index: int) -> None:
        """Open a phase."""
        now = _now_ns()
        self._totals[self.current] += now - self._mark
        self.stack.append((self.current, self.began))
        self.current = index
        self.began = self._mark = now
        if index == DATA and not self.first_data:
            self.first_data = now

    def leave(self) -> None:
        """Close the innermost phase; without one, nothing happens."""
        if self.stack:
            now = _now_ns()
            self._totals[self.current] += now - self._mark
            self._mark = now
            self.current, self.began = self.stack.pop()

    def unwind(self, depth: int) -> None:
        """Close the phases above ``depth`` that an exception left open."""
        while len(self.stack) > depth:
            self.leave()

    def take(self, now: int) -> list[int]:
        """Return the nanoseconds by phase index since the last ``take`` and start again at zero."""
        totals = self._totals
        totals[self.current] += now - self._mark
        self._mark = now
        self._totals = [0] * len(NAMES)
        self.first_data = 0
        return totals

    def credit(self, index: int, nanoseconds: int) -> None:
        """Add to a phase nanoseconds that an earlier ``take`` returned."""
        self._totals[index] += nanoseconds

    def adopt(self) -> None:
        """Time the calling thread from now on."""
        ident = get_ident()
        if self.owner != ident:
            self.owner = ident
            self.stack.clear()
            self.current = self.began = 0

    def is_timed(self) -> bool:
        """Return whether a step phase of the calling thread counts now."""
        ident = get_ident()
        if self.owner != ident:
            if self.owner:
                return False
            self.owner = ident
        return not self.announced


class PhaseContext(Protocol):
    """Interface of what ``hook.phase`` returns: a reusable context manager, which may be nested in itself."""

    def __enter__(self) -> None:
        """Open the phase."""

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Close the phase."""


class StepPhase:
    """Context manager of one of the five phases that make up a step."""

    __slots__ = ("_index", "_timer")

    def __init__(self, timer: PhaseTimer, index: int) -> None:
        self._timer = timer
        self._index = index

    def __enter__(self) -> None:
        timer = self._timer
        if timer.is_timed():
            timer.enter(self._index)

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        timer = self._timer
        if timer.is_timed():
            timer.leave()
