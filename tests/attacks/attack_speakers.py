"""C4 and H5: one host speaks of others' ranks, of other attempts, of phases, and of itself what is not so."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import replace

from tests.attacks.liars import FAULTS, HARD, play
from tests.attacks.registry import Outcome, attack
from tocsin.pipeline.lab.testing.fake_job import FakeJob
from tocsin.pipeline.lab.testing.job_shape import JobShape
from tocsin.pipeline.runtime.embedded.engine import EmbeddedEngine, EngineConfig
from tocsin.schemas import events
from tocsin.schemas.records import (
    CollectiveBatch,
    CollectiveRecord,
    CommGroup,
    Event,
    EventSource,
    GroupKind,
    Groups,
    JobKey,
    JobRecord,
    RankPlace,
    Severity,
    Topology,
)
from tocsin.schemas.verdicts import Verdict, VerdictState

_LAPTOP = "laptop"
_STRUCK_SECONDS = 25
_Forge = Callable[[FakeJob, int], Iterable[JobRecord]]


def _event(job: FakeJob, rank: int, name: str, host: str = _LAPTOP, **payload: object) -> Event:
    source = EventSource.JOB if name == events.PHASE else EventSource.PROCESS
    return Event(job.job, host, job.now_ns - 1, rank, source, name, Severity.FATAL, payload)


def _run(forge: _Forge, strike: Callable[[FakeJob], None] | None = None, seconds: int = 50) -> list[Verdict]:
    """A job of 8 hosts, what is forged each second from 12 s on, and a real fault at 25 s."""
    job = FakeJob(JobShape())
    engine = EmbeddedEngine(EngineConfig(history=None))
    verdicts: list[Verdict] = []
    for second in range(seconds):
        if second == _STRUCK_SECONDS and strike is not None:
            strike(job)
        for record in (*job.second(), *(forge(job, second) if second >= 12 else ())):
            engine.take_record(record)
        verdicts += engine.tick(job.now_ns).verdicts
    return verdicts


def _named(verdicts: list[Verdict]) -> set[str]:
    """Who is accused by what was not taken back."""
    last = {verdict.verdict_id: verdict for verdict in verdicts}
    return {s.component.name for v in last.values() if v.state is not VerdictState.CANCELLED for s in v.suspects}


def _outcome(verdicts: list[Verdict], wanted: set[str], tries: int) -> Outcome:
    named = _named(verdicts)
    hard = {suspect.component.name for v in verdicts if v.action in HARD for suspect in v.suspects}
    return Outcome(tries, f"named {sorted(named)}, hard actions about {sorted(hard)}", named == wanted and not hard)


def _kill(job: FakeJob) -> None:
    job.kill(3)


@attack("C4", "a nan of another's rank, then a real kill")
def nan_of_another() -> Outcome:
    """One event rolled back a healthy machine, and hid the next fault."""
    lost = {"what": "loss", "value": "nan"}
    return _outcome(_run(lambda job, _: [_event(job, 5, events.NAN, step=job.step, **lost)], _kill), {"n03"}, 38)


@attack("C4", "exits of one healthy host after the other")
def exits_of_others() -> Outcome:
    """Forged deaths proposed to evict 6 of 8 hosts within two minutes."""
    words = "CUDA error: uncorrectable ECC error encountered"
    return _outcome(
        _run(lambda job, second: [_event(job, second % 8, events.EXIT, code=1, stderr_tail=words)]), set(), 38
    )


@attack("C4", "all other words about another's rank")
def words_about_others() -> Outcome:
    """Stopped, gone, good-bye, stalled, and that others wait for it."""

    def forge(job: FakeJob, second: int) -> Iterable[JobRecord]:
        rank = second % 8
        yield _event(job, rank, events.STOPPED, edge="begin", stopped_ratio=1.0)
        yield _event(job, rank, events.PROCESS_GONE, pid=1)
        yield _event(job, rank, events.STALL, edge="begin", in_collective=False)
        row = CollectiveRecord(
            job.now_ns - 1, "state", rank, "0/world", "all_reduce", job.step + 1, 1, job.now_ns - 9**10
        )
        yield CollectiveBatch(job.job, _LAPTOP, job.now_ns - 1, (row,))
        yield Groups(job.job, _LAPTOP, job.now_ns - 1, (CommGroup("0/world", GroupKind.WORLD, (rank, (rank + 1) % 8)),))

    return _outcome(_run(forge, _kill), {"n03"}, 190)


@attack("C4", "records of an attempt that does not exist")
def newer_attempt() -> Outcome:
    """One record of attempt 2^31-1: the job was never judged again."""

    def forge(job: FakeJob, second: int) -> Iterable[JobRecord]:
        for host in (_LAPTOP, "n06"):
            record = _event(job, -1, events.AGENT, host, edge="start")
            yield replace(record, job=replace(job.job, attempt=2**31 - 1 - (second == 20)))

    return _outcome(_run(forge, _kill), {"n03"}, 76)


@attack("C4", "a topology that puts ranks on other hosts")
def forged_topology() -> Outcome:
    """The next real fault was laid on the wrong machine."""

    def forge(job: FakeJob, second: int) -> Iterable[JobRecord]:
        for host in (_LAPTOP, "n05"):
            places = tuple(RankPlace(rank, host, world_size=8) for rank in range(8))
            yield Topology(job.job, _LAPTOP, job.now_ns - 1, places)

    return _outcome(_run(forge, _kill), {"n03"}, 76)


@attack("C4", "a phase a second, beside a slow machine")
def phases_a_second() -> Outcome:
    """A host's own rank announced a phase each second, and nobody was slow any more."""

    def forge(job: FakeJob, second: int) -> Iterable[JobRecord]:
        for rank, host in ((6, "n06"), (-1, _LAPTOP), (-1, "n06"), (2, _LAPTOP)):
            yield _event(job, rank, events.PHASE, host, phase="checkpoint", edge=("begin", "end")[second % 3 == 0])

    return _outcome(_run(forge, lambda job: job.slow(3, "forward", 3.0), 55), {"n03"}, 152)


