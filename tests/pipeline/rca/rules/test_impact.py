"""Which deviations explain what the job lost."""

from __future__ import annotations

from dataclasses import replace

import pytest

from tests.pipeline.rca.rules.kit import find_by_metrics, told_of, unseen
from tocsin.models.pace import Slowdown
from tocsin.pipeline.lab.testing.builders import build_deviation, build_graph
from tocsin.pipeline.lab.testing.progress import SLOWER, FakeProgress
from tocsin.pipeline.rca.rules.harmless_deviations import HarmlessDeviations
from tocsin.schemas.reasons import Reason
from tocsin.schemas.records import NS_PER_SECOND
from tocsin.schemas.verdicts import FaultKind


@pytest.mark.parametrize(
    ("of_own", "own_seconds", "fault"),
    [(True, 0.0, "degraded"), (True, 0.4, "fail_slow"), (False, 0.0, "fail_slow"), (True, None, "fail_slow")],
    ids=["all compute longer", "and it most of all", "communication is longer", "not measured"],
)
@pytest.mark.parametrize("metric", ["rdma_bytes_per_second", "nvlink_bytes_per_second", "pfc_tx_packets_per_second"])
def test_a_link_is_not_why_all_ranks_compute_longer(
    metric: str, of_own: bool, own_seconds: float | None, fault: str
) -> None:
    """An exporter lost a field as the job went on to longer sequences."""
    measured = {} if own_seconds is None else {"n3": own_seconds}
    pace = FakeProgress(replace(SLOWER, is_of_own=of_own), self_time_excess=measured)
    direction = "high" if metric.startswith("pfc") else "low"
    found, _ = find_by_metrics(60, pace, build_deviation("n3", (0, 60), metric, direction))

    assert [finding.fault.value for finding in found] == [fault]
    assert found[0].is_harmless == (fault == "degraded")


@pytest.mark.parametrize("slowdown", [SLOWER, None])
@pytest.mark.parametrize(
    ("metric", "step_seconds", "hurts"),
    [
        ("cpu_util_ratio", 0, False),
        ("cpu_util_ratio", 1, True),
        ("pfc_tx_packets_per_second", 0, True),
    ],
)
def test_a_cpu_alone_explains_nothing_in_a_job_without_steps(
    slowdown: Slowdown | None, metric: str, step_seconds: int, hurts: bool
) -> None:
    found = told_of(
        FakeProgress(slowdown, median_step_ns=step_seconds * NS_PER_SECOND), 400, HarmlessDeviations(), metric
    )

    assert [fault for fault, _ in found] == ["fail_slow" if hurts else "degraded"]


@pytest.mark.parametrize(("certain", "hurts"), [(True, True), (False, False)])
def test_marks_of_congestion_alone_explain_no_slowdown_that_is_only_likely(certain: bool, hurts: bool) -> None:
    found = told_of(
        FakeProgress(replace(SLOWER, is_certain=certain)), 100, HarmlessDeviations(), "ecn_packets_per_second"
    )

    assert (("fail_slow", Reason.METRICS_DIFFER_STEPS_SLOWER) in found) == hurts


@pytest.mark.parametrize(("step_count", "hurts"), [(1, False), (2, False), (3, True)])
def test_what_lasts_no_longer_than_one_long_step_is_one_late_start(step_count: int, hurts: bool) -> None:
    slower = Slowdown(0.3, True, False, step_seconds=20.0, before_seconds=15.0, step_count=step_count)
    found = told_of(
        FakeProgress(slower, median_step_ns=15 * NS_PER_SECOND), 15, HarmlessDeviations(), "gpu_sm_active_ratio"
    )

    assert (("fail_slow", Reason.METRICS_DIFFER_STEPS_SLOWER) in found) == hurts


@pytest.mark.parametrize(("until", "hurts"), [(20, False), (25, False), (30, True)])
def test_of_two_steps_the_longer_one_may_be_all_that_is_late(until: float, hurts: bool) -> None:
    """Their median is 20 s, so one of them took 25 s: all windows of 5 s that it touches show it."""
    slower = Slowdown(0.3, True, False, step_seconds=20.0, before_seconds=15.0, step_count=2)
    graph = build_graph()
    graph.hosts["n3"].report_interval_ns = 5 * NS_PER_SECOND
    pace = FakeProgress(slower, median_step_ns=15 * NS_PER_SECOND)
    anomaly = build_deviation("n3", (-5, until), "gpu_sm_active_ratio", "low")
    found, _ = find_by_metrics(until, pace, anomaly, graph=graph)

    assert [finding.fault for finding in found] == [FaultKind.FAIL_SLOW if hurts else FaultKind.DEGRADED]


