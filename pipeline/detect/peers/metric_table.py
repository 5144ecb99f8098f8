"""Choice of a job's table of user-defined metrics: one host alone cannot change it.

A changed table makes detectors learn anew, so a host that announced a new one each second would blind them.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import Any

from tocsin.pipeline.detect.peers.rows import table_from, table_state
from tocsin.schemas.metrics import BUILTIN_TABLE, MetricTable

_ENOUGH_COUNT = 2
"""Number of hosts that must announce a table."""


class TableBook:
    """Last metric table that each host of a job announced."""

    def __init__(self, *, is_played: bool = False) -> None:
        """Start without announcements.

        Args:
            is_played: whether the records come from a recording; one host suffices then.
        """
        self._is_played = is_played
        self._announced: dict[str, MetricTable] = {}
        """Host -> the table that it announced last."""
        self._counts: Counter[MetricTable] = Counter()
        """Table -> number of hosts that announce it."""

    def take(self, host: str, table: MetricTable) -> None:
        """Record the table that a host announces."""
        before = self._announced.get(host)
        if before is not None:
            self._counts[before] -= 1
            if not self._counts[before]:
                del self._counts[before]
        self._counts[table] += 1
        self._announced[host] = table

    def chosen(self, in_use: MetricTable, host_count: int) -> MetricTable:
        """Return the table that most hosts announce, among those that two hosts or half of the job's hosts announce.

        Args:
            in_use: current table; it is preferred in a tie.
            host_count: number of hosts of the job.

        Returns:
            That table; the built-in one if none has enough hosts; ``in_use`` if none was announced.
        """
        if not self._announced:
            return in_use
        enough = [
            (count, table == in_use, repr(table), table)
            for table, count in self._counts.items()
            if count >= _ENOUGH_COUNT or 2 * count >= host_count or self._is_played
        ]
        return max(enough)[3] if enough else BUILTIN_TABLE

    def to_state(self) -> list[Any]:
        """Return the state as JSON-serialisable values, for a snapshot."""
        tables = sorted(self._counts, key=repr)
        number = {table: at for at, table in enumerate(tables)}
        return [[table_state(table) for table in tables], sorted([h, number[t]] for h, t in self._announced.items())]

    def load_state(self, state: Sequence[Any]) -> None:
        """Restore the state from values that ``to_state`` returned."""
        tables = [table_from(table) for table in state[0]]
        self._announced = {host: tables[number] for host, number in state[1]}
        self._counts = Counter(self._announced.values())
