"""Serialize operator state that contains numpy arrays: JSON first, then the raw bytes of the arrays.

Raw bytes take milliseconds for the arrays of 80,000 ranks; JSON numbers or base64 would take seconds.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

_SPARSE_FACTOR = 4
"""Store an array sparsely only when fewer than one in this many values is nonzero.

A stored index costs as much memory as a value, or half as much.
"""
_END: Final = b"\n"
"""Byte that separates the JSON text from the array bytes; the JSON text never contains it."""
_KEY: Final = "@"
"""Default key of the JSON object that replaces an array."""


def array_state(values: NDArray[Any]) -> list[Any]:
    """Return an array as a list of metadata and flat arrays that ``dump_state`` can write.

    Returns:
        ``[dtype, shape, bits]`` with the values as unsigned integers of the same width. Where most values are zero:
        ``[dtype, shape, bits of the nonzero values, their flat indexes]``. Values are not copied where that can be
        avoided.
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
    """Rebuild an array from the list that ``array_state`` returned; the result is a writable copy."""
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
    """Return a dict with integer keys as two arrays, ``[keys, values]``, sorted by key.

    Args:
        values: the dict.
        dtype: dtype of the values, such as ``"<i8"`` or ``"<f8"``.
    """
    keys = np.fromiter(values.keys(), "<i8", len(values))
    order = np.argsort(keys, kind="stable")
    return [keys[order], np.fromiter(values.values(), dtype, len(values))[order]]


def map_from(state: list[NDArray[Any]]) -> dict[int, Any]:
    """Rebuild the dict that ``map_state`` turned into two arrays."""
    keys, values = state
    return dict(zip(keys.tolist(), values.tolist(), strict=True))


def dump_state(outer: Mapping[str, Any]) -> bytes:
    """Serialize a JSON-able object that may contain numpy arrays; equal objects give equal bytes.

    Each array is replaced in the JSON by ``{KEY: [dtype, byte offset, count]}``. KEY is lengthened until no other key
    in the object equals it, because a state may contain text from untrusted senders.
    """
    key = _KEY
    while True:
        arrays: list[NDArray[Any]] = []
        text = json.dumps(
            {**outer, "key": key}, sort_keys=True, separators=(",", ":"), default=_array_collector(arrays, key)
        ).encode()
        if text.count(f'{{"{key}":'.encode()) == len(arrays):
            return b"".join((text, _END, *(one.data for one in arrays))) if arrays else text
        key += _KEY


def _array_collector(arrays: list[NDArray[Any]], key: str) -> Any:
    """Return a function that appends an array to ``arrays`` and returns its placeholder, for ``json.dumps``."""
    first = 0

    def put(value: object) -> dict[str, list[Any]]:
        nonlocal first
        if not isinstance(value, np.ndarray):
            raise TypeError(f"{type(value).__name__} in a state")
        plain = np.ascontiguousarray(value)
        arrays.append(plain)
        entry = [plain.dtype.str, first, plain.size]
        first += plain.nbytes
        return {key: entry}

    return put


def load_state(data: bytes) -> dict[str, Any]:
    """Return the object that ``dump_state`` serialized; its arrays are one-dimensional and read-only.

    Raises:
        ValueError: the bytes are damaged.
        KeyError: the bytes are damaged.
        TypeError: the bytes are damaged.
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
