"""Parts of a snapshot in pieces, there and back."""

from __future__ import annotations

import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tocsin.pipeline.runtime.flink.pieces import (
    PIECE_BYTES,
    join_pieces,
    pieces_named,
    pieces_of,
)
from tocsin.schemas.errors import SnapshotError

NOISE = random.Random(1).randbytes(PIECE_BYTES * 2 + 5)


@given(st.dictionaries(st.text(st.characters(exclude_characters="\0"), min_size=1), st.binary(max_size=100)))
def test_there_and_back(parts: dict[str, bytes]) -> None:
    found: dict[str, bytes] = {}
    for name, data in parts.items():
        found |= pieces_of(name, data)

    assert join_pieces(found) == parts


def test_no_piece_is_large_and_all_have_a_name() -> None:
    found = pieces_of("steps", NOISE)

    assert len(found) == 4
    assert max(map(len, found.values())) <= PIECE_BYTES
    assert pieces_named("steps", found["steps"]) == list(found)
    assert join_pieces(found) == {"steps": NOISE}


def test_a_missing_piece_is_named() -> None:
    found = pieces_of("steps", NOISE)
    del found["steps\x001"]

    with pytest.raises(SnapshotError, match="'steps' cannot be put together"):
        join_pieces(found)