@pytest.mark.parametrize(
    ("metric", "value", "hurts"),
    [
        ("pcie_bytes_per_second", 0.9 * 0.98, False),
        ("gpu_power_watts", 0.9 * 0.98, False),
        ("gpu_sm_clock_hertz", 0.9 * 0.98, True),
        ("pcie_bytes_per_second", 0.9 * 0.95, True),
        ("a_users_own", None, True),
    ],
)
def test_one_percent_less_however_surely_is_nothing_where_nobody_knows_what_it_costs(
    metric: str, value: float | None, hurts: bool
) -> None:
    anomaly = build_deviation("n3", (0, 100), metric, "low")
    anomaly.detail["metrics"][0].update(value=value, expected=0.9)
    found, _ = find_by_metrics(100, FakeProgress(None, median_step_ns=0), anomaly)

    assert [finding.fault for finding in found] == [FaultKind.FAIL_SLOW if hurts else FaultKind.DEGRADED]


@pytest.mark.parametrize(
    ("metric", "value", "hurts"),
    [
        ("gpu_sm_active_ratio", 0.9 * 1.01, False),
        ("gpu_sm_active_ratio", 0.9 * 1.04, True),
        ("gpu_sm_active_ratio", 0.9 * 0.96, True),
        ("gpu_power_watts", 0.9 * 1.01, True),
    ],
)
def test_gpus_that_work_one_percent_harder_are_not_why_a_job_lost_a_third(
    metric: str, value: float, hurts: bool
) -> None:
    """Those who wait for a slow machine are less busy than it by what the job lost."""
    anomaly = build_deviation("n3", (0, 60), metric, "high")
    anomaly.detail["metrics"][0].update(value=value, expected=0.9)
    found, _ = find_by_metrics(60, FakeProgress(SLOWER), anomaly)

    assert [finding.fault for finding in found] == [FaultKind.FAIL_SLOW if hurts else FaultKind.DEGRADED]


@pytest.mark.parametrize(("more", "fault"), [(0.05, FaultKind.DEGRADED), (0.15, FaultKind.FAIL_SLOW)])
def test_a_few_cores_that_a_daemon_uses_are_not_why_a_job_lost_a_third(more: float, fault: FaultKind) -> None:
    anomaly = build_deviation("n3", (0, 60), "cpu_util_ratio", "high")
    anomaly.detail["metrics"][0].update(value=0.13 + more, expected=0.13)
    found, _ = find_by_metrics(60, FakeProgress(SLOWER), anomaly)

    assert [finding.fault for finding in found] == [fault]


@pytest.mark.parametrize(
    ("metric", "now_sigmas", "fault"),
    [
        ("pfc_tx_packets_per_second", 0.0, FaultKind.DEGRADED),
        ("pfc_tx_packets_per_second", 1.5, FaultKind.FAIL_SLOW),
        ("rdma_bytes_per_second", 0.8, FaultKind.DEGRADED),
        ("rdma_bytes_per_second", 1.5, FaultKind.FAIL_SLOW),
    ],
)
def test_what_is_over_is_not_why(metric: str, now_sigmas: float, fault: FaultKind) -> None:
    """Fifteen seconds of packets lie in two half minutes, and look as if they had gone on for a minute."""
    anomaly = build_deviation("n3", (0, 60), metric, "high" if metric.startswith("pfc") else "low", now_sigmas)
    found, _ = find_by_metrics(60, FakeProgress(SLOWER), anomaly)

    assert [finding.fault for finding in found] == [fault]


def test_what_was_not_sampled_in_the_last_window_is_not_over() -> None:
    anomaly = unseen(build_deviation("n3", (0, 60), "pfc_tx_packets_per_second", "high"))
    found, _ = find_by_metrics(60, FakeProgress(SLOWER), anomaly)

    assert [finding.fault for finding in found] == [FaultKind.FAIL_SLOW]


