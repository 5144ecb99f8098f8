"""Which deviations may accuse a machine."""

from __future__ import annotations

from dataclasses import replace

import pytest

from tocsin.pipeline.rca.rules.deviations import (
    MachineRules,
    alarming,
    annotate_reported,
    evidence_of,
    has_higher_workload,
)
from tocsin.pipeline.rca.rules.slow import SlowRules, filter_shared_data
from tocsin.schemas.records import NS_PER_SECOND, JobKey
from tocsin.schemas.verdicts import Anomaly, Component, ComponentKind

T0 = 1_700_000_000 * NS_PER_SECOND


def _congestion(value: float, expected: float, seconds: int = 60) -> Anomaly:
    return _deviates("cnp_packets_per_second", "high", value, expected, seconds)


def _deviates(name: str, direction: str, value: float, expected: float, seconds: int = 60) -> Anomaly:
    metric = {
        "metric": name,
        "direction": direction,
        "score": 1.4,
        "since_ns": T0,
        "present_ratio": 1.0,
        "sigmas": 6.0,
        "value": value,
        "expected": expected,
    }
    end_ns = T0 + seconds * NS_PER_SECOND
    host = Component(ComponentKind.HOST, "n1")
    return Anomaly(JobKey("c", "j", 0), end_ns, host, name, T0, end_ns, 1.4, "peers", "", {"metrics": [metric]})


@pytest.mark.parametrize(
    ("value", "expected", "tells"),
    [(7000.0, 0.0, True), (7000.0, 500.0, True), (7000.0, 3000.0, False)],
    ids=["peers-see-none", "peers-see-little", "peers-are-congested-too"],
)
def test_marks_of_congestion_tell_where_the_peers_are_not_congested_too(
    value: float, expected: float, tells: bool
) -> None:
    anomaly = _congestion(value, expected)

    assert alarming([anomaly], MachineRules()) == ([anomaly] if tells else [])


def test_a_burst_tells_nothing() -> None:
    assert alarming([_congestion(7000.0, 0.0, seconds=10)], MachineRules()) == []


@pytest.mark.parametrize("name", ["rdma_bytes_per_second", "nvlink_bytes_per_second", "pcie_bytes_per_second"])
def test_who_moves_more_bytes_than_its_peers_is_not_accused_of_it(name: str) -> None:
    """Samples of one place in a long step show so for minutes, and whoever carries more is not held up by that."""
    more, less = _deviates(name, "high", 1.3e11, 1.0e11), _deviates(name, "low", 0.7e11, 1.0e11)

    assert alarming([more], MachineRules()) == []
    assert alarming([less], MachineRules()) == [less]


def test_one_of_several_that_are_congested_together_is_not_told_apart_by_its_pause_frames() -> None:
    """A switch, or another job: one host pauses its senders, two more are marked, all since the same time."""
    port = _deviates("pfc_tx_packets_per_second", "high", 17000.0, 3.4)
    marked = [
        replace(_congestion(20000.0, 50.0), component=Component(ComponentKind.HOST, name)) for name in ("n2", "n3")
    ]
    clock = _deviates("gpu_sm_clock_hertz", "low", 1.0e9, 1.9e9)

    assert alarming([port, *marked], MachineRules()) == []
    assert alarming([port, *marked[:1]], MachineRules()) == [port]
    assert alarming([clock, *marked], MachineRules()) == [clock]


@pytest.mark.parametrize(("data_ratio", "is_left"), [(0.48, False), (0.1, True)])
def test_who_is_only_busier_is_not_why_a_job_waits_for_its_data(data_ratio: float, is_left: bool) -> None:
    """A storage that all share is slow: all wait for their data, and then for the last of them."""
    end_ns = T0 + 60 * NS_PER_SECOND
    job = Component(ComponentKind.JOB, "j")
    steps = Anomaly(
        JobKey("c", "j", 0), end_ns, job, "step_seconds", T0, end_ns, 1.2, "steps", "", {"data_ratio": data_ratio}
    )
    busier = _deviates("gpu_util_ratio", "high", 0.91, 0.87)
    slower = _deviates("gpu_sm_clock_hertz", "low", 1.0e9, 1.9e9)

    assert filter_shared_data([steps], [busier, slower], SlowRules()) == [*([busier] if is_left else []), slower]


