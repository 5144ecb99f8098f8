"""Means over ticks: a missing tick does not count."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays
from numpy.typing import NDArray

from tocsin.models.metric_means import mean_over_ticks

FloatArray = NDArray[np.float32]
series = arrays.arrays(np.float32, (3, 2, 4), elements=st.floats(-1e6, 1e6, width=32) | st.just(math.nan))


@given(series)
def test_missing_ticks_do_not_count(values: FloatArray) -> None:
    found, counts = mean_over_ticks(values)
    for row, metric in np.ndindex(3, 2):
        known = [float(value) for value in values[row, metric] if not math.isnan(value)]
        assert counts[row, metric] == len(known)
        if known:
            assert found[row, metric] == pytest.approx(sum(known) / len(known), rel=1e-4, abs=0.2)
        else:
            assert np.isnan(found[row, metric])
