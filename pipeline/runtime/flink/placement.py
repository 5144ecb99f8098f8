"""Compute which Flink slot processes a job.

Flink hashes a key to a key group and gives each slot a range of groups. A few large jobs may fall into one slot while
another is idle; only another number of slots changes that.
"""

from __future__ import annotations

from typing import Final

_MASK: Final = 0xFFFFFFFF
_MIN_GROUPS, _MAX_GROUPS = 128, 32_768


def slot_of(job: str, slot_count: int) -> int:
    """Return the slot of a job, from 0.

    Args:
        job: ``CLUSTER/JOB``.
        slot_count: number of slots of the running Flink job (``--parallelism``).
    """
    groups = group_count(slot_count)
    return _murmur(_java_hash(job)) % groups * slot_count // groups


def group_count(slot_count: int) -> int:
    """Return Flink's default number of key groups.

    1.5 times the slots, rounded up to a power of two, from 128 to 32,768.
    """
    wanted = slot_count + slot_count // 2
    return min(max(1 << (wanted - 1).bit_length(), _MIN_GROUPS), _MAX_GROUPS)


def _java_hash(text: str) -> int:
    """Return Java's ``String.hashCode`` (over UTF-16 units) as an unsigned 32-bit number."""
    found, data = 0, text.encode("utf-16-be")
    for first in range(0, len(data), 2):
        found = (31 * found + int.from_bytes(data[first : first + 2], "big")) & _MASK
    return found


def _murmur(code: int) -> int:
    """Return Flink's ``MathUtils.murmurHash`` of one 32-bit word, which is not negative."""
    code = _rotated(code * 0xCC9E2D51 & _MASK, 15) * 0x1B873593 & _MASK
    code = (_rotated(code, 13) * 5 + 0xE6546B64) & _MASK
    code ^= 4
    code = (code ^ code >> 16) * 0x85EBCA6B & _MASK
    code = (code ^ code >> 13) * 0xC2B2AE35 & _MASK
    code ^= code >> 16
    if code < 1 << 31:
        return code
    return 0 if code == 1 << 31 else (1 << 32) - code


def _rotated(code: int, by: int) -> int:
    """Rotate a 32-bit number to the left."""
    return (code << by | code >> (32 - by)) & _MASK
