"""Which GPUs each machine of one job has, and which of those that it had were replaced."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from itertools import chain
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tocsin.models.frames import GpuRow


class GpuInventory:
    """All GPUs that were ever seen, by host."""

    def __init__(self) -> None:
        """None yet."""
        self._of_host: dict[str, set[GpuRow]] = {}
        self._retired: set[GpuRow] = set()

    def know(self, host: str, rows: Collection[GpuRow]) -> None:
        """A host tells of these: a card that is new took the place of those that are gone, and they are not lost."""
        known, told = self._of_host.setdefault(host, set()), set(rows)
        if told - known:
            self._retired.update(known - told)
            known.update(told)
        self._retired -= told

    def forget(self, hosts: Collection[str]) -> None:
        """These left the job."""
        self._of_host = {host: rows for host, rows in self._of_host.items() if host not in hosts}
        self._retired = {row for row in self._retired if row[0] not in hosts}

    def rows(self) -> list[GpuRow]:
        """All of them, ascending."""
        return sorted(chain.from_iterable(self._of_host.values()))

    def are_in_use(self, rows: Sequence[GpuRow]) -> NDArray[np.bool_]:
        """Which of these were not replaced, shape (rows,)."""
        return np.array([row not in self._retired for row in rows], bool)

    def to_state(self) -> dict[str, Any]:
        """JSON-able state."""
        of_host = [[host, sorted(uuid for _, uuid in rows)] for host, rows in sorted(self._of_host.items())]
        return {"gpus": of_host, "retired": sorted(map(list, self._retired))}

    def load_state(self, state: Mapping[str, Any]) -> None:
        """Take back what ``to_state`` gave, be there more beside it."""
        self._of_host = {host: {(host, uuid) for uuid in uuids} for host, uuids in state["gpus"]}
        self._retired = {(host, uuid) for host, uuid in state["retired"]}
