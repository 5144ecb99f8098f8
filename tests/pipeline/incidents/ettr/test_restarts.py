"""What each restart costs (MegaScale's ETTR): the ledger's losses against the truth, within 1 % of the wall time."""

from __future__ import annotations

from dataclasses import dataclass, replace
from random import Random

import pytest

from tocsin.pipeline.incidents.ettr.ledger import EttrLedger
from tocsin.pipeline.lab.testing.fake_job import FakeJob
from tocsin.pipeline.lab.testing.job_shape import JobShape
from tocsin.schemas import events
from tocsin.schemas.records import NS_PER_SECOND, Event, EventSource, JobKey, JobRecord, Severity, Slice
from tocsin.schemas.verdicts import ActionKind, FaultKind, Verdict, VerdictState

SHAPE = JobShape(rank_count=2, step_seconds=2.0, jitter_ratio=0.01)
JOB = JobKey("test", "job", 0)


@dataclass(frozen=True)
class Restart:
    """What happens between two attempts, in whole seconds, and how many steps the next one makes again."""

    runs: int
    detection: int
    scheduling: int
    start_up: int
    recomputed_steps: int


class Run:
    """A job whose attempts feed the ledger, without an engine: its verdicts are written here."""

    def __init__(self) -> None:
        self.ledger = EttrLedger()
        self.now_ns = SHAPE.start_ns
        self.attempt = 0

    def second(self, job: FakeJob | None) -> None:
        records: tuple[JobRecord, ...] = tuple(job.second()) if job is not None else ()
        begin_ns, self.now_ns = self.now_ns, self.now_ns + NS_PER_SECOND
        if job is not None:
            self.ledger.on_slice(Slice(job.job, begin_ns, self.now_ns, records))
        self.ledger.on_time(self.now_ns)

    def begin(self, start_up: int, step: int) -> FakeJob:
        key = replace(JOB, attempt=self.attempt)
        about = EventSource.JOB, events.HELLO, Severity.INFO, {"world_size": SHAPE.rank_count}
        hellos = tuple(Event(key, SHAPE.host_of(rank), self.now_ns, rank, *about) for rank in range(SHAPE.rank_count))
        self.ledger.on_slice(Slice(key, self.now_ns, self.now_ns + NS_PER_SECOND, hellos))
        self.now_ns += start_up * NS_PER_SECOND
        job = FakeJob(replace(SHAPE, start_ns=self.now_ns), key)
        job.step = step
        self.attempt += 1
        return job

    def detect(self, job: FakeJob, onset_ns: int) -> None:
        about = job.job, FaultKind.FAIL_STOP, "process_exit", (), onset_ns, self.now_ns, 1.0, ActionKind.RESTART
        told = Verdict(f"v{job.job.attempt}", *about, "", (), VerdictState.OPEN, 0, 0)
        self.ledger.on_verdicts([told], self.now_ns)


def played(restarts: list[Restart], last: int) -> tuple[Run, list[dict[str, float]]]:
    """Play attempts; return the run and what each restart cost in truth, in seconds."""
    run, truth = Run(), []
    job = run.begin(restarts[0].start_up, 0)
    for restart in restarts:
        for _ in range(restart.runs):
            run.second(job)
        job.kill(1)
        onset_ns, reached = run.now_ns, job.step
        for _ in range(restart.detection):
            run.second(job)
        run.detect(job, onset_ns)
        for _ in range(restart.scheduling):
            run.second(None)
        job = run.begin(restart.start_up, reached - restart.recomputed_steps)
        truth.append(
            {
                "detection": restart.detection,
                "scheduling": restart.scheduling,
                "start_up": restart.start_up,
                "recomputed": restart.recomputed_steps * (SHAPE.step_seconds * 1.01 + 0.006),
            }
        )
    for _ in range(last):
        run.second(job)
    return run, truth


def drawn(seed: int) -> list[Restart]:
    draw = Random(seed).randint
    return [Restart(draw(400, 600), draw(2, 40), draw(5, 90), draw(10, 120), draw(1, 60)) for _ in range(3)]


@pytest.mark.parametrize("seed", range(2))
def test_the_time_lost_at_each_restart_is_known_to_one_percent_of_the_wall_time(seed: int) -> None:
    run, truth = played(drawn(seed), 400)
    accounts = run.ledger.accounts(run.now_ns)
    wall = sum(one.wall_ns for one in accounts) / NS_PER_SECOND
    assert wall == pytest.approx((run.now_ns - SHAPE.start_ns) / NS_PER_SECOND, abs=1e-6)
    for restart, died, again in zip(truth, accounts, accounts[1:], strict=False):
        told = {part.value: length_ns / NS_PER_SECOND for part, length_ns in died.parts_ns.items()}
        after = {part.value: length_ns / NS_PER_SECOND for part, length_ns in again.parts_ns.items()}
        found = {name: (told if name in ("detection", "scheduling") else after)[name] for name in restart}
        assert found == pytest.approx(restart, abs=0.001 * wall)  # one percent is claimed
    lost = sum(one.unattributed_ns for one in accounts) / NS_PER_SECOND
    assert lost <= 0.01 * wall
