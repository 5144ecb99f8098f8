"""The step and trace detectors over real step times (alibaba job_2), as they are and with one worker slowed down."""

from __future__ import annotations

from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest

from tests.pipeline.detect.conformance import accused
from tests.step_times import T0, FloatArray, batch_seconds, slices_of, whole_samples, worker_name
from tocsin.pipeline.detect.steps.config import StepsConfig
from tocsin.pipeline.detect.steps.detector import StepDetector
from tocsin.pipeline.detect.traces.detector import TraceDetector, TracesConfig
from tocsin.pipeline.job.graph import JobGraph
from tocsin.schemas.reasons import Reason
from tocsin.schemas.records import NS_PER_SECOND
from tocsin.schemas.verdicts import Anomaly, ComponentKind

STRUCK_STEP = 100
MIN_STRUCK_SECONDS = 92
"""When the hundredth step ends: a step of this job takes 0.91 to 0.95 s, as 1000 of the file's units are a second."""


def reported(
    name: str, seconds: FloatArray, *, waits: bool = True
) -> tuple[StepDetector | TraceDetector, list[Anomaly]]:
    graph = JobGraph()
    detector = StepDetector(StepsConfig(), graph) if name == "steps" else TraceDetector(TracesConfig(), graph)
    said: list[Anomaly] = []
    for data in slices_of(seconds, waits=waits):
        graph.take(data.records)
        said += detector.on_slice(data)
    return detector, said


def hosts_said(said: list[Anomaly]) -> list[Anomaly]:
    return [anomaly for anomaly in said if anomaly.component.kind is ComponentKind.HOST]


@pytest.mark.parametrize("name", ["steps", "traces"])
class TestNobodyToAccuse:
    def test_in_the_real_job_nobody_is_accused(self, shared_data: Path, name: str) -> None:
        assert not reported(name, whole_samples(batch_seconds(shared_data)))[1]

    def test_nor_at_its_end_where_the_workers_stop_one_by_one(self, shared_data: Path, name: str) -> None:
        assert not reported(name, batch_seconds(shared_data))[1]

    def test_as_recorded_without_waits_the_detector_abstains_by_name(self, shared_data: Path, name: str) -> None:
        detector, said = reported(name, whole_samples(batch_seconds(shared_data)), waits=False)

        assert not said
        assert detector.abstained[Reason.NO_HOOK] == 2380 - 30  # but for each worker's three steps of warm-up


def test_three_steps_of_each_worker_are_warm_up() -> None:
    detector, _ = reported("steps", np.full((20, 4), 900.0), waits=False)

    assert detector.abstained[Reason.WARMING_UP] == 3 * 4
    assert detector.abstained[Reason.NO_HOOK] == 17 * 4


class TestOneWorkerSlowedDown:
    @pytest.mark.parametrize("factor", [1.5, 2.0])
    @pytest.mark.parametrize("worker", range(10))
    @pytest.mark.parametrize("name", ["steps", "traces"])
    def test_it_is_named_alone_and_since_when(self, shared_data: Path, name: str, worker: int, factor: float) -> None:
        seconds = whole_samples(batch_seconds(shared_data))
        seconds[STRUCK_STEP:, worker] *= factor

        said = reported(name, seconds)[1]

        assert accused([said]) == {worker_name(worker)}
        begin_seconds = (hosts_said(said)[0].start_ns - T0) / NS_PER_SECOND
        assert abs(begin_seconds - MIN_STRUCK_SECONDS) < 10

    @pytest.mark.parametrize("factor", [1.1, 1.2, 1.3])
    @pytest.mark.parametrize("name", ["steps", "traces"])
    def test_where_it_hardly_shows_no_other_is_named(self, shared_data: Path, name: str, factor: float) -> None:
        """At 1.2 the step detector names six of ten: the fast workers do not become the slowest. See the report."""
        found = 0
        for worker in range(10):
            seconds = whole_samples(batch_seconds(shared_data))
            seconds[STRUCK_STEP:, worker] *= factor
            names = accused([reported(name, seconds)[1]])
            found += bool(names)
            assert names <= {worker_name(worker)}

        assert found >= {("steps", 1.1): 1, ("steps", 1.2): 6, ("steps", 1.3): 8}.get((name, factor), 9)

    def test_an_episode_has_a_begin_and_an_end(self, shared_data: Path) -> None:
        seconds = whole_samples(batch_seconds(shared_data))
        seconds[STRUCK_STEP : STRUCK_STEP + 40, 3] *= 2.0
        struck_seconds = float((seconds[STRUCK_STEP : STRUCK_STEP + 40].max(axis=1) + 0.02).sum())

        said = hosts_said(reported("steps", seconds)[1])

        assert {anomaly.component.name for anomaly in said} == {"w3"}
        assert (said[-1].start_ns - T0) / NS_PER_SECOND == pytest.approx(MIN_STRUCK_SECONDS, abs=3)
        assert (said[-1].end_ns - T0) / NS_PER_SECOND == pytest.approx(MIN_STRUCK_SECONDS + struck_seconds, abs=8)


def _parts_told(growths: list[float]) -> list[tuple[int, int]]:
    """All workers slower by so much, a step each, after sixty even ones of a second: from when to when it is told."""
    steps = 1 + 0.004 * np.random.default_rng(4).standard_normal((60 + len(growths), 8))
    steps[60:] *= 1 + np.array(growths)[:, None]
    at = sorted({(anomaly.slice_end_ns - T0) // NS_PER_SECOND for anomaly in reported("steps", steps)[1]})
    if not at:
        return []
    breaks = [0, *(index for index in range(1, len(at)) if at[index] > at[index - 1] + 1), len(at)]
    return [(at[first], at[last - 1]) for first, last in pairwise(breaks)]


class TestAllOfItSlower:
    def test_what_lies_about_the_line_is_told_once(self) -> None:
        growths = (0.26 + 0.03 * np.random.default_rng(5).standard_normal(120)).tolist()

        [(begin, end)] = _parts_told(growths)
        assert begin < 90
        assert end > 160

    def test_it_ends_with_the_slowness(self) -> None:
        [(begin, end)] = _parts_told([0.3] * 40 + [0.0] * 40)

        assert begin < 90
        assert 112 < end < 124

    def test_a_little_less_than_the_line_is_never_told(self) -> None:
        assert not _parts_told([0.2] * 60)
