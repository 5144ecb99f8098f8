"""Settings of the detector of causes of slowness."""

from __future__ import annotations

from dataclasses import dataclass

from tocsin.pipeline.detect.whatif.window import CauseWindow
from tocsin.schemas.records import NS_PER_SECOND


@dataclass(frozen=True, slots=True)
class CostLine:
    """From which cost on a cause of slowness that names no machine is told.

    Attributes:
        least_slowdown_ratio: a cause is told if the job takes so many times as long with it as without it. The
            straggler study calls a job straggling from 1.1 on (What-if, OSDI'25); two causes of half as much make it
            one, and shares of step records are right to about as much (``docs/why-slow.md``).
        kept_ratio: share of that line down to which a cause that was told goes on, as in ``StepsConfig``.
        lasting_ns: how long a cause must be seen, as long as a slowdown of the whole job that blames nobody.
    """

    least_slowdown_ratio: float = 1.05
    kept_ratio: float = 0.6
    lasting_ns: int = 30 * NS_PER_SECOND

    def is_over_line(self, costs_ratio: float, *, is_told: bool) -> bool:
        """Return whether a cause costs enough.

        Args:
            costs_ratio: share of the job's time that it costs.
            is_told: whether it was told already.
        """
        line = (self.least_slowdown_ratio - 1.0) * (self.kept_ratio if is_told else 1.0)
        return costs_ratio >= line / (1.0 + line)


@dataclass(frozen=True, slots=True)
class WhatIfConfig(CostLine):
    """Settings of the detector of causes of slowness.

    Attributes:
        every_count: judged steps between two windows, half of a window. A cause is told when two windows that share no
            step show it, and all between them: what holds up a few steps is in two windows at most.
        stale_ns: a cause is told no more when no step ended for so long: a job that stands has another trouble.
        accepted_ns: a longer wait that has lasted so long is usual, as in ``StepsConfig``.
        traced: windows of the job's traced operations, in order of time. While they are new they are judged instead of
            its step records, because they also tell transfers, and stages of one replica. A replay gives those of the
            recording.
    """

    every_count: int = 12
    stale_ns: int = 60 * NS_PER_SECOND
    accepted_ns: int = 1800 * NS_PER_SECOND
    traced: tuple[CauseWindow, ...] = ()
