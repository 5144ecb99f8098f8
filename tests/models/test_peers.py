"""Distance from peers: whoever always was different stays unsuspected, whoever becomes so is not."""

from __future__ import annotations

import time
import tracemalloc
from dataclasses import dataclass, field

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import ArrayLike, NDArray

from tocsin.models.peer_scales import Scale, plain, scale_of, transform
from tocsin.models.peers import PeerConfig, PeerState, PeerWindow, below_all, compare
from tocsin.schemas.metrics import BUILTIN_TABLE, Metric

FloatArray = NDArray[np.float32]
CONFIG = PeerConfig()
WATTS = (Scale(4.0),)
LEARNED_COUNT = 40


@dataclass
class Rows:
    """Rows around levels of their own, compared window after window."""

    levels: ArrayLike
    scales: tuple[Scale, ...] = WATTS
    groups: NDArray[np.intp] = field(default_factory=lambda: np.zeros(0, np.intp))
    noise_ratio: float = 0.01
    seed: int = 0

    def __post_init__(self) -> None:
        table = np.asarray(self.levels, np.float32)
        self.own = table.reshape(table.shape[0], -1)
        self.state = PeerState.empty(*self.own.shape)
        self.draw = np.random.default_rng(self.seed)
        if not self.groups.size:
            self.groups = np.zeros(len(self.own), np.intp)

    def window(self, factors: ArrayLike = 1.0) -> PeerWindow:
        """One window of all rows, each ``factors`` times its level."""
        noise = 1 + self.noise_ratio * self.draw.standard_normal(self.own.shape)
        values = (self.own * np.asarray(factors) * noise).astype(np.float32)
        return compare(transform(values, self.scales), self.groups, self.state, self.scales, CONFIG)

    def learn(self, count: int = LEARNED_COUNT, factors: ArrayLike = 1.0) -> Rows:
        for _ in range(count):
            self.window(factors)
        return self


def one_of(count: int, row: int, factor: float) -> FloatArray:
    """All as ever, one not."""
    factors = np.ones((count, 1), np.float32)
    factors[row] = factor
    return factors


