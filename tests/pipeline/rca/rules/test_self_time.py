"""Machines whose own time grows with the steps: by the step detector, and what is made of it."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from tests.pipeline.rca.rules.kit import find_by_metrics
from tests.step_times import T0 as STEPS_T0
from tests.step_times import FloatArray, slices_of, worker_name
from tocsin.models.pace import Slowdown
from tocsin.pipeline.detect.steps.config import StepsConfig
from tocsin.pipeline.detect.steps.detector import StepDetector
from tocsin.pipeline.job.graph import JobGraph
from tocsin.pipeline.lab.testing.builders import START_NS, build_deviation
from tocsin.pipeline.lab.testing.progress import SLOWER, FakeProgress
from tocsin.pipeline.rca.finding import Finding
from tocsin.pipeline.rca.rules.harmless_deviations import HarmlessDeviations
from tocsin.schemas.reasons import Reason
from tocsin.schemas.records import NS_PER_SECOND
from tocsin.schemas.verdicts import Anomaly

STRUCK_STEP = 60
LITTLE_SLOWER = Slowdown(0.05, is_certain=True, is_gone=False, step_seconds=1.05, before_seconds=1.0, step_count=60)
HARMLESS = Slowdown(0.003, is_certain=False, is_gone=True, step_seconds=1.003, before_seconds=1.0, step_count=60)


def _detector(seconds: FloatArray, graph: JobGraph | None = None) -> StepDetector:
    graph = JobGraph() if graph is None else graph
    detector = StepDetector(StepsConfig(), graph)
    for data in slices_of(seconds):
        graph.take(data.records)
        detector.on_slice(data)
    return detector


def _steps(slower: float = 1.05, worker: int = 3, from_step: int = STRUCK_STEP) -> FloatArray:
    seconds = 1 + 0.005 * np.random.default_rng(1).standard_normal((100, 8))
    seconds[from_step:, worker] *= slower
    return seconds


def _grown(detector: StepDetector, step: int = STRUCK_STEP) -> dict[int, float]:
    onset_ns = STEPS_T0 + step * NS_PER_SECOND
    reported = {worker: detector.grown_self_time_seconds(worker_name(worker), onset_ns) for worker in range(8)}
    return {worker: grown for worker, grown in reported.items() if grown > 0.0}


class TestDetector:
    def test_by_how_much_one_computes_longer_than_before(self) -> None:
        grown = _grown(_detector(_steps()))

        assert grown.keys() == {3}
        assert grown[3] == pytest.approx(0.05, abs=0.01)

    @pytest.mark.parametrize(
        ("seconds", "step"),
        [(_steps(1.0), 60), (_steps(from_step=0), 60), (_steps(from_step=45), 80), (_steps(), 95)],
        ids=["nobody", "always", "before-that", "too-few-steps"],
    )
    def test_nobody_has_grown_since(self, seconds: FloatArray, step: int) -> None:
        assert not _grown(_detector(seconds), step)

    def test_a_snapshot_keeps_what_was_usual(self) -> None:
        graph = JobGraph()
        detector = _detector(_steps(), graph)
        other = StepDetector(StepsConfig(), graph)
        other.restore(detector.snapshot())

        assert _grown(other) == _grown(detector)
        assert other.snapshot() == detector.snapshot()


def _grown_by(seconds: float, slowdown: Slowdown) -> FakeProgress:
    """A rank of n3 computes so much longer since the job is slower."""
    own = {f"n{row}": seconds if row == 3 else 0.0 for row in range(8)}
    return FakeProgress(slowdown, self_time_excess=own, grown_self_time=own)


def _found(
    pace: FakeProgress, anomaly: Anomaly, until: float, cleared: HarmlessDeviations | None = None
) -> list[Finding]:
    return find_by_metrics(until, pace, anomaly, cleared=cleared)[0]


def _silent(metric: str = "memory_used_ratio", direction: str = "low", until: float = 120, host: str = "n3") -> Anomaly:
    return build_deviation(host, (0, until), metric, direction)


@pytest.mark.parametrize(("grown_seconds", "is_why"), [(0.05, True), (0.035, True), (0.02, False), (0.0, False)])
def test_what_healthy_machines_show_too_is_why_where_own_time_explains_the_steps(
    grown_seconds: float, is_why: bool
) -> None:
    found = _found(_grown_by(grown_seconds, LITTLE_SLOWER), _silent(), 120)

    assert [(one.fault.value, one.reason) for one in found] == [
        ("fail_slow", Reason.METRICS_DIFFER_STEPS_SLOWER)
    ] * is_why
    assert all(one.is_soft and one.evidence[0].metric == "own_seconds" for one in found)


@pytest.mark.parametrize(
    ("anomaly", "no_more", "is_why"),
    [
        (_silent(direction="high"), False, False),
        (_silent(direction="high"), True, True),
        (_silent("gpu_temperature_celsius", "high"), False, False),
        (_silent("rdma_bytes_per_second", "high"), False, False),
        (_silent("gpu_temperature_celsius", "low"), False, False),
        (_silent(host="n5"), False, False),
        (_silent(until=30), False, False),
        (replace(_silent(), detail={**_silent().detail, "leaning": True}), False, False),
        (build_deviation("n3", (0, 120), "memory_used_ratio", "low", 1.0), False, False),
    ],
    ids=["more", "more-and-moves-no-more", "warm", "more-traffic", "cold", "another", "young", "fell-first", "over"],
)
def test_not_where_it_may_have_more_to_do(anomaly: Anomaly, no_more: bool, is_why: bool) -> None:
    """Longer sequences on one rank, a hot expert: more memory, more heat, and its own time grows as well."""
    until = (anomaly.end_ns - START_NS) / NS_PER_SECOND
    pace = replace(_grown_by(0.05, LITTLE_SLOWER), moving_no_more=frozenset(f"n{row}" for row in range(8) if no_more))

    assert bool(_found(pace, anomaly, until)) == is_why


def test_a_job_that_is_as_fast_as_ever_waits_for_nobody() -> None:
    assert not _found(_grown_by(0.05, HARMLESS), _silent(), 120)


@pytest.mark.parametrize(("grown_seconds", "fault"), [(0.05, "fail_slow"), (0.0, "degraded"), (0.005, "degraded")])
def test_a_ramp_that_did_no_harm_at_first_is_not_cleared(grown_seconds: float, fault: str) -> None:
    """Its ranks compute longer already; the others had time to wait for it."""
    cleared = HarmlessDeviations()

    def reported(slowdown: Slowdown, until: float) -> list[str]:
        busy = build_deviation("n3", (0, until), "cpu_util_ratio", "high")
        busy.detail["metrics"][0].update(value=4.0)
        pace = _grown_by(grown_seconds, slowdown)
        return [one.fault.value for one in _found(pace, busy, until, cleared)]

    assert reported(HARMLESS, 70) == ["degraded"]
    assert reported(replace(LITTLE_SLOWER, step_count=6), 150) == [fault]
    assert reported(SLOWER, 155)[0] == "degraded"  # it explains a sixth of that


@pytest.mark.parametrize(
    ("metric", "is_measured", "is_soft"),
    [("cpu_util_ratio", False, True), ("cpu_util_ratio", True, False), ("gpu_util_ratio", False, False)],
)
def test_a_busy_cpu_drains_nobody_where_no_own_time_is_measured(metric: str, is_measured: bool, is_soft: bool) -> None:
    """A log agent's, beside storage that is slow for all, looks the same."""
    direction = "high" if metric == "cpu_util_ratio" else "low"
    anomaly = build_deviation("n3", (0, 120), metric, direction)
    anomaly.detail["metrics"][0].update(value=4.0)
    pace = _grown_by(1.0, SLOWER) if is_measured else FakeProgress(SLOWER)

    found = [one for one in _found(pace, anomaly, 120) if one.fault.value == "fail_slow"]
    assert [one.is_soft for one in found] == [is_soft]