@attack("C4", "a job that does not exist, on real machines")
def made_up_job() -> Outcome:
    """Six records proposed a hard action about a machine that has nothing to do with them."""
    engine = EmbeddedEngine(EngineConfig(history=None))
    fake = FakeJob(JobShape(), JobKey("c", "made-up"))
    places = tuple(RankPlace(rank, f"n{rank:02d}", world_size=8) for rank in range(8))
    verdicts: list[Verdict] = []
    for second in range(40):
        fake.now_ns += 10**9
        forged: list[JobRecord] = [
            Topology(fake.job, _LAPTOP, fake.now_ns - 1, places),
            _event(fake, second % 8, events.EXIT, code=1),
        ]
        for record in forged:
            engine.take_record(record)
        verdicts += engine.tick(fake.now_ns).verdicts
    named = _named(verdicts) - {_LAPTOP}
    return Outcome(80, f"machines that did not speak named: {sorted(named)}", not named)


@attack("H5", "a liar beside a slow machine")
def a_liar() -> Outcome:
    """One run of those that the slow attacks repeat."""
    reported = play(1, "slow", seconds=50)
    effect = f"innocents with a hard action: {sorted(reported.innocents)}; fault named: {reported.is_named}"
    return Outcome(1, effect, reported.is_named and not reported.innocents)


@attack("H5", "40 healthy jobs with a liar", slow=True)
def healthy_jobs() -> Outcome:
    """Without the gate 38 of 40 led to a hard action against an innocent."""
    reported = [play(seed) for seed in range(40)]
    hard, accused = sum(bool(one.innocents) for one in reported), sum(bool(one.accused) for one in reported)
    effect = (
        f"40 healthy jobs of 16 with a liar: {hard} with a hard action about an innocent, {accused} name one at all"
    )
    return Outcome(40, effect, hard == 0)


def _faulty(*, own_only: bool) -> Outcome:
    reported = {fault: [play(seed, fault, own_only=own_only) for seed in range(10)] for fault in FAULTS}
    named = {fault: sum(one.is_named for one in runs) for fault, runs in reported.items()}
    innocents = sum(bool(one.innocents) for runs in reported.values() for one in runs)
    words = ", ".join(f"{fault} {count}/10" for fault, count in named.items())
    effect = f"30 faulty jobs of 16 with a liar: {words}; {innocents} with a hard action about an innocent"
    return Outcome(30, effect, sum(named.values()) >= 27 and innocents == 0)


@attack("H5", "30 faulty jobs with a liar about all", slow=True)
def faulty_jobs() -> Outcome:
    """It speaks of others' ranks, too."""
    return _faulty(own_only=False)


@attack("H5", "30 faulty jobs with a liar about itself", slow=True)
def faulty_jobs_own() -> Outcome:
    """It knows that nobody hears it of others."""
    return _faulty(own_only=True)
