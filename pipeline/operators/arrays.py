"""Numpy arrays in an operator's JSON state."""

from __future__ import annotations

import base64
from typing import Any

import numpy as np
from numpy.typing import NDArray


def array_state(values: NDArray[Any]) -> list[Any]:
    """[dtype, shape, base64 of the little-endian bytes]."""
    plain = np.ascontiguousarray(values)
    plain = plain.astype(plain.dtype.newbyteorder("<"), copy=False)
    return [plain.dtype.str, list(plain.shape), base64.b64encode(plain.tobytes()).decode()]


def array_from(state: list[Any]) -> NDArray[Any]:
    """Take back what ``array_state`` gave."""
    dtype, shape, text = state
    return np.frombuffer(base64.b64decode(text), np.dtype(dtype)).reshape(shape).copy()
