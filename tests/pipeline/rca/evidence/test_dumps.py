"""Flight Recorder dumps that reach a running engine: they name whom no live record names, and not too early."""

from __future__ import annotations

import pickle
from collections.abc import Iterator
from dataclasses import replace

import pytest

from tests.models import hang_cases as cases
from tocsin.pipeline.lab.testing import FakeJob, JobShape, Scenario, between
from tocsin.pipeline.runtime.embedded.engine import EmbeddedEngine, EngineConfig
from tocsin.schemas import events
from tocsin.schemas.kinds import LEFT_DUMP, STUCK_DUMP
from tocsin.schemas.reasons import Reason
from tocsin.schemas.records import NS_PER_SECOND, CollectiveBatch, JobRecord, ProbeAnswer, Severity
from tocsin.schemas.wire.codec import encode

STRUCK = 3
HUNG_SECONDS = 30.0
"""When the ranks stop: what they say of it, and when their oldest unfinished operation was issued."""


class BlindJob(FakeJob):
    """A job whose hooks see no collectives; its ranks' dumps come when they are asked for."""

    def __init__(self, shape: JobShape, *, sees_collectives: bool = False) -> None:
        super().__init__(shape)
        self.sees_collectives = sees_collectives
        self.answers: list[ProbeAnswer] = []

    def second(self) -> Iterator[JobRecord]:
        for record in super().second():
            if self.sees_collectives or not isinstance(record, CollectiveBatch):
                yield record
        yield from [replace(answer, ts_ns=self.now_ns - 1) for answer in self.answers]
        self.answers = []

    def dump(self, *ranks: int, kind: str = "cpu_stall", request_id: str = "q", rank: int = STRUCK) -> None:
        """These ranks (none: all) answer with a dump."""
        stuck = cases.strike(kind, rank, 30, grid=(2, 2, 2))
        for number in ranks or tuple(stuck.states):
            dump = cases.dump_of(stuck, number, active_only=False)
            for entry in dump["entries"]:
                entry["time_created_ns"] = self.shape.start_ns + int(HUNG_SECONDS * NS_PER_SECOND)
            self.answer(number, pickle.dumps(dump), request_id)

    def answer(self, rank: int, payload: bytes, request_id: str = "q") -> None:
        host = self.ranks[rank].host
        self.answers.append(ProbeAnswer(self.job, host, 0, rank, request_id, "flight_recorder", payload))


@pytest.fixture
def scenario() -> Scenario:
    made = Scenario(JobShape())
    made.job = BlindJob(made.shape)
    return made


def hung(scenario: Scenario) -> BlindJob:
    """The job stops at ``HUNG_SECONDS`` without a word."""
    job = scenario.job
    assert isinstance(job, BlindJob)
    scenario.at(HUNG_SECONDS).inject(job.freeze, STRUCK, seen=False)
    return job


def abstained(scenario: Scenario) -> dict[str, int]:
    counts: dict[str, int] = scenario.engine.status()["jobs"][0]["abstained"]
    return counts


def test_without_dumps_nobody_can_be_named(scenario: Scenario) -> None:
    hung(scenario)
    scenario.want_nothing(120)


@pytest.mark.parametrize("request_id", ["q", STUCK_DUMP])
def test_dumps_name_who_holds_up_the_job(scenario: Scenario, request_id: str) -> None:
    job = hung(scenario)
    scenario.at(70).inject(job.dump, request_id=request_id)
    scenario.want(between(71, 73), suspects=["n03"], fault="hang", state="open", reason="never_arrived")
    scenario.run(100).check()

    assert scenario.verdicts[0].evidence[0].detector == "flight_recorder"
    assert scenario.verdicts[0].onset_ns == scenario.shape.start_ns + HUNG_SECONDS * NS_PER_SECOND
    assert scenario.verdicts[-1].state.value == "confirmed"


def gave_up(job: BlindJob, *ranks: int, signal: int) -> None:
    """These ranks' processes end."""
    for rank in ranks:
        job.event(rank, events.EXIT, Severity.ERROR, code=-signal, signal=signal, stderr_tail="")


@pytest.mark.parametrize(("killed_at", "cause"), [(90, "process_frozen"), (68, "process_exit")])
def test_who_had_to_be_killed_after_all_others_had_left_was_frozen(
    scenario: Scenario, killed_at: int, cause: str
) -> None:
    """Its peers' watchdogs end them, whoever cleans up ends the rest: what does not heed SIGTERM does not run."""
    job = hung(scenario)
    others = [rank for rank in range(8) if rank != STRUCK]
    scenario.at(70).inject(job.dump, *others, request_id=LEFT_DUMP)
    scenario.at(71).inject(gave_up, job, *others, signal=6)
    scenario.at(killed_at).inject(gave_up, job, STRUCK, signal=9)
    scenario.run(110)

    last = scenario.verdicts[-1]
    assert ([s.component.name for s in last.suspects], last.cause) == (["n03"], cause)
    assert any("had to be killed" in reported.text for reported in last.evidence) == (cause == "process_frozen")


def test_a_healthy_job_may_be_asked_at_any_time(scenario: Scenario) -> None:
    """Some rank is always a little behind when the dumps are taken."""
    job = scenario.job
    assert isinstance(job, BlindJob)
    for second in (20, 41, 77):
        scenario.at(second).inject(job.dump, rank=second % 8, request_id=str(second))
    scenario.want_nothing(120)


