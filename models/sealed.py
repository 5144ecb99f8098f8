"""Sealed files: a JSON head and a body of plain bytes under one hash; nothing is unpickled, nothing can be executed.

Layout: magic (5 bytes), format number, length of the head (uint32, little-endian), SHA-256 of all that
follows, head, body.
"""

from __future__ import annotations

import hashlib
import json
import struct
from collections.abc import Mapping
from typing import Any, Final, NoReturn

from tocsin.schemas.errors import ModelRefusedError
from tocsin.schemas.reasons import ModelRefusal

FIXED: Final = struct.Struct("<5sBI32s")


def seal(magic: bytes, version: int, head: Mapping[str, Any], body: bytes) -> bytes:
    """Return a file of this head and body; the same content always gives the same bytes.

    Args:
        magic: five bytes that identify the kind of file.
        version: format number.
        head: JSON values.
        body: plain bytes.
    """
    text = json.dumps(head, sort_keys=True, separators=(",", ":")).encode()
    return FIXED.pack(magic, version, len(text), hashlib.sha256(text + body).digest()) + text + body


def unseal(data: bytes, magic: bytes, newest: int) -> tuple[Mapping[str, Any], bytes]:
    """Check a file of ``seal`` and return its (head, body).

    Args:
        data: the whole file.
        magic: the five bytes that it must begin with.
        newest: newest format number that this program reads.

    Raises:
        ModelRefusedError: the file is of another kind, cut short, damaged, or of a newer format.
    """
    if len(data) < FIXED.size:
        refuse(ModelRefusal.MODEL_UNDECODABLE, f"{len(data)} bytes: must be {FIXED.size} at least (cut short?)")
    found, version, length, digest = FIXED.unpack_from(data)
    if found != magic:
        refuse(ModelRefusal.MODEL_UNDECODABLE, f"it begins with {found!r}: must be {magic!r}")
    if version < 1:
        refuse(ModelRefusal.MODEL_UNDECODABLE, f"format {version}: must be 1 to {newest}")
    if version > newest:
        refuse(ModelRefusal.NEWER_FORMAT, f"format {version}: this program reads {newest} at most")
    end = FIXED.size + length
    if len(data) < end:
        refuse(ModelRefusal.MODEL_UNDECODABLE, f"{len(data)} bytes, its head alone has {end} (cut short?)")
    if hashlib.sha256(data[FIXED.size :]).digest() != digest:
        text = f"the SHA-256 of its {len(data)} bytes is not the one it was written with: damaged, or cut short"
        refuse(ModelRefusal.HASH_MISMATCH, text)
    try:
        head = json.loads(data[FIXED.size : end])
    except (ValueError, RecursionError) as error:
        refuse(ModelRefusal.MODEL_UNDECODABLE, f"its head is no JSON: {error}")
    if not isinstance(head, dict):
        refuse(ModelRefusal.MODEL_UNDECODABLE, f"its head is a {type(head).__name__}: must be an object")
    return head, data[end:]


def refuse(reason: ModelRefusal, text: str) -> NoReturn:
    """Raise ``ModelRefusedError`` with this reason and the sentence "model file: ..."."""
    raise ModelRefusedError(reason.value, f"model file: {text}")
