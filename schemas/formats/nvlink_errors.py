"""Decoding of the registers in NVLink error lines: XID 74 (up to Hopper), XID 144 to 150 (since Blackwell)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from tocsin.schemas.formats._nvlink5_table import DECODE

_HARDWARE_74: Final = (0x1163_1330, 0, 0x0000_0047, 0, 0x1B6C_0000)
"""Per register, a mask of the bits that the catalogue calls likely or possible hardware trouble: 4 5 8 9 12 16 17 21 22
24 28 of the first, 0 1 2 6 of the third, 18 19 21 22 24 25 27 28 of the fifth."""
_ELSEWHERE: Final = ("INVESTIGATE_SW", "INVESTIGATE_PEER", "INVESTIGATE_HOST", "CHECK_NVLINK_FAILURE", "IGNORE")
"""Beginnings of investigations that do not point at this machine's hardware."""


@dataclass(frozen=True, slots=True)
class NvlinkInfo:
    """Contents of a kernel line besides an NVLink XID.

    Attributes:
        registers: the hexadecimal numbers in brackets, in order; empty if unknown.
        severity: the line's own word (``fatal``, ``nonfatal``), "" if not given.
    """

    registers: tuple[int, ...] = ()
    severity: str = ""


@dataclass(frozen=True, slots=True)
class NvlinkDecoded:
    """Entry of the catalogue for the registers of an NVLink error.

    Attributes:
        unit: the part of NVLink that raised the error.
        action_bucket: the immediate action.
        investigation: the investigatory action.
        is_fatal: whether the GPU or the link is unusable until it is reset.
        accuses: whether the error is in this machine's hardware.
    """

    unit: str
    action_bucket: str
    investigation: str
    is_fatal: bool
    accuses: bool


def decode_nvlink5(code: int, registers: Sequence[int]) -> NvlinkDecoded | None:
    """Decode XID 144 to 150 by IntrInfo and ErrorStatus; None if the catalogue has no such row.

    IntrInfo itself shows whether the driver is older than R575: no unit's old number is another unit's new one
    under the same XID.

    >>> decode_nvlink5(149, (0x025525C6, 0)).investigation
    'INVESTIGATE_PEER_DEVICE'
    >>> decode_nvlink5(145, (0x00000004, 0x40)).accuses
    True
    """
    if len(registers) < 2:
        return None
    info, status = registers[0], registers[1]
    reason = info >> 20 & 0x3F
    for xid, unit, old, new, why, wanted, action, investigation, severity, promotes in DECODE:
        is_old = info & 0x3FF == old
        if xid != code or not (is_old or info & 0x7F == new) or why != reason or wanted not in {-1, status}:
            continue
        fatal = severity != "Non-fatal"
        if promotes and info & (0x400 if is_old else 0x80):
            action, fatal = "RESET_GPU", True  # noqa: PLW2901  # the catalogue's "Action 2" takes its place
        accuses = action == "RESET_GPU" and not investigation.startswith(_ELSEWHERE)
        return NvlinkDecoded(unit, action, investigation, fatal, accuses)
    return None


def decode_nvlink4(registers: Sequence[int]) -> NvlinkDecoded | None:
    """Decode XID 74 by its registers; None without registers.

    >>> decode_nvlink4((0, 0, 0x10000, 0, 0, 0, 0)).accuses  # "if seen repeatedly"
    False
    >>> decode_nvlink4((0x10, 0, 0, 0, 0, 0, 0)).accuses
    True
    """
    if not registers:
        return None
    hardware = any(found & mask for found, mask in zip(registers, _HARDWARE_74, strict=False))
    investigation = "CONTACT_SUPPORT" if hardware else "IGNORE (sympathetic)"
    return NvlinkDecoded("NVLINK", "WORKFLOW_NVLINK_ERR", investigation, hardware, hardware)
