"""A synchronous training job without machines: the records that its agents would send, in order of sending.

Each rank has an agent. In each step every rank computes; then the ranks meet in their ``tp`` pair, their ``dp`` group
and the world. A late rank keeps the others waiting. Faults are set by name. The agents follow
``docs/interfaces.md``: a batch each metric slice, at once after a slow step, and states after a second of waiting.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field

from tocsin.pipeline.lab.testing.job_shape import FIRST_PID, JobShape
from tocsin.pipeline.lab.testing.waiting import waiting_group
from tocsin.schemas import events
from tocsin.schemas.hardware import HARDWARE_EVENTS
from tocsin.schemas.records import (
    NS_PER_SECOND,
    CollectiveBatch,
    CollectiveRecord,
    Event,
    EventSource,
    GroupKind,
    Groups,
    HostStatus,
    JobKey,
    JobRecord,
    Severity,
    StepBatch,
    StepRecord,
    Topology,
)

_METRIC_SLICE_NS = 5 * NS_PER_SECOND
_ANNOUNCE_NS = 30 * NS_PER_SECOND
_MS = NS_PER_SECOND // 1000
PHASE_SHARES = {"data": 0.05, "forward": 0.35, "backward": 0.5, "optimizer": 0.1}
"""Phase -> its share of a rank's own time in a step."""


@dataclass(slots=True)
class _Rank:
    """State of one rank and its agent."""

    rank: int
    host: str
    slow: dict[str, float] = field(default_factory=dict)
    slow_link_seconds: float = 0.0
    tells_loss: bool = True
    frozen: bool = False
    exited: bool = False
    agent_alive: bool = True
    steps: list[StepRecord] = field(default_factory=list)
    collectives: list[CollectiveRecord] = field(default_factory=list)
    odd_until_ns: int = 0
    waits_since_ns: int = 0
    waits_in: tuple[str, str, int] | None = None
    reported_wait_ns: int = 0


