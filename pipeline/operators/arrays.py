"""Numpy arrays in an operator's JSON state."""

from __future__ import annotations

import base64
from typing import Any

import numpy as np
from numpy.typing import NDArray

_SPARSE_FACTOR = 4
"""A place takes as much room as a value or half of it: fewer than a quarter must be other than zero."""


def array_state(values: NDArray[Any]) -> list[Any]:
    """[dtype, shape, base64 of the little-endian bytes], where most are zeros [..., of the others, their places].

    A large job's evidence is zero for nearly all machines.
    """
    plain = np.ascontiguousarray(values)
    plain = plain.astype(plain.dtype.newbyteorder("<"), copy=False)
    # by their bits: -0.0 is kept
    bits = plain.reshape(-1).view(f"u{plain.dtype.itemsize}")
    places = np.flatnonzero(bits)
    if places.size * _SPARSE_FACTOR >= bits.size:
        return [plain.dtype.str, list(plain.shape), _text(plain)]
    return [plain.dtype.str, list(plain.shape), _text(bits[places]), _text(places.astype("<u4"))]


def array_from(state: list[Any]) -> NDArray[Any]:
    """Take back what ``array_state`` gave."""
    dtype, shape, text, *places = state
    values = np.frombuffer(base64.b64decode(text), np.dtype(dtype))
    if not places:
        return values.reshape(shape).copy()
    found = np.zeros(shape, values.dtype)
    found.reshape(-1)[np.frombuffer(base64.b64decode(places[0]), "<u4")] = values
    return found


def _text(values: NDArray[Any]) -> str:
    return base64.b64encode(values.tobytes()).decode()
