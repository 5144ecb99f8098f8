"""Whole walks over other jobs: metrics of the user's own, missing ones, other periods, a restart elsewhere."""

from __future__ import annotations

import pytest

from tests.timelines import build_metrics_scenario
from tocsin.pipeline.lab.testing import (
    JobShape,
    MachineShape,
    MetricsJob,
    between,
)
from tocsin.pipeline.runtime.embedded.engine import EmbeddedEngine, EngineConfig
from tocsin.schemas.metrics import FIRST_CUSTOM_TABLE_ID, GPU_METRICS, HOST_METRICS, Metric, MetricTable
from tocsin.schemas.records import NS_PER_SECOND, JobKey
from tocsin.schemas.verdicts import Verdict
from tocsin.schemas.wire.codec import encode

CLOCK = "gpu_sm_clock_hertz"
TOKENS = Metric("tokens_per_second", "host", 0.0, None, "low")
ROOM = Metric("fan_duty_ratio", "gpu", 0.0, 1.0, "high")
TABLE = MetricTable(FIRST_CUSTOM_TABLE_ID, (*GPU_METRICS, ROOM), (*HOST_METRICS, TOKENS))
PROFILED = [metric.name for metric in GPU_METRICS if metric.name.endswith("_active_ratio")]


def _accused(verdicts: list[Verdict]) -> set[str]:
    return {s.component.name for v in verdicts if v.fault.value != "degraded" for s in v.suspects}


@pytest.mark.parametrize("has_hook", [True, False], ids=["steps", "no_steps"])
@pytest.mark.parametrize(("metric", "factor"), [("tokens_per_second", 0.5), ("fan_duty_ratio", 0.0)])
def test_a_metric_of_the_user_s_own_names_the_machine(metric: str, factor: float, has_hook: bool) -> None:
    scenario, job = build_metrics_scenario(MachineShape(table=TABLE, has_hook=has_hook))
    for rank in range(8):
        job.shift(rank, "fan_duty_ratio", 0.4)
    scenario.at(150).inject(job.shift, 3, metric, factor or 0.8)
    scenario.at(150).inject(job.slow, 3, "forward", 1.5)
    scenario.want(between(150, 240), fault="fail_slow", suspects=["n03"])
    scenario.run(260).check()

    named = {piece.metric for verdict in scenario.verdicts for piece in verdict.evidence}
    assert metric in named


def test_metrics_of_the_user_s_own_on_healthy_machines_say_nothing() -> None:
    scenario, _ = build_metrics_scenario(MachineShape(table=TABLE, own_ratio=0.1))
    scenario.want_nothing(300)


@pytest.mark.parametrize("faulty", [3, 6], ids=["one_that_has_them", "one_that_lacks_them"])
def test_a_fifth_of_the_hosts_has_no_profiling_metrics(faulty: int) -> None:
    scenario, job = build_metrics_scenario(MachineShape(has_hook=False), ranks=10)
    for rank in (6, 9):
        for metric in PROFILED:
            job.raise_by(rank, metric, float("nan"))
    scenario.at(150).inject(job.shift, faulty, CLOCK, 0.7)
    scenario.at(150).inject(job.slow, faulty, "forward", 1.5)
    scenario.want(between(150, 210), fault="fail_slow", suspects=[f"n{faulty:02d}"])
    scenario.run(240).check()


def test_a_fifth_of_the_hosts_loses_its_profiling_metrics_and_nobody_is_named() -> None:
    """Somebody else took the counters (a profiler): that is no fault of these machines."""
    scenario, job = build_metrics_scenario(MachineShape(), ranks=10)
    for rank in (6, 9):
        for metric in PROFILED:
            scenario.at(150).inject(job.raise_by, rank, metric, float("nan"))
    scenario.want_nothing(300)


@pytest.mark.parametrize("tick_seconds", [2, 10])
def test_other_sampling_periods(tick_seconds: int) -> None:
    scenario, job = build_metrics_scenario(MachineShape(has_hook=False, tick_seconds=tick_seconds))
    onset = 20 * max(5, 5 * tick_seconds) // 50 * 50
    scenario.at(onset).inject(job.shift, 3, CLOCK, 0.7)
    scenario.at(onset).inject(job.slow, 3, "forward", 1.5)
    scenario.want(between(onset, onset + 60 + 20 * tick_seconds), fault="fail_slow", suspects=["n03"])
    scenario.run(onset + 100 + 20 * tick_seconds).check()


def test_a_job_that_restarts_on_other_machines_is_learned_anew_and_judged_again() -> None:
    """Two of eight machines are replaced; the new ones are of another kind, which is no fault; then one is."""
    engine = EmbeddedEngine(EngineConfig(history=None))
    first = MetricsJob(JobShape(step_seconds=2.0), MachineShape(seed=1))
    reported = _run(engine, first, 200)
    for rank in range(8):
        first.event(rank, "bye")
    reported += _run(engine, first, 1)
    for second_count in range(1, 21):
        reported += engine.tick(first.now_ns + second_count * NS_PER_SECOND).verdicts
    second = MetricsJob(
        JobShape(step_seconds=2.0, start_ns=first.now_ns + 20 * NS_PER_SECOND), MachineShape(seed=2, own_ratio=0.1)
    )
    second.job = JobKey("test", "job", 1)
    for rank, host in ((3, "n08"), (6, "n09")):
        second.ranks[rank].host = host
        second.shift(rank, CLOCK, 0.9)
    reported += _run(engine, second, 200)

    assert _accused(reported) == set()

    second.shift(3, CLOCK, 0.6)
    second.slow(3, "forward", 1.5)
    reported = _run(engine, second, 60)

    assert _accused(reported) == {"n08"}
    assert {verdict.job for verdict in reported if verdict.suspects} == {second.job}


def _run(engine: EmbeddedEngine, job: MetricsJob, seconds: int) -> list[Verdict]:
    verdicts: list[Verdict] = []
    for _ in range(seconds):
        for record in job.second():
            engine.take(encode(record))
        verdicts += engine.tick(job.now_ns).verdicts
    return verdicts
