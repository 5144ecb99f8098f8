"""File format of network weights: a sealed file (``sealed.py``) whose body is plain little-endian arrays.

The head's ``kind`` names the reader. ``arrays`` lists the arrays in the body's order as
{"name", "dtype": "<f4" | "<f8", "shape"}; other keys belong to the reader. The same model gives the same bytes.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tocsin.models.sealed import refuse, seal, unseal
from tocsin.schemas.reasons import ModelRefusal

MAGIC = b"TCWTS"
FORMAT_VERSION = 1
_DTYPES = ("<f4", "<f8")
_MAX_WEIGHTS = 1 << 24
"""Most elements of one array; a damaged head must not ask for gigabytes."""


def write_weights(kind: str, head: Mapping[str, Any], arrays: Mapping[str, NDArray[Any]]) -> bytes:
    """Return a file of named arrays.

    Args:
        kind: format word of the reader, e.g. ``bilstm_ocnn/1``.
        head: further JSON values of the head.
        arrays: float32 or float64, written in this order.

    Raises:
        ValueError: an array is of another type.
    """
    plain = {name: np.ascontiguousarray(values, values.dtype.newbyteorder("<")) for name, values in arrays.items()}
    listed = [{"name": n, "dtype": v.dtype.str, "shape": list(v.shape)} for n, v in plain.items()]
    for entry in listed:
        if entry["dtype"] not in _DTYPES:
            raise ValueError(f"array {entry['name']} is {entry['dtype']}: must be float32 or float64")
    body = b"".join(values.tobytes() for values in plain.values())
    return seal(MAGIC, FORMAT_VERSION, {**head, "kind": kind, "arrays": listed}, body)


def read_weights(kind: str, payload: bytes) -> tuple[dict[str, Any], dict[str, NDArray[Any]]]:
    """Read a file of ``write_weights`` and return its head and its arrays by name.

    Args:
        kind: the kind that the file must be of.
        payload: the whole file.

    Raises:
        ModelRefusedError: the file is of another kind, damaged, too short or too long, or holds a weight that is not
            finite.
    """
    sealed, body = unseal(payload, MAGIC, FORMAT_VERSION)
    head, at = dict(sealed), 0
    if head.get("kind") != kind:
        refuse(ModelRefusal.UNKNOWN_FORMAT, f"kind = {head.get('kind')!r}: must be {kind!r}")
    listed = head.pop("arrays", None)
    if not isinstance(listed, list):
        refuse(ModelRefusal.MODEL_UNDECODABLE, "the head lists no arrays")
    arrays: dict[str, NDArray[Any]] = {}
    for entry in listed:
        name, dtype, shape = _entry(entry)
        size = math.prod(shape) * dtype.itemsize
        if at + size > len(body):
            refuse(
                ModelRefusal.MODEL_UNDECODABLE, f"array {name}: cut short, {len(body) - at} of {size} bytes are left"
            )
        values = np.frombuffer(body, dtype, math.prod(shape), at).reshape(shape)
        if not np.isfinite(values).all():
            refuse(ModelRefusal.MODEL_UNDECODABLE, f"array {name}: holds a weight that is no number")
        arrays[name] = values.astype(dtype.newbyteorder("="))
        at += size
    if at != len(body):
        refuse(ModelRefusal.MODEL_UNDECODABLE, f"{len(body) - at} bytes after the last array")
    return head, arrays


def _entry(entry: Any) -> tuple[str, np.dtype[Any], list[int]]:
    """Return (name, dtype, shape) of one entry of the list of arrays; refuse an invalid one."""
    if not isinstance(entry, dict) or not isinstance(entry.get("name"), str) or entry.get("dtype") not in _DTYPES:
        refuse(
            ModelRefusal.MODEL_UNDECODABLE,
            f"array {str(entry)[:80]}: must have a name and a dtype of {' '.join(_DTYPES)}",
        )
    shape = entry.get("shape")
    whole = isinstance(shape, list) and all(isinstance(n, int) and not isinstance(n, bool) and n >= 0 for n in shape)
    if not isinstance(shape, list) or not whole or math.prod(shape) > _MAX_WEIGHTS:
        refuse(ModelRefusal.MODEL_UNDECODABLE, f"array {entry['name']}: shape {str(shape)[:80]} may not be")
    return entry["name"], np.dtype(entry["dtype"]), shape
