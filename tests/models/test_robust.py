"""Robust statistics: numpy's own answers, without its warnings, whatever is missing."""

from __future__ import annotations

import warnings

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays
from numpy.typing import NDArray

from tocsin.models.robust import (
    MAD_TO_SIGMA,
    median,
    median_of,
    nan_median,
    quantile,
    quantile_of,
    spread,
    without_gaps,
)

NAN, INF = float("nan"), float("inf")
numbers = st.floats(-1e6, 1e6, allow_nan=False) | st.just(NAN)
tables = arrays.arrays(np.float64, arrays.array_shapes(min_dims=2, max_dims=3, max_side=7), elements=numbers)


def wanted(values: NDArray[np.float64], share: float, axis: int) -> NDArray[np.float64]:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # numpy warns of what is the case here: nothing but NaN
        return np.asarray(np.nanpercentile(values, 100 * share, axis=axis))


@given(tables, st.data())
def test_the_median_is_numpys(values: NDArray[np.float64], data: st.DataObject) -> None:
    axis = data.draw(st.integers(0, values.ndim - 1))

    np.testing.assert_allclose(median(values, axis), wanted(values, 0.5, axis), rtol=1e-12, atol=1e-9)


@given(tables, st.sampled_from([0.0, 0.1, 0.2, 0.4, 0.9, 1.0]), st.data())
def test_a_quantile_is_numpys(values: NDArray[np.float64], share: float, data: st.DataObject) -> None:
    axis = data.draw(st.integers(0, values.ndim - 1))

    np.testing.assert_allclose(quantile(values, share, axis), wanted(values, share, axis), rtol=1e-9, atol=1e-6)


any_numbers = arrays.arrays(
    st.sampled_from([np.float32, np.float64]),
    arrays.array_shapes(min_dims=1, max_dims=3, max_side=7),
    elements=st.floats(width=32) | st.sampled_from([NAN, INF, -INF]),
)


@given(any_numbers, st.data())
def test_the_fast_median_is_numpys_to_the_bit(values: NDArray[np.float64], data: st.DataObject) -> None:
    axis = data.draw(st.integers(0, values.ndim - 1))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        expected = np.asarray(np.nanmedian(values, axis=axis))
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        found = np.asarray(nan_median(values, axis))

    assert found.dtype == expected.dtype
    np.testing.assert_array_equal(found, expected, strict=True)


@given(tables, st.data())
def test_infinity_is_no_sample(values: NDArray[np.float64], data: st.DataObject) -> None:
    endless = np.where(np.isnan(values), data.draw(st.sampled_from([INF, -INF])), values)

    np.testing.assert_array_equal(median(endless, 0), median(values, 0))
    np.testing.assert_array_equal(spread(endless, 0), spread(values, 0))


def test_a_column_without_a_number_is_nan_and_the_others_are_not() -> None:
    values = np.array([[NAN, 1.0, INF], [NAN, 3.0, NAN], [NAN, NAN, -INF]])

    with warnings.catch_warnings():
        warnings.simplefilter("error")
        np.testing.assert_array_equal(median(values, 0), [NAN, 2.0, NAN])
        np.testing.assert_array_equal(quantile(values, 0.9, 0), [NAN, 2.8, NAN])
        np.testing.assert_array_equal(spread(values, 0), [NAN, MAD_TO_SIGMA, NAN])


@given(tables)
def test_nothing_is_written_into_the_input(values: NDArray[np.float64]) -> None:
    before = values.copy()
    for axis in range(values.ndim):
        spread(values, axis)

    np.testing.assert_array_equal(values, before)


@given(tables)
def test_the_order_of_samples_does_not_matter(values: NDArray[np.float64]) -> None:
    order = np.arange(values.shape[0])[::-1]

    np.testing.assert_array_equal(median(values[order], 0), median(values, 0))
    np.testing.assert_array_equal(spread(values[order], 0), spread(values, 0))


def test_the_spread_of_normal_noise_is_its_standard_deviation_whatever_one_outlier_says() -> None:
    noise = np.random.default_rng(3).normal(5.0, 2.0, 10_001)
    noise[0] = 1e9

    assert spread(noise, 0) == pytest.approx(2.0, rel=0.05)


def test_single_precision_stays_single() -> None:
    values = np.array([[1.0, NAN], [2.0, NAN]], np.float32)

    assert median(values, 0).dtype == np.float32
    assert quantile(values, 0.3, 0).dtype == np.float32


rows = arrays.arrays(
    st.sampled_from([np.float32, np.float64]),
    st.integers(1, 40),
    elements=st.floats(-1e6, 1e6, width=32)
    | st.sampled_from([NAN, 0.1, 1e-300, 3.0]).map(lambda x: float(np.float32(x))),
)


@given(rows)
def test_the_median_of_one_row_is_numpys_to_the_bit(values: NDArray[np.float64]) -> None:
    np.testing.assert_array_equal(median_of(values), np.median(values))


@given(rows.map(lambda row: row.astype(np.float64) / 3), st.floats(0, 1) | st.sampled_from([0.2, 0.25, 0.5]))
def test_the_quantile_of_one_row_is_numpys_to_the_bit(values: NDArray[np.float64], share_ratio: float) -> None:
    np.testing.assert_array_equal(quantile_of(values, share_ratio), np.quantile(values, share_ratio))


@given(rows.map(lambda row: row.astype(np.float64) / 3), st.integers(0, 100))
def test_a_share_in_hundredths_is_numpys_percentile_to_the_bit(values: NDArray[np.float64], percent: int) -> None:
    np.testing.assert_array_equal(quantile_of(values, percent / 100), np.percentile(values, percent))


@given(any_numbers)
def test_without_gaps_is_numpys_nan_to_num(values: NDArray[np.float64]) -> None:
    found = without_gaps(values)

    assert found.dtype == values.dtype
    np.testing.assert_array_equal(found, np.nan_to_num(values), strict=True)
