"""Machines that left a job for good: what was learned about them is dropped, so that memory stays bounded."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence

from tocsin.schemas.records import NS_PER_SECOND

FORGOTTEN_AFTER_NS = 3600 * NS_PER_SECOND
"""Absence in nanoseconds after which a machine is forgotten; an agent that is repaired sooner keeps its learned
levels."""


class Absences:
    """Time since when each known machine has sent no metrics."""

    def __init__(self) -> None:
        """Start with all machines present."""
        self._since_ns: dict[str, int] = {}
        """Host -> time in nanoseconds since when it has been absent."""

    def is_due(self, now_ns: int) -> bool:
        """Return whether any machine has been absent long enough to be forgotten."""
        return any(now_ns - since_ns >= FORGOTTEN_AFTER_NS for since_ns in self._since_ns.values())

    def take(self, reported: Collection[str], known: Iterable[str], needed: Collection[str], now_ns: int) -> set[str]:
        """Update the absences with one slice and return the machines to forget.

        Args:
            reported: machines with samples in the slice.
            known: machines about which something has been learned.
            needed: machines that carry ranks; they never count as gone.
            now_ns: end of the slice.
        """
        there = set(reported)
        self._since_ns = {host: self._since_ns.get(host, now_ns) for host in sorted(set(known) - there - set(needed))}
        gone = {host for host, since_ns in self._since_ns.items() if now_ns - since_ns >= FORGOTTEN_AFTER_NS}
        for host in gone:
            del self._since_ns[host]
        return gone

    def to_state(self) -> list[list[str | int]]:
        """Return the state as JSON-serialisable values, for a snapshot."""
        return [[host, since_ns] for host, since_ns in self._since_ns.items()]

    def load_state(self, state: Sequence[Sequence[str | int]]) -> None:
        """Restore the state from values that ``to_state`` returned."""
        self._since_ns = {str(host): int(since_ns) for host, since_ns in state}
