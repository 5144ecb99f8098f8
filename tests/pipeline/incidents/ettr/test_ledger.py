"""The ledger of effective training time, fed by fake jobs and the verdicts of the real operators."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest

from tocsin.pipeline.core.slices import SliceBundle
from tocsin.pipeline.incidents.closing import close_event
from tocsin.pipeline.incidents.ettr.ledger import EttrConfig, EttrLedger
from tocsin.pipeline.lab.testing.fake_job import FakeJob
from tocsin.pipeline.lab.testing.job_shape import JobShape
from tocsin.pipeline.runtime.embedded.engine import EmbeddedEngine, EngineConfig
from tocsin.pipeline.stores.attempt_times import AttemptTime, TimePart
from tocsin.pipeline.stores.base import ActionChange
from tocsin.schemas import events
from tocsin.schemas.action_states import ActionState
from tocsin.schemas.errors import SnapshotError
from tocsin.schemas.records import (
    NS_PER_SECOND,
    Event,
    EventSource,
    JobKey,
    JobRecord,
    RankPlace,
    Severity,
    Slice,
    StepBatch,
    StepRecord,
    Topology,
)
from tocsin.schemas.verdicts import ActionKind, Advice, FaultKind, Verdict, VerdictState

SHAPE = JobShape()
START_NS = SHAPE.start_ns
JOB = JobKey("test", "job", 0)


class Timeline:
    """An engine with its ledger, and the attempts of one job that run one after the other."""

    def __init__(self) -> None:
        self.engine, self.ledger = EmbeddedEngine(EngineConfig()), EttrLedger()
        self.engine.taps.append(self._tap)
        self.now_ns = START_NS
        self.told: list[AttemptTime] = []
        self.verdicts: list[Verdict] = []
        self.told_ns: dict[tuple[str, int], int] = {}

    def _tap(self, bundle: SliceBundle) -> None:
        self.ledger.on_slice(bundle.fast)

    def begin(self, attempt: int = 0, *, start_up_seconds: float = 0.0, step: int = 0) -> FakeJob:
        """Begin an attempt now: its ranks say hello, and make their first step some seconds later."""
        job = FakeJob(replace(SHAPE, start_ns=self.now_ns), replace(JOB, attempt=attempt))
        job.step = step
        for rank in range(SHAPE.rank_count):
            job.event(rank, events.HELLO, world_size=SHAPE.rank_count)
        if start_up_seconds:
            job.pause(start_up_seconds, "")
        return job

    def run(self, job: FakeJob | None, seconds: int, strike: Callable[[], None] | None = None) -> None:
        """Let an attempt (None: none) run for some seconds; strike it first."""
        if strike is not None:
            strike()
        for _ in range(seconds):
            if job is not None:
                for record in job.second():
                    self.engine.take_record(record)
            self.now_ns += NS_PER_SECOND
            found = self.engine.tick(self.now_ns).verdicts
            self.verdicts += found
            self.told_ns.update(((one.verdict_id, one.update), self.now_ns) for one in found)
            self.ledger.on_verdicts(found, self.now_ns)
            self.told += self.ledger.on_time(self.now_ns)

    def waited(self, since: Verdict, until: Verdict) -> float:
        """Return the seconds from the onset of a verdict, or the telling of its line, to the telling of a line."""
        since_ns = since.onset_ns if since is until else self.told_ns[since.verdict_id, since.update]
        return (self.told_ns[until.verdict_id, until.update] - since_ns) / NS_PER_SECOND

    def seconds(self, attempt: int = 0) -> dict[str, float]:
        """Return the parts of an attempt in seconds, with ``wall`` and ``unattributed``."""
        [found] = [one for one in self.ledger.accounts(self.now_ns) if one.job.attempt == attempt]
        parts = {part.value: length_ns / NS_PER_SECOND for part, length_ns in found.parts_ns.items()}
        assert found.unattributed_ns >= 0
        return {"wall": found.wall_ns / NS_PER_SECOND, "unattributed": found.unattributed_ns / NS_PER_SECOND, **parts}


def test_an_undisturbed_job_is_productive_from_its_start_up_to_its_end() -> None:
    line = Timeline()
    job = line.begin(start_up_seconds=30.5)
    line.run(job, 300)
    line.run(job, 5, job.end)
    found = line.seconds()
    assert found["wall"] == pytest.approx(300, abs=0.1)
    assert found["start_up"] == pytest.approx(30.5, abs=0.1)
    assert found["productive"] == pytest.approx(269.5, abs=0.5)
    assert set(found) == {"wall", "unattributed", "start_up", "productive"}
    last = line.told[-1]
    assert (last.is_over, last.recomputed_steps_count) == (True, 0)
    assert last.last_step == last.steps_count == job.step
    assert last.ettr_ratio == pytest.approx(0.9, abs=0.01)


def test_a_running_job_is_told_each_minute_and_an_idle_host_never() -> None:
    line = Timeline()
    line.run(line.begin(), 200)
    minutes = [one.told_ns // (60 * NS_PER_SECOND) for one in line.told]
    assert minutes == sorted(minutes)
    assert len(set(minutes)) >= 4
    idle = Slice(JobKey("test", "idle"), 0, NS_PER_SECOND, (Topology(JobKey("test", "idle"), "h", 1, ()),))
    line.ledger.on_slice(idle)
    assert {one.job.job_id for one in line.ledger.accounts(line.now_ns)} == {"job"}


def test_a_crash_with_a_restart_that_recomputes_steps() -> None:
    line = Timeline()
    first = line.begin(start_up_seconds=10.5)
    line.run(first, 110)
    reached = first.step
    line.run(first, 6, lambda: first.kill(3))
    line.run(None, 24)  # the scheduler takes half a minute in all
    second = line.begin(1, start_up_seconds=20.5, step=reached - 100)
    line.run(second, 120)

    died = line.seconds(0)
    assert died["wall"] == pytest.approx(140, abs=0.1)
    assert died["productive"] == pytest.approx(100, abs=6)  # steps of the last seconds die with their agent's batch
    [opened] = [one for one in line.verdicts if one.update == 0]
    waited = line.waited(opened, opened)
    assert died["detection"] == pytest.approx(waited, abs=0.1)
    assert died["scheduling"] == pytest.approx(30 - waited - died.get("diagnosis", 0.0), abs=0.2)
    again = line.seconds(1)
    assert again["start_up"] == pytest.approx(20.5, abs=0.1)
    step_seconds = again["productive"] / (second.step - reached)
    assert again["recomputed"] == pytest.approx(100 * step_seconds, rel=0.1)
    assert again["productive"] == pytest.approx(100 - again["recomputed"], abs=6)


def test_a_hang_costs_its_detection_and_is_unattributed_until_its_processes_end() -> None:
    line = Timeline()
    job = line.begin()
    line.run(job, 100)
    line.run(job, 200, lambda: job.freeze(5, seen=False))
    opened = next(one for one in line.verdicts if one.update == 0)
    assert opened.fault is FaultKind.HANG
    confirmed = next(one for one in line.verdicts if one.state is VerdictState.CONFIRMED)
    found = line.seconds()
    assert found["detection"] == pytest.approx(line.waited(opened, opened), abs=1)
    diagnosed = line.waited(opened, confirmed)
    assert found.get("diagnosis", 0.0) == pytest.approx(diagnosed, abs=0.1)
    assert found["unattributed"] == pytest.approx(200 - found["detection"] - diagnosed, abs=3)


@pytest.mark.parametrize("state", [ActionState.APPROVED, ActionState.STARTED])
def test_a_wait_for_the_scheduler_is_known_from_the_decided_action_or_not_at_all(state: ActionState) -> None:
    line = Timeline()
    job = line.begin()
    line.run(job, 60)
    line.run(job, 60, lambda: job.freeze(5, seen=False))  # nobody sees its processes end
    asked_ns = line.now_ns
    confirmed = next(one for one in line.verdicts if one.state is VerdictState.CONFIRMED)
    kind, times = ActionKind.RESTART, (asked_ns, asked_ns + 600 * NS_PER_SECOND)
    action = Advice(confirmed.verdict_id, 0, confirmed.job, kind, None, "", "restart", *times, dry_run=False)
    line.ledger.on_action(ActionChange(replace(action, dry_run=True), state, asked_ns))
    line.run(None, 100)
    unknown = EttrLedger()
    line.ledger.on_action(ActionChange(action, state, asked_ns))
    unknown.restore(line.ledger.snapshot())
    unknown.on_action(ActionChange(replace(action, verdict_id="other"), ActionState.EXPIRED, line.now_ns - 1))
    assert unknown.snapshot() == line.ledger.snapshot()
    unknown.on_action(ActionChange(action, ActionState.EXPIRED, line.now_ns))
    line.run(line.begin(1), 30)

    assert line.seconds()["scheduling"] == pytest.approx(100, abs=1)
    begun = Topology(replace(JOB, attempt=1), "n00", line.now_ns, ())
    unknown.on_slice(Slice(begun.job, line.now_ns, line.now_ns + NS_PER_SECOND, (begun,)))
    [found, _] = unknown.accounts(line.now_ns)
    assert TimePart.SCHEDULING not in found.parts_ns
    assert found.unattributed_ns > 100 * NS_PER_SECOND


def test_the_step_that_a_fault_broke_off_is_work_that_is_made_again() -> None:
    ledger, onset = EttrLedger(), 13.5
    rows = tuple(StepRecord(_at(10), rank, 5, 4.0) for rank in range(4))
    told: list[JobRecord] = [Topology(JOB, "n", _at(6), ()), StepBatch(JOB, "n", _at(11), rows)]
    told += [_event(20, rank, events.STALL, edge="begin", step=6, elapsed_seconds=10.0) for rank in range(4)]
    told += [_event(30, rank, events.STALL, edge="end", step=6, elapsed_seconds=20.0) for rank in range(4)]
    ledger.on_slice(Slice(JOB, START_NS, _at(31), tuple(told)))
    action, state = ActionKind.NONE, VerdictState.OPEN
    verdict = Verdict("v", JOB, FaultKind.HANG, "unknown", (), _at(onset), _at(21), 1.0, action, "", (), state, 0, 0)
    ledger.on_verdicts([verdict], _at(21))
    restored = EttrLedger()
    restored.restore(ledger.snapshot())

    [found] = restored.accounts(_at(31))
    assert found.parts_ns == {
        TimePart.PRODUCTIVE: 4 * NS_PER_SECOND,
        TimePart.RECOMPUTED: 3.5 * NS_PER_SECOND,
        TimePart.DETECTION: 7.5 * NS_PER_SECOND,
    }
    again = StepBatch(JOB, "n", _at(41), tuple(StepRecord(_at(40), rank, 6, 4.0) for rank in range(4)))
    restored.on_slice(Slice(JOB, _at(31), _at(42), (again,)))
    [found] = restored.accounts(_at(42))
    assert found.parts_ns[TimePart.RECOMPUTED] == 3.5 * NS_PER_SECOND

    passed = StepBatch(JOB, "n", _at(41), tuple(StepRecord(_at(40), rank, 6, 30.0) for rank in range(4)))
    ledger.on_slice(Slice(JOB, _at(31), _at(42), (passed,)))  # the very step came to its end
    [found] = ledger.accounts(_at(42))
    assert found.parts_ns == {TimePart.PRODUCTIVE: 34 * NS_PER_SECOND}


def test_whoever_left_in_order_first_waits_for_the_last() -> None:
    ledger = EttrLedger()
    rows = tuple(StepRecord(_at(10), rank, 5, 10.0) for rank in range(2))
    left = (_event(11, 0, events.BYE), _event(15, 1, events.BYE))
    told = (Topology(JOB, "n", START_NS, ()), StepBatch(JOB, "n", _at(11), rows), *left)
    ledger.on_slice(Slice(JOB, START_NS, _at(16), told))
    [found] = ledger.accounts(_at(20))
    assert found.parts_ns == {TimePart.PRODUCTIVE: 10 * NS_PER_SECOND, TimePart.IDLE: 4 * NS_PER_SECOND}
    assert found.unattributed_ns == NS_PER_SECOND


def test_a_paused_job_is_idle_by_its_own_word() -> None:
    line = Timeline()
    job = line.begin()
    line.run(job, 60)
    line.run(job, 60, lambda: job.pause(30.5))
    found = line.seconds()
    assert found["idle"] == pytest.approx(30, abs=0.6)
    assert found["productive"] == pytest.approx(90, abs=6)


def test_a_job_whose_processes_are_all_stopped_is_idle_but_one_stopped_rank_is_a_fault() -> None:
    for stopped, is_idle in ((range(8), True), (range(1), False)):
        ledger = EttrLedger()
        told: list[JobRecord] = [Topology(JOB, "n", START_NS, tuple(RankPlace(rank, "n") for rank in range(8)))]
        told += [_event(10, rank, events.STOPPED, edge="begin") for rank in stopped]
        told += [_event(40, rank, events.STOPPED, edge="end") for rank in stopped]
        ledger.on_slice(Slice(JOB, START_NS, START_NS + 50 * NS_PER_SECOND, tuple(told)))
        [found] = ledger.accounts(START_NS + 50 * NS_PER_SECOND)
        assert found.parts_ns == ({TimePart.IDLE: 30 * NS_PER_SECOND} if is_idle else {})


def test_a_verdict_that_is_taken_back_cost_nothing() -> None:
    line = Timeline()
    job = line.begin()
    line.run(job, 60)
    line.run(job, 60, lambda: job.freeze(5, seen=False))
    assert line.seconds()["detection"] > 0
    opened = next(one for one in line.verdicts if one.update == 0)
    line.ledger.on_verdicts([replace(opened, state=VerdictState.CANCELLED, update=9)], line.now_ns)
    assert "detection" not in line.seconds()


def test_an_incident_that_goes_on_after_a_person_closed_it_is_not_found_again() -> None:
    line = Timeline()
    job = line.begin()
    line.run(job, 60)
    line.run(job, 200, lambda: job.freeze(5, seen=False))
    before = line.seconds()
    opened = next(one for one in line.verdicts if one.update == 0)
    goes_on = replace(opened, verdict_id="0" * 16, detected_ns=line.now_ns - 20 * NS_PER_SECOND)
    line.ledger.on_verdicts([replace(opened, state=VerdictState.RESOLVED, update=9), goes_on], line.now_ns)

    assert (line.seconds()["detection"], line.seconds().get("diagnosis")) == (
        before["detection"],
        before.get("diagnosis"),
    )


def test_one_rank_with_wrong_step_numbers_makes_no_step() -> None:
    ledger = EttrLedger()
    for second in range(1, 60):
        rows = [StepRecord(_at(second), rank, second, 1.0) for rank in range(8)]
        rows[7] = StepRecord(_at(second), 7, 10**9, 50.0)
        batch = StepBatch(JOB, "n", _at(second), tuple(rows))
        ledger.on_slice(Slice(JOB, _at(second - 1), _at(second), (batch,)))
    [found] = ledger.accounts(_at(60))
    assert (found.steps_count, found.last_step, found.recomputed_steps_count) == (59, 59, 0)


def test_steps_that_come_after_the_end_of_their_ranks_are_told_at_once() -> None:
    ledger = EttrLedger()
    ledger.on_slice(Slice(JOB, START_NS, _at(10), (_event(0, 0, events.HELLO), _event(10, 0, events.BYE))))
    [ended] = ledger.on_time(_at(10))
    batch = StepBatch(JOB, "n", _at(11), (StepRecord(_at(9), 0, 0, 4.0),))
    ledger.on_slice(Slice(JOB, _at(10), _at(11), (batch,)))
    [told] = ledger.on_time(_at(11))
    assert (ended.is_over, ended.steps_count, told.steps_count) == (True, 0, 1)
    assert told.parts_ns[TimePart.PRODUCTIVE] == 4 * NS_PER_SECOND


def test_an_attempt_that_nobody_heard_for_an_hour_ended_at_its_last_sign() -> None:
    line = Timeline()
    line.run(line.begin(), 60)
    for minutes in (1, 30, 61, 90):
        line.told += line.ledger.on_time(line.now_ns + minutes * 60 * NS_PER_SECOND)
    assert [one.is_over for one in line.told[-3:]] == [False, False, True]
    assert line.told[-1].wall_ns == pytest.approx(60 * NS_PER_SECOND, abs=6 * NS_PER_SECOND)


def test_who_closes_an_incident_hours_later_does_not_prolong_the_attempt() -> None:
    line = Timeline()
    line.run(line.begin(), 60)
    silent_ns = line.now_ns + 7200 * NS_PER_SECOND
    told = line.ledger.accounts(silent_ns)
    for job in (JOB, replace(JOB, attempt=1)):
        close = close_event(job, "v", "seen to", "uid:0", silent_ns)
        line.ledger.on_slice(Slice(job, silent_ns - NS_PER_SECOND, silent_ns, (close,)))
    assert [one.is_over for one in told] == [True]
    assert line.ledger.accounts(silent_ns) == told


def test_jobs_and_attempts_are_bounded() -> None:
    ledger = EttrLedger(EttrConfig(most_jobs_count=3, most_attempts_count=2))
    for second in range(12):
        key = JobKey("c", f"j{second // 2 % 6}", second)
        begun = Topology(key, "n", _at(second), ())
        ledger.on_slice(Slice(key, _at(second), _at(second + 1), (begun,)))
    assert [one.job.job_id for one in ledger.accounts(_at(20))] == ["j3", "j3", "j4", "j4", "j5", "j5"]


def test_a_damaged_snapshot_is_refused() -> None:
    with pytest.raises(SnapshotError, match="ettr"):
        EttrLedger().restore({"ettr": b"junk"})


def _at(second: float) -> int:
    return START_NS + int(second * NS_PER_SECOND)


def _event(second: float, rank: int, name: str, attempt: int = 0, **payload: object) -> Event:
    job = replace(JOB, attempt=attempt)
    return Event(job, "n", _at(second), rank, EventSource.PROCESS, name, Severity.INFO, payload)
