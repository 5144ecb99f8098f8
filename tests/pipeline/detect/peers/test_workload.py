"""Who does more work a second than expected, by too little to be an alarm."""

from __future__ import annotations

import numpy as np
import pytest

from tests.pipeline.states import through_bytes
from tocsin.models.peers import PeerConfig
from tocsin.pipeline.detect.peers.rows import Block
from tocsin.pipeline.detect.peers.workload import (
    LoadConfig,
    LoadTracker,
    load_floors,
    load_values,
)
from tocsin.schemas.metrics import BUILTIN_TABLE
from tocsin.schemas.records import NS_PER_SECOND

METRICS = [metric.name for metric in BUILTIN_TABLE.gpu]
USUAL = {"gpu_power_watts": 500.0, "gpu_sm_clock_hertz": 1.9e9, "gpu_tensor_active_ratio": 0.4}
USUAL |= {"nvlink_bytes_per_second": 5e10}
MORE = {"gpu_fp_active_ratio": 0.2, "gpu_dram_active_ratio": 0.3}
COUNT = 8
HOSTS = [f"n{row}" for row in range(COUNT)]
SPAN_NS = 5 * NS_PER_SECOND


class Job:
    """Eight hosts that do the same, each by its own measure, a percent of noise."""

    def __init__(self, metrics: tuple[str, ...] = tuple(USUAL)) -> None:
        self.metrics = metrics
        self.tracker = LoadTracker(LoadConfig())
        self.now_ns = 0
        self.block = Block(BUILTIN_TABLE.gpu)
        self.random = np.random.default_rng(7)
        self.own = 1 + 0.02 * self.random.standard_normal((COUNT, len(METRICS)))

    def run(self, count: int, rate: float = 1.0, step_seconds: float = 0, **n3: float) -> None:
        """So many windows in which all do so much; n3 shows so many times what it usually does."""
        for _ in range(count):
            values = np.full((COUNT, len(METRICS)), np.nan, np.float32)
            for name in self.metrics:
                column = METRICS.index(name)
                noise = 1 + 0.01 * self.random.standard_normal(COUNT)
                values[:, column] = (USUAL | MORE)[name] * self.own[:, column] * noise
                values[:, column] *= 1.0 if "clock" in name else rate
                values[3, column] *= n3.get(name, 1.0)
            groups = np.zeros(COUNT, np.intp)
            window = self.block.compare(HOSTS, values, groups, PeerConfig())
            now = load_values(values, groups, self.block, window)
            share = self.tracker.share_of(SPAN_NS, round(step_seconds * NS_PER_SECOND))
            self.tracker.take(share, self.now_ns, HOSTS, now, load_floors(self.block))
            self.now_ns += SPAN_NS

    def hosts(self) -> list[str]:
        return [host for host in HOSTS if self.tracker.more_work(host)]


@pytest.mark.parametrize(
    ("shown", "reported"),
    [
        ({}, False),
        ({"gpu_power_watts": 1.08}, False),  # for nothing, too
        ({"gpu_power_watts": 1.08, "gpu_tensor_active_ratio": 1.12}, True),
        ({"gpu_power_watts": 1.02}, False),
        ({"gpu_power_watts": 1.05, "gpu_tensor_active_ratio": 1.2}, True),
        ({"gpu_power_watts": 1.03, "gpu_tensor_active_ratio": 1.08}, False),
        ({"gpu_power_watts": 1.03, "gpu_tensor_active_ratio": 1.08, "nvlink_bytes_per_second": 1.08}, True),
        ({"gpu_tensor_active_ratio": 1.08, "nvlink_bytes_per_second": 1.08, "gpu_sm_clock_hertz": 0.9}, False),
        ({"gpu_power_watts": 1.3, "gpu_tensor_active_ratio": 1.1}, False),  # for nothing: slow kernels
        ({"gpu_tensor_active_ratio": 1.2}, False),  # of the cycles, of which there may be fewer
        ({"gpu_power_watts": 1.08, "gpu_tensor_active_ratio": 1.12, "gpu_sm_clock_hertz": 0.95}, False),
        (
            {"gpu_power_watts": 1.08, "gpu_tensor_active_ratio": 1.12, "nvlink_bytes_per_second": 0.8},
            False,
        ),  # it waits for that link
    ],
)
def test_more_power_at_the_same_clock_is_more_work(shown: dict[str, float], reported: bool) -> None:
    job = Job()
    job.run(30)
    job.run(6, **shown)

    assert job.hosts() == (["n3"] if reported else [])