class TestLevels:
    def test_nothing_is_said_while_it_learns(self) -> None:
        rows = Rows([450.0] * 8)
        for _ in range(CONFIG.warmup_count):
            assert np.isnan(rows.window(one_of(8, 3, 0.5)).sigmas).all()

    def test_a_host_that_always_was_warm_stays_unsuspected(self) -> None:
        rows = Rows([60.0] * 7 + [75.0], (Scale(1.5),)).learn()
        for _ in range(60):
            assert np.abs(rows.window().sigmas).max() < CONFIG.suspicious_sigmas

    def test_what_creeps_is_not_learned_from_a_machine_that_is_in_doubt(self) -> None:
        """Ten percent in 200 windows, slower than a level follows; beside it something else gave an alarm."""
        seen = {}
        for is_doubted in (False, True):
            rows = Rows([60.0] * 8, (Scale(1.5),), noise_ratio=0.001).learn()
            doubted = np.arange(8) == 3 if is_doubted else None
            for step in range(200):
                values = (rows.own * one_of(8, 3, 1 + 0.2 * step / 200)).astype(np.float32)
                window = compare(values, rows.groups, rows.state, rows.scales, CONFIG, doubted)
            seen[is_doubted] = float(window.sigmas[3, 0])

        assert seen[False] < CONFIG.suspicious_sigmas < seen[True]

    @pytest.mark.parametrize("factor", [0.8, 1.2])
    @pytest.mark.parametrize("count", [3, 8, 64])
    def test_a_fifth_more_or_less_is_beyond_five_sigmas(self, count: int, factor: float) -> None:
        sigmas = Rows([450.0] * count).learn().window(one_of(count, 2, factor)).sigmas[:, 0]

        assert abs(sigmas[2]) > 5
        assert np.sign(sigmas[2]) == np.sign(factor - 1)
        assert np.abs(np.delete(sigmas, 2)).max() < CONFIG.suspicious_sigmas

    def test_what_lasts_is_not_learned_in_a_minute(self) -> None:
        rows = Rows([450.0] * 8).learn()
        sigmas = [rows.window(one_of(8, 2, 0.8)).sigmas[2, 0] for _ in range(12)]

        assert max(sigmas) < -5

    def test_who_was_unlike_its_peers_and_becomes_like_them_does_not_differ(self) -> None:
        """Its stage did less in training, and as much as the others since all evaluate; who leaves them is seen."""
        levels = [150.0, 210.0, 220.0, 200.0, 205.0, 215.0, 210.0, 207.0]
        rows = Rows(levels).learn()
        factors = np.full((8, 1), 1.15)
        factors[0] = 1.15 * 208 / 150
        alike = [np.abs(rows.window(factors).sigmas).max() for _ in range(12)]
        factors[0] = 1.15 * 300 / 150
        beyond = rows.window(factors).sigmas[0, 0]

        assert max(alike) < CONFIG.suspicious_sigmas
        assert beyond > 5

    @pytest.mark.parametrize("seen", [2, LEARNED_COUNT])
    @pytest.mark.parametrize("absurd", [30.0, 1e5, 1e12])
    def test_one_absurd_sample_is_not_what_is_usual(self, seen: int, absurd: float) -> None:
        """A counter that jumped; neither the machine itself nor its peers differ from it afterwards."""
        rows = Rows([450.0] * 8).learn(seen)
        rows.window(one_of(8, 2, absurd))
        later = [np.nan_to_num(rows.window().sigmas) for _ in range(60)]

        assert np.abs(later).max() < 5

    def test_a_checkpoint_of_all_leaves_no_residual(self) -> None:
        rows = Rows(np.linspace(400, 500, 8)).learn()
        for share in (0.25, 0.02, 0.25, 1.0):
            window = rows.window(share)
            assert np.abs(window.sigmas).max() < CONFIG.suspicious_sigmas
            assert window.factor[:, 0] == pytest.approx(share, rel=0.05)

    def test_rest_teaches_nothing(self) -> None:
        rows = Rows(np.linspace(400, 500, 8), noise_ratio=0.0).learn()
        level, seen = rows.state.level.copy(), rows.state.seen_count.copy()
        rows.learn(50, factors=0.1)

        np.testing.assert_array_equal(rows.state.level, level)
        np.testing.assert_array_equal(rows.state.seen_count, seen)

    def test_one_that_works_while_all_rest_differs(self) -> None:
        rows = Rows([450.0] * 8).learn()

        assert rows.window(np.where(np.arange(8) == 5, 1.0, 0.3)[:, None]).sigmas[5, 0] > 5


class TestLimits:
    def test_a_card_at_the_limit_of_its_clock_cannot_follow_when_the_others_rise(self) -> None:
        """Its peers' clocks are higher while they wait; its own stands where it always stood."""
        levels, scales = [1.98e9] + [1.69e9] * 7, (scale_of(Metric("gpu_sm_clock_hertz", "gpu")),)
        rows = Rows(levels, scales, noise_ratio=0.001).learn()
        waits = np.array([1.0] + [1.12] * 7)[:, None]
        falls = np.array([0.8] + [1.12] * 7)[:, None]

        assert np.abs(rows.window(waits).sigmas).max() < CONFIG.suspicious_sigmas
        assert rows.window(falls).sigmas[0, 0] < -5

    def test_no_share_above_one_is_expected(self) -> None:
        rows = Rows([0.97] + [0.6] * 7, (scale_of(Metric("gpu_util_ratio", "gpu")),), noise_ratio=0.001).learn()
        window = rows.window(np.array([1.02] + [1.5] * 7)[:, None])

        assert window.expected[0, 0] == pytest.approx(1.0)
        assert np.abs(window.sigmas).max() < CONFIG.suspicious_sigmas


class TestJams:
    """Packets of a job whose network is congested as a whole, and of one whose is not."""

    @pytest.mark.parametrize(("others", "is_beyond"), [(30.0, False), (10.0, True)])
    def test_where_all_are_congested_one_is_so_several_times_as_much(self, others: float, is_beyond: bool) -> None:
        scales = (scale_of(Metric("pfc_tx_packets_per_second", "host")),)
        rows = Rows([10.0] * 24, scales, noise_ratio=0.05).learn()
        factors = np.full((24, 1), others / 10.0)
        factors[5] = 40.0
        sigmas = [rows.window(factors).sigmas[5, 0] for _ in range(6)]

        assert (min(sigmas) > 6) == (max(sigmas) > 6) == is_beyond


