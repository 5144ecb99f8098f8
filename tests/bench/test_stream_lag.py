"""Does more and more wait? What rises and falls with each slice must not look so."""

from __future__ import annotations

from typing import Any, cast

import pytest

from tests.bench.stream_lag import SAMPLE_SECONDS, LagMeter

SLICE_SECONDS = 5.0


def _meter(
    seconds: float, *, drift_ratio: float = 0.0, growth_ratio: float = 0.0, growth_records: float = 0.0
) -> LagMeter:
    """Samples of a stream whose event time falls behind by a second a second, and catches up once a slice."""
    meter = LagMeter(cast(Any, None), "job")
    period = SAMPLE_SECONDS * (1 + drift_ratio)
    for index in range(int(seconds / period)):
        at = index * period
        meter.rows.append((at, growth_records * at, 2.0 + at % SLICE_SECONDS + growth_ratio * at))
    return meter


@pytest.mark.parametrize("seconds", [60, 180, 500])
@pytest.mark.parametrize("drift_ratio", [0.0, 0.002, 0.004])
def test_samples_that_meet_slices_later_and_later_are_no_growth(seconds: float, drift_ratio: float) -> None:
    assert not _meter(seconds, drift_ratio=drift_ratio).grows()


@pytest.mark.parametrize("seconds", [180, 500])
def test_a_stream_that_falls_behind_grows(seconds: float) -> None:
    assert _meter(seconds, growth_ratio=0.02).grows()
    assert _meter(seconds, growth_records=20.0).grows()


def test_what_nobody_looked_at_may_grow() -> None:
    assert _meter(0).grows()
    assert _meter(0).lines() == ["consumer lag: 0 samples, too few"]