class FakeJob:
    """Fake job that produces records second by second; the caller sets faults between two seconds."""

    def __init__(self, shape: JobShape, job: JobKey | None = None) -> None:
        """Start a healthy job whose ranks have just said hello.

        Args:
            shape: size and times of the job.
            job: the job's key, None = attempt 0 of ``test/job``.
        """
        self.shape = shape
        self.job = job or JobKey("test", "job", 0)
        self.now_ns = shape.start_ns
        self.step = 0
        self.ranks = [_Rank(rank, shape.host_of(rank)) for rank in range(shape.rank_count)]
        self.groups = shape.groups()
        self.load: Callable[[int, int, str], float] = lambda _rank, _step, _phase: 1.0
        """(rank, step, phase) -> factor of the healthy time, for different data or a longer stage."""
        self.extra_seconds: Callable[[int, int], float] = lambda _rank, _step: 0.0
        """(rank, step) -> extra seconds of the rank's own time in the forward pass, for a pause of the program."""
        self.numbers: Callable[[int], tuple[float, float]] = lambda _step: (2.0, 1.0)
        """Step -> loss and gradient norm of every rank."""
        self.stalled = False
        self.skipped: dict[int, str] = {}
        self._seq: dict[str, int] = dict.fromkeys((g.comm_id for g in self.groups), 0)
        self._random = random.Random(shape.seed)
        self._step_end_ns = shape.start_ns
        self._paused_until_ns = 0
        self._queue: list[JobRecord] = []
        self._announced_ns = 0

    # -- faults --------------------------------------------------------------------

    def event(self, rank: int, name: str, severity: Severity = Severity.INFO, **payload: object) -> None:
        """Send an event by a rank's agent, unless the agent is dead."""
        source = EventSource.JOB if name == events.PHASE else EventSource.PROCESS
        source = EventSource.KERNEL if name in HARDWARE_EVENTS else source
        host = self.ranks[rank].host
        if self.ranks[rank].agent_alive:
            self._queue.append(Event(self.job, host, self.now_ns, rank, source, name, severity, payload))

    def foreign_event(self, host: str, name: str, **payload: object) -> None:
        """Send an event of the job by the agent of a host that carries no rank."""
        self._queue.append(Event(self.job, host, self.now_ns, -1, EventSource.PROCESS, name, Severity.INFO, payload))

    def slow(self, rank: int, phase: str, factor: float) -> None:
        """Make one phase of a rank take ``factor`` times as long (1 = healthy again)."""
        self.ranks[rank].slow[phase] = factor

    def slow_all(self, phase: str, factor: float) -> None:
        """Make one phase of all ranks take ``factor`` times as long."""
        for rank in self.ranks:
            rank.slow[phase] = factor

    def slow_link(self, rank: int, seconds: float) -> None:
        """Make each collective of a rank take longer by ``seconds`` once all members are in it."""
        self.ranks[rank].slow_link_seconds = seconds

    def kill(self, rank: int, signal: int = 9, code: int = 0, stderr: str = "") -> None:
        """Kill a rank's process; the others lose their connections and exit a moment later."""
        self._exit(rank, code, signal, stderr)
        self.now_ns += 60 * _MS
        for other in self.ranks:
            if not other.exited:
                self._exit(other.rank, 1, 0, "RuntimeError: [pair.cc:537] Read error: Connection reset by peer")
        self.now_ns -= 60 * _MS

    def _exit(self, rank: int, code: int, signal: int, stderr: str) -> None:
        """End a rank's process and send its exit event."""
        self.event(rank, events.EXIT, Severity.ERROR, code=code, signal=signal, stderr_tail=stderr)
        self.ranks[rank].exited = True
        self.stalled = True

    def freeze(self, rank: int, *, seen: bool = True) -> None:
        """Stop a rank's process, so that its peers wait; its agent reports the stop when ``seen``."""
        self.ranks[rank].frozen = True
        self.stalled = True
        if seen:
            self.event(rank, events.STOPPED, Severity.WARNING, pid=FIRST_PID + rank, edge="begin", seconds=0.5)

    def thaw(self, rank: int) -> None:
        """Continue a stopped process."""
        self.ranks[rank].frozen = False
        self.stalled = False
        self.event(rank, events.STOPPED, pid=FIRST_PID + rank, edge="end", seconds=1.0)
        for other in self.ranks:
            other.waits_in = None
        self._step_end_ns = self.now_ns

    def skip_collective(self, rank: int) -> None:
        """Let a rank skip its ``tp`` all-reduce, so that it waits in ``dp`` and its pair in ``tp``."""
        self.skipped[rank] = "tp"
        self.stalled = True

    def nan(self, rank: int) -> None:
        """Make a rank's loss NaN, and those of all others one step later."""
        self.event(rank, events.NAN, Severity.ERROR, step=self.step, what="loss", value="nan")
        for other in self.ranks:
            if other.rank != rank:
                self.now_ns += 200 * _MS
                self.event(other.rank, events.NAN, Severity.ERROR, step=self.step + 1, what="loss", value="nan")
                self.now_ns -= 200 * _MS

    def kill_agent(self, rank: int) -> None:
        """Kill a rank's agent; training goes on."""
        self.ranks[rank].agent_alive = False

    def lose_host(self, rank: int) -> None:
        """Take away a rank's machine with its agent; the rank's peers wait."""
        self.ranks[rank].agent_alive = False
        self.ranks[rank].frozen = True
        self.stalled = True

    def pause(self, seconds: float, phase: str = "checkpoint") -> None:
        """Put all ranks into a phase without steps; ``phase`` is announced, "" = unannounced."""
        self._paused_until_ns = self.now_ns + int(seconds * NS_PER_SECOND)
        if phase:
            for rank in self.ranks:
                self.event(rank.rank, events.PHASE, phase=phase, edge="begin")

    def end(self) -> None:
        """End the job in order: each rank says goodbye and exits with code 0."""
        self.stalled = True
        for rank in self.ranks:
            self.event(rank.rank, events.BYE)
            self.event(rank.rank, events.EXIT, code=0, signal=0, stderr_tail="")
            rank.exited = True

    # -- time ----------------------------------------------------------------------

    def second(self) -> Iterator[JobRecord]:
        """Run one second and yield the records that the agents send by its end."""
        end_ns = self.now_ns + NS_PER_SECOND
        if self.now_ns - self._announced_ns >= _ANNOUNCE_NS:
            self._announce()
        self._run_steps(end_ns)
        self.now_ns = end_ns
        if self.stalled and self._paused_until_ns <= end_ns:
            self._wait()
        self._end_pause(end_ns)
        for rank in self.ranks:
            self._ship(rank, end_ns)
        sent, self._queue = self._queue, []
        yield from sent

    def _end_pause(self, end_ns: int) -> None:
        """End a pause that is over by this time."""
        if self._paused_until_ns and self._paused_until_ns <= end_ns:
            self._paused_until_ns = 0
            for rank in self.ranks:
                self.event(rank.rank, events.PHASE, phase="checkpoint", edge="end")

    def _announce(self) -> None:
        """Send each living agent's places and groups."""
        self._announced_ns = self.now_ns
        for rank in self.ranks:
            if not rank.agent_alive:
                continue
            own = tuple(group for group in self.groups if rank.rank in group.ranks)
            place = self.shape.place_of(rank.rank, rank.host)
            self._queue.append(Topology(self.job, rank.host, self.now_ns, (place,)))
            self._queue.append(Groups(self.job, rank.host, self.now_ns, own))

    def _run_steps(self, end_ns: int) -> None:
        """Run all steps that end by this time."""
        while not self.stalled:
            begin_ns = max(self._step_end_ns, self._paused_until_ns)
            done_ns = self._one_step(begin_ns, end_ns)
            if done_ns is None:
                return
            self._step_end_ns = done_ns

    def _one_step(self, begin_ns: int, limit_ns: int) -> int | None:
        """Run one step of all ranks and return its end.

        Args:
            begin_ns: when the step begins.
            limit_ns: when the step must have ended.

        Returns:
            The step's end; None if it would end after the limit, and then nothing has happened.
        """
        state = self._random.getstate()
        phases = [self._phases(rank) for rank in self.ranks]
        own = [sum(times.values()) for times in phases]
        links = [rank.slow_link_seconds for rank in self.ranks]
        transfer = self.shape.transfer_seconds
        pair = [max(own[i], own[i ^ 1]) + transfer + max(links[i], links[i ^ 1]) for i in range(len(own))]
        meet = max(pair) + 2 * transfer + 2 * max(links)
        done_ns = begin_ns + int(meet * NS_PER_SECOND)
        if done_ns > limit_ns:
            self._random.setstate(state)
            return None
        self.step += 1
        for comm_id in self._seq:
            self._seq[comm_id] += 1
        for index, rank in enumerate(self.ranks):
            ts_ns = done_ns + self._random.randrange(2 * _MS)
            times = phases[index]
            rank.steps.append(
                StepRecord(
                    ts_ns,
                    rank.rank,
                    self.step,
                    meet,
                    times["data"],
                    times["forward"],
                    times["backward"],
                    times["optimizer"],
                    meet - own[index],
                    *(self.numbers(self.step) if rank.tells_loss else (None, None)),
                )
            )
            self._collect(rank, begin_ns, (own, pair, links), ts_ns)
            if meet > 1.3 * self.shape.step_seconds * 1.25:
                rank.odd_until_ns = done_ns + 30 * NS_PER_SECOND
        return done_ns

    def _phases(self, rank: _Rank) -> dict[str, float]:
        """Return the time of each phase of a rank's next step, in seconds."""
        base, step = self.shape.step_seconds, self.step + 1
        times = {
            name: base
            * share
            * self.load(rank.rank, step, name)
            * rank.slow.get(name, 1.0)
            * max(0.5, self._random.gauss(1.0, self.shape.jitter_ratio))
            for name, share in PHASE_SHARES.items()
        }
        times["forward"] += self.extra_seconds(rank.rank, step)
        return times

    def _collect(
        self, rank: _Rank, begin_ns: int, times: tuple[list[float], list[float], list[float]], ts_ns: int
    ) -> None:
        """Add the completions of a step's collectives to a rank's records.

        Args:
            rank: the rank.
            begin_ns: when the step began.
            times: for each rank its own time, its time until its pair has met, and its link's extra time, in seconds.
            ts_ns: when the rank finished the step.
        """
        own, pair, links = times
        transfer = self.shape.transfer_seconds
        for group in self.groups:
            if rank.rank not in group.ranks:
                continue
            enter = own if group.kind is GroupKind.TP else pair
            slowest = max(enter[member] for member in group.ranks)
            extra = 0.0 if group.kind is GroupKind.WORLD else max(links[member] for member in group.ranks)
            rank.collectives.append(
                CollectiveRecord(
                    ts_ns,
                    "completion",
                    rank.rank,
                    group.comm_id,
                    "all_reduce",
                    self._seq[group.comm_id],
                    4096,
                    begin_ns + int(enter[rank.rank] * NS_PER_SECOND),
                    begin_ns + int((slowest + transfer + extra) * NS_PER_SECOND),
                )
            )

    # -- standing still --------------------------------------------------------------

    def _wait(self) -> None:
        """Put each living rank into the collective in which it waits."""
        held = {rank.rank for rank in self.ranks if rank.frozen or rank.exited}
        for rank in self.ranks:
            if rank.rank in held or rank.exited:
                continue
            if rank.waits_in is None:
                comm_id = waiting_group(rank.rank, self.groups, held, self.skipped).comm_id
                rank.waits_in = (comm_id, "all_reduce", self._seq[comm_id] + 1)
                rank.waits_since_ns = self._step_end_ns + int(self.shape.step_seconds * NS_PER_SECOND)

    def _ship(self, rank: _Rank, end_ns: int) -> None:
        """Send what a rank's agent has at the end of this second."""
        metric_end = end_ns % _METRIC_SLICE_NS == 0
        stamp = end_ns - _MS
        if not rank.agent_alive:
            rank.steps.clear()
            rank.collectives.clear()
            return
        if (metric_end or end_ns <= rank.odd_until_ns) and rank.steps:
            self._queue.append(StepBatch(self.job, rank.host, stamp, tuple(rank.steps)))
            self._queue.append(CollectiveBatch(self.job, rank.host, stamp, tuple(rank.collectives)))
            rank.steps, rank.collectives = [], []
        if metric_end:
            self._queue.append(
                HostStatus(
                    self.job,
                    rank.host,
                    stamp,
                    0,
                    2 * _MS,
                    (rank.rank,),
                    hook_present=True,
                    dropped_count=0,
                    spooled_count=0,
                )
            )
        if rank.waits_in is not None and not rank.exited and not rank.frozen:
            self._tell_wait(rank, end_ns, stamp)

    def _tell_wait(self, rank: _Rank, end_ns: int, stamp: int) -> None:
        """Send a waiting rank's collective states, after one second of waiting and then each five."""
        if end_ns - rank.waits_since_ns < NS_PER_SECOND or rank.waits_in is None:
            return
        if rank.reported_wait_ns and end_ns - rank.reported_wait_ns < 5 * NS_PER_SECOND:
            return
        rank.reported_wait_ns = end_ns
        comm_id, op_name, seq = rank.waits_in
        rows = [CollectiveRecord(stamp, "state", rank.rank, comm_id, op_name, seq, 4096, rank.waits_since_ns)]
        for other, last in self._seq.items():
            group = next(g for g in self.groups if g.comm_id == other)
            if rank.rank not in group.ranks or other == comm_id:
                continue
            reached = last + (1 if self._passed(rank.rank, group.kind) else 0)
            rows.append(
                CollectiveRecord(
                    stamp, "completion", rank.rank, other, "all_reduce", reached, 4096, 0, rank.waits_since_ns
                )
            )
        rows.sort(key=lambda row: (row.ts_ns, row.rank, row.comm_id, row.op_seq))
        self._queue.append(CollectiveBatch(self.job, rank.host, stamp, tuple(rows)))

    def _passed(self, rank: int, kind: GroupKind) -> bool:
        """Return whether a waiting rank has finished this kind of collective in the step that does not end."""
        waits = self.ranks[rank].waits_in
        return waits is not None and kind is GroupKind.TP and not waits[0].startswith("tp") and rank not in self.skipped