class TestNextToNothing:
    def test_a_large_deviation_of_what_is_nearly_nothing_is_not_unlearned(self) -> None:
        """Its level creeps over the floor: it must still be measured as its peers are, not by itself."""
        scales, levels = (Scale(0.01),), np.full((8, 1), 0.02, np.float32)
        rows = Rows(levels, scales=scales).learn()
        rows.own[3] += 0.6

        last = [rows.window().sigmas[3, 0] for _ in range(60)]
        assert min(last) > 9


class TestGroups:
    def test_stages_of_different_levels_are_each_compared_with_themselves(self) -> None:
        levels, groups = [450.0] * 4 + [200.0] * 4, np.repeat([0, 1], 4)
        rows = Rows(levels, groups=groups).learn()
        stage_rests = rows.window(np.where(groups == 1, 0.4, 1.0)[:, None])
        one_falls = rows.window(one_of(8, 6, 0.75))

        assert np.abs(stage_rests.sigmas).max() < CONFIG.suspicious_sigmas
        assert one_falls.sigmas[6, 0] < -5

    def test_stages_of_different_levels_in_one_group_are_compared_by_their_own_levels(self) -> None:
        rows = Rows([450.0] * 4 + [200.0] * 4).learn()

        assert np.abs(rows.window(0.7).sigmas).max() < CONFIG.suspicious_sigmas
        assert rows.window(one_of(8, 6, 0.75)).sigmas[6, 0] < -5

    def test_a_row_without_a_group_is_compared_with_nobody(self) -> None:
        rows = Rows([450.0] * 8, groups=np.array([0] * 6 + [-1] * 2)).learn()
        sigmas = rows.window(one_of(8, 7, 0.2)).sigmas

        assert np.isnan(sigmas[6:]).all()
        assert np.abs(sigmas[:6]).max() < CONFIG.suspicious_sigmas

    def test_nobody_has_peers(self) -> None:
        rows = Rows([450.0] * 2, groups=np.array([-1, -1])).learn()

        assert np.isnan(rows.window(one_of(2, 1, 0.2)).sigmas).all()


class TestElsewhere:
    """Marks of congestion that all of another stage has, too, are no machine's of this one."""

    SCALES = (scale_of(Metric("pfc_tx_packets_per_second", "host", 0.0, None, "high")),)

    def sigmas(self, marks: ArrayLike) -> FloatArray:
        rows = Rows([0.0] * 16, self.SCALES, groups=np.repeat([0, 1], 8)).learn()
        values = np.asarray(marks, np.float32)[:, None]
        return compare(transform(values, self.SCALES), rows.groups, rows.state, self.SCALES, CONFIG).sigmas[:, 0]

    def test_two_of_a_stage_lie_where_all_of_the_next_one_lies(self) -> None:
        assert np.abs(self.sigmas([0] * 6 + [300, 260] + [250] * 8)).max() < CONFIG.suspicious_sigmas

    def test_one_sees_far_more_than_the_other_stage_does(self) -> None:
        sigmas = self.sigmas([0] * 7 + [9000] + [100] * 8)

        assert sigmas[7] > 1.5 * CONFIG.suspicious_sigmas
        assert np.abs(np.delete(sigmas, 7)).max() < 1

    def test_a_few_of_the_other_stage_are_no_excuse(self) -> None:
        sigmas = self.sigmas([0] * 7 + [300] + [300] * 3 + [0] * 5)

        assert sigmas[7] > CONFIG.suspicious_sigmas


