"""MFU of a job by its steps: what is announced, its decline, and what begins its past anew."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import pytest

from tocsin.pipeline.detect.mfu.config import MfuConfig
from tocsin.pipeline.detect.mfu.detector import MfuDetector
from tocsin.pipeline.detect.steps.rows import StepRows
from tocsin.pipeline.job.graph import JobGraph
from tocsin.pipeline.lab.testing.builders import JOB, at_second
from tocsin.schemas import events
from tocsin.schemas.records import Event, EventSource, RankPlace, Severity, Slice, StepRecord, Topology
from tocsin.schemas.verdicts import Anomaly

H100 = "NVIDIA H100 80GB HBM3"
GIVEN: dict[str, Any] = {"flops_per_step": 8 * 4e15, "world_size": 8, "gpu_name": H100}
"""Work of a job of eight ranks, 40 % of the GPUs' peak where a step takes ten seconds."""


@dataclass
class Job:
    """A job of two announcing ranks whose steps are fed to the detector one by one."""

    graph: JobGraph = field(default_factory=JobGraph)
    detector: MfuDetector = field(init=False)
    now_seconds: float = 0.0
    count: int = 0

    def __post_init__(self) -> None:
        self.detector = MfuDetector(MfuConfig(), self.graph)

    def announce(self, rank: int = 0, **payload: Any) -> None:
        event = Event(
            JOB, "n0", at_second(self.now_seconds), rank, EventSource.JOB, events.MODEL, Severity.INFO, payload
        )
        self.detector.on_steps(self._slice(event), (), self.count)

    def _slice(self, *records: Event) -> Slice:
        return Slice(JOB, at_second(self.now_seconds), at_second(self.now_seconds + 1), records)

    def steps(self, count: int, seconds: float | Callable[[int], float] = 10.0) -> list[Anomaly]:
        """Make some steps; return the anomalies after each."""
        found = []
        for row in range(count):
            length = seconds(row) if callable(seconds) else seconds
            self.now_seconds += length
            self.count += 1
            self.graph.max_step += 1
            rows = {rank: StepRecord(at_second(self.now_seconds), rank, self.count, length) for rank in range(2)}
            found += self.detector.on_steps(self._slice(), [StepRows.of(rows)], self.count)
        return found

    @property
    def mfu(self) -> float | None:
        found = self.detector.utilization(at_second(self.now_seconds))
        return None if found is None else found.mfu_ratio


def announced(**payload: Any) -> Job:
    job = Job()
    job.announce(**payload)
    return job


class TestWhatIsKnown:
    @pytest.mark.parametrize(
        "payload",
        [
            GIVEN,
            {"parameters": 4e15 / 6, "tokens_per_step": 8, "world_size": 8, "gpu_name": H100},
            {"rank_parameters": 4e15 / 6e6, "rank_tokens_per_step": 1e6, "gpu_name": H100},
            {"rank_parameters": 4e15 / 6e6, "rank_tokens_per_step": 1e6, "peak_flops_per_second": 989.4e12},
        ],
    )
    def test_work_that_is_given_or_counted_gives_the_mfu(self, payload: dict[str, Any]) -> None:
        job = announced(**payload)
        job.steps(30)
        assert job.mfu == pytest.approx(4e15 / 10 / 989.4e12)

    def test_the_world_is_the_job_s_where_the_announcement_does_not_tell_it(self) -> None:
        graph = JobGraph()
        place = RankPlace(0, "n0", 0, world_size=8)
        graph.take([Topology(JOB, "n0", at_second(0), (place,))])
        job = Job(graph)
        job.announce(flops_per_step=8 * 4e15, gpu_name=H100)
        job.steps(3)
        assert job.mfu == pytest.approx(4e15 / 10 / 989.4e12)

    def test_stages_with_more_and_fewer_parameters_are_one_job(self) -> None:
        job = Job()
        for rank, share in enumerate((0.5, 1.5)):
            job.announce(rank, rank_parameters=share * 4e15 / 6e6, rank_tokens_per_step=1e6, gpu_name=H100)
        job.steps(3)
        assert job.mfu == pytest.approx(4e15 / 10 / 989.4e12)

    def test_an_unknown_gpu_has_no_mfu_and_is_named(self) -> None:
        job = announced(**{**GIVEN, "gpu_name": "NVIDIA Z1"})
        job.steps(3)
        found = job.detector.utilization(at_second(job.now_seconds))
        assert found is not None
        assert (found.mfu_ratio, found.gpu_without_peak) == (None, "NVIDIA Z1")
        assert found.flops_per_second == pytest.approx(4e14)

    def test_without_an_announcement_nothing_is_known(self) -> None:
        job = Job()
        assert job.steps(400, 10.0) == []
        assert job.mfu is None

    def test_a_job_that_makes_no_steps_any_more_has_none(self) -> None:
        job = announced(**GIVEN)
        job.steps(30)
        job.now_seconds += 200
        assert job.mfu is None


