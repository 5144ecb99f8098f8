"""Maps in a state: written in one order, whatever theirs, and taken back from JSON."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from tests.pipeline.states import through_bytes
from tocsin.pipeline.core.arrays import arrays_from, arrays_state, named_arrays_from, named_arrays_state
from tocsin.pipeline.core.state_maps import pairs_from, pairs_state, rows_from, rows_state

numbers = st.integers(-(2**62), 2**62)


@given(st.dictionaries(numbers, numbers))
def test_pairs_come_back_and_stand_by_their_keys(values: dict[int, int]) -> None:
    state = pairs_state(values)

    assert [key for key, _ in state] == sorted(values)
    assert pairs_from(through_bytes(state)) == values


@given(st.dictionaries(st.text(max_size=3), st.lists(numbers, max_size=3)))
def test_rows_come_back_and_stand_by_their_keys(values: dict[str, list[int]]) -> None:
    state = rows_state(values)

    assert [row[0] for row in state] == sorted(values)
    assert rows_from(through_bytes(state)) == values


@dataclass
class _Owner:
    _total: np.ndarray[tuple[int], np.dtype[np.float64]]


def test_arrays_of_an_object_and_of_a_map_come_back() -> None:
    owner, other = _Owner(np.array([1.0, 0.0, -0.0])), _Owner(np.zeros(0))
    arrays_from(other, through_bytes(arrays_state(owner, ("total",), "_")), ("total",), "_")
    found = named_arrays_from(through_bytes(named_arrays_state({"b": np.arange(3), "a": np.zeros((2, 2))})))

    assert repr(other) == repr(owner)
    assert list(found) == ["a", "b"]
    assert found["a"].shape == (2, 2)
    assert found["b"].tolist() == [0, 1, 2]