class TestMissing:
    def test_a_metric_that_nobody_has_never_scores(self) -> None:
        rows = Rows(np.full((8, 2), (450.0, np.nan), np.float32), (Scale(4.0), Scale(1.5))).learn()
        window = rows.window(one_of(8, 3, 0.5))

        assert np.isnan(window.sigmas[:, 1]).all()
        assert np.isfinite(window.sigmas[:, 0]).all()

    def test_a_host_that_is_away_for_a_while_does_not_score_and_is_known_when_it_returns(self) -> None:
        rows = Rows([450.0] * 7 + [300.0]).learn()
        for _ in range(20):
            window = rows.window(np.where(np.arange(8) == 7, np.nan, 1.0)[:, None])
            assert np.isnan(window.sigmas[7, 0])
            assert np.abs(window.sigmas[:7]).max() < CONFIG.suspicious_sigmas

        assert np.abs(rows.window().sigmas).max() < CONFIG.suspicious_sigmas

    @settings(max_examples=50)
    @given(
        seed=st.integers(0, 10_000),
        holes=st.floats(0.0, 0.9),
        huge=st.sampled_from([0.0, 1e-20, 1.0, 1e12]),
    )
    def test_nan_never_comes_out_where_a_sample_is(self, seed: int, holes: float, huge: float) -> None:
        """Once a row has learned, each sample of it gets a number, whatever its peers miss."""
        draw = np.random.default_rng(seed)
        scales = (Scale(4.0), Scale(0.15, counted=True), Scale(0.0, low=-np.inf))
        state = PeerState.empty(6, 3)
        groups = np.repeat([0, 1], 3)
        for index in range(30):
            values = (huge * draw.random((6, 3))).astype(np.float32)
            missing = (draw.random((6, 3)) < holes) & (index >= 2 * CONFIG.warmup_count)
            values[missing] = np.nan
            window = compare(transform(values, scales), groups, state, scales, CONFIG)

            ready = state.seen_count > CONFIG.warmup_count
            wanted = ready & ~missing
            assert not np.isnan(window.sigmas[wanted]).any()
            assert np.isnan(window.sigmas[missing]).all()
            assert np.isfinite(state.own_spread).all()
            assert np.isfinite(state.level[state.seen_count > 0]).all()


class TestUncollected:
    """A metric that nobody collects is left out, and changes nothing of the others."""

    SCALES = (Scale(4.0), Scale(1.0), Scale(0.01))

    @given(seed=st.integers(0, 10**6), empty=st.integers(0, 2), begins=st.integers(0, 30))
    @settings(max_examples=20, deadline=None)
    def test_it_changes_nothing_until_it_is_collected(self, seed: int, empty: int, begins: int) -> None:
        draw = np.random.default_rng(seed)
        groups = draw.integers(-1, 2, 9)
        whole, part = PeerState.empty(9, 3), PeerState.empty(9, 3)
        others = [column for column in range(3) if column != empty]
        alone, collected = part.of_columns(np.array(others)), np.zeros(9)
        for window in range(begins + 5):
            values = draw.normal(100, 1, (9, 3)).astype(np.float32)
            values[draw.integers(9), draw.integers(3)] = np.nan
            if window < begins:
                values[:, empty] = np.nan
            collected += np.isfinite(values[:, empty])
            scales = [self.SCALES[column] for column in others]
            said = compare(values, groups, whole, self.SCALES, CONFIG)
            expected = compare(values[:, others], groups, alone, scales, CONFIG)
            for name in ("sigmas", "expected", "factor"):
                np.testing.assert_array_equal(getattr(said, name)[:, others], getattr(expected, name))
                if window < begins:
                    assert np.isnan(getattr(said, name)[:, empty]).all()
        part.put_columns(np.array(others), alone)
        for name in ("level", "own_spread", "seen_count", "spread"):
            np.testing.assert_array_equal(getattr(whole, name)[..., others], getattr(part, name)[..., others])
        np.testing.assert_array_equal(whole.seen_count[:, empty], collected)


