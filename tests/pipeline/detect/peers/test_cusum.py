"""Cumulative sums: strong evidence soon, weak evidence late, a jitter never."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray

from tests.pipeline.states import through_bytes
from tocsin.pipeline.detect.peers.cusum import (
    HIGH,
    LOW,
    Cusum,
    SumConfig,
    shared_columns,
)
from tocsin.schemas.metrics import HOST_METRICS

SECOND = 1_000_000_000
HOSTS, METRICS = 4, 2
STRONG, WEAK = 9.0, 4.0


class Windows:
    """Windows of five seconds, one after another."""

    def __init__(self, config: SumConfig | None = None, seconds: int = 5) -> None:
        self.sums = Cusum(config or SumConfig(), METRICS)
        self.sums.grow((), HOSTS)
        self.seconds = seconds
        self.now_ns = 0

    def add(self, sigmas: float, side: int = LOW, host: int = 1, metric: int = 0) -> list[int]:
        """One host deviates by so much in one metric, the others do not; who has an alarm."""
        values = np.zeros((2, HOSTS, METRICS), np.float32)
        values[side, host, metric] = sigmas
        return self.take(values)

    def take(self, values: NDArray[np.float32]) -> list[int]:
        start_ns, self.now_ns = self.now_ns, self.now_ns + self.seconds * SECOND
        self.sums.add(values, start_ns, self.now_ns)
        return self.sums.alarms()

    def count_until_alarm(self, sigmas: float, limit: int = 40) -> int:
        for count in range(1, limit):
            if self.add(sigmas):
                return count
        return limit


def test_strong_evidence_alarms_in_its_second_window() -> None:
    assert Windows().count_until_alarm(STRONG) == 2


def test_weak_evidence_alarms_later() -> None:
    weak = Windows().count_until_alarm(WEAK)

    assert Windows().count_until_alarm(STRONG) < weak < 40


@pytest.mark.parametrize(("host_count", "crowd"), [(4, 3), (16, 3), (64, 9), (1024, 129)])
def test_a_crowd_that_deviates_alike_adds_nothing_in_that_metric(host_count: int, crowd: int) -> None:
    """Host 0 is alone at first; what a change of all then shows in some windows does not lift it over the line."""
    for count, names_it in ((crowd, False), (crowd - 1, True)):
        sums = Cusum(SumConfig(), METRICS)
        sums.grow((), host_count)
        alone = np.zeros((2, host_count, METRICS), np.float32)
        alone[LOW, 0, 0] = STRONG
        sums.add(alone, 0, 5 * SECOND)
        together = np.zeros_like(alone)
        together[LOW, :count, 0] = STRONG
        sums.add(together, 5 * SECOND, 10 * SECOND)

        assert sums.alarms() == ([0] if names_it else [])


@pytest.mark.parametrize(("host_count", "crowd"), [(4, 3), (40, 3), (152, 8), (1024, 52)])
def test_of_what_a_network_marks_on_many_a_twentieth_is_a_crowd(host_count: int, crowd: int) -> None:
    """A congested switch marks the packets of all machines behind it."""
    for count, names_it in ((crowd, False), (crowd - 1, True)):
        sums = Cusum(SumConfig(), METRICS, host_count, shared=[1])
        values = np.zeros((2, host_count, METRICS), np.float32)
        values[HIGH, :count, 1] = STRONG
        for window in range(4):
            sums.add(values, window * 5 * SECOND, (window + 1) * 5 * SECOND)

        assert bool(sums.alarms()) == names_it


def test_the_columns_of_marks_are_known_by_name() -> None:
    names = [HOST_METRICS[column].name for column in shared_columns(HOST_METRICS)]

    assert sorted(names) == ["cnp_packets_per_second", "ecn_packets_per_second"]


def test_a_crowd_in_one_metric_hides_nobody_in_another() -> None:
    windows = Windows()
    values = np.zeros((2, HOSTS, METRICS), np.float32)
    values[LOW, :3, 0] = STRONG
    values[LOW, 1, 1] = STRONG

    assert [windows.take(values) for _ in range(2)] == [[], [1]]


def test_less_than_the_drift_never_alarms() -> None:
    assert Windows().count_until_alarm(SumConfig().drift_sigmas) == 40


@given(st.floats(0, 2.0**90, width=32))
def test_one_window_never_alarms_whatever_it_shows(sigmas: float) -> None:
    assert not Windows().add(sigmas)


def test_jitter_every_now_and_then_never_alarms() -> None:
    windows = Windows()
    for index in range(200):
        assert not windows.add(STRONG if index % 5 == 0 else 0.0)


def test_an_alarm_ends_some_windows_after_the_fault() -> None:
    windows = Windows()
    for _ in range(100):
        windows.add(STRONG)
    after = [windows.add(0.0) for _ in range(12)]

    assert after[0] == [1]
    assert after[-1] == []
    assert after == sorted(after, reverse=True)


def test_a_standstill_does_not_fade() -> None:
    windows = Windows(SumConfig(decays=False))
    windows.add(STRONG)
    windows.add(STRONG)

    assert all(windows.add(0.0) == [1] for _ in range(100))
    windows.sums.clear()
    assert windows.add(0.0) == []


def test_missing_windows_count_as_time_that_passes() -> None:
    windows = Windows()
    while not windows.add(STRONG):
        pass
    nothing = np.full((2, HOSTS, METRICS), np.nan, np.float32)
    found = [windows.take(nothing) for _ in range(40)]

    assert found[0] == [1]
    assert found[-1] == []
    assert np.isfinite(windows.sums.of_host(1)[0].score)


def test_a_long_window_counts_for_more_but_not_without_limit() -> None:
    assert Windows(seconds=25).count_until_alarm(WEAK) < Windows(seconds=5).count_until_alarm(WEAK)
    assert Windows(seconds=3600).count_until_alarm(WEAK) > 1


def test_what_deviates_since_when_and_to_which_side() -> None:
    windows = Windows()
    for _ in range(3):
        windows.add(0.0)
    for _ in range(3):
        windows.add(STRONG, HIGH, host=2, metric=1)
    [entry] = windows.sums.of_host(2)

    assert (entry.column, entry.side) == (1, HIGH)
    assert (entry.since_ns, entry.last_ns) == (15 * SECOND, 30 * SECOND)
    assert entry.score >= 1.0


def test_the_strongest_comes_first() -> None:
    windows = Windows()
    values = np.zeros((2, HOSTS, METRICS), np.float32)
    values[LOW, 1], values[HIGH, 1, 0] = (5.0, 9.0), 6.0
    windows.take(values)
    windows.take(values)
    entries = windows.sums.of_host(1)

    assert (entries[0].column, entries[0].side) == (1, LOW)
    assert [entry.score for entry in entries] == sorted((entry.score for entry in entries), reverse=True)


def test_hosts_that_appear_between_others_change_nothing_of_them() -> None:
    windows = Windows()
    windows.add(STRONG)
    windows.add(STRONG)
    before = windows.sums.of_host(1)
    windows.sums.grow([0, 2, 3, 5], 6)

    assert windows.sums.of_host(2) == before
    assert windows.sums.alarms() == [2]


sigmas = st.lists(st.sampled_from([0.0, 2.0, 4.0, 9.0, float("nan")]), min_size=16, max_size=16)


@given(st.lists(sigmas, min_size=1, max_size=12), st.booleans(), st.data())
def test_a_snapshot_anywhere_changes_nothing(drawn: list[list[float]], decays: bool, data: st.DataObject) -> None:
    config = SumConfig(decays=decays)
    one, other = Windows(config), Windows(config)
    break_at = data.draw(st.integers(0, len(drawn) - 1))
    for index, values in enumerate(drawn):
        table = np.array(values, np.float32).reshape(2, HOSTS, METRICS)
        assert one.take(table) == other.take(table)
        if index == break_at:
            state = through_bytes(other.sums.to_state())
            other.sums = Cusum(config, METRICS)
            other.sums.load_state(state)
        assert [one.sums.of_host(host) for host in range(HOSTS)] == [other.sums.of_host(host) for host in range(HOSTS)]
        assert all(entry.score >= 0 for host in range(HOSTS) for entry in one.sums.of_host(host))


@pytest.mark.parametrize("decays", [True, False])
def test_scores_stay_bounded(decays: bool) -> None:
    windows = Windows(SumConfig(decays=decays))
    for _ in range(500):
        windows.add(1e9)

    assert windows.sums.of_host(1)[0].score <= SumConfig().limit_ratio + 1e-6


def test_time_in_which_nobody_was_judged_is_no_absence() -> None:
    windows = Windows()
    windows.add(STRONG)
    windows.add(STRONG)
    windows.now_ns += 300 * SECOND  # an announced phase
    windows.add(STRONG)

    assert windows.sums.of_host(1)[0].present_ratio == 1.0

    windows.add(0.0)
    assert windows.sums.of_host(1)[0].present_ratio == pytest.approx(0.75)


@pytest.mark.parametrize(("judges_rest", "present_ratio"), [(True, 0.25), (False, 1.0)])
def test_a_window_that_shows_some_metrics_only_adds_nothing_to_the_others(
    judges_rest: bool, present_ratio: float
) -> None:
    windows = Windows()
    values = np.full((2, HOSTS, METRICS), 0.0, np.float32)
    values[LOW, 1] = STRONG
    windows.take(values)
    for begin in (5, 10, 15):
        first_only = np.array([True, False])
        windows.sums.add(values, begin * SECOND, (begin + 5) * SECOND, first_only, judges_rest=judges_rest)

    [first, second] = windows.sums.of_host(1)

    assert (first.column, second.column) == (0, 1)
    assert (first.last_ns, second.last_ns) == (20 * SECOND, 5 * SECOND)
    assert (first.present_ratio, second.present_ratio) == (1.0, present_ratio)
    assert second.score == pytest.approx(0.6)
