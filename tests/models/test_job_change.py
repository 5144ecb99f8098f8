"""The whole job against its own past: when it became slower, and on what its ranks spend the difference."""

from __future__ import annotations

import numpy as np
import pytest
from numpy.typing import NDArray

from tocsin.models.job_change import find_job_change

RECENT_COUNT, LINE_RATIO = 8, 0.2


def history(*spells: tuple[int, float, float, float, float]) -> NDArray[np.float64]:
    """Steps, spell by spell: how many, and the seconds of the step, of data, of own work, of communication."""
    return np.array([seconds for count, *seconds in spells for _ in range(count)], np.float64)


USUAL = (40, 1.0, 0.05, 0.65, 0.3)


@pytest.mark.parametrize(
    ("now", "shares"),
    [
        ((10, 1.5, 0.55, 0.65, 0.3), (1.0, 0.0, 0.0)),
        ((10, 1.5, 0.05, 1.15, 0.3), (0.0, 1.0, 0.0)),
        ((10, 1.5, 0.05, 0.65, 0.8), (0.0, 0.0, 1.0)),
        ((10, 1.5, 0.30, 0.65, 0.55), (0.5, 0.0, 0.5)),
    ],
    ids=["data", "own work", "communication", "data and who waits for the last of them"],
)
def test_the_difference_is_shared_out(
    now: tuple[int, float, float, float, float], shares: tuple[float, float, float]
) -> None:
    change = find_job_change(history(USUAL, now), RECENT_COUNT, LINE_RATIO)

    assert change is not None
    assert (change.data_ratio, change.own_ratio, change.communication_ratio) == pytest.approx(shares)
    assert (change.strength_ratio, change.baseline_seconds, change.step_seconds) == pytest.approx((0.5, 1.0, 1.5))
    assert change.first_row == 40


@pytest.mark.parametrize(
    "rows",
    [
        history((23, 1.5, 0.5, 0.7, 0.3)),
        history(USUAL, (10, 1.15, 0.05, 0.8, 0.3)),
        history(USUAL, (3, 1.5, 0.05, 1.15, 0.3)),
        history((40, 1.5, 0.05, 1.15, 0.3), (10, 1.0, 0.05, 0.65, 0.3)),
    ],
    ids=["too few steps", "below the line", "a few slow steps", "faster than it was"],
)
def test_no_change(rows: NDArray[np.float64]) -> None:
    assert find_job_change(rows, RECENT_COUNT, LINE_RATIO) is None


def test_columns_that_nobody_measures_share_in_nothing() -> None:
    rows = history(USUAL, (10, 1.5, 0.55, 0.65, 0.3))
    rows[:, 1:] = np.nan

    change = find_job_change(rows, RECENT_COUNT, LINE_RATIO)

    assert change is not None
    assert (change.data_ratio, change.own_ratio, change.communication_ratio) == (0.0, 0.0, 0.0)