class TestSymmetry:
    @settings(max_examples=30)
    @given(seed=st.integers(0, 10_000), order=st.permutations(range(7)))
    def test_permuted_hosts_permute_the_answer(self, seed: int, order: list[int]) -> None:
        draw = np.random.default_rng(seed)
        groups = np.array([0, 0, 0, 1, 1, 1, 1])
        state, other = PeerState.empty(7, 2), PeerState.empty(7, 2)
        scales = (Scale(4.0), Scale(0.15, counted=True))
        for _ in range(20):
            values = transform(draw.normal(300, 60, (7, 2)).astype(np.float32), scales)
            window = compare(values, groups, state, scales, CONFIG)
            moved = compare(values[order], groups[order], other, scales, CONFIG)

            np.testing.assert_array_equal(moved.sigmas, window.sigmas[order])
        np.testing.assert_array_equal(other.level, state.level[order])
        np.testing.assert_array_equal(other.spread, state.spread)

    @pytest.mark.parametrize("factor", [1e-3, 64.0])
    def test_other_units_give_the_same_sigmas(self, factor: float) -> None:
        rows = Rows([450.0] * 8).learn()
        scaled = Rows(np.array([450.0] * 8) * factor, (Scale(4.0 * factor),)).learn()

        np.testing.assert_allclose(
            scaled.window(one_of(8, 3, 0.8)).sigmas, rows.window(one_of(8, 3, 0.8)).sigmas, rtol=1e-2, atol=1e-2
        )

    def test_a_metric_says_the_same_with_or_without_another_beside_it(self) -> None:
        draw = np.random.default_rng(1)
        alone, beside = PeerState.empty(5, 1), PeerState.empty(5, 2)
        for _ in range(25):
            values = draw.normal(300, 9, (5, 2)).astype(np.float32)
            one = compare(values[:, :1], np.zeros(5, np.intp), alone, WATTS, CONFIG)
            two = compare(values, np.zeros(5, np.intp), beside, (*WATTS, Scale(1.5)), CONFIG)

        np.testing.assert_array_equal(one.sigmas[:, 0], two.sigmas[:, 0])


class TestCost:
    def test_it_is_linear_in_the_hosts(self) -> None:
        """Nothing that holds pairs of 4,000 rows (64 MB of float32) is ever made."""
        rows = Rows([450.0] * 4000)
        rows.window()
        tracemalloc.start()
        began = time.process_time()
        rows.window()
        seconds, peak_bytes = time.process_time() - began, tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()

        assert peak_bytes < 50 * 8 * 4000
        assert seconds < 5

    def test_state_is_a_few_numbers_a_row(self) -> None:
        state = Rows(np.full((100, 3), 5.0), (Scale(1.0),) * 3).learn(300).state

        assert sum(part.size for part in (state.level, state.own_spread, state.seen_count, state.spread)) <= 1000


class TestCounted:
    SCALES = (scale_of(Metric("pfc_tx_packets_per_second", "host", 0.0, None, "high")),)

    def test_packets_where_there_are_never_any(self) -> None:
        rows = Rows([0.0] * 8, self.SCALES).learn()
        values = np.zeros((8, 1), np.float32)
        values[4] = 5000

        sigmas = compare(transform(values, self.SCALES), rows.groups, rows.state, self.SCALES, CONFIG).sigmas[:, 0]
        assert sigmas[4] > 5
        assert np.abs(np.delete(sigmas, 4)).max() < 1

    def test_a_handful_of_packets_is_nothing(self) -> None:
        rows = Rows([0.0] * 8, self.SCALES).learn()
        values = np.zeros((8, 1), np.float32)
        values[4] = 5

        assert compare(transform(values, self.SCALES), rows.groups, rows.state, self.SCALES, CONFIG).sigmas.max() < 3

    @given(st.floats(0, 1e9, width=32))
    def test_there_and_back(self, value: float) -> None:
        there = transform(np.full((1, 1), value, np.float32), self.SCALES)

        assert plain(there, self.SCALES[0])[0, 0] == pytest.approx(value, rel=1e-4, abs=1e-3)

    def test_the_values_handed_in_are_not_changed(self) -> None:
        values = np.full((3, 1), 700.0, np.float32)
        transform(values, self.SCALES)

        assert (values == 700.0).all()


