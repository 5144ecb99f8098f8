"""Meaning of XID and SXID codes: NVIDIA's catalogue, and the cause that each is evidence for.

A code *accuses* the machine where the catalogue's immediate action concerns the hardware (reset the GPU, reboot,
reseat), or where memory is broken. It does not accuse where the action is to restart the application or to ignore it.
It does not accuse either where the catalogue has no action, or the code is unknown or not used on the card's
architecture.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

from tocsin.schemas.formats._xid_table import UNUSED, XIDS
from tocsin.schemas.formats.nvlink_errors import (
    NvlinkDecoded,
    NvlinkInfo,
    decode_nvlink4,
    decode_nvlink5,
)
from tocsin.schemas.kinds import Severity

UNKNOWN_BUCKET: Final = "UNKNOWN"
_ARCHITECTURES: Final = {
    "ampere": "A",
    "a100": "A",
    "hopper": "H",
    "h100": "H",
    "h200": "H",
    "blackwell": "BG",
    "b100": "B",
    "b200": "B",
    "gb200": "G",
}
_MEMORY: Final = frozenset({48, 63, 64, 92, 94, 95, 140, 156, 157, 160, 161, 168, 171, 172})
_NVLINK: Final = frozenset({74, 136, *range(144, 151), 155})
_EXECUTION: Final = frozenset({46, 62, 109, 110, 119, 120, 143, 151, 158})
_CARD: Final = frozenset({79})
_KERNEL: Final = frozenset({13, 31, 43})
"""Codes of a failed CUDA kernel or its memory access. Mostly the program's fault, so they accuse no machine by
themselves."""
_POWER: Final = frozenset({54})
_HARDWARE_BUCKETS: Final = frozenset({"RESET_GPU", "RESTART_BM", "RESTART_VM", "CHECK_MECHANICALS"})
_ACCUSES_ANYWAY: Final = frozenset({48, 94})
"""Codes that accuse although their immediate action does not concern the hardware.