def test_waiting_that_is_normal_is_waited_for(scenario: Scenario) -> None:
    """Asked five seconds after the job came to stand: a rank may be writing a checkpoint."""
    job = hung(scenario)
    scenario.at(35).inject(job.dump)
    scenario.want(between(58, 64), suspects=["n03"], fault="hang")
    scenario.run(90).check()

    assert scenario.verdicts[0].detected_ns >= scenario.shape.start_ns + (HUNG_SECONDS + 28) * NS_PER_SECOND
    assert abstained(scenario)[Reason.WITHIN_PATIENCE] > 10


def test_a_rank_in_another_collective_needs_no_patience(scenario: Scenario) -> None:
    job = hung(scenario)
    scenario.at(35).inject(job.dump, kind="wrong_op")
    scenario.want(between(36, 38), suspects=["n03"], fault="hang", cause="collective_mismatch")
    scenario.run(50).check()


def test_dumps_that_are_still_on_their_way_are_waited_for(scenario: Scenario) -> None:
    """The struck rank's own comes last; without it the analysis would call the rank silent."""
    job = hung(scenario)
    for index, rank in enumerate((0, 1, 2, 4, 5, 6, 7, STRUCK)):
        scenario.at(70 + index).inject(job.dump, rank)
    scenario.want(between(78, 80), suspects=["n03"], reason="never_arrived")
    scenario.run(100).check()

    assert all(verdict.detected_ns > scenario.shape.start_ns + 77 * NS_PER_SECOND for verdict in scenario.verdicts)


def test_a_lost_dump_of_a_victim_is_not_waited_for_for_ever(scenario: Scenario) -> None:
    job = hung(scenario)
    scenario.at(70).inject(job.dump, 0, 2, STRUCK, 4, 5, 6, 7)
    scenario.want(between(82, 86), suspects=["n03"])
    scenario.run(110).check()


def test_a_rank_that_writes_no_dump_is_not_accused_for_it(scenario: Scenario) -> None:
    """Its hook may be unable to: what a folder of dumps shows of it, a running engine asks others for."""
    job = hung(scenario)
    scenario.at(70).inject(job.dump, 0, 1, 2, 4, 5, 6, 7)
    scenario.at(71).inject(job.answer, STRUCK, b"")
    scenario.want_nothing(140)

    assert abstained(scenario)[Reason.AMBIGUOUS] > 10


@pytest.mark.parametrize("payload", [b"", b"garbage", pickle.dumps({"version": "2.10", "entries": 7})])
def test_answers_that_are_no_dumps_do_no_harm(scenario: Scenario, payload: bytes) -> None:
    job = hung(scenario)
    for rank in range(8):
        scenario.at(70).inject(job.answer, rank, payload)
    scenario.want_nothing(100)


def test_a_job_that_goes_on_takes_it_back(scenario: Scenario) -> None:
    job = hung(scenario)
    scenario.at(70).inject(job.dump)
    scenario.at(85).inject(job.thaw, STRUCK)
    scenario.run(110)

    assert [verdict.state.value for verdict in scenario.verdicts] == ["open", "confirmed", "resolved"]
    assert not scenario.engine.status()["jobs"][0]["verdicts"]


def test_live_records_that_name_somebody_speak_first(scenario: Scenario) -> None:
    """Dumps of another standstill (rank 6 held it up) do not take over."""
    scenario.job = BlindJob(scenario.shape, sees_collectives=True)
    job = hung(scenario)
    scenario.at(75).inject(job.dump, rank=6)
    scenario.run(100)

    assert {s.component.name for verdict in scenario.verdicts for s in verdict.suspects} == {"n03"}
    assert {verdict.evidence[0].detector for verdict in scenario.verdicts} == {"waits"}


@pytest.mark.parametrize("restart_at", [72, 76, 90])
def test_a_restart_changes_nothing(scenario: Scenario, restart_at: int) -> None:
    plain = Scenario(JobShape())
    plain.job = BlindJob(plain.shape)
    for one in (scenario, plain):
        job = hung(one)
        for index, rank in enumerate((0, 1, 2, 4, 5, 6, 7, STRUCK)):
            one.at(70 + index).inject(job.dump, rank)

    def restart() -> None:
        parts = scenario.engine.snapshot()
        scenario.engine = EmbeddedEngine(EngineConfig())
        scenario.engine.restore(parts)
        assert scenario.engine.snapshot() == parts

    scenario.at(restart_at).inject(restart)
    scenario.run(100)
    plain.run(100)

    assert scenario.verdicts
    assert [v.to_line() for v in scenario.verdicts] == [v.to_line() for v in plain.verdicts]


def test_a_job_of_many_ranks_keeps_no_more_entries_than_a_small_one(scenario: Scenario) -> None:
    """The unfinished ones are kept, of the finished ones the newest."""
    job = hung(scenario)
    config = EngineConfig()
    few = replace(config.job.diagnose.dumps, kept_entry_count=16 * 3)
    diagnose = replace(config.job.diagnose, dumps=few)
    scenario.engine = EmbeddedEngine(replace(config, job=replace(config.job, diagnose=diagnose)))
    scenario.at(70).inject(job.dump)
    scenario.run(71)
    state = scenario.engine.snapshot()["pipeline/test/job/0/dumps"]

    assert state.count(b'"state":"completed"') <= 8 * 3
    assert [s.component.name for s in scenario.verdicts[-1].suspects] == ["n03"]


def test_an_answer_about_no_rank_is_passed_over(scenario: Scenario) -> None:
    job = hung(scenario)
    record = ProbeAnswer(job.job, "n00", scenario.shape.start_ns, -1, "q", "flight_recorder", b"x")

    assert scenario.engine.take(encode(record)).value == "ok"
    scenario.want_nothing(40)
