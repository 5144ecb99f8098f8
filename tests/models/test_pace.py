"""Did the job become slower at that moment? ``find_slowdown`` and its sister on work per second."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray

from tocsin.models.pace import (
    Slowdown,
    find_slowdown,
    grew_in_self_time,
    is_uneven,
    means_of_spans,
    most_growth_seconds,
    slowdown_of_spans,
    slowdown_of_work,
)

SECOND = 1_000_000_000
T0 = 1_800_000_000 * SECOND


def steps(*seconds: float) -> tuple[NDArray[np.float64], NDArray[np.int64]]:
    """One step after another: how long each took, and when it ended."""
    taken = np.array(seconds, np.float64)
    return taken, T0 + (np.cumsum(taken) * SECOND).astype(np.int64)


def compare(before: list[float], after: list[float], waited_seconds: float = 0.1) -> Slowdown | None:
    """The onset lies between the two; the present is so long after the last step."""
    seconds, ends_ns = steps(*before, *after)
    return find_slowdown(seconds, ends_ns, int(ends_ns[len(before) - 1]), int(ends_ns[-1] + waited_seconds * SECOND))


def noisy(count: int, level: float, ratio: float, seed: int = 0) -> list[float]:
    drawn = level * (1 + ratio * np.random.default_rng(seed).standard_normal(count))
    return [float(value) for value in np.maximum(drawn, level / 2)]


class TestSteps:
    @pytest.mark.parametrize("count", range(1, 5))
    def test_too_few_steps_before_tell_nothing(self, count: int) -> None:
        assert compare([1.0] * count, [9.0] * 20) is None

    def test_no_step_since_then_and_none_overdue_tells_nothing(self) -> None:
        assert compare([1.0] * 20, []) is None

    def test_what_was_slow_for_minutes_did_not_begin_now(self) -> None:
        found = compare([1.0] * 200 + [2.0] * 150, [2.0] * 20)

        assert found is not None
        assert found.is_gone
        assert found.before_seconds == pytest.approx(2.0)

    @pytest.mark.parametrize("slow_count", [10, 25], ids=["seen_late", "seen_a_minute_late"])
    def test_what_began_a_minute_before_it_was_seen_did(self, slow_count: int) -> None:
        found = compare([1.0] * 200 + [2.0] * slow_count, [2.0] * 20)

        assert found is not None
        assert found.is_certain
        assert found.ratio == pytest.approx(1.0)

    def test_what_comes_and_goes_is_a_slowdown_each_time(self) -> None:
        found = compare([1.0] * 200 + ([2.0] * 20 + [1.0] * 20) * 3, [2.0] * 20)

        assert found is not None
        assert found.is_certain

    def test_an_overdue_step_is_a_standstill(self) -> None:
        found = compare([1.0] * 20, [], waited_seconds=30)

        assert found is not None
        assert (found.ratio, found.is_certain, found.is_gone) == (math.inf, True, False)
        assert found.before_seconds == pytest.approx(1.0)
        assert math.isnan(found.step_seconds)

    def test_a_standstill_after_slow_steps_is_one_all_the_same(self) -> None:
        found = compare([1.0] * 20, [1.5] * 5, waited_seconds=30)

        assert found is not None
        assert found.ratio == math.inf

    @pytest.mark.parametrize("growth", [0.1, 0.5, 3.0])
    def test_growth_beyond_the_noise_is_certain(self, growth: float) -> None:
        found = compare(noisy(100, 1.0, 0.02), noisy(30, 1.0 + growth, 0.02, seed=1))

        assert found is not None
        assert found.is_certain
        assert not found.is_gone
        assert found.ratio == pytest.approx(growth, abs=0.03)
        assert found.step_seconds > found.before_seconds

    @pytest.mark.parametrize("seed", range(10))
    def test_noise_is_not(self, seed: int) -> None:
        found = compare(noisy(100, 1.0, 0.15, seed), noisy(20, 1.0, 0.15, seed + 100))

        assert found is not None
        assert not found.is_certain

    def test_growth_within_the_noise_is_not(self) -> None:
        found = compare(noisy(100, 1.0, 0.3), noisy(4, 1.1, 0.3, seed=1))

        assert found is not None
        assert not found.is_certain

    def test_steps_that_are_as_before_again(self) -> None:
        found = compare([1.0] * 50, [2.0] * 10 + [1.0] * 60)

        assert found is not None
        assert found.is_gone

    def test_steps_that_are_still_slow_are_not_gone_however_long_they_last(self) -> None:
        found = compare([1.0] * 50, [1.3] * 300)

        assert found is not None
        assert found.is_certain
        assert not found.is_gone

    def test_a_step_that_was_under_way_counts_where_most_of_it_lies_behind(self) -> None:
        seconds, ends_ns = steps(*[1.0] * 20, 10.0)
        onset_ns = int(ends_ns[19]) + 2 * SECOND

        found = find_slowdown(seconds, ends_ns, onset_ns, int(ends_ns[-1]))
        late = find_slowdown(seconds, ends_ns, onset_ns + 7 * SECOND, int(ends_ns[-1]))

        assert found is not None
        assert found.ratio == pytest.approx(9.0)
        assert late is None

    @given(scale=st.floats(0.05, 20.0), growth=st.floats(0.0, 2.0), seed=st.integers(0, 1000))
    def test_scaled_times_give_the_same_answer(self, scale: float, growth: float, seed: int) -> None:
        before, after = noisy(40, 1.0, 0.03, seed), noisy(15, 1.0 + growth, 0.03, seed + 1)
        found = compare(before, after, 0.0)
        scaled = compare([scale * value for value in before], [scale * value for value in after], 0.0)

        assert found is not None
        assert scaled is not None
        assert scaled.ratio == pytest.approx(found.ratio, rel=1e-6, abs=1e-9)
        assert scaled.step_seconds == pytest.approx(scale * found.step_seconds)


def work(*windows: float, metrics: int = 3) -> NDArray[np.float64]:
    """Windows in which all metrics say the same."""
    return np.repeat(np.array(windows, np.float64)[:, None], metrics, axis=1)


class TestBursts:
    """A loader that comes and goes: one step of eight is twenty times as long, and the median as ever."""

    @staticmethod
    def _found(before: list[float], after: list[float]) -> Slowdown | None:
        seconds = np.array([*before, *after])
        ends_ns = np.cumsum(seconds * 1e9).astype(np.int64)
        return find_slowdown(seconds, ends_ns, int(ends_ns[len(before) - 1]), int(ends_ns[-1]) + 10**9)

    @pytest.mark.parametrize(
        ("before", "after", "ratio"),
        [
            ([1.0] * 60, [1.0, 1.0, 1.0, 5.0] * 5, 1.0),
            ([1.0] * 60, [1.0, 1.0, 1.0, 5.0] * 2, 0.0),
            ([1.0] * 60, [1.0, 1.0, 1.0, 1.6] * 3, 0.15),
            ([1.0] * 60, [1.0] * 30 + [2.0] * 3, 0.0),
            ([1.0, 1.0, 1.0, 5.0] * 15, [1.0, 1.0, 1.0, 5.0] * 5, 0.0),
            ([1.0] * 12, [1.0, 1.0, 1.0, 5.0] * 5, 0.0),
        ],
        ids=["bursts", "two are chance", "short ones", "too little", "as before", "too few steps before"],
    )
    def test_what_some_long_steps_cost_counts_where_it_is_more_than_before(
        self, before: list[float], after: list[float], ratio: float
    ) -> None:
        found = self._found(before, after)

        assert found is not None
        assert found.is_certain is (ratio > 0)
        assert found.ratio == pytest.approx(ratio, abs=1e-6)


class TestWork:
    def test_too_few_windows_tell_nothing(self) -> None:
        assert slowdown_of_work(work(1.0, 1.0), work(0.5, 0.5, 0.5)) is None
        assert slowdown_of_work(work(*[1.0] * 20), work()) is None

    def test_no_metric_that_tells_of_work(self) -> None:
        nothing = np.full((20, 3), np.nan)

        assert slowdown_of_work(nothing, nothing) is None

    def test_half_the_work_is_twice_the_step(self) -> None:
        found = slowdown_of_work(work(*[1.0] * 20), work(*[0.5] * 5))

        assert found is not None
        assert found.ratio == pytest.approx(1.0)
        assert (found.is_certain, found.is_gone) == (True, False)

    def test_no_work_is_a_standstill(self) -> None:
        found = slowdown_of_work(work(*[1.0] * 20), work(*[0.0] * 5))

        assert found is not None
        assert found.ratio == math.inf
        assert found.is_certain

    @pytest.mark.parametrize("now", [1.0, 1.02, 1.3])
    def test_as_much_work_as_before_or_more_is_no_slowdown(self, now: float) -> None:
        found = slowdown_of_work(work(*[1.0] * 20), work(*[now] * 5))

        assert found is not None
        assert (found.is_certain, found.is_gone) == (False, True)

    def test_a_fall_within_the_noise_is_not_certain(self) -> None:
        found = slowdown_of_work(work(*noisy(20, 1.0, 0.3)), work(0.9, 0.9))

        assert found is not None
        assert not found.is_certain

    @pytest.mark.parametrize(
        ("now", "noise_ratio", "certain"),
        [
            ((0.89, 1.06, 1.28, 0.17, 0.5), 0.02, False),
            ((0.85, 0.8, 0.78, 0.77, 0.8), 0.02, True),
            ((0.8, 1.12, 0.8, 0.8, 0.8), 0.2, True),
        ],
        ids=["an evaluation", "slower steps", "a noisy metric"],
    )
    def test_where_some_work_grows_and_other_falls_no_slowdown_is_told(
        self, now: tuple[float, ...], noise_ratio: float, certain: bool
    ) -> None:
        before = work(*[1.0] * 20, metrics=5)
        before[:, 1] = noisy(20, 1.0, noise_ratio)
        found = slowdown_of_work(before, np.repeat(np.array([now]), 8, axis=0))

        assert found is not None
        assert (found.is_certain, found.is_gone) == (certain, False)

    def test_a_metric_that_is_missing_changes_nothing(self) -> None:
        before, after = work(*[1.0] * 20), work(*[0.7] * 5)
        holes = before.copy(), after.copy()
        for table in holes:
            table[:, 1] = np.nan

        assert slowdown_of_work(*holes) == slowdown_of_work(before, after)

    def test_noise_shows_no_absence_of_harm(self) -> None:
        """Steps longer than a window: its work says little, and nobody may be cleared by it."""
        quiet = slowdown_of_work(work(*noisy(20, 1.0, 0.02)), work(*[1.0] * 8))
        loud = slowdown_of_work(work(*noisy(20, 1.0, 0.4)), work(*[1.0] * 8))

        assert quiet is not None
        assert loud is not None
        assert (quiet.is_gone, loud.is_gone) == (True, False)


def long_steps(count: int, waits: int, windows: int = 5) -> NDArray[np.float64]:
    """Steps of many windows: full work, then waiting in the last ``waits`` of them."""
    one = [1.0] * windows + [0.1] * waits
    return work(*(one * count))


class TestLongSteps:
    """Steps longer than a window, and no step records."""

    def test_a_job_of_long_steps_is_uneven_and_one_of_short_steps_is_not(self) -> None:
        assert is_uneven(long_steps(6, 1))
        assert not is_uneven(work(*noisy(24, 1.0, 0.03)))
        assert not is_uneven(work(*[1.0] * 3))

    def test_a_pause_now_and_then_makes_no_job_uneven(self) -> None:
        assert not is_uneven(work(*([1.0] * 10 + [0.0]) * 3))

    def test_longer_waiting_is_seen_in_means_and_not_in_medians(self) -> None:
        before, after = long_steps(10, 1), long_steps(4, 3)
        found = slowdown_of_spans(means_of_spans(before, 6), means_of_spans(after, 8))

        quick = slowdown_of_work(before[-24:], after[-8:])
        assert quick is not None
        assert not quick.is_certain
        assert found is not None
        assert found.is_certain
        assert found.ratio == pytest.approx(0.28, abs=0.03)

    def test_the_same_steps_as_before_are_no_slowdown(self) -> None:
        found = slowdown_of_spans(means_of_spans(long_steps(10, 1), 6), means_of_spans(long_steps(4, 1), 6))

        assert found is not None
        assert (found.is_certain, found.is_likely, found.is_gone) == (False, False, True)

    def test_too_early_is_neither_certain_nor_gone(self) -> None:
        found = slowdown_of_spans(means_of_spans(long_steps(10, 1), 6), means_of_spans(long_steps(1, 3), 6))

        assert found is not None
        assert (found.is_certain, found.is_likely, found.is_gone) == (False, False, False)

    def test_too_few_spans_before_are_neither(self) -> None:
        found = slowdown_of_spans(work(1.0, 1.0), work(0.5, 0.5))

        assert found is not None
        assert (found.is_certain, found.is_likely, found.is_gone, found.is_known) == (False, False, False, False)

    def test_windows_without_a_sample_are_no_zeros(self) -> None:
        windows = work(1.0, math.nan, 1.0, math.nan, math.nan, math.nan)

        found = means_of_spans(windows, 3)[:, 0]
        assert found[0] == 1.0
        assert math.isnan(found[1])


class TestLikely:
    def test_a_small_growth_beyond_two_errors_is_likely_and_not_certain(self) -> None:
        found = compare(noisy(200, 1.0, 0.05), [1.022] * 60)

        assert found is not None
        assert (found.is_certain, found.is_likely) == (False, True)

    def test_few_steps_show_no_absence_of_harm(self) -> None:
        few = compare(noisy(100, 1.0, 0.1), noisy(4, 1.0, 0.1, seed=1))
        many = compare(noisy(100, 1.0, 0.02), noisy(40, 1.0, 0.02, seed=1))

        assert few is not None
        assert many is not None
        assert (few.is_known, many.is_known) == (False, True)


class TestMostGrowth:
    @pytest.mark.parametrize(
        ("before", "after", "most_seconds"),
        [
            ([2.0] * 8, [2.0] * 4, 0.0),
            ([2.0] * 8, [2.5] * 4, 0.5),
            ([2.0] * 20, [2.0, 2.0, 2.0, 6.0] * 3, 1.0),  # the mean tells what the median does not
            ([2.0] * 20, [1.0] * 8, -1.0),
        ],
    )
    def test_by_median_or_mean(self, before: list[float], after: list[float], most_seconds: float) -> None:
        seconds, ends_ns = steps(*before, *after)

        assert most_growth_seconds(seconds, ends_ns, int(ends_ns[len(before) - 1])) == pytest.approx(most_seconds)

    def test_uneven_steps_may_hide_growth(self) -> None:
        even, uneven = (noisy(40, 2.0, ratio) for ratio in (0.01, 0.3))
        known = [
            most_growth_seconds(*steps(*before, *[2.0] * 6), int(steps(*before)[1][-1])) for before in (even, uneven)
        ]

        assert None not in known
        assert abs(known[0] or 0.0) < 0.05
        assert (known[1] or 0.0) > 0.2

    @pytest.mark.parametrize(("before", "after"), [(7, 9), (20, 3)])
    def test_too_few_steps_tell_nothing(self, before: int, after: int) -> None:
        seconds, ends_ns = steps(*[2.0] * (before + after))

        assert most_growth_seconds(seconds, ends_ns, int(ends_ns[before - 1])) is None


class TestOfOwn:
    """What the steps are longer by: columns step, data, other own time, communication."""

    @staticmethod
    def _grew(data: float, own: float, communication: float, before: int = 20, after: int = 10) -> bool:
        usual = np.array([1.0, 0.05, 0.75, 0.2])
        grown = usual + np.array([data + own + communication, data, own, communication])
        history = np.concatenate([np.tile(usual, (before, 1)), np.tile(grown, (after, 1))])
        history *= 1 + 0.005 * np.random.default_rng(3).standard_normal((before + after, 1))
        _, ends_ns = steps(*history[:, 0])
        return grew_in_self_time(history, ends_ns, int(ends_ns[before - 1]))

    @pytest.mark.parametrize(
        ("growth", "own"),
        [((0.0, 0.2, 0.0), True), ((0.2, 0.0, 0.0), True), ((0.0, 0.2, 0.04), True), ((0.0, 0.2, 0.1), False)],
    )
    def test_where_communication_is_as_ever_all_compute_longer(
        self, growth: tuple[float, float, float], own: bool
    ) -> None:
        assert self._grew(*growth) is own

    def test_few_steps_or_none_that_are_longer_tell_nothing(self) -> None:
        assert not self._grew(0.0, 0.2, 0.0, before=4)
        assert not self._grew(0.0, 0.2, 0.0, after=2)
        assert not self._grew(0.0, -0.2, 0.0)
        assert not grew_in_self_time(np.empty((0, 4)), np.empty(0, np.int64), 5)

    def test_where_nobody_measures_phases_nothing_is_told(self) -> None:
        history = np.tile([1.0, 0.0, math.nan, math.nan], (30, 1))
        history[20:, 0] = 1.3
        _, ends_ns = steps(*history[:, 0])

        assert not grew_in_self_time(history, ends_ns, int(ends_ns[19]))
