"""Rows of groups: each group once, in order of its number, and nobody who has none."""

from __future__ import annotations

import numpy as np
import pytest

from tocsin.models.peer_groups import rows_of_groups


@pytest.mark.parametrize(
    ("groups", "expected"),
    [
        ([0, 0, 0], [[0, 1, 2]]),
        ([2, 2], [[0, 1]]),
        ([1, 0, 1, -1], [[1], [0, 2]]),
        ([3, -1, 0], [[2], [0]]),
        ([-1, -1], []),
        ([], []),
    ],
)
def test_each_group_has_its_rows(groups: list[int], expected: list[list[int]]) -> None:
    rows = np.arange(len(groups))

    assert [rows[members].tolist() for members in rows_of_groups(np.array(groups, np.intp))] == expected
