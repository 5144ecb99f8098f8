"""Facts of one job: where its ranks run, in which groups, and what became of each rank and host.

This is the dependency graph of the root cause analysis: rank -> host, rank -> groups, and the facts that events state.
It keeps facts and judges nothing.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tocsin.pipeline.core.operator import (
    columns_of,
    from_columns,
    pack_state,
    shallow,
    unpack_state,
)
from tocsin.pipeline.job.announced_phases import Announced
from tocsin.pipeline.job.ends import all_left, have_ended, is_mute, killed_last
from tocsin.pipeline.job.facts import (
    UNKNOWN_CLOCK_ERROR_NS,
    ExitFact,
    HostFacts,
    RankFacts,
    ended_before_ns,
    is_unknown_end,
)
from tocsin.pipeline.job.groups import GroupBook, GroupBounds
from tocsin.pipeline.job.layout import block_layout
from tocsin.pipeline.job.placement import Placement
from tocsin.schemas import events
from tocsin.schemas.job_key import is_lone
from tocsin.schemas.kinds import LEFT_DUMP
from tocsin.schemas.records import (
    NS_PER_SECOND,
    CollectiveBatch,
    CommGroup,
    Event,
    Frame,
    Groups,
    HostStatus,
    JobRecord,
    ProbeAnswer,
    RankPlace,
    StepBatch,
    StepRecord,
    Topology,
    metric_slice_ns,
)

_BACK_AFTER_NS = 11 * NS_PER_SECOND
"""A host heard for so long after its move is back in this attempt; leftovers take two metric slices at most."""


class JobGraph:
    """Facts of one job, fed with its slices."""

    def __init__(self, group_bounds: GroupBounds | None = None) -> None:
        """Start without facts.

        Args:
            group_bounds: limits of what one host may announce; None = no limits, as a recording speaks for all hosts.
        """
        self.placement = Placement()
        self.places: Mapping[int, RankPlace] = self.placement.places
        """Rank -> its announced place; the dictionary of ``placement``."""
        self._layout: tuple[int, dict[int, str]] | None = None
        """``block_layout`` of the ranks whose hosts are known, None = to be computed again."""
        self.group_book = GroupBook(group_bounds)
        self.ranks: dict[int, RankFacts] = {}
        self.hosts: dict[str, HostFacts] = {}
        self.contested: frozenset[int] = frozenset()
        """Ranks that two hosts claim, so that their host is unknown; set from outside."""
        self.disbelieved: frozenset[int] = frozenset()
        """Ranks that are said to have died although the job went on; set from outside."""
        self.moved_ns: dict[str, int] = {}
        """Host that went on to a later attempt of the job -> when that was first seen."""
        self.leaving: set[int] = set()
        """Ranks that said goodbye or ended, in whatever way."""
        self.announced = Announced()
        self.max_step = -1
        self.max_step_ns = 0
        self.progress_ns = 0
        """End of the newest step that any rank finished."""

    @property
    def groups(self) -> Mapping[str, CommGroup]:
        """The communication groups by their names."""
        return self.group_book.groups

    @property
    def world_size(self) -> int:
        """Number of ranks, as announced or as seen, whichever is more."""
        return max(self.placement.world_size, len(self.ranks))

    def host_of(self, rank: int) -> str:
        """Return the host of a rank, "" = unknown, or claimed by two hosts."""
        if rank in self.contested:
            return ""
        place = self.places.get(rank)
        if place is not None:
            return place.host
        facts = self.ranks.get(rank)
        if facts is None:
            return ""
        return self._host_of_block(rank) or facts.host if is_lone(facts.host) else facts.host

    def _host_of_block(self, rank: int) -> str:
        """Return the host of a rank by the block layout that other ranks show, "" = they show none."""
        if self._layout is None:
            reported = {rank: facts.host for rank, facts in self.ranks.items() if not is_lone(facts.host)}
            hosts = sum(not is_lone(host) for host in self.hosts)
            self._layout = block_layout(reported, hosts, self.world_size)
        size, of_block = self._layout
        return of_block.get(rank // size, "") if of_block else ""

    def is_at_work(self, rank: int) -> bool:
        """Return whether a rank ever finished a step."""
        facts = self.ranks.get(rank)
        return facts is not None and facts.last_step >= 0

    def ranks_of_host(self, host: str) -> tuple[int, ...]:
        """Return the ranks that run on a host, ascending."""
        return tuple(sorted(rank for rank in self.ranks if self.host_of(rank) == host))

    def host_count(self, ranks: Iterable[int], most: int) -> int:
        """Return the number of hosts on which these ranks run; counting ends at ``most``."""
        hosts: set[str] = set()
        for rank in ranks:
            hosts.add(self.host_of(rank))
            if len(hosts) >= most:
                break
        return len(hosts)

    def killed_last(self) -> frozenset[int]:
        """Return the ranks whose processes lived until all others had left, and then had to be killed."""
        return killed_last(self.ranks, self.world_size)

    def spare_hosts(self) -> frozenset[str]:
        """Return the hosts that report and carry no rank although most hosts do: replaced, or not yet needed."""
        spare = self.hosts.keys() - self.placement.hosts()
        # Where most have none the names do not match (short and full ones): nobody is known to be spare.
        return frozenset(spare) if 2 * len(spare) < len(self.hosts) else frozenset()

    def see_moved(self, heard_ns: Mapping[str, int]) -> None:
        """Note which hosts were heard in later attempts of the job.

        A host that still speaks in this attempt ``_BACK_AFTER_NS`` later is back in it.

        Args:
            heard_ns: host -> when it was last heard in a later attempt.
        """
        for host, newest_ns in heard_ns.items():
            facts = self.hosts.get(host)
            if facts is None:
                continue
            if facts.last_seen_ns > newest_ns + _BACK_AFTER_NS:
                self.moved_ns.pop(host, None)
            else:
                self.moved_ns.setdefault(host, newest_ns)

    def clock_error_ns(self, ranks: Iterable[int]) -> int:
        """Return by how much the clocks of these ranks' hosts may differ, 0 = they run on one host."""
        hosts = {self.host_of(rank) for rank in ranks}
        if len(hosts) <= 1:
            return 0
        errors = sorted(
            (self.hosts[h].clock_error_ns if h in self.hosts else UNKNOWN_CLOCK_ERROR_NS for h in hosts),
            reverse=True,
        )
        return sum(errors[:2])

    def corrected_ns(self, rank: int, ts_ns: int) -> int:
        """Return a time of a rank's host on the engine's clock, unchanged where the offset is unknown."""
        facts = self.hosts.get(self.host_of(rank))
        return ts_ns if facts is None else ts_ns - facts.clock_offset_ns

    def in_announced_phase(self, from_ns: int, to_ns: int) -> bool:
        """Return whether the job was in an announced phase within [from, to].

        That is when most ranks were in one, or a rank for which the others wait.
        """
        return self.announced.in_pause(from_ns, to_ns)

    def excuse(self, names: Iterable[str], until_ns: int) -> None:
        """Note that the engine did not listen to these hosts until a time, so that their silence proves nothing."""
        for name in names:
            if name in self.hosts:
                self.hosts[name].unheard_until_ns = until_ns

    def ended(self) -> bool:
        """Return whether the job is over: most ranks left in order, and the hosts of the others are silent."""
        if not self.ranks or 2 * len(self.leaving) <= len(self.ranks):
            return False
        return have_ended(self.ranks, self.hosts)

    def all_left(self) -> bool:
        """Return whether all of the job's processes are known to be over, however they ended."""
        return bool(self.ranks) and len(self.leaving) >= len(self.ranks) and all_left(self.ranks)

    def speaks(self, host: str) -> bool:
        """Return whether a host was heard about as late as the host that was heard last."""
        newest_ns = max((facts.last_seen_ns for facts in self.hosts.values()), default=0)
        return not is_mute(self.hosts.get(host), newest_ns)

    def take(self, records: Iterable[JobRecord]) -> None:
        """Learn from the records of one slice."""
        for record in records:
            self._see_host(record)
            if isinstance(record, Event):
                self._take_event(record)
            elif isinstance(record, StepBatch):
                self._take_steps(record)
            elif isinstance(record, CollectiveBatch):
                for rank in {row.rank for row in record.rows}:
                    self._rank(rank, record.host, record.ts_ns)
            elif isinstance(record, Topology):
                self._take_topology(record)
            elif isinstance(record, Groups):
                self.group_book.take(record)
            elif isinstance(record, HostStatus):
                self.hosts[record.host].take_status(record)

    def _take_steps(self, batch: StepBatch) -> None:
        """Learn from the steps of one host."""
        if self.announced.is_watching:
            self.announced.take_steps(batch.rows)
        for row in batch.rows:
            self._take_row(batch.host, row)

    def _take_ending(self, ending: Event) -> None:
        """Learn a rank's end that an agent repeats, stamped with its own time, unless it is known."""
        if self.host_of(ending.rank) in ("", ending.host) and is_unknown_end(self.ranks.get(ending.rank), ending):
            self._take_rank_event(ending)

    def _take_row(self, host: str, row: StepRecord) -> None:
        """Learn from one step; a large job brings 80,000 at once, so rare cases are left to ``_take_whole_step``."""
        ts_ns, step = row.ts_ns, row.step
        facts = self.ranks.get(row.rank)
        if facts is None:
            facts = self._rank(row.rank, host, ts_ns)
        if ts_ns > facts.last_step_ns:
            if step < facts.last_step and ts_ns > self.max_step_ns:
                self.max_step = -1  # the job runs anew, and counts anew
            facts.last_step, facts.last_step_ns = step, ts_ns
            if facts.stall is not None and ts_ns > facts.stall_ns:
                facts.stall = None
        if step > self.max_step and ts_ns > self.max_step_ns:
            self.max_step, self.max_step_ns = step, ts_ns
        self.progress_ns = max(self.progress_ns, ts_ns)
        if row.loss is not None and math.isfinite(row.loss):
            facts.number_steps[0] = step
        if row.grad_norm is not None and math.isfinite(row.grad_norm):
            facts.number_steps[1] = step
        if facts.exit is not None or facts.bye_ns or self.announced.open:
            self._take_whole_step(facts, row)

    def _take_whole_step(self, facts: RankFacts, row: StepRecord) -> None:
        """Learn from a step of a rank that was said to have ended, or of a job in an announced phase."""
        begin_ns = row.ts_ns - int(row.duration_seconds * NS_PER_SECOND)
        facts.see_step_begin(begin_ns)
        if self.announced.open:
            self.announced.close_by_step(row.rank, begin_ns)

    def _take_topology(self, topology: Topology) -> None:
        """Learn where ranks run; a rank that moved means that the whole job was started again."""
        has_moved = self.placement.take(topology)
        for place in topology.places:
            self._rank(place.rank, place.host, topology.ts_ns).host = place.host
        if has_moved:  # no rank moves alive, and none goes on without the others
            for facts in self.ranks.values():
                facts.begin_anew(topology.ts_ns)
                facts.forget_standstill()

    def _see_host(self, record: JobRecord) -> None:
        """Note when a record's host was heard, and how often it reports."""
        if isinstance(record, ProbeAnswer) and record.request_id == LEFT_DUMP:
            return  # a file that was found is no sign of life
        if isinstance(record, Event) and (ended_ns := ended_before_ns(record)):
            self.hosts.setdefault(record.host, HostFacts(ended_ns, ended_ns))  # nor is an end of long ago
            return
        facts = self.hosts.get(record.host)
        if facts is None:
            facts = self.hosts[record.host] = HostFacts(record.ts_ns, record.ts_ns)
            self._layout = None
        facts.last_seen_ns = max(facts.last_seen_ns, record.ts_ns)
        if isinstance(record, Frame):
            facts.report_interval_ns = metric_slice_ns(record.tick_ns)

    def see_hosts(self, hosts: Sequence[str], seen_ns: NDArray[np.int64], tick_ns: NDArray[np.int64]) -> None:
        """Note that hosts sent frames.

        Args:
            hosts: the hosts.
            seen_ns: newest stamp of each host, shape (hosts,).
            tick_ns: sampling period of each host, shape (hosts,).
        """
        ticks_ns = tick_ns.tolist()
        intervals_ns = {distance_ns: metric_slice_ns(distance_ns) for distance_ns in set(ticks_ns)}
        for host, newest_ns, distance_ns in zip(hosts, seen_ns.tolist(), ticks_ns, strict=True):
            facts = self.hosts.get(host)
            if facts is None:
                facts = self.hosts[host] = HostFacts(newest_ns, newest_ns)
                self._layout = None
            facts.last_seen_ns = max(facts.last_seen_ns, newest_ns)
            facts.report_interval_ns = intervals_ns[distance_ns]

    def _rank(self, rank: int, host: str, ts_ns: int) -> RankFacts:
        """Return the facts of a rank, new ones for a rank that is first seen on this host."""
        facts = self.ranks.get(rank)
        if facts is None:
            facts = self.ranks[rank] = RankFacts(host, ts_ns)
            self._layout = None
        elif is_lone(facts.host) and not is_lone(host):  # its steps did not say where it runs
            facts.host, self._layout = host, None
        return facts

    def _take_event(self, event: Event) -> None:
        """Learn from an event of an agent."""
        if ended_ns := ended_before_ns(event):
            self._take_ending(replace(event, ts_ns=ended_ns))
            return
        if event.name == events.AGENT:
            self.hosts[event.host].take_agent_event(event)
        if event.name == events.PHASE:
            self._take_phase(event)
        if event.name == events.EXIT and event.rank < 0:
            # The sender knows only the host: it is one of the host's processes.
            alive = [rank for rank in self.ranks_of_host(event.host) if self.ranks[rank].exit is None]
            event = replace(event, rank=min(alive, default=-1))
        if event.rank >= 0:
            self._take_rank_event(event)

    def _take_rank_event(self, event: Event) -> None:
        """Learn from an event that names a rank."""
        if event.name in (events.EXIT, events.PROCESS_GONE, events.BYE):
            self.leaving.add(event.rank)
        self._rank(event.rank, event.host, event.ts_ns).take_event(event)

    def _take_phase(self, event: Event) -> None:
        """Learn the begin or end of a phase that a rank announces."""
        name, begins = str(event.payload.get("phase", "")), event.payload.get("edge") == "begin"
        self.announced.take(event.rank, name, event.ts_ns, begins=begins, rank_count=len(self.ranks))

    def snapshot(self) -> dict[str, bytes]:
        """Return the state in two parts: the announced places, and the rest."""
        return {**self.placement.snapshot(), "graph": pack_state(self._to_state())}

    def restore(self, parts: Mapping[str, bytes]) -> None:
        """Replace the state by that of a snapshot."""
        self._layout = None
        self.placement.restore(parts)
        self._load_state(unpack_state(parts, "graph"))

    def _to_state(self) -> dict[str, Any]:
        """Return all but the places as values of a snapshot."""
        ranks, hosts = sorted(self.ranks), sorted(self.hosts)
        return {
            **self.group_book.to_state(),
            "ranks": [np.array(ranks, "<i8"), columns_of(RankFacts, map(self.ranks.__getitem__, ranks), "exit")],
            "exits": [[rank, shallow(left)] for rank in ranks if (left := self.ranks[rank].exit) is not None],
            "hosts": [hosts, columns_of(HostFacts, map(self.hosts.__getitem__, hosts))],
            "announced": self.announced.to_state(),
            "places_changed_ns": sorted(self.placement.changed_ns.items()),
            "moved_ns": sorted(self.moved_ns.items()),
            "max_step": self.max_step,
            "max_step_ns": self.max_step_ns,
            "progress_ns": self.progress_ns,
        }

    def _load_state(self, state: dict[str, Any]) -> None:
        """Replace all but the places by the values of a snapshot."""
        self.group_book.load_state(state)
        ranks, rows = state["ranks"]
        self.ranks = dict(zip(ranks.tolist(), from_columns(RankFacts, rows), strict=True))
        for rank, left in state["exits"]:
            self.ranks[rank].exit = ExitFact(**left)
        self.leaving = {rank for rank, facts in self.ranks.items() if facts.exit is not None or facts.bye_ns}
        hosts, rows = state["hosts"]
        self.hosts = dict(zip(hosts, from_columns(HostFacts, rows), strict=True))
        self.moved_ns = dict(map(tuple, state["moved_ns"]))
        self.placement.changed_ns = dict(map(tuple, state["places_changed_ns"]))
        self.announced.load_state(state["announced"])
        self.max_step, self.max_step_ns = state["max_step"], state["max_step_ns"]
        self.progress_ns = state["progress_ns"]
