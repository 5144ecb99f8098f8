"""Scales of metrics for the comparison of machines: floors, limits, logarithms of packet counts."""

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
    """The scale on which one metric is compared.

    Attributes:
        floor: least spread, in units of the metric (after the logarithm if ``counted``).
        low: lowest value that is expected.
        high: highest value that is expected; where some row exceeds it, the highest row is.
        counted: the metric is a rate of rare packets: log1p(value / 100) is compared instead of the value, and by
            differences instead of ratios.
    """

    floor: float
    counted: bool = False
    low: float = 0.0
    high: float = math.inf


def scale_of(metric: Metric) -> Scale:
    """Return the scale of a metric by the unit in its name; without a known unit, by its limits."""
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
    """Return values with counted metrics replaced by log1p(value / 100).

    Args:
        values: metrics on axis 1, shape (rows, metrics) or (rows, metrics, ticks).
        scales: one for each metric.
    """
    out = values
    for index, scale in enumerate(scales):
        if scale.counted:
            out = out.copy() if out is values else out
            out[:, index] = np.log1p(np.maximum(values[:, index], 0) / 100.0)
    return out


def plain(values: FloatArray, scale: Scale) -> FloatArray:
    """Return the values of one metric with ``transform`` undone."""
    return 100.0 * np.expm1(values) if scale.counted else values
