"""Why a job is slow where step records are incomplete: lost ones, timers that tell less, no communication."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from dataclasses import replace

import pytest

from tests.scenarios.test_why_slow import _causes, _lengths, _long_stage, _pause
from tocsin.pipeline.lab.testing import JobShape, Scenario, between
from tocsin.pipeline.lab.testing.fake_job import FakeJob
from tocsin.schemas.records import JobRecord, StepBatch, StepRecord

Told = Callable[[StepRecord], StepRecord | None]


def four_of_five(row: StepRecord) -> StepRecord | None:
    """A fifth of the records is lost on the way."""
    return row if random.Random(row.rank * 100_003 + row.step).random() >= 0.2 else None


def no_forward_of_rank_2(row: StepRecord) -> StepRecord:
    """The timer of one rank does not tell forward from backward."""
    return row._replace(forward_seconds=None) if row.rank == 2 else row


def no_communication(row: StepRecord) -> StepRecord:
    """No timer measures communication."""
    return row._replace(communication_seconds=None)


class _QuietJob(FakeJob):
    """A fake job of whose step records not everything arrives."""

    told: Told

    def second(self) -> Iterator[JobRecord]:
        """Run one second and yield what arrives of it."""
        for record in super().second():
            if isinstance(record, StepBatch):
                rows = (self.told(row) for row in record.rows)
                yield replace(record, rows=tuple(row for row in rows if row is not None))
            else:
                yield record


def scenario_of(shape: JobShape, told: Told) -> Scenario:
    """A scenario of a job of whose step records not everything arrives."""
    scenario, job = Scenario(shape), _QuietJob(shape)
    job.told = told
    scenario.job = job
    return scenario


ALL = pytest.mark.parametrize("told", [four_of_five, no_forward_of_rank_2, no_communication])
WITH_OWN_TIMES = pytest.mark.parametrize("told", [four_of_five, no_forward_of_rank_2])


@ALL
class TestGuilty:
    def test_new_lengths_in_each_step_are_data(self, told: Told) -> None:
        scenario = scenario_of(JobShape(step_seconds=0.5), told)
        scenario.job.load = _lengths
        scenario.want(between(30, 90), fault="degraded", cause="data_imbalance", suspects=[], action="none")
        scenario.run(90).check()
        assert _causes(scenario) == {"data_imbalance"}

    def test_a_stage_that_is_longer_on_all_replicas_is_the_stage(self, told: Told) -> None:
        scenario = scenario_of(JobShape(8, stage_count=2, step_seconds=0.5), told)
        scenario.job.load = _long_stage
        scenario.want(between(30, 90), fault="degraded", cause="stage_imbalance", suspects=[])
        scenario.run(90).check()

    def test_pauses_of_changing_ranks_are_jitter(self, told: Told) -> None:
        scenario = scenario_of(JobShape(step_seconds=0.5), told)
        scenario.job.extra_seconds = _pause
        scenario.want(between(30, 90), fault="degraded", cause="software_jitter", suspects=[])
        scenario.run(90).check()


class TestInnocent:
    @ALL
    def test_equal_lengths_are_nothing(self, told: Told) -> None:
        scenario_of(JobShape(step_seconds=0.5, jitter_ratio=0.06), told).want_nothing(60)

    @ALL
    def test_pauses_of_one_rank_are_no_jitter(self, told: Told) -> None:
        scenario = scenario_of(JobShape(step_seconds=0.5), told)
        scenario.job.extra_seconds = lambda rank, step: 0.4 if rank == 2 and step % 3 == 0 else 0.0
        scenario.run(60)
        assert not _causes(scenario) & {"software_jitter", "data_imbalance", "communication"}

    @WITH_OWN_TIMES
    @pytest.mark.parametrize("rank", [2, 5])
    def test_a_slow_machine_is_named_and_waiting_for_it_is_no_long_transfer(self, told: Told, rank: int) -> None:
        scenario = scenario_of(JobShape(step_seconds=0.5), told)
        for phase in ("forward", "backward"):
            scenario.at(50).inject(scenario.job.slow, rank, phase, 2.0)
        scenario.want(between(50, 90), fault="fail_slow", suspects=[f"n{rank:02d}"])
        scenario.run(100).check()
        assert not _causes(scenario) & {"communication", "data_imbalance", "software_jitter", "stage_imbalance"}

    def test_a_slow_machine_of_a_job_without_communication_times_is_no_other_cause(self) -> None:
        scenario = scenario_of(JobShape(step_seconds=0.5), no_communication)
        for phase in ("forward", "backward"):
            scenario.at(50).inject(scenario.job.slow, 5, phase, 2.0)
        scenario.run(110)
        assert not _causes(scenario) & {"communication", "data_imbalance", "software_jitter", "stage_imbalance"}
