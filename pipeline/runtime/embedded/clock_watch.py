"""Notices that a machine's wall clock was set: compares it with the steady clock, tick by tick."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from tocsin.schemas.events import CONTROL_HOST
from tocsin.schemas.records import NS_PER_SECOND

JUMP_NS: Final = NS_PER_SECOND
"""A wall clock that moved against the steady one by more than this was set: slices wait no longer for records."""
SLEW_NS: Final = 10_000_000
"""What a look forgives: NTP slews by at most half a millisecond a second (the kernel's 500 ppm), chrony by more."""
STEP_NS: Final = 100_000_000
"""A wall clock that moves so far between two looks was set: no slew is as fast (chrony's fastest is 83 ms a second)."""
DRIFT_NS: Final = 500_000
"""What a look forgives of small steps: as much as the kernel slews at most (500 ppm), so that steps add up."""
DOUBT_SECONDS: Final = 5
"""After a jump the hosts' records show within so many ticks whether they follow it."""
_KNOWN_SECONDS: Final = 60
_MOST_HOSTS: Final = 20_000


class HostTimes:
    """Whose records come on time, and whose late or ahead; threads that take records call ``heard``.

    Only hosts that were on time lately have a say, so names that somebody invents have none.
    """

    def __init__(self) -> None:
        """Know nobody."""
        self._known: tuple[set[str], set[str]] = (set(), set())
        self._on_time: set[str] = set()
        self._off_time: set[str] = set()

    def heard(self, host: str, *, is_on_time: bool) -> None:
        """A record came."""
        hosts = self._on_time if is_on_time else self._off_time
        if host not in ("", CONTROL_HOST) and len(hosts) < _MOST_HOSTS:
            hosts.add(host)

    def learn(self, *, is_round: bool) -> None:
        """Who was on time since the last call is known, and has a say after the next jump.

        Args:
            is_round: who was not on time since the last round is not known any more.
        """
        newer, older = self._known
        newer = newer | self._on_time if len(newer) < _MOST_HOSTS else newer
        self._known = (set(), newer) if is_round else (newer, older)
        self.begin()

    def begin(self) -> None:
        """Count from here."""
        self._on_time, self._off_time = set(), set()

    def are_against(self) -> bool:
        """Whether of the known hosts that spoke fewer than half were on time."""
        newer, older = self._known
        known = newer | older
        on_time = known & self._on_time
        return len((known & self._off_time) - on_time) > len(on_time)


class EngineTime:
    """The time by which an engine judges: its wall clock, unless its hosts show that this was set wrongly.

    After a jump the engine follows its wall clock. Where in the next seconds fewer than half of the hosts that speak
    are on time by it, the hosts have not jumped, and there are more of them: the engine goes on by the time before the
    jump, and says so. One host, the engine's own machine for instance, does not speak for the wall clock alone. Where
    the hosts are against that time, too, once what they had held back is through, the wall clock is followed after
    all. The next jump begins this anew.

    Attributes:
        watch: sees the jumps.
        correction_ns: added to the wall clock, 0 = it is believed.
    """

    def __init__(self, wall_ns: Callable[[], int], steady_ns: Callable[[], int]) -> None:
        """Believe the wall clock."""
        self._wall_ns = wall_ns
        self.watch = ClockWatch(wall_ns, steady_ns)
        self.correction_ns = 0
        self._doubt_ticks = 0
        self._learned_ticks = 0

    def now_ns(self) -> int:
        """The engine's time."""
        return self._wall_ns() + self.correction_ns

    def look(self, hosts: HostTimes) -> int:
        """Look at the clocks, once a tick; returns by how much the engine's time was changed, in nanoseconds.

        Args:
            hosts: who was on time.
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
        change_ns, self.correction_ns = correction_ns - self.correction_ns, correction_ns
        return change_ns


class ClockWatch:
    """Keeps how far the wall clock stood from the steady one, and follows it slowly.

    A slew is followed and nothing happens. A step beyond ``JUMP_NS``, or several small ones that add up to it, is a
    jump: each of these moves the clock away from the hosts' for good. A machine that slept jumps ahead: the steady
    clock stood meanwhile.
    """

    def __init__(self, wall_ns: Callable[[], int], steady_ns: Callable[[], int]) -> None:
        """Begin at the first look.

        Args:
            wall_ns: the clock that records are compared with.
            steady_ns: a clock that nobody sets.
        """
        self._wall_ns = wall_ns
        self._steady_ns = steady_ns
        self._apart_ns: int | None = None
        """How far the clocks may stand apart, as was followed."""
        self._newest_ns = 0
        """How far they stood apart at the last look."""
        self._stepped_ns = 0
        """What small steps add up to, and was not forgiven yet."""
        self.jump_count = 0
        self.last_jump_ns = 0
        """How far the last jump went, negative = back."""

    def look(self) -> int:
        """Return how far the wall clock jumped since the last look, in nanoseconds, 0: it did not."""
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
    return max(-most_ns, min(most_ns, value_ns))