class TestScales:
    def test_every_metric_of_the_builtin_table_has_a_floor(self) -> None:
        for metric in (*BUILTIN_TABLE.host, *BUILTIN_TABLE.gpu):
            assert scale_of(metric).floor > 0, metric.name

    def test_a_users_metric_with_limits_is_measured_by_them(self) -> None:
        assert scale_of(Metric("queue_depth", "host", 0.0, 200.0)).floor == pytest.approx(2.0)

    @pytest.mark.parametrize("levels", [[1e-3] * 8, [-40.0] * 8, [1e9] * 8])
    def test_a_users_metric_without_limits_is_measured_by_its_own_noise(self, levels: list[float]) -> None:
        scales = (scale_of(Metric("whatever", "host")),)
        sigmas = Rows(levels, scales).learn().window(one_of(8, 3, 0.7)).sigmas[:, 0]

        assert abs(sigmas[3]) > 5
        assert np.abs(np.delete(sigmas, 3)).max() < CONFIG.suspicious_sigmas

    def test_a_metric_that_never_moves_says_nothing(self) -> None:
        rows = Rows([7.0] * 8, (scale_of(Metric("whatever", "host")),), noise_ratio=0.0).learn()

        assert not rows.window().sigmas.any()


class TestGrowth:
    def test_a_host_that_appears_learns_first_and_the_others_go_on(self) -> None:
        rows = Rows(np.linspace(400, 500, 6)).learn()
        state = rows.state.grown(np.array([0, 1, 2, 4, 5, 6]), 7)

        assert state.level.shape == (7, 1)
        np.testing.assert_array_equal(np.delete(state.level, 3, 0), rows.state.level)
        np.testing.assert_array_equal(state.spread, rows.state.spread)
        grown = Rows(np.insert(np.linspace(400, 500, 6), 3, 450.0))
        grown.state = state
        sigmas = grown.window(one_of(7, 1, 0.8)).sigmas[:, 0]
        assert np.isnan(sigmas[3])
        assert sigmas[1] < -5

    def test_it_starts_from_nothing(self) -> None:
        state = PeerState.empty(0, 2).grown(np.zeros(0, np.intp), 3)

        assert state.level.shape == (3, 2)
        assert np.isnan(state.level).all()


class TestBelowAll:
    LEVEL = np.array([[100.0], [50.0], [200.0], [100.0], [80.0]], np.float32)
    ONE = np.zeros(5, np.intp)

    def below(self, shares: ArrayLike, groups: NDArray[np.intp] | None = None) -> list[bool]:
        values = (self.LEVEL[:, 0] * np.asarray(shares, np.float32))[:, None]
        found: list[bool] = below_all(values, self.LEVEL, self.ONE if groups is None else groups)[:, 0].tolist()
        return found

    def test_one_does_half_of_the_little_that_all_others_do(self) -> None:
        assert self.below([0.01, 0.01, 0.004, 0.01, 0.01]) == [False, False, True, False, False]

    def test_a_wide_spread_hides_it(self) -> None:
        assert not any(self.below([0.01, 0.02, 0.005, 0.015, 0.03]))

    def test_nobody_is_below_where_nobody_does_anything(self) -> None:
        assert not any(self.below([0.0, 0.0, 0.0, 0.0, 0.0]))

    @pytest.mark.parametrize(("share", "is_far"), [(0.0035, True), (0.0045, False)])
    def test_far_less_where_so_much_is_asked(self, share: float, is_far: bool) -> None:
        values = (self.LEVEL[:, 0] * np.array([0.01, 0.01, share, 0.01, 0.01], np.float32))[:, None]

        assert below_all(values, self.LEVEL, self.ONE)[2, 0]
        assert bool(below_all(values, self.LEVEL, self.ONE, 0.4)[2, 0]) is is_far

    def test_what_the_job_never_used_is_measured_by_itself(self) -> None:
        """The noise of an idle NVLink is no level: waiting kernels do more than that."""
        values = np.array([[1e6], [1.05e6], [3.4e5], [0.97e6], [1e6]], np.float32)
        noise = np.array([[4e4], [1e3], [2e3], [9e3], [3e4]], np.float32)

        assert below_all(values, noise, self.ONE)[:, 0].tolist() == [False, False, True, False, False]

    def test_no_sample_and_no_peers_say_nothing(self) -> None:
        assert not any(self.below([0.01, 0.01, np.nan, 0.01, 0.01]))
        assert not any(self.below([0.01, 0.01, 0.005, 0.01, 0.01], np.full(5, -1, np.intp)))
