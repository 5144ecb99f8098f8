"""Simulated jobs with one host that lies: about itself, about all others, and about the job."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace

from tocsin.pipeline.lab.testing.fake_job import FakeJob
from tocsin.pipeline.lab.testing.job_shape import JobShape
from tocsin.pipeline.runtime.embedded.engine import EmbeddedEngine, EngineConfig
from tocsin.schemas import events
from tocsin.schemas.metrics import FIRST_CUSTOM_TABLE_ID, Metric, MetricTable
from tocsin.schemas.records import (
    NS_PER_SECOND,
    CollectiveBatch,
    CollectiveRecord,
    CommGroup,
    Event,
    EventSource,
    GroupKind,
    Groups,
    HostStatus,
    JobRecord,
    RankPlace,
    Severity,
    StepBatch,
    StepRecord,
    TableAnnouncement,
    Topology,
)
from tocsin.schemas.verdicts import ActionKind, Verdict, VerdictState

HARD = (ActionKind.EVICT, ActionKind.DRAIN)
HOSTS_COUNT = 16
BAD_RANK = 5
_ONSET_SECONDS = 30
_MS = NS_PER_SECOND // 1000


@dataclass(frozen=True, slots=True)
class Reported:
    """What became of one run.

    Attributes:
        is_named: whether a verdict that was not taken back names the faulty host, and it alone.
        innocents: healthy hosts, the liar not counted, about which a hard action was proposed.
        accused: all healthy hosts but the liar that any line named.
        lines: for a failing test.
    """

    is_named: bool
    innocents: frozenset[str]
    accused: frozenset[str]
    lines: tuple[str, ...]


class Liar:
    """Makes up records in the name of its own host."""

    def __init__(self, job: FakeJob, rank: int, seed: int, own_only: bool = False) -> None:
        """Lie about this job.

        Args:
            job: whom it is in.
            rank: its own.
            seed: of what it says when.
            own_only: it knows that nobody hears it of others, and lies about itself alone.
        """
        self._job, self._rank, self._host = job, rank, job.ranks[rank].host
        self._random = random.Random(seed)
        own = [self._phase, self._nan, self._hardware, self._exit, self._waits, self._attempt, self._world]
        own += [self._completes, self._own_group, self._table]
        others = [self._of_other, self._steps_of_other, self._places, self._groups, self._status, self._job_phase]
        every: list[Callable[[], list[JobRecord]]] = own if own_only else [*own, *others]
        # Each liar has a taste, and says that again and again.
        self._always = self._random.sample(every, 2)
        self._every = every

    def second(self) -> Iterator[JobRecord]:
        """What it says in the second that ends now."""
        for lie in (*self._always, self._random.choice(self._every)):
            yield from lie()

    @property
    def _now_ns(self) -> int:
        return self._job.now_ns - 1 - self._random.randrange(900 * _MS)

    def _event(self, rank: int, name: str, source: EventSource = EventSource.PROCESS, **payload: object) -> Event:
        return Event(self._job.job, self._host, self._now_ns, rank, source, name, Severity.FATAL, payload)

    def _other(self) -> int:
        return self._random.choice([rank for rank in range(HOSTS_COUNT) if rank != self._rank])

    def _phase(self) -> list[JobRecord]:
        edge = "begin" if self._random.random() < 0.7 else "end"
        return [self._event(self._rank, events.PHASE, EventSource.JOB, phase="checkpoint", edge=edge)]

    def _job_phase(self) -> list[JobRecord]:
        ranks = (-1, self._other())
        return [self._event(rank, events.PHASE, EventSource.JOB, phase="evaluation", edge="begin") for rank in ranks]

    def _nan(self) -> list[JobRecord]:
        return [self._event(self._rank, events.NAN, step=self._job.step, what="loss", value="nan")]

    def _hardware(self) -> list[JobRecord]:
        name = self._random.choice((events.GPU_LOST, events.ECC, events.XID))
        payload = {"uuid": "GPU-1", "pci": "0000:c1:00.0", "kind": "uncorrected", "count": 1, "code": 79}
        return [self._event(-1, name, EventSource.KERNEL, **payload)]

    def _exit(self) -> list[JobRecord]:
        words = self._random.choice(("", "CUDA error: uncorrectable ECC error encountered", "Connection reset by peer"))
        return [self._event(self._rank, events.EXIT, code=1, signal=0, stderr_tail=words)]

    def _waits(self) -> list[JobRecord]:
        """Its own rank waits in a group with an innocent one."""
        comm_id = self._random.choice([group.comm_id for group in self._job.groups if self._rank in group.ranks])
        since_ns = self._job.now_ns - 20 * NS_PER_SECOND
        seq = self._random.choice((1, self._job.step, self._job.step + 1))
        row = CollectiveRecord(self._now_ns, "state", self._rank, comm_id, "all_reduce", seq, 4096, since_ns)
        return [CollectiveBatch(self._job.job, self._host, self._now_ns, (row,))]

    def _completes(self) -> list[JobRecord]:
        """Its own rank finished a collective in which nobody else is yet."""
        comm_id = self._random.choice([group.comm_id for group in self._job.groups if self._rank in group.ranks])
        end_ns, seq = self._now_ns, self._job.step + self._random.choice((1, 2, 1000))
        row = CollectiveRecord(end_ns, "completion", self._rank, comm_id, "all_reduce", seq, 4096, end_ns - _MS, end_ns)
        return [CollectiveBatch(self._job.job, self._host, end_ns, (row,))]

    def _own_group(self) -> list[JobRecord]:
        """A group that it is a member of has other members."""
        group = self._random.choice([group for group in self._job.groups if self._rank in group.ranks])
        ranks = tuple(sorted({self._rank, *self._random.sample(range(HOSTS_COUNT), 3)}))
        return [Groups(self._job.job, self._host, self._now_ns, (replace(group, ranks=ranks),))]

    def _table(self) -> list[JobRecord]:
        """The job has metrics of its own, others each time."""
        own = Metric(f"made_up_{self._random.randrange(1000)}_ratio", "host", 0.0, 1.0, "high")
        table = MetricTable(FIRST_CUSTOM_TABLE_ID, (), (own,))
        return [TableAnnouncement(self._job.job, self._host, self._now_ns, table)]

    def _attempt(self) -> list[JobRecord]:
        job = replace(self._job.job, attempt=self._random.choice((1, 7, 2**31 - 1)))
        return [replace(record, job=job) for record in (*self._exit(), *self._hardware())]

    def _world(self) -> list[JobRecord]:
        place = RankPlace(self._rank, self._host, world_size=self._random.choice((1, 4, 4096)))
        more = tuple(RankPlace(rank, self._host, world_size=4096) for rank in range(HOSTS_COUNT, HOSTS_COUNT + 40))
        return [Topology(self._job.job, self._host, self._now_ns, (place, *more))]

    def _of_other(self) -> list[JobRecord]:
        rank = self._other()
        name, payload = self._random.choice(
            (
                (events.NAN, {"step": self._job.step, "what": "loss", "value": "nan"}),
                (events.EXIT, {"code": 1, "signal": 0, "stderr_tail": "uncorrectable ECC error"}),
                (events.STOPPED, {"edge": "begin", "stopped_ratio": 1.0}),
                (events.PROCESS_GONE, {"pid": 105}),
                (events.BYE, {}),
                (events.STALL, {"edge": "begin", "in_collective": False, "phase": "forward"}),
            )
        )
        return [self._event(rank, name, **payload)]

    def _steps_of_other(self) -> list[JobRecord]:
        rank, step, now_ns = self._other(), self._job.step, self._now_ns
        rows = tuple(
            StepRecord(now_ns, rank, step + more, 2.0, 0.1, 1.5, 0.3, 0.1, 0.0, float("nan")) for more in range(3)
        )
        return [StepBatch(self._job.job, self._host, now_ns, rows)]

    def _places(self) -> list[JobRecord]:
        rank, host = self._other(), self._random.choice((self._host, "n02", "laptop"))
        return [Topology(self._job.job, self._host, self._now_ns, (RankPlace(rank, host, world_size=HOSTS_COUNT),))]

    def _groups(self) -> list[JobRecord]:
        rank = self._other()
        group = CommGroup(f"tp{rank // 2}/x", GroupKind.TP, (rank, (rank + 3) % HOSTS_COUNT))
        return [Groups(self._job.job, self._host, self._now_ns, (group,))]

    def _status(self) -> list[JobRecord]:
        ranks = tuple(range(HOSTS_COUNT))
        status = HostStatus(self._job.job, self._host, self._now_ns, 0, 0, ranks, True, 0, 0)
        return [status]


FAULTS = ("freeze", "slow", "kill")


def _strike(job: FakeJob, fault: str) -> None:
    if fault == "freeze":
        job.freeze(BAD_RANK)
    elif fault == "slow":
        job.slow(BAD_RANK, "forward", 3.0)
    elif fault == "kill":
        job.kill(BAD_RANK)


def play(seed: int, fault: str = "", *, own_only: bool = False, seconds: int = 75) -> Reported:
    """Run one job with one liar.

    Args:
        seed: of the job, and of the liar.
        fault: of ``FAULTS``, "" = the job is healthy.
        own_only: the liar lies about itself alone.
        seconds: how long.
    """
    job = FakeJob(JobShape(rank_count=HOSTS_COUNT, seed=seed))
    liar_rank = random.Random(seed).choice([rank for rank in range(HOSTS_COUNT) if rank != BAD_RANK])
    liar = Liar(job, liar_rank, seed, own_only)
    engine = EmbeddedEngine(EngineConfig(history=None))
    verdicts: list[Verdict] = []
    for second in range(seconds):
        if second == _ONSET_SECONDS:
            _strike(job, fault)
        for record in (*job.second(), *(liar.second() if second >= 10 else ())):
            engine.take_record(record)
        verdicts += engine.tick(job.now_ns).verdicts
    return _reported(verdicts, job.ranks[liar_rank].host, f"n{BAD_RANK:02d}" if fault else "", job.shape.start_ns)


def _reported(verdicts: list[Verdict], liar: str, bad: str, start_ns: int) -> Reported:
    last = {verdict.verdict_id: verdict for verdict in verdicts}
    onset_ns = start_ns + _ONSET_SECONDS * NS_PER_SECOND
    holds = [v for v in last.values() if v.state is not VerdictState.CANCELLED and v.detected_ns >= onset_ns]
    named = [[suspect.component.name for suspect in verdict.suspects] for verdict in holds]
    hard = {s.component.name for v in verdicts if v.action in HARD for s in v.suspects}
    accused = {s.component.name for v in verdicts for s in v.suspects}
    lines = tuple(
        f"{(v.detected_ns - start_ns) / 1e9:5.0f} s {v.state.value} a{v.job.attempt} {v.fault.value} {v.cause} "
        f"{[s.component.name for s in v.suspects]} {v.action.value} {v.reason}"
        for v in verdicts
    )
    guilty = {liar, bad}
    return Reported([bad] in named, frozenset(hard - guilty), frozenset(accused - guilty), lines)
