import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from tocsin.pipeline.lab.simulation.draw import BAND_COUNT, Draw, Half

SEEDS = st.integers(0, 2**32)
HALVES = st.sampled_from(["fit", "held"])


def draws(seed: int, half: Half) -> Draw:
    return Draw(np.random.SeedSequence([seed]), half)


@given(SEEDS, HALVES, st.floats(0.1, 10.0), st.floats(1.1, 100.0))
def test_a_half_draws_from_its_own_bands_only(seed: int, half: Half, low: float, times: float) -> None:
    high = low * times
    value = draws(seed, half).band(low, high)
    index = int((value - low) / (high - low) * BAND_COUNT)

    assert low <= value <= high
    assert index % 2 == (half == "held")


@given(SEEDS, HALVES)
def test_log_bands_stay_within_their_range(seed: int, half: Half) -> None:
    assert 1.1 <= draws(seed, half).log_band(1.1, 3.0) <= 3.0


@given(SEEDS, HALVES)
def test_shapes_of_the_other_half_are_never_drawn(seed: int, half: Half) -> None:
    word = draws(seed, half).shape(("both",), ("fit",), ("held",))

    assert word in {"both", half}


@given(SEEDS, st.integers(1, 20), st.integers(0, 5), st.integers(5, 30))
def test_some_are_different_and_sorted(seed: int, count: int, low: int, high: int) -> None:
    some = draws(seed, "fit").some(count, low, high)

    assert list(some) == sorted(set(some))
    assert min(low, count) <= len(some) <= min(high, count)
    assert all(0 <= index < count for index in some)


@given(SEEDS, st.floats(10.0, 1e5), st.floats(0.0, 100.0))
def test_times_lie_within_the_duration_in_order(seed: int, duration: float, per_hour: float) -> None:
    times = draws(seed, "fit").times(duration, per_hour)

    assert times == sorted(times)
    assert len(times) >= 1
    assert all(0 <= at <= duration for at in times)
