"""A driver's state in memory, for tests and for driving a job without Flink."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from copy import deepcopy


class MemoryState:
    """Holds parts and journal in memory, and counts the bytes written."""

    def __init__(self) -> None:
        """Start empty."""
        self._parts: dict[str, bytes] = {}
        self._journal: list[bytes] = []
        self.written_bytes = 0

    def parts(self) -> dict[str, bytes]:
        """Return the parts of the last snapshot."""
        return dict(self._parts)

    def journal(self) -> list[bytes]:
        """Return the journal entries since the last snapshot."""
        return list(self._journal)

    def append(self, entry: bytes) -> None:
        """Append an entry to the journal."""
        self._journal.append(entry)
        self.written_bytes += len(entry)

    def add(self, parts: Mapping[str, bytes]) -> None:
        """Add parts to those of the last snapshot."""
        self._parts.update(parts)
        self.written_bytes += sum(map(len, parts.values()))

    def replace(self, changed: Mapping[str, bytes], removed: Sequence[str]) -> None:
        """Replace the changed parts, remove others, and empty the journal."""
        self._parts.update(changed)
        for name in removed:
            self._parts.pop(name, None)
        self._journal = []
        self.written_bytes += sum(map(len, changed.values()))

    def clear(self) -> None:
        """Remove all parts and journal entries."""
        self._parts, self._journal = {}, []

    def saved(self) -> MemoryState:
        """Return a deep copy, as a checkpoint would store it."""
        return deepcopy(self)
