"""Which deviations may accuse a machine."""

from __future__ import annotations

from dataclasses import replace

import pytest

from tocsin.pipeline.operators.diagnose.deviations import MachineRules, telling_of
from tocsin.pipeline.operators.diagnose.slow import SlowRules, beside_shared_data
from tocsin.schemas.records import NS_PER_SECOND, JobKey
from tocsin.schemas.verdicts import Anomaly, Component, ComponentKind

T0 = 1_700_000_000 * NS_PER_SECOND


def _jam(value: float, expected: float, seconds: int = 60) -> Anomaly:
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
    ids=["peers-see-none", "peers-see-little", "peers-are-jammed-too"],
)
def test_marks_of_congestion_tell_where_the_peers_are_not_jammed_too(
    value: float, expected: float, tells: bool
) -> None:
    anomaly = _jam(value, expected)

    assert telling_of([anomaly], MachineRules()) == ([anomaly] if tells else [])


def test_a_burst_tells_nothing() -> None:
    assert telling_of([_jam(7000.0, 0.0, seconds=10)], MachineRules()) == []


@pytest.mark.parametrize("name", ["rdma_bytes_per_second", "nvlink_bytes_per_second", "pcie_bytes_per_second"])
def test_who_moves_more_bytes_than_its_peers_is_not_accused_of_it(name: str) -> None:
    """Samples of one place in a long step show so for minutes, and whoever carries more is not held up by that."""
    more, less = _deviates(name, "high", 1.3e11, 1.0e11), _deviates(name, "low", 0.7e11, 1.0e11)

    assert telling_of([more], MachineRules()) == []
    assert telling_of([less], MachineRules()) == [less]


def test_one_of_several_that_are_jammed_together_is_not_told_apart_by_its_pause_frames() -> None:
    """A switch, or another job: one host pauses its senders, two more are marked, all since the same time."""
    port = _deviates("pfc_tx_packets_per_second", "high", 17000.0, 3.4)
    marked = [replace(_jam(20000.0, 50.0), component=Component(ComponentKind.HOST, name)) for name in ("n2", "n3")]
    clock = _deviates("gpu_sm_clock_hertz", "low", 1.0e9, 1.9e9)

    assert telling_of([port, *marked], MachineRules()) == []
    assert telling_of([port, *marked[:1]], MachineRules()) == [port]
    assert telling_of([clock, *marked], MachineRules()) == [clock]


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

    assert beside_shared_data([steps], [busier, slower], SlowRules()) == [*([busier] if is_left else []), slower]
