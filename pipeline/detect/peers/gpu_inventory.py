"""Inventory of the GPUs of each machine of one job, and of those that were replaced."""

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
        """Start without GPUs."""
        self._of_host: dict[str, set[GpuRow]] = {}
        """Host -> all its GPUs, replaced ones included."""
        self._retired: set[GpuRow] = set()
        """GPUs that were replaced."""

    def know(self, host: str, rows: Collection[GpuRow]) -> None:
        """Record the GPUs that a host reports; if a new one appears, missing ones count as replaced and not as lost."""
        known, present = self._of_host.setdefault(host, set()), set(rows)
        if present - known:
            self._retired.update(known - present)
            known.update(present)
        self._retired -= present

    def forget(self, hosts: Collection[str]) -> None:
        """Remove the GPUs of these hosts, as they left the job."""
        self._of_host = {host: rows for host, rows in self._of_host.items() if host not in hosts}
        self._retired = {row for row in self._retired if row[0] not in hosts}

    def rows(self) -> list[GpuRow]:
        """Return all GPUs as (host, identifier), ascending."""
        return sorted(chain.from_iterable(self._of_host.values()))

    def are_in_use(self, rows: Sequence[GpuRow]) -> NDArray[np.bool_]:
        """Return which of these GPUs have not been replaced, shape (rows,)."""
        return np.array([row not in self._retired for row in rows], bool)

    def to_state(self) -> dict[str, Any]:
        """Return the state as JSON-serialisable values, for a snapshot."""
        of_host = [[host, sorted(uuid for _, uuid in rows)] for host, rows in sorted(self._of_host.items())]
        return {"gpus": of_host, "retired": sorted(map(list, self._retired))}

    def load_state(self, state: Mapping[str, Any]) -> None:
        """Restore the state from values that ``to_state`` returned."""
        self._of_host = {host: {(host, uuid) for uuid in uuids} for host, uuids in state["gpus"]}
        self._retired = {(host, uuid) for host, uuid in state["retired"]}
