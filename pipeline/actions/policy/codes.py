"""What a verdict rests on: codes of NVIDIA's tables, or nothing but words of a user's program.

Tables: the XID catalogue (``schemas.formats.xid``) and the actions of DCGM's errors (``schemas.formats.dcgm_errors``).
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Final

from tocsin.schemas import events
from tocsin.schemas.formats.dcgm_errors import action_of_error, errors_in
from tocsin.schemas.formats.nvlink_errors import NvlinkInfo
from tocsin.schemas.formats.xid import UNKNOWN_BUCKET, meaning_of_sxid, meaning_of_xid
from tocsin.schemas.hardware import HARDWARE_EVENTS
from tocsin.schemas.verdicts import Evidence, Verdict, WitnessKind

CODE_ACTIONS: Final = {
    "IGNORE": 0,
    "NONE": 0,
    "WORKFLOW_XID_45": 0,
    UNKNOWN_BUCKET: 1,
    "CONTACT_SUPPORT": 1,
    "CHECK_UVM": 1,
    "UPDATE_SWFW": 1,
    "RESTART_APP": 2,
    "CHECK_MECHANICALS": 3,
    "COMPONENT_RESET": 3,
    "DRAIN_AND_RESET": 3,
    "DRAIN_P2P": 3,
    "RECOVER_IMEX": 3,
    "RESET_BUS": 3,
    "RESET_GPU": 3,
    "RESTART_BM": 3,
    "RESTART_VM": 3,
    "WORKFLOW_XID_48": 3,
}
"""Action of NVIDIA's tables -> how much it says: 0 nothing, 1 nothing that a program may act on, 2 the application, 3
the hardware. Of several codes the one that says most counts."""
HARDWARE_RANK: Final = 3
"""Rank in ``CODE_ACTIONS`` from which a code is about the hardware."""
_CODE: Final = re.compile(r"(?<![a-z])(s?xid)(?:\s*\(pci[^)]*\))?[\s:=#_]*(\d{1,9})(?!\d)", re.IGNORECASE)
_STATED: Final = re.compile(r"\(([A-Z_0-9]+)\)\s*$")
"""Action at the end of an evidence's sentence, which was found with the registers of the kernel's line."""
_NEEDS_CONTEXT: Final = frozenset({74, 154, *range(144, 151)})
"""XIDs whose action depends on more than the code."""
_FATAL: Final = re.compile(r"(?<!non)(?<!non-)\bfatal\b", re.IGNORECASE)
_WORDS_DETECTORS: Final = frozenset({"stop", "exit", "log", "logs", "stderr", "words", "last_words"})
_WORDS_METRICS: Final = frozenset(
    {events.EXIT, events.NAN, "log", "logs", "log_text", "stderr", "stderr_tail", "stdout", "words", "message"}
)
_DECIDER: Final = "decide"
"""Detector of the evidence that the incident stage adds about its own decision."""
_OWN_MACHINE: Final = (WitnessKind.HARDWARE_EVENT, WitnessKind.CHECK)


@dataclass(frozen=True, slots=True)
class FoundCode:
    """A code in an evidence or an event.

    Attributes:
        name: such as ``XID 79`` or ``DCGM_FR_NVLINK_DOWN``.
        action: what the table asks for, a key of ``CODE_ACTIONS``.
    """

    name: str
    action: str


_UNREADABLE: Final = FoundCode("a code that cannot be read", UNKNOWN_BUCKET)


def xid_code(code: int, text: str = "") -> FoundCode:
    """Return an XID with the catalogue's immediate action.

    Args:
        code: the XID.
        text: the sentence or kernel line that names it; it decides where the code alone does not.
    """
    stated = _STATED.search(text) if code in _NEEDS_CONTEXT else None
    if stated is not None and stated[1] in CODE_ACTIONS:
        return FoundCode(f"XID {code}", stated[1])
    severity = "fatal" if _FATAL.search(text) else "nonfatal" if "fatal" in text.lower() else ""
    found = meaning_of_xid(code, nvlink=NvlinkInfo((), severity))
    action = found.action_bucket
    if action not in CODE_ACTIONS:
        action = "RESET_GPU" if found.is_fatal and found.accuses else UNKNOWN_BUCKET
    return FoundCode(f"XID {code}", action)


def sxid_code(code: int, text: str = "") -> FoundCode:
    """Return an NVSwitch's SXID with the action that its severity in the text asks for."""
    found = meaning_of_sxid(code, severity="fatal" if _FATAL.search(text) else "")
    return FoundCode(f"SXID {code}", found.action_bucket)


def codes_in(text: str) -> tuple[FoundCode, ...]:
    """Return the codes that a text names, in order.

    >>> codes_in("n1: XID 13: Graphics Engine Exception (RESTART_APP)")
    (FoundCode(name='XID 13', action='RESTART_APP'),)
    """
    found = [
        sxid_code(int(number), text) if word.lower() == "sxid" else xid_code(int(number), text)
        for word, number in _CODE.findall(text)
    ]
    return (*found, *(FoundCode(name, action_of_error(name)) for name in errors_in(text)))


def strongest(codes: Iterable[FoundCode]) -> FoundCode | None:
    """Return the code that says most, the first of several; None: there is none."""
    return max(codes, key=lambda one: CODE_ACTIONS[one.action], default=None)


def is_words(evidence: Evidence) -> bool:
    """Return whether an evidence is what a user's program wrote or how it ended."""
    return evidence.detector in _WORDS_DETECTORS or evidence.metric in _WORDS_METRICS


def is_words_only(verdict: Verdict) -> bool:
    """Return whether nothing but words of a user's program tell of a fault; False without evidence.

    A hardware event or a failed check of a named machine is more than words.
    """
    said = [one for one in verdict.evidence if one.detector != _DECIDER]
    hosts = {one.component.name for one in verdict.suspects}
    has_own = any(one.host in hosts and one.kind in _OWN_MACHINE for one in verdict.witnesses)
    return bool(said) and not has_own and all(is_words(one) for one in said)


def words_of(verdict: Verdict) -> str:
    """Return the words of the user's program in a verdict's evidence, a line for each piece."""
    return "\n".join(one.text for one in verdict.evidence if is_words(one))


def code_of(verdict: Verdict, heard: Sequence[FoundCode] = ()) -> FoundCode | None:
    """Return the code on which a verdict rests; None: it rests on something else, too, or on no code.

    It rests on codes if an evidence of the hardware names one, and no evidence of the hardware is about another event.
    What a program wrote is no such evidence, and neither are steps and waiting peers: they show harm and no part.
    An evidence of an XID or SXID whose code cannot be read names an unknown one.

    Args:
        verdict: the verdict.
        heard: codes of its hosts' events about the time of its evidence, for evidence that names no code.
    """
    found: list[FoundCode] = []
    for one in verdict.evidence:
        if is_words(one) or one.detector == _DECIDER:
            continue
        codes = codes_in(f"{one.metric} {one.text}")
        if not codes and one.metric in (events.XID, events.SXID):
            codes = tuple(heard) or (_UNREADABLE,)
        if not codes and one.metric in HARDWARE_EVENTS:
            return None
        found += codes
    return strongest(found)
