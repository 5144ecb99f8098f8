"""Weights of a network as bytes: a JSON head, then plain little-endian arrays. Reading runs no code.

Layout: 8 bytes ``TOCSINW1``, length of the head (uint32, little-endian), the head (UTF-8 JSON object), then
the arrays one after the other, in the order that the head lists them. The head's ``kind`` names who reads
it, ``arrays`` is a list of {"name", "dtype": "<f4" | "<f8", "shape"}; the rest is the reader's own.
The same model gives the same bytes.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from typing import Any, NoReturn

import numpy as np
from numpy.typing import NDArray

from tocsin.schemas.errors import ModelRefusedError, SchemaError
from tocsin.schemas.reasons import ModelRefusal
from tocsin.schemas.validate import load_json

MAGIC = b"TOCSINW1"
_DTYPES = ("<f4", "<f8")
_MAX_HEAD_BYTES = 1 << 20
_MAX_WEIGHTS = 1 << 24
"""A model of kilobytes does not ask for gigabytes: a head that does is damaged."""


def write_weights(kind: str, head: Mapping[str, Any], arrays: Mapping[str, NDArray[Any]]) -> bytes:
    """Return a model's bytes.

    Args:
        kind: who reads it, e.g. ``bilstm_ocnn/1``.
        head: JSON values.
        arrays: float32 or float64, in this order.
    """
    plain = {name: np.ascontiguousarray(values, values.dtype.newbyteorder("<")) for name, values in arrays.items()}
    listed = [{"name": n, "dtype": v.dtype.str, "shape": list(v.shape)} for n, v in plain.items()]
    for entry in listed:
        if entry["dtype"] not in _DTYPES:
            raise ValueError(f"array {entry['name']} is {entry['dtype']}: must be float32 or float64")
    body = json.dumps({**head, "kind": kind, "arrays": listed}, sort_keys=True, separators=(",", ":")).encode()
    return b"".join([MAGIC, len(body).to_bytes(4, "little"), body, *(values.tobytes() for values in plain.values())])


def read_weights(kind: str, payload: bytes) -> tuple[dict[str, Any], dict[str, NDArray[Any]]]:
    """Return the head and the arrays.

    Raises:
        ModelRefusedError: other bytes, another kind, cut short or too long, or a weight that is no number.
    """
    head, at = _head(payload)
    if head.get("kind") != kind:
        _refuse(f"kind = {head.get('kind')!r}: must be {kind!r}", ModelRefusal.UNKNOWN_FORMAT)
    listed = head.pop("arrays", None)
    if not isinstance(listed, list):
        _refuse("the head lists no arrays")
    arrays: dict[str, NDArray[Any]] = {}
    for entry in listed:
        name, dtype, shape = _entry(entry)
        size = math.prod(shape) * dtype.itemsize
        if at + size > len(payload):
            _refuse(f"array {name}: cut short, {len(payload) - at} of {size} bytes are left")
        values = np.frombuffer(payload, dtype, math.prod(shape), at).reshape(shape)
        if not np.isfinite(values).all():
            _refuse(f"array {name}: holds a weight that is no number")
        arrays[name] = values.astype(dtype.newbyteorder("="))
        at += size
    if at != len(payload):
        _refuse(f"{len(payload) - at} bytes after the last array")
    return head, arrays


def _head(payload: bytes) -> tuple[dict[str, Any], int]:
    if payload[: len(MAGIC)] != MAGIC:
        _refuse(f"begins with {payload[: len(MAGIC)]!r}: must be {MAGIC!r}")
    begin = len(MAGIC) + 4
    size = int.from_bytes(payload[len(MAGIC) : begin], "little")
    if len(payload) < begin + size or not 2 <= size <= _MAX_HEAD_BYTES:
        _refuse(f"head of {size} bytes in a file of {len(payload)}: cut short or damaged")
    try:
        head = load_json(payload[begin : begin + size], "model head")
    except SchemaError as error:
        raise ModelRefusedError(ModelRefusal.MODEL_UNDECODABLE.value, str(error)) from error
    if not isinstance(head, dict):
        _refuse("the head is no JSON object")
    return head, begin + size


def _entry(entry: Any) -> tuple[str, np.dtype[Any], list[int]]:
    if not isinstance(entry, dict) or not isinstance(entry.get("name"), str) or entry.get("dtype") not in _DTYPES:
        _refuse(f"array {str(entry)[:80]}: must have a name and a dtype of {' '.join(_DTYPES)}")
    shape = entry.get("shape")
    whole = isinstance(shape, list) and all(isinstance(n, int) and not isinstance(n, bool) and n >= 0 for n in shape)
    if not isinstance(shape, list) or not whole or math.prod(shape) > _MAX_WEIGHTS:
        _refuse(f"array {entry['name']}: shape {str(shape)[:80]} may not be")
    return entry["name"], np.dtype(entry["dtype"]), shape


def _refuse(text: str, reason: ModelRefusal = ModelRefusal.MODEL_UNDECODABLE) -> NoReturn:
    raise ModelRefusedError(reason.value, text)
