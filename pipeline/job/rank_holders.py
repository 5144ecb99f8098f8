"""Track which host holds each rank of a job, and the claims of other hosts on it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from tocsin.pipeline.core.arrays import (
    array_from,
    array_state,
    map_from,
    map_state,
)
from tocsin.pipeline.core.operator import shallow
from tocsin.pipeline.core.state_maps import pairs_from, pairs_state
from tocsin.schemas.job_key import is_lone, lone_host
from tocsin.schemas.records import NS_PER_SECOND, RankPlace


def same_host(one: str, other: str) -> bool:
    """Return whether two names mean one host: equal, or a short and a full name (``n5``, ``n5.rack2.example``)."""
    return one == other or one.startswith(f"{other}.") or other.startswith(f"{one}.")


@dataclass(frozen=True, slots=True)
class RankFilterConfig:
    """Settings for deciding which host may send records of a rank.

    Attributes:
        is_played: the records come from a replayed recording. Its topology moves ranks at once, scheduler events are
            accepted from any host, and a phase of rank -1 applies to the whole job.
        schedulers: hosts that may send scheduler events (source ``scheduler``) of any rank.
        announce_ns: agents announce their ranks this often; a claim that comes later does not make the rank contested.
        silent_ns: a claim is granted when the holder has not named the rank for this long, if the holder reported the
            end of the rank or is silent altogether. Two report intervals of an agent plus a second.
        forgotten_ns: the same time for a holder that still sends records but does not name the rank.
        alive_ns: a claim is dropped when its holder names the rank this long after it. Clocks differ by less.
        claim_ns: a claim that was not repeated for this long is dropped.
        contest_ns: a rank stays contested until the second claim was not repeated for this long.
        max_refusal_count: maximum number of dead letters per slice.
    """

    is_played: bool = False
    schedulers: tuple[str, ...] = ()
    announce_ns: int = 30 * NS_PER_SECOND
    silent_ns: int = 11 * NS_PER_SECOND
    forgotten_ns: int = 35 * NS_PER_SECOND
    alive_ns: int = 2 * NS_PER_SECOND
    claim_ns: int = 600 * NS_PER_SECOND
    contest_ns: int = 65 * NS_PER_SECOND
    max_refusal_count: int = 64


@dataclass(slots=True)
class Claim:
    """The claim of one host that a rank held by another host runs on it.

    Attributes:
        place: the place that the claiming host announced.
        since_ns: time of the first claim.
        newest_ns: time of the newest claim.
        heard_ns: when the holder last named the rank as alive; at first the time of the claim.
        holder_ns: when the holder last sent any record; at first the time of the claim.
        has_ended: whether the holder reported the end of the rank's process and no new process since.
    """

    place: RankPlace
    since_ns: int
    newest_ns: int
    heard_ns: int
    holder_ns: int
    has_ended: bool


@dataclass(slots=True)
class Holders:
    """Host that holds each rank of one job, with the open claims of other hosts.

    Attributes:
        host_of: rank -> the host that holds it.
        ranks_of: host -> the ranks that it holds.
        placed_ns: rank -> when a topology placed it on its host; absent if its host was only the first to name the
            rank.
        ended_ns: rank -> when its host reported its end.
        claims: rank -> the open claim of another host.
        contested: rank -> newest time of a claim that came within seconds of the holder's own announcement.
        anew_ns: host -> when a process last started there (a whole step, or a hook's hello); kept while claims are
            open.
        former: rank -> the silent host that lost it, which gets it back if it returns.
        worked_ns: claimed rank -> host -> end of the newest step of the rank that this host sent.
        sizes: host -> the world size that it announces.
        world_size: number of ranks that most hosts announce; higher ranks do not exist. 0: unknown.
        is_size_due: whether a host has announced a new size since ``update_world_size`` ran.
        change_count: number of changes to the host, place or size data, used to reuse an unchanged snapshot part.
    """

    host_of: dict[int, str] = field(default_factory=dict)
    ranks_of: dict[str, set[int]] = field(default_factory=dict)
    placed_ns: dict[int, int] = field(default_factory=dict)
    ended_ns: dict[int, int] = field(default_factory=dict)
    claims: dict[int, Claim] = field(default_factory=dict)
    contested: dict[int, int] = field(default_factory=dict)
    anew_ns: dict[str, int] = field(default_factory=dict)
    former: dict[int, str] = field(default_factory=dict)
    worked_ns: dict[int, dict[str, int]] = field(default_factory=dict)
    sizes: dict[str, int] = field(default_factory=dict)
    world_size: int = 0
    is_size_due: bool = False
    change_count: int = 0

    def give(self, rank: int, host: str) -> None:
        """Make a host the holder of a rank."""
        self.change_count += 1
        before = self.host_of.get(rank)
        if before is not None:
            self.ranks_of[before].discard(rank)
        self.host_of[rank] = host
        self.ranks_of.setdefault(host, set()).add(rank)

    def may_speak(self, rank: int, host: str) -> bool:
        """Return whether a host may send records of a rank; an unheld rank is given to the first host that names it."""
        held = self.host_of.get(rank)
        if held == host:
            return True
        if is_lone(host) and host != lone_host(rank):
            return False  # a name that stands for one rank's host speaks of that rank
        if held is None:
            if self.is_beyond(rank):
                return False
            self.give(rank, host)
            return True
        if is_lone(host):
            return rank not in self.placed_ns
        if is_lone(held):
            self.give(rank, host)  # nobody knew its host until now
            return True
        return same_host(held, host)

    def is_beyond(self, rank: int) -> bool:
        """Return whether a rank is at or above the world size that most hosts announce."""
        return 0 < self.world_size <= rank

    def set_size(self, host: str, size: int) -> None:
        """Remember the world size that a host announces."""
        if self.sizes.get(host) != size:
            self.sizes[host] = size
            self.is_size_due = True
            self.change_count += 1

    def update_world_size(self) -> None:
        """Set ``world_size`` to the size that most hosts announce, and forget ranks at or above it."""
        self.is_size_due = False
        announced = Counter(size for size in self.sizes.values() if size > 0)
        most, count = min(announced.items(), key=lambda entry: (-entry[1], entry[0]), default=(0, 0))
        # Where most hosts hold ranks beyond it they do not mean the job's size, but their own.
        beyond = sum(max(ranks, default=-1) >= most for ranks in self.ranks_of.values())
        found = most if 2 * count > len(self.sizes) and 2 * beyond <= len(self.ranks_of) else 0
        if found == self.world_size:
            return
        self.world_size = found
        self.change_count += 1
        for rank in [rank for rank in self.host_of if self.is_beyond(rank)]:
            self.ranks_of[self.host_of.pop(rank)].discard(rank)
            for facts in (self.placed_ns, self.ended_ns, self.contested, self.former, self.claims):
                facts.pop(rank, None)

    def place(self, place: RankPlace, ts_ns: int) -> None:
        """Place a rank on the host that an accepted topology names, and drop the claims on it."""
        self.give(place.rank, place.host)
        self.placed_ns[place.rank] = ts_ns
        self.ended_ns.pop(place.rank, None)
        self.claims.pop(place.rank, None)

    def claim(self, place: RankPlace, ts_ns: int) -> None:
        """Record another host's claim on a rank; only the first claiming host is remembered."""
        claim = self.claims.get(place.rank)
        if claim is None:
            has_ended = place.rank in self.ended_ns
            self.claims[place.rank] = Claim(place, ts_ns, ts_ns, ts_ns, ts_ns, has_ended)
        elif same_host(claim.place.host, place.host):
            claim.newest_ns = max(claim.newest_ns, ts_ns)

    def to_state(self) -> dict[str, Any]:
        """Return the hosts, ranks and sizes as a state for ``pack_state``."""
        ranks = sorted(self.host_of)
        hosts = sorted(self.ranks_of)
        index = {host: number for number, host in enumerate(hosts)}
        return {
            "hosts": hosts,
            "ranks": array_state(np.array(ranks, "<i8")),
            "host_of": array_state(np.array([index[self.host_of[rank]] for rank in ranks], "<i4")),
            "placed_ns": array_state(np.array([self.placed_ns.get(rank, -1) for rank in ranks], "<i8")),
            "sizes": pairs_state(self.sizes),
            "world_size": self.world_size,
        }

    def claims_state(self) -> dict[str, Any]:
        """Return the ends, claims and contested ranks as a state for ``pack_state``.

        They are kept apart because they change without a topology.
        """
        return {
            "ended_ns": map_state(self.ended_ns, "<i8"),
            "contested": map_state(self.contested, "<i8"),
            "former": pairs_state(self.former),
            "claims": [
                [
                    shallow(claim.place),
                    claim.since_ns,
                    claim.newest_ns,
                    claim.heard_ns,
                    claim.holder_ns,
                    claim.has_ended,
                ]
                for _, claim in sorted(self.claims.items())
            ],
            "anew_ns": pairs_state(self.anew_ns),
            "worked_ns": [[rank, pairs_state(hosts)] for rank, hosts in sorted(self.worked_ns.items())],
        }

    def load_state(self, state: Mapping[str, Any], doubts: Mapping[str, Any]) -> None:
        """Replace the state by what ``to_state`` and ``claims_state`` returned."""
        hosts = state["hosts"]
        self.ranks_of = {host: set() for host in hosts}
        self.host_of, self.placed_ns = {}, {}
        columns = (array_from(state[name]).tolist() for name in ("ranks", "host_of", "placed_ns"))
        for rank, number, placed_ns in zip(*columns, strict=True):
            self.host_of[rank] = hosts[number]
            self.ranks_of[hosts[number]].add(rank)
            if placed_ns >= 0:
                self.placed_ns[rank] = placed_ns
        self.sizes, self.world_size = pairs_from(state["sizes"]), state["world_size"]
        self.ended_ns, self.contested = map_from(doubts["ended_ns"]), map_from(doubts["contested"])
        self.former = pairs_from(doubts["former"])
        self.is_size_due = False
        self.claims = {claim[0]["rank"]: Claim(RankPlace(**claim[0]), *claim[1:]) for claim in doubts["claims"]}
        self.anew_ns = pairs_from(doubts["anew_ns"])
        self.worked_ns = {rank: pairs_from(hosts) for rank, hosts in doubts["worked_ns"]}
