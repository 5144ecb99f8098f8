"""What is known of one job: who runs where, in which groups, and what became of each rank.

The dependency graph of ``diagnose``: rank -> host, rank -> groups, and the facts
that events state. It only keeps facts; it judges nothing.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from signal import SIGKILL
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
from tocsin.pipeline.job.facts import (
    UNKNOWN_CLOCK_ERROR_NS,
    ExitFact,
    HostFacts,
    RankFacts,
    ended_before_ns,
    exit_of,
    is_unknown_end,
    left_in_order,
)
from tocsin.pipeline.job.groups import GroupBook, GroupBounds
from tocsin.pipeline.job.layout import block_layout
from tocsin.schemas import events
from tocsin.schemas.job_key import is_lone
from tocsin.schemas.kinds import LEFT_DUMP
from tocsin.schemas.records import (
    METRIC_SLICE_NS,
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
from tocsin.schemas.wire.event_payloads import STALL_KEYS, number

_KEPT_STOP_EDGES = 32
_MOST_OFFSET_NS = 3600 * NS_PER_SECOND
_FIRST_STEP_NS = 5 * NS_PER_SECOND
"""No process that is started in another's place begins a step sooner."""
_BACK_AFTER_NS = 11 * NS_PER_SECOND
"""What an agent still has to say of the attempt before is said within two metric slices."""
_MUTE_AFTER_NS = 8 * NS_PER_SECOND
"""A host speaks at least every metric slice (5 s)."""


def _told_again(known: ExitFact | None, told: ExitFact) -> ExitFact:
    """What is known of a process's end, as an event tells it: the same end told again is as old as it was."""
    if known is None or not known.reported or (known.code, known.signal) != (told.code, told.signal):
        return told
    return replace(told, ts_ns=min(told.ts_ns, known.ts_ns), stderr_tail=known.stderr_tail or told.stderr_tail)


