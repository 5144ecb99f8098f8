"""Assignment of GPUs to ranks: the hooks' announcements joined with what the GPU collectors know."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from tocsin.collectors.agent.rank_state import RankState
from tocsin.collectors.api import GpuPlace
from tocsin.schemas.formats.pci import normal_pci


class GpuPlaces:
    """The GPUs of this host by UUID, index, bus address and process."""

    def __init__(self) -> None:
        """Start without any known GPU."""
        self._places: Mapping[str, GpuPlace] = {}
        self._by_index: dict[int, str] = {}
        self._by_pci: dict[str, str] = {}
        self._by_pid: dict[int, set[str]] = {}

    def update(self, places: Mapping[str, GpuPlace]) -> bool:
        """Add the GPUs that a collector reported; return whether anything changed."""
        if all(self._places.get(uuid) == place for uuid, place in places.items()):
            return False
        self._places = {**self._places, **places}
        self._by_index = {place.gpu: uuid for uuid, place in self._places.items() if place.gpu >= 0}
        self._by_pci = {place.pci: uuid for uuid, place in self._places.items() if place.pci}
        self._by_pid = {}
        for uuid, place in self._places.items():
            for pid in place.pids:
                self._by_pid.setdefault(pid, set()).add(uuid)
        return True

    def uuid_of(self, rank: RankState) -> str:
        """Return the UUID of the GPU that a rank uses, "" if unknown.

        Tried in this order: the UUID that its hook announced (CUDA accepts a beginning of it, too); the
        GPU on which its process runs, if that is a single one; the index that its hook announced (right
        if the process sees the host's own numbering); its local rank, if the driver shows no process of anybody
        (a container hides them) and CUDA_VISIBLE_DEVICES does not say.
        """
        hello = rank.hello
        if hello is None:
            return ""
        if hello.gpu_uuid:
            full = [uuid for uuid in self._places if uuid.startswith(hello.gpu_uuid)]
            return full[0] if len(full) == 1 else hello.gpu_uuid
        index = hello.gpu if hello.gpu >= 0 or self._by_pid else hello.local_rank
        by_index = self._by_index.get(index, "")
        running = self._by_pid.get(rank.pid, set()) if rank.pid else set()
        if len(running) == 1:
            return next(iter(running))
        return by_index if not running or by_index in running else ""

    def uuid_in(self, payload: Mapping[str, Any]) -> str:
        """Return the UUID of the GPU in an event's payload, "" if there is none or it is unknown."""
        uuid, pci = payload.get("uuid"), payload.get("pci")
        if isinstance(uuid, str) and uuid:
            return uuid
        return self._by_pci.get(normal_pci(pci), "") if isinstance(pci, str) else ""

    def holders(self, payload: Mapping[str, Any], ranks: Iterable[RankState]) -> list[RankState]:
        """Return the ranks that an event concerns: those that use its GPU, or whose process it names."""
        uuid, pid = self.uuid_in(payload), payload.get("pid")
        named = isinstance(pid, int) and pid > 0
        return [
            rank
            for rank in ranks
            if (uuid and not rank.ended and self.uuid_of(rank) == uuid) or (named and pid in _pids(rank))
        ]


def _pids(rank: RankState) -> set[int]:
    """Return the process ids of a rank, as the agent sees it and as its hook announced."""
    return {rank.pid, rank.hello.pid if rank.hello else 0}
