"""Announced placement of a job's ranks: hosts, pipeline stages and switches."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from typing import Any

from tocsin.pipeline.core.operator import columns_of, from_columns, pack_state, unpack_state
from tocsin.pipeline.job.place_columns import rows_of_places
from tocsin.pipeline.job.pod_spread import most_pods
from tocsin.schemas.kinds import GroupKind
from tocsin.schemas.records import RankPlace, Topology

PART = "places"
"""Name of the placement's part of a snapshot."""


class Placement:
    """Hosts of the job's ranks, as its agents announce them; what is derived of it is computed once per change."""

    def __init__(self) -> None:
        """Start without any announcement."""
        self.places: dict[int, RankPlace] = {}
        """Rank -> its announced place. The dictionary itself is never replaced."""
        self.changed_ns: dict[str, int] = {}
        """Host -> when a rank was last moved to it or away from it."""
        self._roles: dict[str, tuple[int, ...]] | None = None
        """``roles_of_hosts``, None = to be computed again."""
        self._neighbourhoods: dict[str, frozenset[str]] | None = None
        """Host -> all hosts behind its switch, itself included; None = to be computed again."""
        self._rows: Mapping[str, list[list[Any]]] | None = None
        """``rows``, None = to be computed again."""
        self._switches: dict[str, tuple[str, str]] | None = None
        """``switches_of_hosts``, None = to be computed again."""
        self._sizes: tuple[Counter[str], int] | None = None
        """Host -> number of its ranks, and ``world_size``; None = to be computed again."""
        self._pods: Mapping[GroupKind, int] | None = None
        """``most_pods``, None = to be computed again."""
        self._part: bytes | None = None
        """``PART`` of a snapshot, None = to be made again; places are announced every 30 s and seldom change."""

    def take(self, topology: Topology) -> bool:
        """Learn the places of one announcement and return whether a known rank has moved to another host."""
        has_moved = False
        for place in topology.places:
            before = self.places.get(place.rank)
            if before is not None and before.host != place.host:
                has_moved = True
                self.changed_ns.update(dict.fromkeys((before.host, place.host), topology.ts_ns))
            if before is not place and before != place:
                self._forget_derived()
            self.places[place.rank] = place
        return has_moved

    @property
    def moved_ns(self) -> int:
        """When a rank last moved to another host, 0 = none has."""
        return max(self.changed_ns.values(), default=0)

    def _forget_derived(self) -> None:
        """Have all that is derived of the places computed again."""
        self._roles = self._neighbourhoods = self._switches = self._rows = self._sizes = None
        self._pods = self._part = None

    @property
    def world_size(self) -> int:
        """Ranks of the job as announced, 0 = nothing was announced."""
        return max((place.world_size for place in self.places.values()), default=0)

    def hosts(self) -> set[str]:
        """Return the hosts that carry ranks."""
        return {place.host for place in self.places.values()}

    def outsiders(self, hosts: Iterable[str]) -> frozenset[str]:
        """Return those of some hosts that carry no rank of the job, as far as that is known.

        Ranks that were not announced yet may be on hosts that carry none, as many on each as on the fullest one. Where
        more of the given hosts carry none than these ranks need, nobody knows which of them do, and none counts. Where
        no given host carries a rank, their names are others than those that are announced (short and full ones), and
        nothing is known; nor where the number of the job's ranks is unknown.
        """
        if self._sizes is None:
            self._sizes = Counter(place.host for place in self.places.values()), self.world_size
        (sizes, world_size), given = self._sizes, set(hosts)
        unplaced = given - sizes.keys()
        if not world_size or len(unplaced) == len(given):
            return frozenset()
        missing = max(world_size - sizes.total(), 0)
        needed = -(-missing // max(sizes.values()))
        return frozenset(unplaced) if len(unplaced) > needed else frozenset()

    def stage_of(self, rank: int) -> int:
        """Return the pipeline stage within which a rank is compared, -1 = unknown."""
        place = self.places.get(rank)
        return place.pp if place is not None else -1

    def stages_of(self, ranks: Iterable[int]) -> list[int]:
        """Return the pipeline stage of each rank, -1 = unknown; made for tens of thousands of ranks."""
        places = self.places
        return [-1 if (place := places.get(rank)) is None else place.pp for rank in ranks]

    def replicas_of(self, ranks: Iterable[int]) -> list[int]:
        """Return the data-parallel coordinate of each rank, -1 = unknown."""
        places = self.places
        return [-1 if (place := places.get(rank)) is None else place.dp for rank in ranks]

    def roles_of_hosts(self) -> Mapping[str, tuple[int, ...]]:
        """Return host -> the pipeline stages of its ranks; only hosts of the same stages carry the same load."""
        if self._roles is None:
            stages: dict[str, set[int]] = {}
            for place in self.places.values():
                stages.setdefault(place.host, set()).add(place.pp)
            self._roles = {host: tuple(sorted(found)) for host, found in stages.items()}
        return self._roles

    def switches_of_hosts(self) -> Mapping[str, tuple[str, str]]:
        """Return host -> its leaf switch and minipod, for the hosts whose leaf switch is known."""
        if self._switches is None:
            places = self.places.values()
            self._switches = {place.host: (place.leaf, place.minipod) for place in places if place.leaf}
        return self._switches

    def minipods_of(self, ranks: Iterable[int]) -> set[str]:
        """Return the minipods that ranks lie in, as far as they are known."""
        found = (self.places.get(rank) for rank in ranks)
        return {place.minipod for place in found if place is not None and place.minipod}

    def most_pods(self) -> Mapping[GroupKind, int]:
        """Return the most minipods that a group of a kind touches (``pod_spread.most_pods``)."""
        if self._pods is None:
            self._pods = most_pods(self.places)
        return self._pods

    def rows(self) -> Mapping[str, list[list[Any]]]:
        """Return the places as rows for the state of the job (``rows_of_places``)."""
        if self._rows is None:
            self._rows = rows_of_places(self.places)
        return self._rows

    def neighbours_of(self, host: str) -> frozenset[str]:
        """Return the other hosts behind a host's leaf switch.

        Where the leaf is unknown they are the others of its minipod whose leaf is unknown too; none where neither
        is known.
        """
        if self._neighbourhoods is None:
            behind: dict[tuple[str, str], set[str]] = {}
            keys = {place.host: (place.leaf, "" if place.leaf else place.minipod) for place in self.places.values()}
            for name, key in keys.items():
                behind.setdefault(key, set()).add(name)
            known = {key: frozenset(names) for key, names in behind.items() if any(key)}
            self._neighbourhoods = {name: known.get(key, frozenset()) for name, key in keys.items()}
        return self._neighbourhoods.get(host, frozenset()) - {host}

    def snapshot(self) -> dict[str, bytes]:
        """Return the places as one part; ``changed_ns`` is kept by the graph."""
        if self._part is None:
            self._part = pack_state(columns_of(RankPlace, (place for _, place in sorted(self.places.items()))))
        return {PART: self._part}

    def restore(self, parts: Mapping[str, bytes]) -> None:
        """Replace the places by those of a snapshot."""
        places = {place.rank: place for place in from_columns(RankPlace, unpack_state(parts, PART))}
        self.places.clear()
        self.places.update(places)
        self._forget_derived()