class JobGraph:
    """Facts of one job, fed with its slices."""

    def __init__(self, group_bounds: GroupBounds | None = None) -> None:
        """Know nothing.

        Args:
            group_bounds: what one host may announce; None: a recording speaks for all hosts.
        """
        self.places: dict[int, RankPlace] = {}
        self._roles: dict[str, tuple[int, ...]] | None = None
        """``roles_of_hosts``, None: to be made again."""
        self._behind: dict[str, frozenset[str]] | None = None
        """Host -> all hosts behind its switch; None: to be made again."""
        self._switches: dict[str, tuple[str, str]] | None = None
        """``switches_of_hosts``, None: to be made again."""
        self._layout: tuple[int, dict[int, str]] | None = None
        """``block_layout`` of the ranks whose hosts are known, None: to be made again."""
        self._places_part: bytes | None = None
        """The places' part of a snapshot, None: to be made again; announced each 30 s, they nearly never move."""
        self.group_book = GroupBook(group_bounds)
        self.ranks: dict[int, RankFacts] = {}
        self.hosts: dict[str, HostFacts] = {}
        self.contested: frozenset[int] = frozenset()
        """Ranks of which two hosts say that they run there: whoever drives this says which; nobody knows their host."""
        self.disbelieved: frozenset[int] = frozenset()
        """Ranks of which it is said that they died, and the job went on: whoever drives this judges that."""
        self.moved_ns: dict[str, int] = {}
        """Hosts that went on to a later attempt of the job -> when that was seen first."""
        self.leaving: set[int] = set()
        """Ranks that said good-bye or ended, in whatever way."""
        self.announced = Announced()
        self.places_changed_ns: dict[str, int] = {}
        """Host -> when a rank was moved to it, or away from it, the last time."""
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
        """Ranks of the job as announced, else as seen."""
        announced = max((place.world_size for place in self.places.values()), default=0)
        return max(announced, len(self.ranks))

    def host_of(self, rank: int) -> str:
        """The host of a rank, "" where nobody said so, or two did."""
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
        """The host of a rank of which nobody told it, where those of other ranks show how they are laid out."""
        if self._layout is None:
            told = {rank: facts.host for rank, facts in self.ranks.items() if not is_lone(facts.host)}
            hosts = sum(not is_lone(host) for host in self.hosts)
            self._layout = block_layout(told, hosts, self.world_size)
        size, of_block = self._layout
        return of_block.get(rank // size, "") if of_block else ""

    def is_at_work(self, rank: int) -> bool:
        """Whether a rank ever made a step."""
        facts = self.ranks.get(rank)
        return facts is not None and facts.last_step >= 0

    def ranks_of_host(self, host: str) -> tuple[int, ...]:
        """Ranks that run on a host, ascending."""
        return tuple(sorted(rank for rank in self.ranks if self.host_of(rank) == host))

    def stage_of(self, rank: int) -> int:
        """The pipeline stage that a rank is compared within; -1 for all where unknown."""
        place = self.places.get(rank)
        return place.pp if place is not None else -1

    def stages_of(self, ranks: Iterable[int]) -> list[int]:
        """``stage_of`` of each, for tens of thousands."""
        places = self.places
        return [-1 if (place := places.get(rank)) is None else place.pp for rank in ranks]

    def host_count(self, ranks: Iterable[int], most: int) -> int:
        """On how many hosts these ranks run; counting ends at ``most``."""
        hosts: set[str] = set()
        for rank in ranks:
            hosts.add(self.host_of(rank))
            if len(hosts) >= most:
                break
        return len(hosts)

    def roles_of_hosts(self) -> dict[str, tuple[int, ...]]:
        """Host -> the pipeline stages of its ranks: only hosts of equal role carry the same load."""
        if self._roles is None:
            stages: dict[str, set[int]] = {}
            for place in self.places.values():
                stages.setdefault(place.host, set()).add(place.pp)
            self._roles = {host: tuple(sorted(found)) for host, found in stages.items()}
        return self._roles

    def switches_of_hosts(self) -> dict[str, tuple[str, str]]:
        """Host -> its leaf switch and its minipod, of those of which anybody said the leaf."""
        if self._switches is None:
            places = self.places.values()
            self._switches = {place.host: (place.leaf, place.minipod) for place in places if place.leaf}
        return self._switches

    def neighbours_of(self, host: str) -> frozenset[str]:
        """The other hosts behind its leaf switch, else of its minipod; none where nobody said who hangs on what."""
        if self._behind is None:
            behind: dict[tuple[str, str], set[str]] = {}
            keys = {place.host: (place.leaf, "" if place.leaf else place.minipod) for place in self.places.values()}
            for name, key in keys.items():
                behind.setdefault(key, set()).add(name)
            known = {key: frozenset(names) for key, names in behind.items() if any(key)}
            self._behind = {name: known.get(key, frozenset()) for name, key in keys.items()}
        return self._behind.get(host, frozenset()) - {host}

    def killed_last(self) -> frozenset[int]:
        """The ranks whose processes were there until all others had left, and then had to be killed.

        Whoever runs the job ends what is left of it with SIGTERM first: a process that only SIGKILL ends did not run.
        """
        left = {rank: facts.exit for rank, facts in self.ranks.items() if facts.exit is not None}
        others = [end.ts_ns for end in left.values() if end.signal != SIGKILL]
        if 2 * len(others) < self.world_size or len(others) == len(left):
            return frozenset()
        last_ns = max(others)
        return frozenset(rank for rank, end in left.items() if end.signal == SIGKILL and end.ts_ns > last_ns)

    def spare_hosts(self) -> frozenset[str]:
        """Hosts that report and carry no rank, while most others do: replaced, or not yet needed."""
        carrying = {place.host for place in self.places.values()}
        spare = self.hosts.keys() - carrying
        # Where most have none the names do not match (short and full ones): nobody is known to be spare.
        return frozenset(spare) if 2 * len(spare) < len(self.hosts) else frozenset()

    def see_moved(self, heard_ns: Mapping[str, int]) -> None:
        """These hosts were heard in later attempts then; one that speaks on here for longer is back in this one."""
        for host, newest_ns in heard_ns.items():
            facts = self.hosts.get(host)
            if facts is None:
                continue
            if facts.last_seen_ns > newest_ns + _BACK_AFTER_NS:
                self.moved_ns.pop(host, None)
            else:
                self.moved_ns.setdefault(host, newest_ns)

    def clock_error_ns(self, ranks: Iterable[int]) -> int:
        """By how much the clocks of these ranks' hosts may differ (one host: nothing)."""
        hosts = {self.host_of(rank) for rank in ranks}
        if len(hosts) <= 1:
            return 0
        errors = sorted(
            (self.hosts[h].clock_error_ns if h in self.hosts else UNKNOWN_CLOCK_ERROR_NS for h in hosts),
            reverse=True,
        )
        return sum(errors[:2])

    def corrected_ns(self, rank: int, ts_ns: int) -> int:
        """A host's time on the engine's clock, as far as the offset is known."""
        facts = self.hosts.get(self.host_of(rank))
        return ts_ns if facts is None else ts_ns - facts.clock_offset_ns

    def in_announced_phase(self, from_ns: int, to_ns: int) -> bool:
        """Whether the job was in an announced phase in [from, to]: most ranks, or one for which the others wait."""
        return self.announced.in_pause(from_ns, to_ns)

    def excuse(self, names: Iterable[str], until_ns: int) -> None:
        """Nobody listened to these hosts until then: that they said nothing shows nothing."""
        for name in names:
            if name in self.hosts:
                self.hosts[name].unheard_until_ns = until_ns

    def ended(self) -> bool:
        """Whether the job is over: its ranks left in order, and those that did not say so could not."""
        if not self.ranks or 2 * len(self.leaving) <= len(self.ranks):
            return False
        newest_ns = max(facts.last_seen_ns for facts in self.hosts.values())
        left = [facts for facts in self.ranks.values() if left_in_order(facts)]
        rest = [facts for facts in self.ranks.values() if not left_in_order(facts)]
        mute = [facts for facts in rest if facts.exit is None and self._is_mute(facts.host, newest_ns)]
        return len(left) > len(rest) and len(mute) == len(rest)

    def all_left(self) -> bool:
        """Whether all of the job's processes are known to be over, however they ended."""
        return (
            bool(self.ranks)
            and len(self.leaving) >= len(self.ranks)
            and all(facts.exit is not None or facts.bye_ns for facts in self.ranks.values())
        )

    def speaks(self, host: str) -> bool:
        """Whether a host was heard as late as the others."""
        return not self._is_mute(host, max((facts.last_seen_ns for facts in self.hosts.values()), default=0))

    def _is_mute(self, host: str, newest_ns: int) -> bool:
        """Whether a host had fallen silent when the others still spoke: its ranks' end cannot be heard."""
        facts = self.hosts.get(host)
        return facts is None or newest_ns - facts.last_seen_ns >= _MUTE_AFTER_NS

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
                self._take_status(record)

    def _take_steps(self, batch: StepBatch) -> None:
        if self.announced.is_watching:
            self.announced.take_steps(batch.rows)
        for row in batch.rows:
            self._take_row(batch.host, row)

    def _take_ending(self, ending: Event) -> None:
        """Take a rank's end that an agent says again, stamped with its own time: no news where it is known."""
        if self.host_of(ending.rank) in ("", ending.host) and is_unknown_end(self.ranks.get(ending.rank), ending):
            self._take_rank_event(ending)

    def _take_row(self, host: str, row: StepRecord) -> None:
        """A large job brings 80,000 at once: what nearly none of them has is asked first."""
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
        begin_ns = row.ts_ns - int(row.duration_seconds * NS_PER_SECOND)
        left = facts.exit
        if left is not None and (left.code or left.signal) and 0 <= begin_ns - left.ts_ns < _FIRST_STEP_NS:
            facts.belied_count += 1
        facts.begin_anew(begin_ns)
        if self.announced.open:
            self.announced.close_by_step(row.rank, begin_ns)

    def _take_topology(self, topology: Topology) -> None:
        moved = False
        for place in topology.places:
            before = self.places.get(place.rank)
            if before is not None and before.host != place.host:
                moved = True
                self.places_changed_ns.update(dict.fromkeys((before.host, place.host), topology.ts_ns))
            if before is not place and before != place:
                self._roles = self._behind = self._switches = self._places_part = None
            self.places[place.rank] = place
            self._rank(place.rank, place.host, topology.ts_ns).host = place.host
        if moved:
            # No rank moves alive, and none goes on without the others: the job was started again.
            for facts in self.ranks.values():
                facts.begin_anew(topology.ts_ns)
                facts.stopped_since_ns, facts.stopped_ratio, facts.stall = 0, 0.0, None

    def _see_host(self, record: JobRecord) -> None:
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
        """These hosts sent frames: the newest stamp and the distance of samples of each."""
        for host, newest_ns, distance_ns in zip(hosts, seen_ns.tolist(), tick_ns.tolist(), strict=True):
            facts = self.hosts.get(host)
            if facts is None:
                facts = self.hosts[host] = HostFacts(newest_ns, newest_ns)
                self._layout = None
            facts.last_seen_ns = max(facts.last_seen_ns, newest_ns)
            facts.report_interval_ns = metric_slice_ns(distance_ns)

    def _rank(self, rank: int, host: str, ts_ns: int) -> RankFacts:
        facts = self.ranks.get(rank)
        if facts is None:
            facts = self.ranks[rank] = RankFacts(host, ts_ns)
            self._layout = None
        elif is_lone(facts.host) and not is_lone(host):  # its steps did not say where it runs
            facts.host, self._layout = host, None
        return facts

    def _take_status(self, status: HostStatus) -> None:
        facts = self.hosts[status.host]
        facts.report_interval_ns = facts.report_interval_ns or METRIC_SLICE_NS
        # Of a clock that is further off no record is in time: such an offset was not measured.
        is_likely = abs(status.clock_offset_ns) <= _MOST_OFFSET_NS
        facts.clock_offset_ns = status.clock_offset_ns if is_likely else 0
        facts.clock_error_ns = min(status.clock_error_ns, _MOST_OFFSET_NS)
        facts.hook_present = status.hook_present

    def _take_agent(self, event: Event) -> None:
        edge = event.payload.get("edge")
        if edge in ("stop", "start"):
            self.hosts[event.host].agent_stopped_ns = event.ts_ns if edge == "stop" else 0

    def _take_event(self, event: Event) -> None:
        if ended_ns := ended_before_ns(event):
            self._take_ending(replace(event, ts_ns=ended_ns))
            return
        if event.name == events.AGENT:
            self._take_agent(event)
        if event.name == events.PHASE:
            self._take_phase(event)
        if event.name == events.EXIT and event.rank < 0:
            # Whoever says so knows the host only: one of its processes.
            alive = [rank for rank in self.ranks_of_host(event.host) if self.ranks[rank].exit is None]
            event = replace(event, rank=min(alive, default=-1))
        if event.rank >= 0:
            self._take_rank_event(event)

    def _take_rank_event(self, event: Event) -> None:
        facts = self._rank(event.rank, event.host, event.ts_ns)
        if event.name in (events.EXIT, events.PROCESS_GONE, events.BYE):
            self.leaving.add(event.rank)
        is_new = facts.exit is None and facts.bye_ns == 0
        if event.name == events.EXIT or (event.name == events.PROCESS_GONE and is_new):
            is_told = event.name == events.EXIT
            facts.exit = (
                _told_again(facts.exit, exit_of(event)) if is_told else ExitFact(event.ts_ns, -1, 0, "", reported=False)
            )
            facts.stopped_since_ns = 0
        elif event.name == events.BYE:
            facts.bye_ns = event.ts_ns
        elif event.name == events.STOPPED:
            self._take_stopped(facts, event)
        elif event.name == events.STALL:
            told = {key: event.payload[key] for key in STALL_KEYS if key in event.payload}
            facts.stall = None if told.get("edge") == "end" else told
            facts.stall_ns = event.ts_ns

    @staticmethod
    def _take_stopped(facts: RankFacts, event: Event) -> None:
        facts.stop_edges_ns.append(event.ts_ns)
        facts.stopped_ratio = max(0.0, min(1.0, number(event.payload, "stopped_ratio", 0.0)))
        del facts.stop_edges_ns[:-_KEPT_STOP_EDGES]
        if event.payload.get("edge") == "begin":
            facts.stopped_since_ns = facts.stopped_since_ns or event.ts_ns
        else:
            facts.stopped_since_ns = 0

    def _take_phase(self, event: Event) -> None:
        name, begins = str(event.payload.get("phase", "")), event.payload.get("edge") == "begin"
        self.announced.take(event.rank, name, event.ts_ns, begins=begins, rank_count=len(self.ranks))

    def snapshot(self) -> dict[str, bytes]:
        """State in two parts: who runs where, and the rest."""
        if self._places_part is None:
            self._places_part = pack_state(columns_of(RankPlace, (place for _, place in sorted(self.places.items()))))
        return {"places": self._places_part, "graph": pack_state(self._to_state())}

    def restore(self, parts: Mapping[str, bytes]) -> None:
        """Take back what ``snapshot`` gave."""
        self._places_part = self._layout = None
        self.places = {place.rank: place for place in from_columns(RankPlace, unpack_state(parts, "places"))}
        self._load_state(unpack_state(parts, "graph"))

    def _to_state(self) -> dict[str, Any]:
        ranks, hosts = sorted(self.ranks), sorted(self.hosts)
        return {
            **self.group_book.to_state(),
            "ranks": [np.array(ranks, "<i8"), columns_of(RankFacts, map(self.ranks.__getitem__, ranks), "exit")],
            "exits": [[rank, shallow(left)] for rank in ranks if (left := self.ranks[rank].exit) is not None],
            "hosts": [hosts, columns_of(HostFacts, map(self.hosts.__getitem__, hosts))],
            "announced": self.announced.to_state(),
            "places_changed_ns": sorted(self.places_changed_ns.items()),
            "moved_ns": sorted(self.moved_ns.items()),
            "max_step": self.max_step,
            "max_step_ns": self.max_step_ns,
            "progress_ns": self.progress_ns,
        }

    def _load_state(self, state: dict[str, Any]) -> None:
        self._roles = self._behind = self._switches = None
        self.group_book.load_state(state)
        ranks, rows = state["ranks"]
        self.ranks = dict(zip(ranks.tolist(), from_columns(RankFacts, rows), strict=True))
        for rank, left in state["exits"]:
            self.ranks[rank].exit = ExitFact(**left)
        self.leaving = {rank for rank, facts in self.ranks.items() if facts.exit is not None or facts.bye_ns}
        hosts, rows = state["hosts"]
        self.hosts = dict(zip(hosts, from_columns(HostFacts, rows), strict=True))
        self.moved_ns = dict(map(tuple, state["moved_ns"]))
        self.places_changed_ns = dict(map(tuple, state["places_changed_ns"]))
        self.announced.load_state(state["announced"])
        self.max_step, self.max_step_ns = state["max_step"], state["max_step_ns"]
        self.progress_ns = state["progress_ns"]
