"""Machines that left a job for good: what was learned of them is forgotten, or a day of them would fill the memory."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence

from tocsin.schemas.records import NS_PER_SECOND

FORGOTTEN_AFTER_NS = 3600 * NS_PER_SECOND
"""An agent that is mended within the hour finds its machine's levels as they were."""


class Absences:
    """Since when known machines have sent no metrics."""

    def __init__(self) -> None:
        """All are there."""
        self._since_ns: dict[str, int] = {}

    def is_due(self, now_ns: int) -> bool:
        """Whether somebody has been away for so long that it may be forgotten."""
        return any(now_ns - since_ns >= FORGOTTEN_AFTER_NS for since_ns in self._since_ns.values())

    def take(self, told: Collection[str], known: Iterable[str], needed: Collection[str], now_ns: int) -> set[str]:
        """Who sends now; return who can be forgotten.

        Args:
            told: machines with samples in the slice.
            known: all of which something is learned.
            needed: those that carry ranks: they are away, not gone.
            now_ns: end of the slice.
        """
        there = set(told)
        self._since_ns = {host: self._since_ns.get(host, now_ns) for host in sorted(set(known) - there - set(needed))}
        gone = {host for host, since_ns in self._since_ns.items() if now_ns - since_ns >= FORGOTTEN_AFTER_NS}
        for host in gone:
            del self._since_ns[host]
        return gone

    def to_state(self) -> list[list[str | int]]:
        """JSON-able state."""
        return [[host, since_ns] for host, since_ns in self._since_ns.items()]

    def load_state(self, state: Sequence[Sequence[str | int]]) -> None:
        """Take back what ``to_state`` gave."""
        self._since_ns = {str(host): int(since_ns) for host, since_ns in state}
