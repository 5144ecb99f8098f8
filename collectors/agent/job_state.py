"""State of one attempt of a job on this host: its ranks, and the records cut from them every second."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from operator import attrgetter
from typing import Any, Final

from tocsin.collectors.agent.collective_rows import (
    EPOCH_NS,
    CollectiveRing,
    StateRows,
    completion_records,
    sampled_ranks,
)
from tocsin.collectors.agent.gpu_places import GpuPlaces
from tocsin.collectors.agent.messages import (
    Beat,
    Completion,
    Datagram,
    GroupList,
    Hello,
    StepDone,
)
from tocsin.collectors.agent.rank_state import RankState
from tocsin.collectors.agent.slicer import BEFORE_END_NS
from tocsin.collectors.agent.stall import FLOOR_SECONDS, StallWatch
from tocsin.collectors.clock import Now
from tocsin.collectors.owners import Holder, Life, LocalSender, Processes, still_runs
from tocsin.schemas.records import (
    NS_PER_SECOND,
    CollectiveBatch,
    CollectiveRecord,
    CommGroup,
    GroupKind,
    Groups,
    JobKey,
    RankPlace,
    Record,
    StepBatch,
    StepRecord,
    Topology,
)

ODD_FOR_NS: Final = 30 * NS_PER_SECOND
ANNOUNCE_NS: Final = 30 * NS_PER_SECOND
FORGET_NS: Final = 60 * NS_PER_SECOND
"""Time for which a job is kept after all its ranks have ended, because its ring may still be asked for."""
MADE_UP_NS: Final = 10 * NS_PER_SECOND
"""Time for which a job is kept that never made a step, has no running process and no reported exit."""
UNSEEN_FORGET_NS: Final = 3600 * NS_PER_SECOND
"""Time for which a job of invisible, silent processes is kept; a frozen process is silent, too."""
ROWS_LIMIT: Final = 50_000
"""Most rows that wait for their slice, so that a broken hook cannot fill the memory."""
_COLLECTIVE_ORDER: Final = attrgetter("ts_ns", "rank", "comm_id", "op_seq")


@dataclass(frozen=True, slots=True)
class HostPlace:
    """The name of this host and its switches.

    Attributes:
        host: machine name.
        leaf: name of the leaf switch, "" if unknown.
        minipod: name of the minipod, "" if unknown.
    """

    host: str
    leaf: str = ""
    minipod: str = ""


class JobState:
    """State of one attempt of a job on one host; times in rows are the host's until they are cut into records."""

    def __init__(self, job: JobKey, place: HostPlace, gpus: GpuPlaces, sender: LocalSender) -> None:
        """Start without any rank.

        Args:
            job: the attempt.
            place: name and switches of this host.
            gpus: the host's GPUs.
            sender: who sent the job's first datagram.
        """
        self.job = job
        self.sender = sender
        self.made_mono_ns = 0
        self.began_mono_ns = 0
        self.place = place
        self.gpus = gpus
        self.ranks: dict[int, RankState] = {}
        self.starters: dict[int, Holder] = {}
        """Number of a rank that has not greeted -> the process that told a stage of its start."""
        self.stalls: dict[int, StallWatch] = {}
        self.ring = CollectiveRing()
        self.hello_seen = False
        self.dropped_rows = 0
        self._states = StateRows()
        self._steps: list[StepRecord] = []
        self._completions: list[tuple[int, tuple[Completion, ...]]] = []
        self._waiting_rows = 0
        self._odd_until_mono_ns = 0
        self._topology_due = False
        self._groups_due = False
        self._announced_mono_ns = 0

    def begins_after(self, end_ns: int, now: Now) -> bool:
        """Return whether the job's first word came after the end of a slice, so that the slice has nothing of it."""
        return now.stamp_ns - (now.mono_ns - self.began_mono_ns) >= end_ns

    def rank(self, number: int) -> RankState:
        """Return the state of a rank, created if unknown."""
        found = self.ranks.get(number)
        if found is None:
            found = self.ranks[number] = RankState(number)
            self.stalls[number] = StallWatch()
        return found

    def on_hello(self, rank: RankState, hello: Hello) -> None:
        """Process a hello; a changed place is announced with the next second."""
        self.hello_seen = True
        self._topology_due |= hello != rank.hello
        rank.hello = hello

    def on_groups(self, rank: RankState, listed: GroupList) -> None:
        """Process the groups of a rank; a change is announced with the next second."""
        groups = {group.comm_id: group for group in listed.groups}
        self._groups_due |= groups != rank.groups
        rank.groups = groups

    def on_step(self, rank: RankState, datagram: Datagram, done: StepDone, now: Now) -> None:
        """Process a finished step: update the rank, and queue its rows unless too many wait."""
        if rank.on_step(datagram, done, now):
            self._odd_until_mono_ns = now.mono_ns + ODD_FOR_NS
        self.ring.add(now.host_ns, rank.rank, done.completions)
        row_count = 1 + len(done.completions)
        if self._waiting_rows + row_count > ROWS_LIMIT:
            self.dropped_rows += row_count
            return
        self._waiting_rows += row_count
        self._steps.append(done.record)
        self._completions.append((rank.rank, done.completions))

    def on_beat(self, rank: RankState, datagram: Datagram, beat: Beat, now: Now) -> None:
        """Process a beat of a rank."""
        rank.on_beat(datagram, beat, now)

    def restart(self, number: int) -> None:
        """Forget a rank whose process was replaced within the attempt; its part of the ring stays."""
        self.ranks.pop(number, None)
        self.stalls.pop(number, None)

    def is_late(self, now: Now) -> bool:
        """Return whether some rank's step takes so long that its unread datagrams must be parsed now."""
        limit = now.mono_ns - round(FLOOR_SECONDS * 1e9)
        return any(rank.since_mono_ns < limit for rank in self.ranks.values())

    def stall_news(self, now: Now) -> list[tuple[int, dict[str, Any]]]:
        """Return (rank, payload) of the ``stall`` events to send now."""
        found = [(number, self.stalls[number].look(rank, now.mono_ns)) for number, rank in self.ranks.items()]
        return [(number, payload) for number, payload in found if payload is not None]

    def is_starting(self, now: Now, processes: Processes) -> bool:
        """Return whether no rank has greeted yet, and a process that told of its start runs, as far as can be known."""
        is_young = now.mono_ns - self.made_mono_ns <= UNSEEN_FORGET_NS
        return not self.ranks and any(
            still_runs(one, processes) for one in self.starters.values() if one.sight.life is Life.RUNS or is_young
        )

    def is_over(self, now: Now) -> bool:
        """Return whether all ranks ended more than a minute ago, or the job was never real."""
        limit = now.mono_ns - FORGET_NS
        if not self.ranks:
            return self.made_mono_ns < limit
        if not any(rank.ended in {"exit", "bye"} for rank in self.ranks.values()) and not self.has_steps():
            limit = now.mono_ns - MADE_UP_NS
        return all(self._left_mono_ns(rank, now) < limit for rank in self.ranks.values())

    @staticmethod
    def _left_mono_ns(rank: RankState, now: Now) -> int:
        """Return the monotonic time when a rank's process was gone; the present for a running one."""
        if rank.ended:
            return rank.ended_mono_ns
        if rank.holder is None or rank.holder.sight.life is Life.GONE:
            return rank.spoke_mono_ns
        if rank.holder.sight.life is Life.HIDDEN and now.mono_ns - rank.spoke_mono_ns > UNSEEN_FORGET_NS:
            return rank.spoke_mono_ns
        return now.mono_ns

    def lives(self, now: Now) -> bool:
        """Return whether one of the job's processes runs, as far as can be known."""
        return any(rank.lives(now) for rank in self.ranks.values())

    def is_reserved(self, now: Now) -> bool:
        """Return whether the job's name belongs to its user: a visible or live process sent for it, or a rank ended."""
        return any(
            rank.holder.sight.life is not Life.HIDDEN or rank.ended or rank.lives(now)
            for rank in self.ranks.values()
            if rank.holder is not None
        )

    def has_steps(self) -> bool:
        """Return whether any rank finished a step."""
        return any(rank.step_count for rank in self.ranks.values())

    def spoke_mono_ns(self) -> int:
        """Return the monotonic time of the last datagram of any rank."""
        return max((rank.spoke_mono_ns for rank in self.ranks.values()), default=self.made_mono_ns)

    def gpu_uuids(self) -> set[str]:
        """Return the UUIDs of the GPUs that this job's live ranks use."""
        return {self.gpus.uuid_of(rank) for rank in self.ranks.values() if not rank.ended} - {""}

    def announce_places(self) -> None:
        """Announce the ranks' places with the next second, because the host's GPUs changed."""
        self._topology_due = True

    def ranks_seen(self, since_mono_ns: int) -> tuple[int, ...]:
        """Return the ranks whose hook sent something since this monotonic time."""
        return tuple(sorted(n for n, rank in self.ranks.items() if rank.spoke_mono_ns >= since_mono_ns))

    def cut(self, end_ns: int, now: Now, *, metric_slice: bool) -> list[Record]:
        """Return the records of the second that ends at ``end_ns``.

        Args:
            end_ns: end of the second, a corrected stamp.
            now: the present time.
            metric_slice: whether a metric slice ends, too; then steps and completions are included.
        """
        records: list[Record] = []
        rows: list[CollectiveRecord] = []
        if metric_slice or now.mono_ns < self._odd_until_mono_ns:
            steps = self._take_steps(end_ns, now.correction_ns)
            if steps:
                records.append(StepBatch(self.job, self.place.host, end_ns - BEFORE_END_NS, steps))
            rows.extend(self._take_completions(end_ns, now.correction_ns))
            self._waiting_rows = len(self._steps) + sum(len(items) for _, items in self._completions)
        for rank in self.ranks.values():
            if rank.ended != "exit":
                rows.extend(self._states.rows(rank, end_ns, now.correction_ns))
        if rows:
            rows.sort(key=_COLLECTIVE_ORDER)
            records.append(CollectiveBatch(self.job, self.place.host, end_ns - BEFORE_END_NS, tuple(rows)))
        records.extend(self._announce(now))
        return records

    def cut_early(self, now: Now) -> list[Record]:
        """Return the steps and completions that wait for the end of their slice, stamped inside it.

        If the hook stamped a step later than ``now``, the records' stamp moves with it, by at most a slice.
        """
        newest_ns = max((row.ts_ns for row in self._steps), default=0) - now.correction_ns
        end_ns = max(now.stamp_ns, min(newest_ns, now.stamp_ns + NS_PER_SECOND)) + 1
        steps = self._take_steps(end_ns, now.correction_ns)
        rows = self._take_completions(end_ns, now.correction_ns)
        self._waiting_rows = 0
        records: list[Record] = []
        if steps:
            records.append(StepBatch(self.job, self.place.host, end_ns, steps))
        if rows:
            rows.sort(key=_COLLECTIVE_ORDER)
            records.append(CollectiveBatch(self.job, self.place.host, end_ns, tuple(rows)))
        return records

    def ring_batch(self, rank: int, now: Now) -> CollectiveBatch:
        """Return the ring of one rank (-1: of all ranks) as a batch stamped now."""
        rows: list[CollectiveRecord] = []
        for owner, items in self.ring.parts(rank):
            rows += completion_records(owner, items, now.correction_ns)
        rows.sort(key=_COLLECTIVE_ORDER)
        return CollectiveBatch(self.job, self.place.host, now.stamp_ns, tuple(rows))

    def _take_steps(self, end_ns: int, correction_ns: int) -> tuple[StepRecord, ...]:
        """Remove and return the steps that ended before ``end_ns``; later ones wait for their slice."""
        host_end_ns = end_ns + correction_ns
        taken = [row for row in self._steps if row.ts_ns < host_end_ns]
        self._steps = [row for row in self._steps if row.ts_ns >= host_end_ns]
        if correction_ns:
            taken = [row._replace(ts_ns=row.ts_ns - correction_ns) for row in taken]
        taken.sort(key=lambda row: (row.ts_ns, row.rank, row.step))
        return tuple(taken)

    def _take_completions(self, end_ns: int, correction_ns: int) -> list[CollectiveRecord]:
        """Remove the completions that ended before ``end_ns`` and return those of the sampled ranks.

        Those of other ranks remain in the ring only.
        """
        host_end_ns = end_ns + correction_ns
        sampled = self._sampled(end_ns)
        taken: list[CollectiveRecord] = []
        waiting = []
        for rank, items in self._completions:
            over = [item for item in items if item[5] < host_end_ns]
            if rank in sampled:
                taken += completion_records(rank, over, correction_ns)
            if len(over) < len(items):
                waiting.append((rank, tuple(item for item in items if item[5] >= host_end_ns)))
        self._completions = waiting
        return taken

    def _sampled(self, end_ns: int) -> frozenset[int]:
        """Return the ranks whose completions are all sent in this epoch."""
        sizes = [rank.hello.world_size for rank in self.ranks.values() if rank.hello]
        size = max([*sizes, len(self.ranks)])
        groups = {
            group.ranks
            for rank in self.ranks.values()
            for group in rank.groups.values()
            if group.kind is GroupKind.DP and group.ranks
        }
        return sampled_ranks(size, sorted(groups), end_ns // EPOCH_NS, self.ranks)

    def _announce(self, now: Now) -> list[Record]:
        """Return topology and groups, stamped now, after a change and every 30 s."""
        again = now.mono_ns - self._announced_mono_ns >= ANNOUNCE_NS
        records: list[Record] = []
        host = self.place.host
        if again or self._topology_due:
            places = tuple(self._place(rank) for _, rank in sorted(self.ranks.items()) if rank.hello)
            if places:
                records.append(Topology(self.job, host, now.stamp_ns, places))
        if again or self._groups_due:
            groups: dict[str, CommGroup] = {}
            for rank in self.ranks.values():
                groups.update(rank.groups)
            if groups:
                listed = tuple(groups[name] for name in sorted(groups))
                records.append(Groups(self.job, host, now.stamp_ns, listed))
        self._topology_due = self._groups_due = False
        if again:
            self._announced_mono_ns = now.mono_ns
        return records

    def _place(self, rank: RankState) -> RankPlace:
        """Return the place of a rank."""
        hello = rank.hello
        if hello is None:
            return RankPlace(rank.rank, self.place.host)
        return RankPlace(
            rank=rank.rank,
            host=self.place.host,
            gpu=hello.gpu,
            gpu_uuid=self.gpus.uuid_of(rank),
            dp=hello.dp,
            pp=hello.pp,
            tp=hello.tp,
            leaf=self.place.leaf,
            minipod=self.place.minipod,
            world_size=max(0, hello.world_size),
            pid=rank.pid,
        )


def ranks_of_event(payload: Mapping[str, Any], jobs: Iterable[JobState]) -> list[tuple[JobKey, int]]:
    """Return the (job, rank) that a host's event concerns: they use its GPU, or are its process.

    None: the whole host.
    """
    return [(state.job, rank.rank) for state in jobs for rank in state.gpus.holders(payload, state.ranks.values())]


def announce_again(jobs: Iterable[JobState]) -> None:
    """Make every job announce its ranks' places again, because the host's GPUs changed."""
    for state in jobs:
        state.announce_places()
