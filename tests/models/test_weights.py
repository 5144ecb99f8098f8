"""Weights as bytes: what was written comes back; what was not is refused by name."""

from __future__ import annotations

import json

import numpy as np
import pytest

from tocsin.models.weights import MAGIC, read_weights, write_weights
from tocsin.schemas.errors import ModelRefusedError

ARRAYS = {
    "a": np.arange(6, dtype=np.float32).reshape(2, 3),
    "b": np.array([0.1, -0.0]),
    "c": np.zeros((0, 4), np.float32),
}
WHOLE = write_weights("kind/1", {"x": [1, "two"]}, ARRAYS)


def changed(**changes: object) -> bytes:
    """The same file with another head."""
    size = int.from_bytes(WHOLE[8:12], "little")
    head = json.dumps({**json.loads(WHOLE[12 : 12 + size]), **changes}).encode()
    return MAGIC + len(head).to_bytes(4, "little") + head + WHOLE[12 + size :]


def entry(**changes: object) -> bytes:
    return changed(arrays=[{"name": "a", "dtype": "<f4", "shape": [2, 3], **changes}])


def test_what_was_written_comes_back() -> None:
    head, arrays = read_weights("kind/1", WHOLE)

    assert head == {"x": [1, "two"], "kind": "kind/1"}
    assert {name: (values.dtype, values.tolist()) for name, values in arrays.items()} == {
        name: (values.dtype, values.tolist()) for name, values in ARRAYS.items()
    }
    assert write_weights("kind/1", {"x": [1, "two"]}, ARRAYS) == WHOLE


def test_big_endian_and_strided_arrays_are_written_plain() -> None:
    odd = {"a": ARRAYS["a"].astype(">f4"), "b": np.array([0.1, 9.0, -0.0, 9.0])[::2], "c": ARRAYS["c"]}

    assert write_weights("kind/1", {"x": [1, "two"]}, odd) == WHOLE


@pytest.mark.parametrize("length", [0, 7, 8, 11, 12, 40, len(WHOLE) - 17, len(WHOLE) - 1])
def test_a_file_cut_short_is_refused(length: int) -> None:
    with pytest.raises(ModelRefusedError) as caught:
        read_weights("kind/1", WHOLE[:length])

    assert caught.value.reason == "model_undecodable"


@pytest.mark.parametrize(
    ("payload", "says"),
    [
        (WHOLE + b"x", "after the last array"),
        (b"\x80\x04" + WHOLE, "begins with"),
        (MAGIC + (1 << 31).to_bytes(4, "little") + b"{}", "cut short or damaged"),
        (MAGIC + (2).to_bytes(4, "little") + b"[]", "no JSON object"),
        (MAGIC + (2).to_bytes(4, "little") + b"{!", "model head"),
        (changed(kind="other/1"), "kind"),
        (changed(arrays=None), "lists no arrays"),
        (entry(dtype="|O8"), "dtype"),
        (entry(shape=[1 << 20, 1 << 20]), "shape"),
        (entry(shape=[-1, -6]), "shape"),
        (entry(shape="23"), "shape"),
        (entry(name=3), "name"),
    ],
    ids=[
        "longer",
        "pickle",
        "huge-head",
        "list",
        "no-json",
        "kind",
        "arrays",
        "objects",
        "huge",
        "negative",
        "text",
        "name",
    ],
)
def test_what_is_no_such_file_is_refused(payload: bytes, says: str) -> None:
    with pytest.raises(ModelRefusedError, match=says):
        read_weights("kind/1", payload)


@pytest.mark.parametrize("value", [np.nan, np.inf])
def test_a_weight_that_is_no_number_is_refused(value: float) -> None:
    with pytest.raises(ModelRefusedError, match="no number"):
        read_weights("k", write_weights("k", {}, {"a": np.array([1.0, value])}))


def test_other_types_are_not_written() -> None:
    with pytest.raises(ValueError, match="float32 or float64"):
        write_weights("k", {}, {"a": np.array([1])})