def test_before_a_host_is_known_it_is_measured_by_the_others() -> None:
    job = Job()
    job.run(4, gpu_power_watts=1.2, gpu_tensor_active_ratio=1.3)

    assert job.hosts() == ["n3"]


def test_who_showed_more_work_does_until_it_is_as_ever() -> None:
    job = Job()
    job.run(30)
    job.run(10, gpu_power_watts=1.04, gpu_tensor_active_ratio=1.15)
    first = job.tracker.more_work("n3")
    job.run(20, gpu_power_watts=1.03, gpu_tensor_active_ratio=1.08)
    later = job.tracker.more_work("n3")

    assert first is not None
    assert later is not None
    assert later.work_ratio < first.work_ratio
    assert 30 * SPAN_NS <= first.since_ns == later.since_ns <= 40 * SPAN_NS
    job.run(20)
    assert job.hosts() == []


def test_more_arithmetic_alone_is_another_programs() -> None:
    """Or memory that is slow: tensor cores and links do what they always did."""
    job = Job((*USUAL, *MORE))
    job.run(30)
    job.run(10, gpu_power_watts=1.08, gpu_fp_active_ratio=1.3)

    assert job.hosts() == []
    assert job.tracker.moves_no_more("n3")
    job.run(10, gpu_power_watts=1.08, gpu_fp_active_ratio=1.3, gpu_tensor_active_ratio=1.2)
    assert job.hosts() == ["n3"]
    assert not job.tracker.moves_no_more("n3")
    assert not job.tracker.moves_no_more("unknown")


@pytest.mark.parametrize("lag", [0, 1, 2, 3])
def test_of_steps_that_are_long_all_phases_count(lag: int) -> None:
    """Steps of 25 s: who has half as much more to do works on while all others wait."""
    job = Job()
    job.run(30)
    for _ in range(8):
        for window in range(5):
            busy = window < 2
            rate = 1.0 if busy else 0.05
            own = {name: 1.0 if busy or window != 2 + lag % 3 else 20.0 for name in USUAL if "clock" not in name}
            job.run(1, rate, step_seconds=25, **own)

    assert job.hosts() == ["n3"]


def test_nobody_does_more_where_half_of_all_do() -> None:
    job = Job()
    job.run(30)
    for row in (0, 1, 2):
        job.own[row] *= 1.2
    job.run(8, gpu_power_watts=1.2, gpu_tensor_active_ratio=1.2)

    assert job.hosts() == []


def test_what_is_not_measured_tells_nothing() -> None:
    job = Job(metrics=("gpu_sm_clock_hertz",))
    job.run(30)

    assert job.hosts() == []
    assert job.tracker.more_work("unknown") is None


def test_it_is_forgotten_with_the_work_and_goes_through_a_snapshot() -> None:
    job, other = Job(), LoadTracker(LoadConfig())
    job.run(30)
    job.run(6, gpu_power_watts=1.1, gpu_tensor_active_ratio=1.2)
    other.load_state(through_bytes(job.tracker.to_state()))

    assert job.hosts() == ["n3"]
    assert other.more_work("n3") == job.tracker.more_work("n3") is not None
    other.forget({"n3"})
    assert other.more_work("n3") is None
    job.tracker.clear()
    assert job.hosts() == []


def test_power_alone_tells_where_nobody_measures_work() -> None:
    job = Job(metrics=("gpu_power_watts", "gpu_sm_clock_hertz"))
    job.run(30)
    job.run(6, gpu_power_watts=1.08)

    assert job.hosts() == ["n3"]


def test_of_long_steps_more_than_one_is_looked_at() -> None:
    tracker = Job().tracker

    assert tracker.share_of(SPAN_NS) == tracker.share_of(SPAN_NS, NS_PER_SECOND) == pytest.approx(2 / 3)
    assert tracker.share_of(SPAN_NS, 30 * NS_PER_SECOND) == pytest.approx(1 / 6)