def _shows(*metrics: tuple[str, str, float]) -> Anomaly:
    """A machine whose metrics are so many times what is expected."""
    parts = [_deviates(name, direction, ratio, 1.0) for name, direction, ratio in metrics]
    return replace(parts[0], detail={"metrics": [part.detail["metrics"][0] for part in parts]})


TENSOR, SM, DRAM = "gpu_tensor_active_ratio", "gpu_sm_active_ratio", "gpu_dram_active_ratio"
POWER, CLOCK, UTIL = "gpu_power_watts", "gpu_sm_clock_hertz", "gpu_util_ratio"


@pytest.mark.parametrize(
    ("shown", "harder"),
    [
        (((TENSOR, "high", 1.18), (POWER, "high", 1.09)), True),
        (((SM, "high", 1.1), (POWER, "high", 1.07)), True),
        (((SM, "high", 1.08), (POWER, "high", 1.02)), False),  # a GPU of eight whose kernels take longer
        (((DRAM, "high", 1.11),), True),
        (((POWER, "high", 1.08),), True),
        (((SM, "high", 1.13),), False),  # at a low clock, too: nothing shows that it does more
        (((TENSOR, "high", 1.26), (CLOCK, "low", 0.67)), False),
        (((DRAM, "high", 1.2), (UTIL, "low", 0.9)), False),
        (((SM, "high", 1.06), (POWER, "high", 1.04)), False),  # one slow GPU of eight
        (((POWER, "high", 1.08), ("cpu_util_ratio", "high", 2.0)), False),
        (((DRAM, "high", 1.11), ("gpu_temperature_celsius", "high", 1.1)), True),
    ],
)
def test_whoever_does_more_work_a_second_has_more_to_do(
    shown: tuple[tuple[str, str, float], ...], harder: bool
) -> None:
    """All do the same work in each step, and all steps are as long as the slowest's."""
    assert has_higher_workload(_shows(*shown)) is harder


@pytest.mark.parametrize(("seconds", "harder"), [(30, True), (90, True), (120, False)])
def test_what_one_window_shows_minutes_later_takes_nothing_back(seconds: int, harder: bool) -> None:
    assert has_higher_workload(_deviates(POWER, "high", 1.1, 1.0, seconds)) is harder


@pytest.mark.parametrize(("host", "harder"), [("n1", False), ("n2", True)])
def test_more_work_clears_nobody_who_reports_a_broken_part(host: str, harder: bool) -> None:
    [marked] = annotate_reported([_deviates(POWER, "high", 1.1, 1.0)], {host})

    assert has_higher_workload(marked) is harder


@pytest.mark.parametrize(
    ("direction", "value", "gpu", "said"),
    [
        ("low", 307.4, None, "is low: 307.4 where 434.8 is expected"),
        ("low", 434.9, None, "was low (just now 434.9 where 434.8 is expected)"),
        ("high", 0.0, None, "was high (just now 0 where 434.8 is expected)"),
        ("high", 500.0, None, "is high: 500 where 434.8 is expected"),
        (
            "low",
            400.0,
            {"name": "GPU-7", "value": 190.0, "expected": 434.0},
            "is low: 400 where 434.8 is expected, by GPU GPU-7 alone (190 where 434 is expected)",
        ),
    ],
)
def test_evidence_says_which_gpu_it_is_and_contradicts_no_number(
    direction: str, value: float, gpu: dict[str, object] | None, said: str
) -> None:
    """What has added up may be over in the window whose numbers are told."""
    anomaly = _deviates("gpu_power_watts", direction, value, 434.8)
    metric = anomaly.detail["metrics"][0]
    reported = evidence_of(anomaly, metric if gpu is None else {**metric, "gpu": gpu})

    assert reported.text == f"n1: gpu_power_watts {said}"
    assert (reported.suspect_value, reported.peer_value) == (value, 434.8)
