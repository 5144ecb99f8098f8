"""Numpy arrays in an operator's state: JSON, and behind it the arrays' bytes as they are.

As JSON's own numbers or as base64 the arrays of 80,000 ranks take seconds to write; as bytes they take milliseconds.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

_SPARSE_FACTOR = 4
"""A place takes as much room as a value or half of it: fewer than a quarter must be other than zero."""
_END: Final = b"\n"
"""Ends the JSON, which holds none."""
_KEY: Final = "@"


def array_state(values: NDArray[Any]) -> list[Any]:
    """[dtype, shape, its values in a row], where most are zeros [..., the others' bits, their places].

    A large job's evidence is zero for nearly all machines. For ``dump_state``: no copy, where there need be none.
    """
    plain = np.ascontiguousarray(values)
    plain = plain.astype(plain.dtype.newbyteorder("<"), copy=False)
    # by their bits: -0.0 is kept
    bits = plain.reshape(-1).view(f"u{plain.dtype.itemsize}")
    places = np.flatnonzero(bits)
    if places.size * _SPARSE_FACTOR >= bits.size:
        return [plain.dtype.str, list(plain.shape), bits]
    return [plain.dtype.str, list(plain.shape), bits[places], places.astype("<u4")]


def array_from(state: list[Any]) -> NDArray[Any]:
    """Take back what ``array_state`` gave."""
    dtype, shape, bits, *places = state
    values: NDArray[Any] = np.ascontiguousarray(bits).view(np.dtype(dtype))
    if not places:
        return values.reshape(shape).copy()
    found = np.zeros(shape, values.dtype)
    found.reshape(-1)[places[0]] = values
    return found


def arrays_state(owner: object, names: Iterable[str], prefix: str = "") -> dict[str, list[Any]]:
    """Return arrays that are attributes of an object, by name.

    Args:
        owner: whose attributes they are.
        names: of the arrays.
        prefix: what an attribute's name has before that, e.g. ``_``.
    """
    return {name: array_state(getattr(owner, prefix + name)) for name in names}


def arrays_from(owner: object, state: Mapping[str, Any], names: Iterable[str], prefix: str = "") -> None:
    """Set the arrays of an object to what ``arrays_state`` gave. Arguments as there."""
    for name in names:
        setattr(owner, prefix + name, array_from(state[name]))


def named_arrays_state(values: Mapping[str, NDArray[Any]]) -> list[list[Any]]:
    """Return a map of arrays as [[name, array], ...], its names ascending."""
    return [[name, array_state(values[name])] for name in sorted(values)]


def named_arrays_from(state: Iterable[Sequence[Any]]) -> dict[str, NDArray[Any]]:
    """Take back what ``named_arrays_state`` gave."""
    return {name: array_from(values) for name, values in state}


def map_state(values: Mapping[int, float], dtype: str) -> list[NDArray[Any]]:
    """Numbers by a whole number, as [keys ascending, values] of this dtype (``"<i8"``, ``"<f8"``)."""
    keys = np.fromiter(values.keys(), "<i8", len(values))
    order = np.argsort(keys, kind="stable")
    return [keys[order], np.fromiter(values.values(), dtype, len(values))[order]]


def map_from(state: list[NDArray[Any]]) -> dict[int, Any]:
    """Take back what ``map_state`` gave."""
    keys, values = state
    return dict(zip(keys.tolist(), values.tolist(), strict=True))


def dump_state(outer: Mapping[str, Any]) -> bytes:
    """Write a JSON-able object in which arrays may stand, canonically.

    Where an array stood the JSON has ``{KEY: [dtype, first byte, count]}``, with a key that nothing else in it has: a
    state may hold what a stranger sent.
    """
    key = _KEY
    while True:
        arrays: list[NDArray[Any]] = []
        text = json.dumps(
            {**outer, "key": key}, sort_keys=True, separators=(",", ":"), default=_shelf(arrays, key)
        ).encode()
        if text.count(f'{{"{key}":'.encode()) == len(arrays):
            return b"".join((text, _END, *(one.data for one in arrays))) if arrays else text
        key += _KEY


def _shelf(arrays: list[NDArray[Any]], key: str) -> Any:
    """What puts an array aside, and says where it lies."""
    first = 0

    def put(value: object) -> dict[str, list[Any]]:
        nonlocal first
        if not isinstance(value, np.ndarray):
            raise TypeError(f"{type(value).__name__} in a state")
        plain = np.ascontiguousarray(value)
        arrays.append(plain)
        told = [plain.dtype.str, first, plain.size]
        first += plain.nbytes
        return {key: told}

    return put


def load_state(data: bytes) -> dict[str, Any]:
    """Read what ``dump_state`` wrote; arrays come flat, and cannot be written to.

    Raises:
        ValueError: it is damaged.
        KeyError: so, too.
        TypeError: so, too.
    """
    end = data.find(_END)
    text, body = (data, 0) if end < 0 else (data[:end], end + len(_END))
    outer = json.loads(text)
    if body:
        key = outer["key"]

        def fetch(fields: dict[str, Any]) -> Any:
            if len(fields) != 1 or key not in fields:
                return fields
            dtype, first, count = fields[key]
            return np.frombuffer(data, np.dtype(dtype), count, body + first)

        outer = json.loads(text, object_hook=fetch)
    return dict(outer)
