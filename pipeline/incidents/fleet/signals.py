"""Hardware events and verdicts about a host, each as a signal that can be compared over the fleet."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

from tocsin.schemas import events
from tocsin.schemas.formats.xid import meaning_of_xid
from tocsin.schemas.hardware import cause_of_event
from tocsin.schemas.reasons import Reason
from tocsin.schemas.records import Event
from tocsin.schemas.verdicts import Verdict, WitnessKind

LINK_SIGNALS: Final = frozenset({events.IB_PORT, events.NET_LINK})
"""Signals that all hosts behind a switch give when the switch fails."""
_OFF_THE_BUS: Final = "RESTART_BM"
"""The catalogue's immediate action for what only a reboot ends."""
_STATES: Final = frozenset({events.IB_PORT, events.NVLINK_ERROR, events.GPU_RECOVERY})
"""Events that are sent when a state changes: a fault stands until the part is reported as well."""
_PART_KEYS: Final = ("uuid", "pci", "port", "device", "link")
_APPLICATION_XIDS: Final = frozenset({94})
"""Codes that accuse in a job and not on an idle host: the catalogue asks to restart the application, no more."""
_XID_TEXT: Final = re.compile(r"\bXID (\d{1,5})\b")
_DRIVER_WORDS: Final = frozenset({"DRIVER", "FIRMWARE", "GSP"})
"""Words of the catalogue's mnemonics for the driver; GSP is the processor on the GPU that runs most of it."""
_OWN_WORD: Final = frozenset({WitnessKind.HARDWARE_EVENT})


@dataclass(frozen=True, slots=True)
class Signal:
    """One report of a broken part.

    Attributes:
        host: the machine.
        name: what is reported, the same on all machines: ``xid:79``, ``gpu_lost``.
        cause: word of ``schemas.causes``.
        fault: value of ``FaultKind``.
        ts_ns: time of the report.
        text: one sentence for people.
        is_certain: whether one report is enough, because the fault does not pass by itself.
        accuses: whether it may accuse a machine by itself.
        part: the part, as far as the report names one.
        stands: whether it holds until the part is reported as well, and is not repeated meanwhile.
    """

    host: str
    name: str
    cause: str
    fault: str
    ts_ns: int
    text: str
    is_certain: bool
    accuses: bool
    part: str = ""
    stands: bool = False


def signal_of(event: Event) -> Signal | None:
    """Return what a hardware event reports; None: nothing, or nothing that could be a fault of hardware."""
    meaning = cause_of_event(event)
    if meaning is None or not meaning.cause or not meaning.accuses:
        return None
    name, code = event.name, event.payload.get("code")
    if name in (events.XID, events.SXID):
        name = f"{name}:{code}"
    stops = meaning.fault == "fail_stop" or meaning.cause == "nvlink_error"
    accuses = stops and not (event.name == events.XID and code in _APPLICATION_XIDS)
    is_certain = accuses and _is_certain(event.name, event.payload)
    stands = event.name in _STATES and (event.name == events.GPU_RECOVERY or "state" in event.payload)
    seen = event.host, name, meaning.cause, meaning.fault, event.ts_ns, meaning.text
    return Signal(*seen, is_certain, accuses, part_name(event), stands)


def part_name(event: Event) -> str:
    """Return the part that an event is about, as a text; "": it names none."""
    return " ".join(f"{key}={event.payload[key]}"[:100] for key in _PART_KEYS if key in event.payload)


def is_old(event: Event, now_ns: int, oldest_ns: int) -> bool:
    """Return whether an event happened before anybody looked, or is older than ``oldest_ns`` at its arrival."""
    return event.payload.get("at_start") is True or now_ns - event.ts_ns > oldest_ns


def signal_name_of(verdict: Verdict) -> str:
    """Return the name of the signal behind a verdict: that of its hardware event, else its cause."""
    for evidence in verdict.evidence:
        if evidence.detector != "hardware":
            continue
        found = _XID_TEXT.search(evidence.text)
        if evidence.metric == events.XID and found:
            return f"{events.XID}:{found[1]}"
        return evidence.metric
    return f"verdict:{verdict.cause}"


def names_driver(name: str) -> bool:
    """Return whether a signal's own words blame the GPU's driver or firmware: the mnemonic in NVIDIA's catalogue does.

    It needs no versions; where hosts tell theirs, ``versions`` finds what they have in common.
    """
    kind, _, code = name.partition(":")
    if kind != events.XID or not code.isdecimal():
        return False
    return not _DRIVER_WORDS.isdisjoint(meaning_of_xid(int(code)).name.split("_"))


def rests_on_own_word(verdict: Verdict) -> bool:
    """Return whether only the suspects' own reports speak for a verdict: no peer saw it, and no check failed."""
    kinds = {witness.kind for witness in verdict.witnesses}
    return verdict.reason == Reason.HARDWARE_EVENT.value and kinds <= _OWN_WORD


def _is_certain(name: str, payload: Mapping[str, Any]) -> bool:
    """Return whether only a reboot or a repair ends what is reported."""
    if name == events.GPU_LOST or (name == events.ROW_REMAP and payload.get("failure") is True):
        return True
    if name == events.SXID:
        return True  # only fatal ones accuse
    code, action = payload.get("code"), payload.get("recovery_action")
    if name == events.GPU_RECOVERY:
        code, action = 154, payload.get("action")
    if type(code) is not int:
        return False
    asked = action if type(action) is int else -1
    return meaning_of_xid(code, recovery_action=asked).action_bucket == _OFF_THE_BUS
