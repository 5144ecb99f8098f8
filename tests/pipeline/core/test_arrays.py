"""Arrays and columns in a snapshot: every value comes back, and nothing that a stranger sent is taken for one."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays
from numpy.typing import NDArray

from tests.pipeline.states import through_bytes
from tocsin.pipeline.core.arrays import array_from, array_state
from tocsin.pipeline.core.operator import (
    columns_of,
    from_columns,
    pack_state,
    unpack_state,
)
from tocsin.schemas.errors import SnapshotError

FloatArray = NDArray[np.float32]


@dataclass
class Mixed:
    """A column of each sort."""

    whole: int
    number: float
    text: str
    either: bool | int | None
    several: list[int]


def strangers(inner: st.SearchStrategy[Any]) -> st.SearchStrategy[Any]:
    """Lists and objects, with names that a state uses itself."""
    return st.lists(inner, max_size=3) | st.dictionaries(st.text("@k", max_size=3), inner, max_size=2)


class TestArrays:
    @pytest.mark.parametrize("kind", ["<f4", "<f8", "<i8", ">f4", "?"])
    def test_there_and_back_through_bytes(self, kind: str) -> None:
        values = np.array([[1, 0, 1], [0, 1, 1]]).astype(kind)
        found = array_from(through_bytes(array_state(values)))

        np.testing.assert_array_equal(found, values)
        assert found.shape == values.shape
        assert found.flags.writeable

    @given(st.recursive(st.none() | st.integers() | st.text("@k", max_size=3), strangers, max_leaves=8))
    def test_whatever_a_stranger_sent_is_not_taken_for_an_array(self, sent: object) -> None:
        state = {"sent": sent, "own": np.arange(3), "more": [np.array([], "<f8"), np.array([True])]}
        found = through_bytes(state)

        assert found["sent"] == sent
        assert found["own"].tolist() == [0, 1, 2]
        assert [(one.dtype.str, one.tolist()) for one in found["more"]] == [("<f8", []), ("|b1", [True])]

    @pytest.mark.parametrize("cut", [1, 30, 60])
    def test_a_cut_one_is_damaged(self, cut: int) -> None:
        data = pack_state({"own": np.arange(5)})

        with pytest.raises(SnapshotError, match="'part' is damaged"):
            unpack_state({"part": data[:-cut]}, "part")

    @given(
        st.lists(
            st.tuples(
                st.integers(0, 3) | st.integers(-(1 << 63), (1 << 63)),
                st.floats(allow_nan=False),
                st.sampled_from(["a", "b"]),
                st.booleans() | st.none() | st.integers(0, 1),
                st.lists(st.integers(0, 2), max_size=2),
            ).map(lambda fields: Mixed(*fields))
        )
    )
    def test_dataclasses_by_columns_keep_their_types(self, rows: list[Mixed]) -> None:
        found = list(from_columns(Mixed, through_bytes(columns_of(Mixed, rows))))

        assert [repr(row) for row in found] == [repr(row) for row in rows]

    @given(arrays.arrays(np.float32, arrays.array_shapes(min_dims=1, max_dims=3, min_side=0)))
    def test_every_bit_of_any_float(self, values: FloatArray) -> None:
        assert array_from(array_state(values)).tobytes() == values.tobytes()

    def test_mostly_zeros_take_little_room(self) -> None:
        values = np.zeros((2, 1000, 20), np.int64)
        values[1, 7, 3], values[0, 0, 0] = 1 << 62, -1
        state = array_state(values)

        assert len(pack_state(state)) < 200
        assert array_from(state).tobytes() == values.tobytes()
        assert array_from(state).flags.writeable

    def test_columns_that_do_not_lie_together(self) -> None:
        values = np.arange(12.0).reshape(3, 4).T

        np.testing.assert_array_equal(array_from(array_state(values)), values)
