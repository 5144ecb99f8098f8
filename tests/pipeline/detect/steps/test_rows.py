"""Rows of steps: ranks in order, gaps, and states that come back as they were."""

from __future__ import annotations

import numpy as np

from tests.pipeline.states import through_bytes
from tocsin.pipeline.detect.steps.rows import (
    COLUMNS,
    StepRows,
    pending_from,
    pending_state,
    table_of,
)
from tocsin.schemas.records import StepRecord

NAN = float("nan")


def step_row(rank: int, seconds: float, ts_ns: int) -> StepRecord:
    """A rank's step with the same number in every column."""
    return StepRecord(ts_ns, rank, 1, *[seconds] * len(COLUMNS))


class TestSteps:
    def test_ranks_in_order_and_the_last_end(self) -> None:
        told = StepRows.of({3: step_row(3, 1.0, 50), 1: step_row(1, 2.0, 70)})

        assert (told.ranks, told.end_ns) == ((1, 3), 70)
        assert (told.duration_of(3), told.duration_of(1), told.duration_of(2)) == (1.0, 2.0, None)

    def test_a_rank_that_is_missing_in_a_step_is_nan_there(self) -> None:
        full = {rank: step_row(rank, float(rank), 9) for rank in (0, 1, 2)}
        ranks, table = table_of([StepRows.of(full), StepRows.of({0: full[0], 2: full[2]})])

        assert ranks == (0, 1, 2)
        assert table.shape == (len(COLUMNS), 2, 3)
        np.testing.assert_array_equal(table[0], np.array([[0, 1, 2], [0, NAN, 2]]))

    def test_state_there_and_back_with_gaps(self) -> None:
        told = StepRows.of({0: StepRecord(5, 0, 1, 1.0, None, 2.0, None, 4.0), 7: step_row(7, 2.0, 6)})
        found = StepRows.from_state(through_bytes(told.to_state()))

        assert (found.end_ns, found.ranks) == (told.end_ns, told.ranks)
        np.testing.assert_array_equal(found.values, told.values)
        np.testing.assert_array_equal(told.values[0], [1.0, NAN, NAN, 2.0, NAN, 4.0])

    def test_steps_that_are_not_finished_come_back(self) -> None:
        pending = {7: {3: step_row(3, 1.0, 5), 1: StepRecord(6, 1, 7, 2.0, loss=NAN)}, 8: {1: step_row(1, 0.5, 9)}}
        found = pending_from(through_bytes(pending_state(pending)))

        assert list(found) == [7, 8]
        assert all(repr(found[step]) == repr(dict(sorted(rows.items()))) for step, rows in pending.items())

    def test_times_of_today_lose_less_than_a_microsecond(self) -> None:
        """They pass through a float between the ranks' values."""
        end_ns = 1_800_000_000_123_456_789

        assert abs(StepRows.of({0: step_row(0, 1.0, end_ns)}).end_ns - end_ns) < 1000
