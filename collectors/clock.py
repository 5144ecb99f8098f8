"""The agent's clock: monotonic time, slewed to the wall clock and corrected where the engine refuses its stamps.

All parts take a ``Clock``; tests pass ``FakeClock`` and never sleep.
"""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import Final, Protocol

STEP_LIMIT_NS: Final = 500_000_000
"""Least difference to the wall clock that counts as a jump (an event); smaller ones are slewed away."""

SLEW_DIVISOR: Final = 20
"""At most 1/20 of the elapsed time is corrected, so that half a second is gone after ten."""


class Clock(Protocol):
    """Interface of a source of time."""

    def wall_ns(self) -> int:
        """Return the host's Unix time in nanoseconds; it may jump."""

    def mono_ns(self) -> int:
        """Return monotonic nanoseconds from an arbitrary origin."""


class SystemClock:
    """The kernel's clocks."""

    def wall_ns(self) -> int:
        """Return CLOCK_REALTIME."""
        return time.time_ns()

    def mono_ns(self) -> int:
        """Return CLOCK_MONOTONIC."""
        return time.monotonic_ns()


class FakeClock:
    """A clock for tests, moved by hand."""

    def __init__(self, wall_ns: int = 1_700_000_000_000_000_000, mono_ns: int = 1_000_000_000_000) -> None:
        """Start at the given times."""
        self._wall_ns = wall_ns
        self._mono_ns = mono_ns

    def wall_ns(self) -> int:
        """Return the set wall time."""
        return self._wall_ns

    def mono_ns(self) -> int:
        """Return the set monotonic time."""
        return self._mono_ns

    def advance(self, seconds: float) -> None:
        """Advance both clocks."""
        delta_ns = round(seconds * 1e9)
        self._wall_ns += delta_ns
        self._mono_ns += delta_ns

    def step(self, seconds: float) -> None:
        """Move only the wall clock, as an administrator or NTP does."""
        self._wall_ns += round(seconds * 1e9)


@dataclass(frozen=True, slots=True)
class Now:
    """One reading of the agent's clock.

    Attributes:
        host_ns: the host's clock, slewed; comparable with the hook's stamps.
        stamp_ns: ``host_ns`` minus the correction; used to stamp records.
        mono_ns: monotonic time, for durations.
    """

    host_ns: int
    stamp_ns: int
    mono_ns: int

    @property
    def correction_ns(self) -> int:
        """Difference to subtract from the host's times to get stamps."""
        return self.host_ns - self.stamp_ns


class SteadyClock:
    """Monotonic time slewed to the wall clock.

    One thread calls ``read``; the other methods may be called from any thread.
    """

    def __init__(self, clock: Clock) -> None:
        """Start at the wall clock's time."""
        self._clock = clock
        self._read_mono_ns = clock.mono_ns()
        self._base_ns = clock.wall_ns() - self._read_mono_ns
        self.correction_ns = 0

    def read(self) -> tuple[Now, int]:
        """Return the time, and the wall clock's jump since the last call in nanoseconds.

        The jump is 0 if it is below half a second; such differences are slewed away.
        """
        mono_ns = self._clock.mono_ns()
        error_ns = self._clock.wall_ns() - mono_ns - self._base_ns
        limit_ns = (mono_ns - self._read_mono_ns) // SLEW_DIVISOR
        self._read_mono_ns = mono_ns
        jump_ns = error_ns if abs(error_ns) > STEP_LIMIT_NS else 0
        self._base_ns += jump_ns or max(-limit_ns, min(limit_ns, error_ns))
        host_ns = mono_ns + self._base_ns
        return Now(host_ns, host_ns - self.correction_ns, mono_ns), jump_ns

    def stamp_ns(self) -> int:
        """Return the corrected time without changing the slew."""
        return self._clock.mono_ns() + self._base_ns - self.correction_ns

    def host_ns(self) -> int:
        """Return the host's slewed time without changing the slew."""
        return self._clock.mono_ns() + self._base_ns

    def mono_ns(self) -> int:
        """Return monotonic time."""
        return self._clock.mono_ns()
