"""Weights as bytes: what was written comes back; what was not is refused by name."""

from __future__ import annotations

import hashlib

import numpy as np
import pytest

from tocsin.models.sealed import FIXED, seal, unseal
from tocsin.models.weights import FORMAT_VERSION, MAGIC, read_weights, write_weights
from tocsin.schemas.errors import ModelRefusedError

ARRAYS = {
    "a": np.arange(6, dtype=np.float32).reshape(2, 3),
    "b": np.array([0.1, -0.0]),
    "c": np.zeros((0, 4), np.float32),
}
WHOLE = write_weights("kind/1", {"x": [1, "two"]}, ARRAYS)


def changed(**changes: object) -> bytes:
    """The same file with another head, sealed again."""
    head, body = unseal(WHOLE, MAGIC, FORMAT_VERSION)
    return seal(MAGIC, FORMAT_VERSION, {**head, **changes}, body)


def headed(text: bytes) -> bytes:
    """A file whose hash is right, with this as its head."""
    return FIXED.pack(MAGIC, FORMAT_VERSION, len(text), hashlib.sha256(text).digest()) + text


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


@pytest.mark.parametrize("length", [0, 7, 8, 11, 12, 40, FIXED.size, len(WHOLE) - 17, len(WHOLE) - 1])
def test_a_file_cut_short_is_refused(length: int) -> None:
    with pytest.raises(ModelRefusedError) as caught:
        read_weights("kind/1", WHOLE[:length])

    has_its_head = length >= len(WHOLE) - 17
    assert caught.value.reason == ("hash_mismatch" if has_its_head else "model_undecodable")
    assert "cut short" in str(caught.value)


@pytest.mark.parametrize("place", [0, 5, 6, 12, FIXED.size + 3, len(WHOLE) - 1])
def test_a_bit_that_flipped_anywhere_is_refused(place: int) -> None:
    data = bytearray(WHOLE)
    data[place] ^= 16

    with pytest.raises(ModelRefusedError):
        read_weights("kind/1", bytes(data))


def test_bytes_behind_the_last_array_are_refused() -> None:
    head, body = unseal(WHOLE, MAGIC, FORMAT_VERSION)

    with pytest.raises(ModelRefusedError, match="after the last array"):
        read_weights("kind/1", seal(MAGIC, FORMAT_VERSION, head, body + b"x"))


def test_an_array_longer_than_the_body_is_refused() -> None:
    head, body = unseal(WHOLE, MAGIC, FORMAT_VERSION)

    with pytest.raises(ModelRefusedError, match="cut short, 15 of 16 bytes"):
        read_weights("kind/1", seal(MAGIC, FORMAT_VERSION, head, body[:-1]))


@pytest.mark.parametrize(
    ("payload", "says"),
    [
        (WHOLE + b"x", "damaged"),
        (b"\x80\x04" + WHOLE, "begins with"),
        (FIXED.pack(MAGIC, FORMAT_VERSION, 1 << 31, b"") + b"{}", "cut short"),
        (headed(b"[]"), "must be an object"),
        (headed(b"{!"), "head is no JSON"),
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
