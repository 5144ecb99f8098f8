"""Which metric table of the user's own counts for a job: what one host alone announces does not.

Whoever compares machines learns anew as the table changes, so a host that announced another one each second would keep
everybody from being compared.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import Any

from tocsin.pipeline.detect.peers.rows import table_from, table_state
from tocsin.schemas.metrics import BUILTIN_TABLE, MetricTable

_ENOUGH_COUNT = 2


class TableBook:
    """What each host of a job announced last."""

    def __init__(self, *, is_played: bool = False) -> None:
        """Know nothing.

        Args:
            is_played: the records come from a recording: one host speaks for all.
        """
        self._is_played = is_played
        self._told: dict[str, MetricTable] = {}
        self._counts: Counter[MetricTable] = Counter()

    def take(self, host: str, table: MetricTable) -> None:
        """Remember what a host announces."""
        before = self._told.get(host)
        if before is not None:
            self._counts[before] -= 1
            if not self._counts[before]:
                del self._counts[before]
        self._counts[table] += 1
        self._told[host] = table

    def chosen(self, in_use: MetricTable, host_count: int) -> MetricTable:
        """The table that most hosts announce, of those that two of them announce, or half of the job's hosts.

        Args:
            in_use: what is used now; it stays where as many announce it as any other.
            host_count: hosts of the job.

        Returns:
            That table; the built-in one where none is announced by enough; ``in_use`` where none was announced.
        """
        if not self._told:
            return in_use
        enough = [
            (count, table == in_use, repr(table), table)
            for table, count in self._counts.items()
            if count >= _ENOUGH_COUNT or 2 * count >= host_count or self._is_played
        ]
        return max(enough)[3] if enough else BUILTIN_TABLE

    def to_state(self) -> list[Any]:
        """JSON-able state: each table once, and which host announced which."""
        tables = sorted(self._counts, key=repr)
        number = {table: at for at, table in enumerate(tables)}
        return [[table_state(table) for table in tables], sorted([h, number[t]] for h, t in self._told.items())]

    def load_state(self, state: Sequence[Any]) -> None:
        """Take back what ``to_state`` gave."""
        tables = [table_from(table) for table in state[0]]
        self._told = {host: tables[number] for host, number in state[1]}
        self._counts = Counter(self._told.values())
