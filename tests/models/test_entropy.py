"""Runtime entropy: the testable statements E1 to E5 of seed-systems-b.md 5.4, and what no input may do.

E6 (does entropy add anything to a tree?) is tests/models/training/test_entropy_ablation.py.
"""

from __future__ import annotations

import itertools

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from tocsin.models.entropy import (
    EntropyConfig,
    FloatArray,
    Measured,
    against_peers,
    divergence_parts,
    entropy,
    jensen_shannon,
    measure,
    scores,
)
from tocsin.schemas.errors import FieldError
from tocsin.schemas.reasons import Reason

CONFIG = EntropyConfig()
CLASSES = ("forward", "backward", "optimizer", "communication", "gc")
PROFILE = np.array([0.30, 0.45, 0.08, 0.16, 0.01])


def judged(seconds: FloatArray, counts: FloatArray, past: FloatArray, *, sampled: bool = False) -> FloatArray:
    """Scores of a window whose ranks used to stand ``past`` from their peers."""
    measured = measure(seconds, counts, CONFIG, sampled=sampled)
    return scores(against_peers(measured), past, measured.floors, CONFIG)


def healthy(ranks: int, seed: int = 0, profile: FloatArray = PROFILE) -> tuple[FloatArray, FloatArray]:
    """Ten steps of a second: times with 1 % of noise, ten calls of each class."""
    draw = np.random.default_rng(seed)
    seconds = 10.0 * profile * (1 + 0.01 * draw.standard_normal((ranks, profile.size)))
    return seconds, np.full(seconds.shape, 10.0)


class TestE1EntropyOfTheFixtures:
    @pytest.mark.parametrize(
        ("amounts", "expected_nats"),
        [
            ([0.50, 0.30, 0.15, 0.05], 1.1421),
            ([0.30, 0.50, 0.15, 0.05], 1.1421),
            ([1.0, 1.0, 1.0, 1.0], 1.3863),
            ([4.0, 1.0, 1.0, 1.0], 1.1537),
            ([0.7, 0.1, 0.1, 0.1], 0.9404),
            ([0.7, 0.4, 0.1, 0.1], 1.0906),
            ([1.0, 0.0, 0.0, 0.0], 0.0),
        ],
        ids=["skewed", "skewed-swapped", "equal", "one-of-equal-4x", "minor", "minor-4x", "only-one"],
    )
    def test_to_four_digits(self, amounts: list[float], expected_nats: float) -> None:
        assert float(entropy(np.array(amounts))) == pytest.approx(expected_nats, abs=1e-4)

    def test_the_divergence_of_the_swapped_shares(self) -> None:
        left, right = np.array([0.50, 0.30, 0.15, 0.05]), np.array([0.30, 0.50, 0.15, 0.05])

        assert float(jensen_shannon(left, right)) == pytest.approx(0.0253, abs=1e-4)

    @pytest.mark.parametrize(("events", "bias_nats"), [(200, -0.133), (1_000, -0.025), (20_000, -0.001)])
    def test_the_plug_in_bias_at_50_classes_and_its_correction(self, events: int, bias_nats: float) -> None:
        draw = np.random.default_rng(1)
        profile = draw.dirichlet(np.full(50, 5.0))
        truth = float(entropy(profile))
        drawn = draw.multinomial(events, profile, size=400).astype(float)

        plain = float(entropy(drawn).mean()) - truth
        corrected = float(entropy(drawn, np.full(400, float(events))).mean()) - truth

        assert plain == pytest.approx(bias_nats, abs=0.012)
        assert abs(corrected) < max(0.011, 0.2 * abs(bias_nats))


class TestE2SwappedShares:
    def test_leave_the_entropy_unchanged_and_still_raise_the_divergence_alarm(self) -> None:
        seconds, counts = healthy(8)
        swapped = seconds.copy()
        swapped[3, [0, 1]] = swapped[3, [1, 0]]
        past = against_peers(measure(seconds, counts, CONFIG))

        before, after = measure(seconds, counts, CONFIG), measure(swapped, counts, CONFIG)
        found = judged(swapped, counts, past)

        assert after.values[3, 0] == pytest.approx(before.values[3, 0], abs=1e-9)
        assert np.flatnonzero(found > 1).tolist() == [3]


class TestE3HalfTheSampling:
    def test_changes_the_corrected_entropy_by_less_than_two_hundredths_and_raises_no_alarm(self) -> None:
        draw = np.random.default_rng(2)
        profile = draw.dirichlet(np.full(20, 3.0))
        changes, alarms = [], 0
        past = np.zeros((16, 4))
        for _ in range(200):
            full = draw.multinomial(2_000, profile, size=16).astype(float)
            halved = full.copy()
            halved[5] = draw.multinomial(1_000, profile)
            before = measure(full * 0.01, full, CONFIG, sampled=True)
            after = measure(halved * 0.01, halved, CONFIG, sampled=True)
            changes.append(after.values[5, :2] - before.values[5, :2])
            alarms += int((judged(halved * 0.01, halved, past, sampled=True) > 1).any())

        assert np.abs(np.mean(changes, axis=0)).max() < 0.02
        assert alarms == 0

    def test_uncorrected_it_looks_like_a_fault(self) -> None:
        """The same without the correction, at few samples: why there is one."""
        draw = np.random.default_rng(3)
        profile = draw.dirichlet(np.full(20, 3.0))
        full = draw.multinomial(400, profile, size=(300, 16)).astype(float)
        full[:, 5] = draw.multinomial(100, profile, size=300)

        plain = entropy(full)
        corrected = entropy(full, full.sum(axis=-1))

        assert float((plain[:, 5] - plain[:, 0]).mean()) < -0.05
        assert abs(float((corrected[:, 5] - corrected[:, 0]).mean())) < 0.02


