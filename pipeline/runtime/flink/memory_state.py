"""A driver's state in memory; for tests, and to drive a job without Flink."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from copy import deepcopy


class MemoryState:
    """Keeps parts and journal; ``saved`` is what a checkpoint would hold now."""

    def __init__(self) -> None:
        """Hold nothing."""
        self._parts: dict[str, bytes] = {}
        self._journal: list[bytes] = []
        self.written_bytes = 0

    def parts(self) -> dict[str, bytes]:
        """Return the parts of the last snapshot."""
        return dict(self._parts)

    def journal(self) -> list[bytes]:
        """Return what came since."""
        return list(self._journal)

    def append(self, entry: bytes) -> None:
        """Add to the journal."""
        self._journal.append(entry)
        self.written_bytes += len(entry)

    def add(self, parts: Mapping[str, bytes]) -> None:
        """Put new parts beside those of the last snapshot."""
        self._parts.update(parts)
        self.written_bytes += sum(map(len, parts.values()))

    def replace(self, changed: Mapping[str, bytes], removed: Sequence[str]) -> None:
        """Put parts in place of older ones and begin a new journal."""
        self._parts.update(changed)
        for name in removed:
            self._parts.pop(name, None)
        self._journal = []
        self.written_bytes += sum(map(len, changed.values()))

    def clear(self) -> None:
        """Forget everything."""
        self._parts, self._journal = {}, []

    def saved(self) -> MemoryState:
        """Return a copy, as a checkpoint keeps it."""
        return deepcopy(self)
