"""Usual step times of a job that do not learn from a slowdown while its alarm stands."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from tocsin.schemas.records import NS_PER_SECOND

FloatArray = NDArray[np.float64]
_RELEARNED_COUNT: Final = 128
"""Steps after a slowdown from which the usual times are learned anew; fewer would learn the next slowdown too soon."""


class JobBaseline:
    """Usual times of a job's steps: those learned before a slowdown, or the history's own.

    While the alarm of a slowdown stands, the times before it are kept. When it has ended they are kept until enough
    steps followed. When the slower pace has lasted for a long time, it is accepted as the job's normal one.
    """

    def __init__(self) -> None:
        """Start without a slowdown; the usual times are then those of the history."""
        self._before: list[float] = []
        """Usual times before the slowdown, seconds; []: the history's own."""
        self._since_ns = 0
        """Begin of the steps that are normal, when no alarm stands; 0: all steps are."""
        self._level_seconds = 0.0
        """Step time of the slower pace; 0.0: no alarm stands."""
        self._level_since_ns = 0
        """Since when the job has had that pace or a faster one that is still too slow."""

    @property
    def stands(self) -> bool:
        """Whether the alarm of a slowdown stands, so that no step is learned."""
        return self._level_seconds > 0.0

    @property
    def normal_since_ns(self) -> int:
        """Begin of the normal steps, Unix nanoseconds; 0: all steps of the history are normal or an alarm stands."""
        return 0 if self.stands else self._since_ns

    def usual(self, normal_count: int) -> FloatArray | None:
        """Return the usual times that were kept, shape (columns,), seconds; None: those of the normal steps count.

        Args:
            normal_count: number of steps since ``normal_since_ns``.
        """
        is_kept = bool(self._before) and (self.stands or normal_count < _RELEARNED_COUNT)
        return np.array(self._before) if is_kept else None

    def keep(self, before: FloatArray, step_seconds: float, onset_ns: int) -> None:
        """Keep the usual times before a slowdown, because its alarm stands from now on.

        Args:
            before: usual times before it, shape (columns,), seconds.
            step_seconds: the slower step time.
            onset_ns: begin of the slowdown.
        """
        self._before = before.tolist()
        self._level_seconds, self._level_since_ns = step_seconds, onset_ns

    def lasted_seconds(self, step_seconds: float, newest_ns: int, growth_ratio: float) -> float:
        """Return for how long the slower pace has lasted, seconds; a clearly slower one begins anew.

        Args:
            step_seconds: step time now.
            newest_ns: end of the newest step.
            growth_ratio: growth of the step time that makes another pace of it.
        """
        if step_seconds > (1.0 + growth_ratio) * self._level_seconds:
            self._level_seconds, self._level_since_ns = step_seconds, newest_ns
        return (newest_ns - self._level_since_ns) / NS_PER_SECOND

    def accept(self) -> None:
        """Take the pace that has lasted as the job's normal one: its steps are the usual ones from now on."""
        self._before, self._level_seconds, self._since_ns = [], 0.0, self._level_since_ns

    def release(self, ended_ns: int) -> None:
        """Learn again from the steps after a time, because the alarm has ended; without an alarm do nothing."""
        if self.stands:
            self._level_seconds, self._since_ns = 0.0, ended_ns

    def to_state(self) -> dict[str, Any]:
        """Return the state as JSON-serialisable values, for a snapshot."""
        return {
            "before": self._before,
            "since_ns": self._since_ns,
            "level_seconds": self._level_seconds,
            "level_since_ns": self._level_since_ns,
        }

    def load_state(self, state: Mapping[str, Any]) -> None:
        """Replace the state by the values of ``to_state``."""
        self._before, self._since_ns = state["before"], state["since_ns"]
        self._level_seconds, self._level_since_ns = state["level_seconds"], state["level_since_ns"]