class TestE4ChangeOfAllRanks:
    def test_an_evaluation_of_all_ranks_raises_no_alarm(self) -> None:
        seconds, counts = healthy(8)
        past = against_peers(measure(seconds, counts, CONFIG))
        evaluation, _ = healthy(8, 1, np.array([0.80, 0.001, 0.001, 0.15, 0.01]))

        assert judged(evaluation, counts, past).max() < 1

    def test_a_checkpoint_in_all_ranks_raises_no_alarm(self) -> None:
        seconds, counts = healthy(8)
        past = against_peers(measure(seconds, counts, CONFIG))
        seconds, _ = healthy(8, 2)
        seconds[:, 4] += 8.0

        assert judged(seconds, counts, past).max() < 1


class TestE5GarbageCollection:
    @pytest.mark.parametrize("ranks", [3, 4, 16, 256])
    def test_a_rank_with_30_percent_more_time_in_gc_is_named_with_the_function(self, ranks: int) -> None:
        seconds, counts = healthy(ranks)
        past = against_peers(measure(seconds, counts, CONFIG))
        struck, _ = healthy(ranks, 1)
        struck[1, CLASSES.index("gc")] += 3.0

        measured = measure(struck, counts, CONFIG)
        found = scores(against_peers(measured), past, measured.floors, CONFIG)

        assert np.flatnonzero(found > 1).tolist() == [1]
        assert CLASSES[int(measured.parts[1].argmax())] == "gc"


class TestWhatNoInputMayDo:
    @pytest.mark.parametrize("ranks", [0, 1, 2])
    def test_below_three_peers_it_abstains_by_name(self, ranks: int) -> None:
        measured = measure(*healthy(ranks), CONFIG)

        assert measured.reason is Reason.TOO_FEW_PEERS
        assert not np.isfinite(measured.values).any()

    def test_windows_of_no_length_abstain_by_name(self) -> None:
        measured = measure(np.zeros((8, 5)), np.full((8, 5), 10.0), CONFIG)

        assert measured.reason is Reason.TOO_FEW_OPERATIONS

    def test_too_few_operations_abstain_by_name(self) -> None:
        seconds, _ = healthy(8)
        measured = measure(seconds, np.full((8, 5), 3.0), CONFIG)

        assert measured.reason is Reason.TOO_FEW_OPERATIONS

    @pytest.mark.parametrize("value", [-1e-9, np.inf, -np.inf])
    @pytest.mark.parametrize("field", ["seconds", "counts"])
    def test_a_number_that_cannot_be_is_an_error_that_names_it(self, field: str, value: float) -> None:
        amounts = dict(zip(("seconds", "counts"), healthy(8), strict=True))
        amounts[field][2, 3] = value

        with pytest.raises(FieldError, match=rf"{field}\[2, 3\]"):
            measure(amounts["seconds"], amounts["counts"], CONFIG)

    def test_a_rank_without_numbers_is_left_out_and_the_others_are_judged(self) -> None:
        seconds, counts = healthy(8)
        seconds[5] = np.nan
        past = np.zeros((8, 4))
        struck = seconds.copy()
        struck[2, 4] += 3.0

        assert not np.isfinite(measure(seconds, counts, CONFIG).values[5]).any()
        assert np.flatnonzero(judged(struck, counts, past) > 1).tolist() == [2]

    def test_equal_ranks_never_alarm(self) -> None:
        seconds, counts = np.tile(10 * PROFILE, (64, 1)), np.full((64, 5), 10.0)

        assert judged(seconds, counts, np.zeros((64, 4))).tolist() == [0.0] * 64

    @given(arrays(float, (5, 4), elements=st.floats(0, 1e6)), st.permutations(range(5)))
    def test_other_names_for_the_ranks_permute_the_scores(self, seconds: FloatArray, order: list[int]) -> None:
        counts, past = np.full((5, 4), 10.0), np.zeros((5, 4))

        straight, permuted = judged(seconds, counts, past), judged(seconds[order], counts, past)

        assert np.isfinite(straight).all()
        assert permuted == pytest.approx(straight[order], rel=1e-6, abs=1e-6)

    @given(arrays(float, (5, 4), elements=st.floats(0.01, 1e3)), st.floats(1e-3, 1e3))
    def test_the_unit_of_time_does_not_matter(self, seconds: FloatArray, unit: float) -> None:
        counts = np.full((5, 4), 10.0)

        left, right = measure(seconds, counts, CONFIG), measure(seconds * unit, counts, CONFIG)

        assert left.values == pytest.approx(right.values, abs=1e-9)

    def test_a_gross_outlier_alarms_at_any_size(self) -> None:
        for ranks in (4, 16, 256, 4_096):
            seconds, counts = healthy(ranks)
            seconds[2, 1] *= 3

            assert np.flatnonzero(judged(seconds, counts, np.zeros((ranks, 4))) > 1).tolist() == [2], ranks

    def test_the_parts_sum_to_the_divergence_and_it_is_bounded(self) -> None:
        for left, right in itertools.product(np.eye(3), repeat=2):
            assert divergence_parts(left, right).sum() == pytest.approx(float(jensen_shannon(left, right)))
            assert 0 <= float(jensen_shannon(left, right)) <= np.log(2) + 1e-12

    def test_a_measurement_says_why_it_is_none(self) -> None:
        assert isinstance(measure(*healthy(3), CONFIG), Measured)
        assert measure(*healthy(3), CONFIG).reason is None
