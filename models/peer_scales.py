"""How metrics are measured before machines are compared by them: floors, limits, logarithms of packet counts."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from tocsin.schemas.metrics import Metric

FloatArray = NDArray[np.float32]


@dataclass(frozen=True, slots=True)
class Scale:
    """How one metric is measured.

    Attributes:
        floor: no spread is below this, in units of the metric (after ``counted``).
        low: nothing below this is expected.
        high: nothing above this is expected, nor above the highest of all rows where that is more.
        counted: rates of rare packets: log1p(value / 100) instead of the value, and differences instead of
            ratios.
    """

    floor: float
    counted: bool = False
    low: float = 0.0
    high: float = math.inf


def scale_of(metric: Metric) -> Scale:
    """The scale of a metric by its unit; users' own by their limits."""
    name = metric.name
    if name.endswith("_packets_per_second"):
        return Scale(0.15, counted=True)
    for suffix, scale in _BY_UNIT.items():
        if name.endswith(suffix):
            return scale
    low = -math.inf if metric.low is None else metric.low
    high = math.inf if metric.high is None else metric.high
    return Scale(0.01 * (high - low) if high - low < math.inf else 0.0, low=low, high=high)


_BY_UNIT = {
    "_ratio": Scale(0.01, high=1.0),
    "_celsius": Scale(1.5),
    "_watts": Scale(4.0),
    # A card whose clock stands at its limit cannot follow when those of its peers rise.
    "_hertz": Scale(15e6, high=0.0),
    "_bytes_per_second": Scale(1e6),
    "_bytes": Scale(64e6),
}


def transform(values: FloatArray, scales: Sequence[Scale]) -> FloatArray:
    """Counted metrics to their logarithm; metrics on the last axis but one or the last of 2-d input."""
    out = values
    for index, scale in enumerate(scales):
        if scale.counted:
            out = out.copy() if out is values else out
            out[:, index] = np.log1p(np.maximum(values[:, index], 0) / 100.0)
    return out


def plain(values: FloatArray, scale: Scale) -> FloatArray:
    """The inverse of ``transform`` for one metric."""
    return 100.0 * np.expm1(values) if scale.counted else values
