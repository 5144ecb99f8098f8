"""Detect that a machine's wall clock was set, by comparing it with the monotonic clock at each tick."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from tocsin.schemas.events import CONTROL_HOST
from tocsin.schemas.records import NS_PER_SECOND

JUMP_NS: Final = NS_PER_SECOND
"""A wall clock that moves by more than this against the monotonic clock was set.

Slices do not wait longer for records.
"""
SLEW_NS: Final = 10_000_000
"""Slew tolerated per check.

NTP adjusts by at most half a millisecond a second (the kernel's 500 ppm), chrony by more.
"""
STEP_NS: Final = 100_000_000
"""A move of this size between two checks is a step rather than a slew (chrony's fastest slew is 83 ms a second)."""
DRIFT_NS: Final = 500_000
"""Amount of accumulated small steps forgiven per check, the kernel's fastest slew (500 ppm).

So repeated steps add up.
"""
DOUBT_SECONDS: Final = 5
"""Number of ticks after a jump in which the hosts' records show whether the hosts follow it."""
_KNOWN_SECONDS: Final = 60
_MOST_HOSTS: Final = 20_000


class HostTimes:
    """Tracks which hosts' records are on time and which are late or ahead; called by the threads that receive records.

    Only hosts that were recently on time count, so invented host names have no influence.
    """

    def __init__(self) -> None:
        """Start without known hosts."""
        self._known: tuple[set[str], set[str]] = (set(), set())
        self._on_time: set[str] = set()
        self._off_time: set[str] = set()

    def heard(self, host: str, *, is_on_time: bool) -> None:
        """Count a record of a host as on time or not."""
        hosts = self._on_time if is_on_time else self._off_time
        if host not in ("", CONTROL_HOST) and len(hosts) < _MOST_HOSTS:
            hosts.add(host)

    def learn(self, *, is_round: bool) -> None:
        """Remember the hosts that were on time since the last call; they count after the next jump.

        Args:
            is_round: forget the hosts that were not on time since the last round.
        """
        newer, older = self._known
        newer = newer | self._on_time if len(newer) < _MOST_HOSTS else newer
        self._known = (set(), newer) if is_round else (newer, older)
        self.begin()

    def begin(self) -> None:
        """Restart the counts of on-time and off-time hosts."""
        self._on_time, self._off_time = set(), set()

    def are_against(self) -> bool:
        """Return whether fewer than half of the known hosts that sent records were on time."""
        newer, older = self._known
        known = newer | older
        on_time = known & self._on_time
        return len((known & self._off_time) - on_time) > len(on_time)


class EngineTime:
    """The engine's time: its wall clock, unless the hosts show that the wall clock was set wrongly.

    After a jump the engine first follows its wall clock. If fewer than half of the hosts are then on time by it, the
    hosts have not jumped. The engine returns to the time before the jump. If the hosts contradict that time too, the
    wall clock is followed after all. The next jump starts this again.

    Attributes:
        watch: detects the jumps.
        correction_ns: added to the wall clock, 0 = the wall clock is trusted.
    """

    def __init__(self, wall_ns: Callable[[], int], steady_ns: Callable[[], int]) -> None:
        """Start by trusting the wall clock."""
        self._wall_ns = wall_ns
        self.watch = ClockWatch(wall_ns, steady_ns)
        self.correction_ns = 0
        self._doubt_ticks = 0
        self._learned_ticks = 0

    def now_ns(self) -> int:
        """Return the engine's current time."""
        return self._wall_ns() + self.correction_ns

    def look(self, hosts: HostTimes) -> int:
        """Check the clocks, once per tick; return by how much the engine's time jumped, in ns.

        Args:
            hosts: which hosts were on time.
        """
        jump_ns = self.watch.look()
        if jump_ns:
            change_ns = jump_ns + self._correct(0)
            self._doubt_ticks = DOUBT_SECONDS
            hosts.begin()
            return change_ns if abs(change_ns) > JUMP_NS else 0  # back to where the hosts always were
        if self._doubt_ticks:
            self._doubt_ticks -= 1
            if self._doubt_ticks:
                return 0
            are_against = hosts.are_against()
            hosts.begin()
            if self.correction_ns:
                if are_against:
                    return self._correct(0)
                self._doubt_ticks = DOUBT_SECONDS
            elif are_against:
                self._doubt_ticks = DOUBT_SECONDS
                return self._correct(-self.watch.last_jump_ns)
            return 0
        self._learned_ticks = (self._learned_ticks + 1) % _KNOWN_SECONDS
        hosts.learn(is_round=not self._learned_ticks)
        return 0

    def _correct(self, correction_ns: int) -> int:
        """Set the correction and return by how much it changed, in ns."""
        change_ns, self.correction_ns = correction_ns - self.correction_ns, correction_ns
        return change_ns


class ClockWatch:
    """Tracks the offset between wall clock and monotonic clock, and follows it slowly.

    A slow slew is followed silently. A step beyond ``JUMP_NS``, or small steps that add up to it, is a jump, because it
    moves the clock permanently away from the hosts' clocks. A machine that was suspended jumps ahead, because its
    monotonic clock stood still.
    """

    def __init__(self, wall_ns: Callable[[], int], steady_ns: Callable[[], int]) -> None:
        """Start at the first ``look``.

        Args:
            wall_ns: returns the wall clock, which records are compared with.
            steady_ns: returns a monotonic clock.
        """
        self._wall_ns = wall_ns
        self._steady_ns = steady_ns
        self._apart_ns: int | None = None
        """Accepted offset between the clocks, None before the first look."""
        self._newest_ns = 0
        """Offset between the clocks at the last look."""
        self._stepped_ns = 0
        """Sum of small steps that is not forgiven yet."""
        self.jump_count = 0
        self.last_jump_ns = 0
        """Size of the last jump, negative = backwards."""

    def look(self) -> int:
        """Return how far the wall clock jumped since the last look, in ns; 0 = it did not."""
        apart_ns = self._wall_ns() - self._steady_ns()
        if self._apart_ns is None:
            self._apart_ns = self._newest_ns = apart_ns
        step_ns, self._newest_ns = apart_ns - self._newest_ns, apart_ns
        self._stepped_ns += step_ns if abs(step_ns) > STEP_NS else 0
        moved_ns = apart_ns - self._apart_ns
        if abs(moved_ns) <= JUMP_NS:
            forgiven_ns = _at_most(self._stepped_ns, DRIFT_NS)
            self._stepped_ns -= forgiven_ns
            self._apart_ns += forgiven_ns + _at_most(moved_ns - forgiven_ns - self._stepped_ns, SLEW_NS)
            return 0
        self._apart_ns, self._stepped_ns = apart_ns, 0
        self.jump_count += 1
        self.last_jump_ns = moved_ns
        return moved_ns


def _at_most(value_ns: int, most_ns: int) -> int:
    """Return the value limited to [-most_ns, most_ns]."""
    return max(-most_ns, min(most_ns, value_ns))