@pytest.mark.parametrize("ratio", [0.3, 4.0, 13.0])
@pytest.mark.parametrize("value", [0.2, 0.0])
def test_idle_gpus_are_never_too_little_however_much_the_job_lost(ratio: float, value: float) -> None:
    anomaly = build_deviation("n3", (0, 60), "gpu_util_ratio", "low")
    anomaly.detail["metrics"][0].update(value=value, expected=0.95)
    found, _ = find_by_metrics(60, FakeProgress(replace(SLOWER, ratio=ratio)), anomaly)

    assert [finding.fault for finding in found] == [FaultKind.FAIL_SLOW]


WARM = {"metric": "gpu_temperature_celsius", "score": 0.6, "present_ratio": 1.0}


@pytest.mark.parametrize(("present_ratio", "named"), [(0.75, []), (0.9, ["n3"])])
def test_a_daemon_that_comes_again_is_not_why_all_became_slower(present_ratio: float, named: list[str]) -> None:
    anomaly = build_deviation("n3", (0, 40), "cpu_util_ratio", "high")
    anomaly.detail["metrics"][0].update(present_ratio=present_ratio)
    anomaly.detail["metrics"].append({**anomaly.detail["metrics"][0], **WARM})
    found, _ = find_by_metrics(41, FakeProgress(SLOWER), anomaly)

    assert [suspect.component.name for finding in found for suspect in finding.suspects] == named


@pytest.mark.parametrize(
    ("steps", "fault"), [(1, FaultKind.DEGRADED), (2, FaultKind.DEGRADED), (3, FaultKind.FAIL_SLOW)]
)
def test_of_two_steps_one_may_be_late_while_another_program_uses_a_cpu(steps: int, fault: FaultKind) -> None:
    """A step of 18 s that takes a tenth longer, once: it was confirmed before the third step ended."""
    slower = replace(SLOWER, step_count=steps)
    found, _ = find_by_metrics(61, FakeProgress(slower), build_deviation("n3", (0, 60), "cpu_util_ratio", "high"))

    assert [finding.fault for finding in found] == [fault]


@pytest.mark.parametrize(("far", "seconds", "named"), [(1, 50, []), (1, 80, ["n3"]), (2, 50, ["n3"])])
def test_where_nobody_knows_the_pace_one_metric_must_differ_for_longer_than_several(
    far: int, seconds: float, named: list[str]
) -> None:
    """A host of a congested switch sent a seventh less for a minute, in the first minutes of an attempt."""
    anomaly = build_deviation("n3", (0, seconds), "rdma_bytes_per_second", "low")
    power = {**anomaly.detail["metrics"][0], "metric": "gpu_power_watts"}
    anomaly.detail["metrics"].extend([power] * (far - 1))
    pace = FakeProgress(None, median_step_ns=0)
    found, _ = find_by_metrics(seconds + 2, pace, anomaly)

    assert [suspect.component.name for finding in found for suspect in finding.suspects] == named


@pytest.mark.parametrize(
    ("present_ratio", "step_seconds", "window_seconds", "fault"),
    [
        (0.5, 0, 25, FaultKind.DEGRADED),
        (0.7, 0, 25, FaultKind.FAIL_SLOW),
        (0.5, 1, 25, FaultKind.FAIL_SLOW),
        (0.5, 0, 5, FaultKind.FAIL_SLOW),
    ],
)
def test_without_steps_what_every_other_long_window_shows_is_a_row_of_stalls(
    present_ratio: float, step_seconds: int, window_seconds: int, fault: FaultKind
) -> None:
    anomaly = build_deviation("n3", (0, 100), "gpu_util_ratio", "low")
    anomaly.detail["metrics"][0].update(present_ratio=present_ratio, value=0.5, expected=0.9)
    young = {"metric": "gpu_sm_active_ratio", "score": 0.5, "present_ratio": 1.0}
    anomaly.detail["metrics"].append({**anomaly.detail["metrics"][0], **young})
    pace = FakeProgress(SLOWER, median_step_ns=step_seconds * NS_PER_SECOND)
    graph = build_graph()
    graph.hosts["n3"].report_interval_ns = window_seconds * NS_PER_SECOND
    found, _ = find_by_metrics(100, pace, anomaly, graph=graph)

    assert [finding.fault for finding in found] == [fault]
