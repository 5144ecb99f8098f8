"""Half minutes: what scatters from window to window and is always too low; a burst; too few peers; the state."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest

from tests.pipeline.states import through_bytes
from tocsin.models.peers import PeerConfig
from tocsin.pipeline.core.operator import pack_state
from tocsin.pipeline.detect.peers.cusum import SumConfig
from tocsin.pipeline.detect.peers.half_minutes import HalfMinuteConfig, HalfMinuteMeans, as_asked
from tocsin.pipeline.detect.peers.rows import Block
from tocsin.schemas.metrics import BUILTIN_TABLE, GPU_METRICS, HOST_METRICS
from tocsin.schemas.records import NS_PER_SECOND

RDMA = [metric.name for metric in HOST_METRICS].index("rdma_bytes_per_second")
PFC = [metric.name for metric in HOST_METRICS].index("pfc_tx_packets_per_second")
UTIL = [metric.name for metric in HOST_METRICS].index("cpu_util_ratio")
ONSET = 120
"""Window of five seconds."""
Floats = np.ndarray[tuple[int, ...], np.dtype[np.float32]]
Change = Callable[[int, Floats], None]


def less(window: int, host: Floats) -> None:
    """A link that carries a third less in every step."""
    if window >= ONSET:
        host[3, RDMA] *= 0.65


class Job:
    """Windows of a job whose traffic falls into phases of a step: each host's windows scatter by an eighth."""

    def __init__(self, change: Change, host_count: int = 12, seconds: int = 5) -> None:
        self.patience = HalfMinuteMeans(HalfMinuteConfig(), BUILTIN_TABLE)
        self.blocks = {"host": Block(HOST_METRICS), "mean": Block(GPU_METRICS)}
        self.hosts = [f"n{row:02d}" for row in range(host_count)]
        self.patience.grow((), host_count)
        self.change, self.seconds = change, seconds
        self.crowd_window = 10**9
        """From this window on many hosts' ports are congested alike."""

    def play(self, first: int, last: int) -> dict[int, list[int]]:
        """Window -> the hosts (rows) with an alarm."""
        found = {}
        for window in range(first, last):
            draw = np.random.default_rng(window)
            host = np.full((len(self.hosts), len(HOST_METRICS)), 0.5, np.float32)
            host[:, RDMA] = 2e10 * (1 + 0.12 * draw.standard_normal(len(self.hosts)))
            host[:, PFC] = 100.0
            self.change(window, host)
            values = {"host": host, "mean": np.full((len(self.hosts), len(GPU_METRICS)), 0.5, np.float32)}
            begin_ns = window * self.seconds * NS_PER_SECOND
            span_ns = begin_ns, begin_ns + self.seconds * NS_PER_SECOND
            crowded = np.zeros((2, len(HOST_METRICS) + len(GPU_METRICS) + 1), bool)
            crowded[0, PFC] = self.crowd_window <= window
            groups = np.zeros(len(self.hosts), np.intp)
            windows = {
                name: block.compare(self.hosts, values[name], groups, PeerConfig())
                for name, block in self.blocks.items()
            }
            near = self.patience.tempered(values, windows)
            self.patience.take(span_ns, self.hosts, near, groups, PeerConfig(), crowded)
            rows = self.patience.sums.alarms()
            if rows:
                found[window] = rows
        return found


def test_what_is_too_low_in_every_half_minute_is_named_from_the_second_on() -> None:
    found = Job(less).play(0, ONSET + 36)

    assert {row for rows in found.values() for row in rows} == {3}
    assert ONSET + 11 <= min(found) <= ONSET + 18


def test_a_burst_is_not_though_it_lies_in_two_of_them() -> None:
    def burst(window: int, host: Floats) -> None:
        if ONSET - 1 <= window <= ONSET:
            host[3, PFC] = 1_000.0

    assert Job(burst).play(0, ONSET + 36) == {}


@pytest.mark.parametrize("stalls", [{-1, 0, 10, 11, 12}, {-2, -1, 4, 5, 6, 7}])
def test_stalls_are_no_lasting_lack_though_they_lie_in_three_half_minutes(stalls: set[int]) -> None:
    """A loader that waits for a shared store: ten seconds at a time, which windows see for themselves."""

    def stall(window: int, host: Floats) -> None:
        host[:, UTIL] = 0.95
        if window - ONSET in stalls:
            host[3, UTIL] = 0.02

    assert Job(stall).play(0, ONSET + 36) == {}


def congestion(window: int, host: Floats) -> None:
    """One port is congested more than any other."""
    if window >= ONSET:
        host[3, PFC] = 20_000.0


@pytest.mark.parametrize(("crowd_window", "named"), [(10**9, {3}), (ONSET, set()), (ONSET + 12, {3})])
def test_whoever_is_one_of_many_in_the_windows_is_one_of_them_here(crowd_window: int, named: set[int]) -> None:
    """Of eight hosts of a congested switch it is the one with the most; the other seven stay below the line."""
    job = Job(congestion)
    job.crowd_window = crowd_window

    assert {row for rows in job.play(0, ONSET + 30).values() for row in rows} == named


@pytest.mark.parametrize(("host_count", "seconds"), [(7, 5), (12, 25)], ids=["few-peers", "long-windows"])
def test_of_few_peers_and_of_long_windows_nothing_is_said(host_count: int, seconds: int) -> None:
    assert Job(less, host_count, seconds).play(0, ONSET + 36) == {}


def test_a_pause_drops_the_span_that_is_under_way() -> None:
    job = Job(less)
    job.play(0, ONSET)
    for window in range(ONSET, ONSET + 40, 5):
        assert job.play(window, window + 5) == {}
        job.patience.drop()


@pytest.mark.parametrize("window", [0, 1, 5, 6, ONSET, ONSET + 8])
def test_the_state_goes_on_where_it_was(window: int) -> None:
    whole, before, after = Job(less), Job(less), Job(less)
    whole_found = whole.play(0, ONSET + 36)
    found = before.play(0, window)
    after.patience.load_state(through_bytes(before.patience.to_state()))

    assert found | after.play(window, ONSET + 36) == whole_found
    assert pack_state(after.patience.to_state()) == pack_state(whole.patience.to_state())


def test_a_model_that_asks_for_more_of_windows_asks_for_more_of_half_minutes() -> None:
    own, usual = HalfMinuteConfig().sums, SumConfig()

    assert as_asked(own, usual, usual) == own == as_asked(own, SumConfig(alarm_sum=5.5, drift_sigmas=2.3), usual)
    strict = as_asked(own, SumConfig(alarm_sum=20.0, drift_sigmas=4.5), usual)
    assert (strict.drift_sigmas, strict.alarm_sum) == (1.5 * own.drift_sigmas, 2 * own.alarm_sum)
    nothing = as_asked(own, SumConfig(drift_sigmas=9.0), usual)
    assert nothing.max_sigmas == nothing.drift_sigmas
