"""Starts of attempts in the ledger: their stages, the same seconds as in the account of time, and GPU time by cause."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given, settings

from tests.pipeline.incidents.ettr.happenings import Happening, at, happenings
from tests.pipeline.incidents.ettr.test_properties import feed
from tocsin.pipeline.incidents.ettr.ledger import EttrLedger
from tocsin.pipeline.stores.attempt_starts import AttemptStart
from tocsin.pipeline.stores.attempt_times import TimePart
from tocsin.schemas import events
from tocsin.schemas.records import (
    NS_PER_SECOND,
    Event,
    EventSource,
    JobKey,
    JobRecord,
    Severity,
    Slice,
    StepBatch,
    StepRecord,
)

JOB = JobKey("c", "job")
HOSTS = ("a", "b", "c", "d")


class Started:
    """A ledger that hears four hosts of two ranks each."""

    def __init__(self) -> None:
        self.ledger, self.told = EttrLedger(), list[AttemptStart]()

    def hear(self, second: float, *records: JobRecord, job: JobKey = JOB) -> None:
        """Tell records, and every second up to now."""
        end_ns = at(second)
        self.ledger.on_slice(Slice(job, end_ns - NS_PER_SECOND, end_ns, records))
        self.told += self.ledger.starts_on_time(end_ns)

    def stage(self, second: float, edge: str, hosts: Sequence[str], name: str = "env_setup", **payload: object) -> None:
        """Tell an edge of a stage by all ranks of some hosts."""
        self.hear(
            second,
            *(
                event(second - 0.5, host, 2 * HOSTS.index(host) + place, events.STAGE, stage=name, edge=edge, **payload)
                for host in hosts
                for place in (0, 1)
            ),
        )

    def step(self, second: float, number: int, seconds: float, job: JobKey = JOB) -> None:
        """Tell a step of all ranks that ends half a second before now."""
        rows = tuple(StepRecord(at(second - 0.5), rank, number, seconds) for rank in range(8))
        self.hear(second, StepBatch(job, "a", at(second - 0.5), rows), job=job)


def event(second: float, host: str, rank: int, name: str, **payload: object) -> Event:
    return Event(JOB, host, at(second), rank, EventSource.STARTUP, name, Severity.INFO, payload)


def test_a_start_is_told_while_it_goes_on_and_cut_into_causes_when_training_begins() -> None:
    line = Started()
    line.stage(10, "begin", HOSTS)
    line.stage(30, "end", HOSTS[:3], cache_hit_ratio=1.0)
    line.hear(41)
    running = line.told[-1]
    line.stage(60, "end", HOSTS[3:], cache_hit_ratio=0.0)
    line.step(100, 0, 20.0)
    [stage] = line.told[-1].stages
    trained = line.told[-1]

    assert [one.train_ns for one in line.told[:-1]] == [0] * (len(line.told) - 1)
    assert (running.stages[0].open_count, running.stages[0].slowest_host) == (1, "d")
    assert (running.stages[0].slowest_end_ns, running.stages[0].median_seconds) == (0, 20.0)
    assert (trained.host_count, trained.gpu_count) == (4, 8)
    assert (trained.began_ns, trained.train_ns) == (at(9.5), at(79.5))
    assert (stage.slowest_host, stage.last_host, stage.open_count) == ("d", "d", 0)
    assert stage.own_gpu_ns == (3 * 20 + 50) * 2 * NS_PER_SECOND
    assert stage.waiting_gpu_ns == 3 * 30 * 2 * NS_PER_SECOND
    assert stage.saved_gpu_ns == 30 * 8 * NS_PER_SECOND
    assert trained.untold_gpu_ns == 20 * 8 * NS_PER_SECOND
    assert stage.cache_hit_ratio == 0.75
    [account] = line.ledger.accounts(at(100))
    assert account.parts_ns[TimePart.START_UP] == trained.start_up_ns
    assert account.gpu_count == 8


def test_the_first_step_of_slow_ranks_is_no_start_and_a_hot_one_is() -> None:
    line = Started()
    line.stage(10, "begin", HOSTS)
    line.stage(20, "end", HOSTS)
    line.stage(41, "begin", HOSTS, "first_step")
    line.step(42, 0, 1.0)
    line.stage(43, "end", HOSTS, "first_step")
    line.hear(44, event(41.3, "d", 6, events.STAGE, stage="first_step", edge="begin"))
    line.hear(60)
    assert {one.began_ns for one in line.told} == {at(9.5)}
    assert [one.stage for one in line.told[-1].stages] == ["env_setup", "first_step"]

    line.stage(100, "begin", HOSTS, start_kind="hot")
    line.stage(110, "end", HOSTS, start_kind="hot")
    line.step(121, 1, 0.5)
    assert [(one.start_kind, one.stage) for one in line.told[-1].stages] == [("hot", "env_setup")]
    trained = {one.began_ns: one.start_up_ns for one in line.told if one.train_ns}
    [account] = line.ledger.accounts(at(121))
    assert account.parts_ns[TimePart.START_UP] == sum(trained.values())
    assert len(trained) == 2


def test_an_end_that_tells_its_length_begins_the_start() -> None:
    line = Started()
    line.hear(2, event(1.5, "a", 0, "host_up"))
    line.stage(30, "end", HOSTS, seconds=25.0)
    line.step(40, 0, 1.0)
    assert line.told[-1].began_ns == at(4.5)
    assert line.told[-1].stages[0].median_seconds == 25.0


def first_word(second: float, seconds: float, attempt: int = 0) -> Event:
    """The end of a stage that tells how long it took."""
    told = event(second, "a", 0, events.STAGE, stage="env_setup", edge="end", seconds=seconds)
    return replace(told, job=replace(JOB, attempt=attempt))


def test_a_stage_that_began_before_the_first_word_of_the_attempt_counts_and_is_one_start() -> None:
    line = Started()
    line.hear(20, first_word(19.5, 10.0))
    line.hear(31)
    line.step(60, 0, 20.0)
    [stage] = line.told[-1].stages

    assert len(line.told) > 1
    assert {one.began_ns for one in line.told} == {at(9.5)}
    assert (line.told[-1].train_ns, stage.own_gpu_ns) == (at(39.5), 10 * NS_PER_SECOND)
    assert start_up_ns(line, 60) == [30 * NS_PER_SECOND]
    [account] = line.ledger.accounts(at(60))
    assert account.began_ns == at(9.5)


def test_a_process_that_waited_for_hours_to_be_used_did_not_start_meanwhile() -> None:
    line = Started()
    line.hear(20, first_word(19.5, 4000.0))
    line.step(60, 0, 20.0)

    assert start_up_ns(line, 60) == [20 * NS_PER_SECOND]


@pytest.mark.parametrize(("seconds", "began"), [(5.0, 94.5), (50.0, 59.5)])
def test_an_attempt_never_begins_before_the_end_of_the_one_before(seconds: float, began: float) -> None:
    line = Started()
    line.stage(10, "begin", HOSTS)
    line.step(40, 0, 10.0)
    left(line, 60)
    line.hear(100, first_word(99.5, seconds, attempt=1), job=replace(JOB, attempt=1))
    first, second = line.ledger.accounts(at(100))

    assert (first.until_ns, second.began_ns) == (at(began), at(began))
    assert first.parts_ns.get(TimePart.SCHEDULING, 0) == at(began) - at(59.5)


def left(line: Started, second: float, code: int = 1, hosts: Sequence[str] = HOSTS) -> None:
    """Let all processes of some hosts end."""
    ranks = [(host, 2 * HOSTS.index(host) + place) for host in hosts for place in (0, 1)]
    line.hear(second, *(event(second - 0.5, host, rank, events.EXIT, code=code, signal=0) for host, rank in ranks))


def start_up_ns(line: Started, second: float) -> list[int]:
    """Nanoseconds of start-up of each attempt, as in the account of time."""
    return [one.parts_ns.get(TimePart.START_UP, 0) for one in line.ledger.accounts(at(second))]


def test_a_start_that_failed_is_counted_by_stage_once_the_job_trains_and_never_mixes_with_the_next_attempt() -> None:
    """Statement B6."""
    line, later = Started(), replace(JOB, attempt=1)
    line.stage(10, "begin", HOSTS)
    line.stage(20, "end", HOSTS[:3])
    left(line, 40)
    line.hear(50, replace(event(49.5, "e", 6, events.HELLO), job=later), job=later)
    unknown = next(one for one in line.told[::-1] if one.job.attempt == 0)
    line.step(70, 0, 1.0, later)
    first, second = (next(one for one in line.told[::-1] if one.job.attempt == number) for number in (0, 1))
    [stage] = first.stages

    assert (unknown.is_failed, unknown.over_ns) == (False, at(19.5))
    assert (first.train_ns, first.is_failed, first.over_ns) == (0, True, at(39.5))
    assert stage.own_gpu_ns == (3 * 10 + 30) * 2 * NS_PER_SECOND
    assert stage.waiting_gpu_ns == 3 * 20 * 2 * NS_PER_SECOND
    assert first.untold_gpu_ns == 0
    assert (second.stages, second.start_up_ns) == ((), round(19 * NS_PER_SECOND))
    assert start_up_ns(line, 70) == [first.start_up_ns, second.start_up_ns]


@pytest.mark.parametrize("told", [{"code": 0}, {"hosts": ()}])
def test_of_a_job_that_never_told_a_step_only_stages_that_ended_count(told: dict[str, Any]) -> None:
    """It may have trained for hours without a word: by its end, or because it is silent for an hour."""
    line = Started()
    line.stage(10, "begin", HOSTS)
    line.stage(20, "end", HOSTS)
    line.stage(21, "begin", HOSTS, "model_init")
    left(line, 3000, **told)
    line.hear(7000)
    last = line.told[-1]

    assert (last.is_failed, last.over_ns) == (False, at(19.5))
    assert {one.stage: one.own_gpu_ns for one in last.stages} == {
        "env_setup": 10 * 8 * NS_PER_SECOND,
        "model_init": 0,
    }
    assert start_up_ns(line, 7000) == [10 * NS_PER_SECOND]


def test_whoever_dies_in_the_first_step_has_failed_though_the_job_never_told_one() -> None:
    line = Started()
    line.stage(10, "begin", HOSTS)
    line.stage(20, "end", HOSTS)
    line.stage(31, "begin", HOSTS, "first_step")
    left(line, 45)

    assert (line.told[-1].is_failed, line.told[-1].over_ns) == (True, at(44.5))
    assert start_up_ns(line, 45) == [35 * NS_PER_SECOND]


def test_a_process_that_greets_an_agent_that_began_anew_starts_nothing() -> None:
    line = Started()
    line.hear(10, event(9.5, "a", 0, events.HELLO, pid=7))
    line.step(20, 0, 5.0)
    trained = start_up_ns(line, 20)
    line.hear(30, event(29.5, "a", 0, events.HELLO, pid=7))
    left(line, 600)

    assert {one.began_ns for one in line.told} == {at(9.5)}
    assert start_up_ns(line, 600) == trained == [5 * NS_PER_SECOND]


def test_another_process_of_a_rank_starts_and_may_fail() -> None:
    line = Started()
    line.hear(10, event(9.5, "a", 0, events.HELLO, pid=7))
    line.step(20, 0, 5.0)
    line.hear(30, event(29.5, "a", 0, events.HELLO, pid=8))
    left(line, 60)

    assert (line.told[-1].began_ns, line.told[-1].over_ns, line.told[-1].is_failed) == (at(29.5), at(59.5), True)


def test_processes_that_begin_again_in_place_take_the_failure_back() -> None:
    line = Started()
    line.hear(2, event(1.5, "a", 0, "host_up"))
    line.stage(10, "begin", HOSTS)
    line.stage(20, "end", HOSTS)
    left(line, 40)
    assert line.told[-1].over_ns == at(19.5)
    line.stage(50, "end", HOSTS[:1], seconds=45.0, start_kind="hot")
    line.step(70, 0, 1.0)
    newest = {one.began_ns: one for one in line.told}

    assert [(one.over_ns, one.train_ns) for one in newest.values()] == [(0, 0), (0, at(68.5))]
    assert start_up_ns(line, 70) == [sum(one.start_up_ns for one in newest.values())]


def test_many_stages_are_bounded() -> None:
    line = Started()
    for number in range(100):
        line.stage(10 + number, "begin", HOSTS[:1], f"stage{number}")
    assert len(line.told[-1].stages) == 64


@settings(max_examples=40, deadline=None)
@given(happenings(JOB, has_actions=False))
def test_starts_have_the_seconds_of_the_account_of_time(drawn: list[Happening]) -> None:
    ledger, other, told = EttrLedger(), EttrLedger(), dict[tuple[JobKey, int], AttemptStart]()
    for one in drawn:
        records = [row for row in one.data.records if not (isinstance(row, Event) and row.name == events.STALL)]
        happening = replace(one, data=replace(one.data, records=tuple(map(_with_stage, records))))
        other.restore(ledger.snapshot())
        for each in (ledger, other):
            feed(each, happening)
        found = ledger.starts_on_time(one.data.end_ns)
        assert other.starts_on_time(one.data.end_ns) == found
        told.update(((start.job, start.began_ns), start) for start in found)

    for start in told.values():
        spent = sum(one.own_gpu_ns + one.waiting_gpu_ns for one in start.stages)
        assert spent + start.untold_gpu_ns == start.gpu_ns
        assert min(start.untold_gpu_ns, spent) >= 0
    for account in ledger.accounts(drawn[-1].data.end_ns):
        own = sum(start.start_up_ns for (job, _), start in told.items() if job == account.job)
        assert own == pytest.approx(account.parts_ns.get(TimePart.START_UP, 0), abs=10)


def _with_stage(record: JobRecord) -> JobRecord:
    """Return a record; a stage event gets a stage and a length."""
    if isinstance(record, Event) and record.name == events.STAGE:
        stage = ("env_setup", "model_init", "first_step")[record.ts_ns % 3]
        return replace(record, payload={**record.payload, "stage": stage, "seconds": float(record.ts_ns % 97)})
    return record


def test_a_host_without_a_rank_is_not_the_last_of_a_stage_once_the_start_is_over() -> None:
    heard = Started()
    heard.stage(1, "begin", HOSTS)
    heard.hear(1, event(0.6, "spare", -1, events.STAGE, stage="env_setup", edge="begin"))
    heard.stage(11, "end", HOSTS)
    heard.hear(40, event(39.5, "spare", -1, events.STAGE, stage="env_setup", edge="end"))
    heard.step(46, 1, 1.0)
    (stage,) = heard.told[-1].stages

    assert heard.told[-1].train_ns
    assert (stage.host_count, stage.last_host in HOSTS, stage.slowest_host in HOSTS) == (4, True, True)
    assert stage.waiting_gpu_ns == 0