class TestItsDecline:
    def test_a_lasting_decline_is_told_after_five_minutes(self) -> None:
        job = announced(**GIVEN)
        assert job.steps(400) == []
        begun = job.now_seconds
        found = job.steps(100, 12.0)
        first = found[0]
        assert first.start_ns == pytest.approx(at_second(begun), abs=int(250e9))
        told_seconds = (first.slice_end_ns - at_second(begun)) / 1e9
        assert 300 < told_seconds < 1400
        assert first.detail["costs_ratio"] == pytest.approx(1 / 6, abs=0.01)
        assert first.component.name == JOB.job_id

    def test_it_ends_when_the_mfu_is_back(self) -> None:
        job = announced(**GIVEN)
        job.steps(400)
        assert job.steps(130, 12.0)
        assert job.steps(400)[-1].slice_end_ns < at_second(job.now_seconds - 2000)

    def test_a_slow_growth_over_hours_is_told_too(self) -> None:
        job = announced(**GIVEN)
        assert job.steps(3000, lambda row: 10.0 + 1.5 * row / 3000)

    def test_it_is_normal_after_half_an_hour(self) -> None:
        job = announced(**GIVEN)
        job.steps(400)
        found = job.steps(1200, 12.0)
        assert [one.detail["is_accepted"] for one in found].count(True) == 1
        assert found[-1].detail["is_accepted"]

    @pytest.mark.parametrize(
        "seconds",
        [
            pytest.param(lambda row: 10.0 if row < 400 else 10.8, id="8 percent"),
            pytest.param(lambda row: 20.0 if row % 40 == 0 else 10.0, id="a long step now and then"),
            pytest.param(lambda row: 15.0 if 400 <= row < 416 else 10.0, id="a few minutes"),
            pytest.param(lambda row: 10.0 + 2.5 * ((row * 7919) % 13) / 13, id="steps that vary by a quarter"),
            pytest.param(lambda row: 14.0 if row < 100 else 10.0, id="a slow beginning"),
        ],
    )
    def test_what_is_no_decline(self, seconds: Callable[[int], float]) -> None:
        job = announced(**GIVEN)
        assert job.steps(1200, seconds) == []


class TestWhatBeginsAnew:
    @pytest.mark.parametrize(
        "changed",
        [
            pytest.param({**GIVEN, "flops_per_step": 4 * 4e15}, id="half the batch"),
            pytest.param({**GIVEN, "flops_per_step": 9 * 4e15}, id="a larger model"),
        ],
    )
    def test_another_batch_or_model_is_no_decline(self, changed: dict[str, Any]) -> None:
        job = announced(**GIVEN)
        job.steps(400)
        job.announce(**changed)
        assert job.steps(800, 14.0) == []

    def test_the_same_announcement_again_changes_nothing(self) -> None:
        job = announced(**GIVEN)
        job.steps(400)
        job.announce(**GIVEN)
        assert job.steps(100, 12.0)

    def test_a_rank_that_moved_begins_anew(self) -> None:
        job = announced(**GIVEN)
        job.graph.take([Topology(JOB, "n0", at_second(0), (RankPlace(0, "n0", 0, world_size=8),))])
        job.steps(400)
        job.graph.take([Topology(JOB, "n1", at_second(job.now_seconds), (RankPlace(0, "n1", 0, world_size=8),))])
        assert job.steps(400, 14.0) == []

    def test_a_run_that_counts_its_steps_anew_begins_anew(self) -> None:
        job = announced(**GIVEN)
        job.steps(400)
        job.graph.max_step = -1
        assert job.steps(400, 14.0) == []


def test_a_restore_in_between_changes_nothing() -> None:
    whole, part = announced(**GIVEN), announced(**GIVEN)
    for job in (whole, part):
        job.steps(470, lambda row: 10.0 if row < 400 else 12.0)
    kept = part.detector.snapshot()
    part.detector = MfuDetector(MfuConfig(), part.graph)
    part.detector.restore(kept)
    assert part.steps(60, 12.0) == whole.steps(60, 12.0) != []
    assert part.detector.snapshot() == whole.detector.snapshot()


def test_counted_parameters_work_on_the_tokens_that_the_loader_tells() -> None:
    job = announced(rank_parameters=4e15 / 6e6, gpu_name=H100)
    for tokens in (0.9e6, 1e6, 1.1e6):
        event = Event(
            JOB, "n0", at_second(0), 0, EventSource.LOADER, events.LOADER, Severity.INFO, {"rows": 4, "tokens": tokens}
        )
        job.detector.on_steps(Slice(JOB, at_second(0), at_second(1), (event,)), (), 0)
    job.steps(3)
    assert job.mfu == pytest.approx(4e15 / 10 / 989.4e12)
