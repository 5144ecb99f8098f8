"""On which host each rank is placed, and what becomes of another host's claim on it."""

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
    """Whether two names are one host's: equal, or the short and the full form (``n5``, ``n5.rack2.example``)."""
    return one == other or one.startswith(f"{other}.") or other.startswith(f"{one}.")


@dataclass(frozen=True, slots=True)
class SpeakersConfig:
    """Settings.

    Attributes:
        is_played: the records come from a recording's player: its topology says when ranks move, its scheduler is
            heard from any host, and a phase of rank -1 is the whole job's.
        schedulers: hosts from which a scheduler may speak of any rank (events of source ``scheduler``).
        announce_ns: agents announce their ranks so often: a second claim that comes later is no race between two.
        silent_ns: a rank is let go by a host that said it ended, or is silent altogether, if it is not heard of there
            for so long after another host's claim (two reports of an agent, and a second).
        forgotten_ns: ... and by one that goes on speaking, if it does not name the rank for so long.
        alive_ns: a rank that is heard of at its holder so long after a claim lives there: clocks differ by less.
        claim_ns: a claim that was not repeated for so long is forgotten.
        contest_ns: a rank is contested until the second claim was not repeated for so long.
        most_letters_count: dead letters of one turn.
    """

    is_played: bool = False
    schedulers: tuple[str, ...] = ()
    announce_ns: int = 30 * NS_PER_SECOND
    silent_ns: int = 11 * NS_PER_SECOND
    forgotten_ns: int = 35 * NS_PER_SECOND
    alive_ns: int = 2 * NS_PER_SECOND
    claim_ns: int = 600 * NS_PER_SECOND
    contest_ns: int = 65 * NS_PER_SECOND
    most_letters_count: int = 64


@dataclass(slots=True)
class Claim:
    """A host says that a rank which another one holds runs there.

    Attributes:
        place: where.
        since_ns: when it said so first.
        newest_ns: when it said so last.
        heard_ns: when the rank was last heard of at its holder since then; at first the claim's own time.
        holder_ns: when the holder was last heard at all since then, so too.
        has_ended: whether the holder said that the rank's process ended, and nothing of another one after it.
    """

    place: RankPlace
    since_ns: int
    newest_ns: int
    heard_ns: int
    holder_ns: int
    has_ended: bool


@dataclass(slots=True)
class Holders:
    """Who holds which rank.

    Attributes:
        host_of: rank -> its host.
        ranks_of: host -> its ranks.
        placed_ns: rank -> when a topology placed it there; absent: its host only was the first that spoke of it.
        ended_ns: rank -> when its host said that it ended.
        claims: rank -> another host's claim on it.
        contested: rank -> when a claim that came as early as its holder's was last repeated.
        anew_ns: host -> when a process there began anew last: a whole step, a hook's hello, while there are claims.
        former: rank -> from whom it was taken because of silence: who may be back.
        worked_ns: rank that two hosts claim -> host -> end of the newest step that it sent of that rank.
        sizes: host -> the job's size, as it announces it.
        world_size: ranks from here on do not exist; 0: nobody knows.
        is_size_due: whether a host announced another size than before since that was found.
        change_count: how often a rank got another host, or another place.
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
        """A rank is this host's from now on."""
        self.change_count += 1
        before = self.host_of.get(rank)
        if before is not None:
            self.ranks_of[before].discard(rank)
        self.host_of[rank] = host
        self.ranks_of.setdefault(host, set()).add(rank)

    def may_speak(self, rank: int, host: str) -> bool:
        """Whether this host may speak of a rank; the first that speaks of one that nobody holds gets it."""
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
        """Whether the job has no such rank, as most of its hosts say."""
        return 0 < self.world_size <= rank

    def know_size(self, host: str, size: int) -> None:
        """A host announces the job's size."""
        if self.sizes.get(host) != size:
            self.sizes[host] = size
            self.is_size_due = True
            self.change_count += 1

    def judge_size(self) -> None:
        """Find the size that most hosts announce, and forget ranks beyond it."""
        self.is_size_due = False
        told = Counter(size for size in self.sizes.values() if size > 0)
        most, count = min(told.items(), key=lambda entry: (-entry[1], entry[0]), default=(0, 0))
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
        """A topology says that a rank runs there, and that is believed."""
        self.give(place.rank, place.host)
        self.placed_ns[place.rank] = ts_ns
        self.ended_ns.pop(place.rank, None)
        self.claims.pop(place.rank, None)

    def claim(self, place: RankPlace, ts_ns: int) -> None:
        """Another host says that a rank runs there; of several the first is remembered."""
        claim = self.claims.get(place.rank)
        if claim is None:
            has_ended = place.rank in self.ended_ns
            self.claims[place.rank] = Claim(place, ts_ns, ts_ns, ts_ns, ts_ns, has_ended)
        elif same_host(claim.place.host, place.host):
            claim.newest_ns = max(claim.newest_ns, ts_ns)

    def to_state(self) -> dict[str, Any]:
        """State in which arrays stand."""
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

    def doubts_state(self) -> dict[str, Any]:
        """State of what changes without a topology: ends, claims, contests."""
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
        """Take back what ``to_state`` and ``doubts_state`` gave."""
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