48 (double-bit ECC) has a workflow that ends in a reset or in field diagnostics. After 94 (contained ECC) the
application is restarted and no reset is needed, but memory of this GPU failed and no user code causes that.
"""
_INTENDED: Final = frozenset({155})
"""Codes of link-down events that software asked for."""
_RECOVERY: Final = {
    0: ("IGNORE", "the driver asks for nothing"),
    1: ("RESET_GPU", "the driver asks for a GPU reset"),
    2: ("RESTART_BM", "the driver asks for a reboot of the node"),
    3: ("DRAIN_P2P", "the driver asks to drain peer-to-peer traffic"),
    4: ("DRAIN_AND_RESET", "the driver asks to drain and reset the GPU"),
    5: ("RECOVER_IMEX", "the driver asks to recover the IMEX domain"),
    6: ("RESET_BUS", "the driver asks for a bus reset"),
    7: ("RESTART_BM", "the driver asks for a reboot of the system"),
}
RECOVERY_ACTION_CODES: Final = frozenset(_RECOVERY)


@dataclass(frozen=True, slots=True)
class XidMeaning:
    """The meaning of one XID or SXID code.

    Attributes:
        code: the XID or SXID.
        name: the catalogue's mnemonic, ``UNKNOWN`` if not in the catalogue.
        cause: word of ``schemas.causes`` that it is evidence for, "" for none.
        is_fatal: whether the GPU (or link) does not work until it is reset or replaced.
        accuses: whether the code alone is enough to blame the machine.
        meaning: one sentence for people.
        action_bucket: the catalogue's immediate action.
    """

    code: int
    name: str
    cause: str
    is_fatal: bool
    accuses: bool
    meaning: str
    action_bucket: str


_BY_CODE: Final = {row[0]: row for row in XIDS}


def meaning_of_xid(
    code: int,
    *,
    nvlink: NvlinkInfo | None = None,
    recovery_action: int = -1,
    architecture: str = "",
) -> XidMeaning:
    """Return the meaning of an XID.

    Args:
        code: the XID.
        nvlink: further content of the line of XID 74 and 144 to 150.
        recovery_action: new recovery action of XID 154 (NVML's number), -1 if unknown.
        architecture: ``ampere``, ``hopper``, ``blackwell`` or a card's name; "" or any other for unknown.
    """
    row = _BY_CODE.get(code)
    if row is None:
        text = "no present product raises it" if code in UNUSED else "not in the catalogue"
        bucket = "CONTACT_SUPPORT" if code in UNUSED else UNKNOWN_BUCKET
        return XidMeaning(code, "UNKNOWN", "", is_fatal=False, accuses=False, meaning=text, action_bucket=bucket)
    _, bucket, known_to, name, text = row
    letters = _ARCHITECTURES.get(architecture.lower(), "")
    if letters and not set(letters) & set(known_to):
        text = f"{text} (not a code of {architecture})"
        return XidMeaning(code, name, "", is_fatal=False, accuses=False, meaning=text, action_bucket=UNKNOWN_BUCKET)
    if code == 154:
        return _recovery(name, text, recovery_action)
    if code == 74 or 144 <= code <= 150:
        return _nvlink(code, name, text, bucket, nvlink or NvlinkInfo())
    fatal = bucket in _HARDWARE_BUCKETS or code == 48
    accuses = (bucket in _HARDWARE_BUCKETS or code in _ACCUSES_ANYWAY) and code not in _INTENDED
    return XidMeaning(code, name, _cause(code), fatal and code != 54, accuses, text, bucket or UNKNOWN_BUCKET)


def meaning_of_sxid(code: int, *, severity: str = "") -> XidMeaning:
    """Return the meaning of an NVSwitch's SXID, by the severity in its line.

    The catalogue has no table of SXIDs.

    Args:
        code: the SXID.
        severity: the line's word (``Fatal``, ``Non-fatal``); "" or any other: not given, accuses nobody.
    """
    fatal = severity.lower() == "fatal"
    text = f"NVSwitch error {code}, {severity.lower() or 'severity not said'}"
    bucket = "RESET_GPU" if fatal else UNKNOWN_BUCKET
    return XidMeaning(code, "SXID", "nvlink_error", fatal, fatal, text, bucket)


def severity_of(meaning: XidMeaning) -> Severity:
    """Return the severity of an event with this code: fatal, error if the code accuses, else warning."""
    return Severity.FATAL if meaning.is_fatal else Severity.ERROR if meaning.accuses else Severity.WARNING


def nvlink_of_payload(payload: Mapping[str, Any]) -> NvlinkInfo:
    """Return registers and severity of an NVLink line from an ``xid`` event's payload.

    Invalid values count as absent.
    """
    registers, severity = payload.get("registers"), payload.get("severity")
    if not isinstance(registers, list | tuple) or not all(type(item) is int and item >= 0 for item in registers):
        registers = ()
    return NvlinkInfo(tuple(registers[:8]), severity.lower() if isinstance(severity, str) else "")


def _cause(code: int) -> str:
    """Return the cause that a code is evidence for, "" for none."""
    for codes, cause in (
        (_MEMORY, "ecc_error"),
        (_NVLINK, "nvlink_error"),
        (_EXECUTION, "gpu_execution_error"),
        (_CARD, "gpu_card_drop"),
        (_KERNEL, "cuda_execution_error"),
        (_POWER, "power_cap"),
    ):
        if code in codes:
            return cause
    return ""


def _recovery(name: str, text: str, action: int) -> XidMeaning:
    """Return the meaning of XID 154, which repeats the recovery action that the driver asks for after other XIDs."""
    bucket, asked = _RECOVERY.get(action, (UNKNOWN_BUCKET, "the driver's request is not known"))
    asks = action > 0 and action in _RECOVERY
    return XidMeaning(154, name, "unknown" if asks else "", asks, asks, f"{text}: {asked}", bucket)


def _nvlink(code: int, name: str, text: str, bucket: str, info: NvlinkInfo) -> XidMeaning:
    """Return the meaning of an NVLink XID, decoded by its registers if possible, else by the line's severity."""
    decoded: NvlinkDecoded | None
    decoded = decode_nvlink4(info.registers) if code == 74 else decode_nvlink5(code, info.registers)
    if decoded is None:
        # 74 exists on links up to Hopper only, where it says "fatal" or nothing; most of 144 to 150 is harmless.
        fatal = info.severity == "fatal" or (code == 74 and not info.severity)
        return XidMeaning(code, name, "nvlink_error", fatal, fatal, text, bucket)
    text = f"{text}: {decoded.unit}, investigate: {decoded.investigation}"
    fatal = decoded.is_fatal or (code == 74 and info.severity == "fatal")
    return XidMeaning(code, name, "nvlink_error", fatal, decoded.accuses, text, decoded.action_bucket)
