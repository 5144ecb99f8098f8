"""Meaning of hardware events: a cause, a kind of fault, and whether the event alone may blame the machine.

This is the one table for all sources. Kernel, NVML, RDMA and others' recordings use the same event names, so it
does not matter which of them saw the event.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Final, Literal

from tocsin.schemas import events
from tocsin.schemas.formats.xid import meaning_of_sxid, meaning_of_xid, nvlink_of_payload
from tocsin.schemas.records import Event

HardwareFault = Literal["fail_stop", "fail_slow", "degraded"]


@dataclass(frozen=True, slots=True)
class HardwareMeaning:
    """Meaning of one event for hardware.

    Attributes:
        cause: word of ``schemas.causes``; "": the event is noted and is no evidence.
        fault: effect on a job, if it has any; ``degraded``: none as yet.
        accuses: whether the event alone may blame this machine. If False, it only explains what other evidence shows.
        text: one sentence for people.
    """

    cause: str
    fault: HardwareFault
    accuses: bool
    text: str


def cause_of_event(event: Event, architecture: str = "") -> HardwareMeaning | None:
    """Return what an event means for hardware; None if it means nothing or reports that all is well.

    Payloads come from outside (recordings, kernels): a field that is missing or of another type counts as unknown and
    never raises.

    Args:
        event: any event.
        architecture: architecture of the GPU (``hopper``, ``blackwell``), used where the payload has none.
    """
    read = _READERS.get(event.name)
    if read is None or not isinstance(event.payload, Mapping):
        return None
    payload = event.payload
    if event.name == events.XID and architecture and not _text(payload, "architecture"):
        payload = {**payload, "architecture": architecture}
    return read(payload)


def _xid(payload: Mapping[str, Any]) -> HardwareMeaning | None:
    """Return the meaning of an ``xid`` event's payload."""
    code = _int(payload, "code")
    if code < 0:
        return None
    found = meaning_of_xid(
        code,
        nvlink=nvlink_of_payload(payload),
        recovery_action=_int(payload, "recovery_action"),
        architecture=_text(payload, "architecture"),
    )
    fault: HardwareFault = "fail_stop" if found.is_fatal or code == 94 else "degraded"
    return HardwareMeaning(found.cause, fault, found.accuses, f"XID {code}: {found.meaning} ({found.action_bucket})")


def _sxid(payload: Mapping[str, Any]) -> HardwareMeaning | None:
    """Return the meaning of an ``sxid`` event's payload."""
    code = _int(payload, "code")
    if code < 0:
        return None
    found = meaning_of_sxid(code, severity=_text(payload, "severity"))
    return HardwareMeaning(found.cause, "fail_stop" if found.is_fatal else "degraded", found.accuses, found.meaning)


_MANY_CORRECTED = 8
"""Corrected errors in one event from which they count as evidence. Failing memory corrects dozens within seconds."""


def _ecc(payload: Mapping[str, Any]) -> HardwareMeaning | None:
    """Return the meaning of an ``ecc`` event's payload."""
    count = _int(payload, "count", 1)
    if count <= 0:
        return None
    where = "host memory" if _text(payload, "device") == "host_memory" else "GPU memory"
    if _text(payload, "kind") == "uncorrected":
        if payload.get("at_start") is True:  # since the driver was loaded, perhaps weeks ago
            text = f"{count} uncorrected errors of {where} before the agent came"
            return HardwareMeaning("ecc_error", "degraded", accuses=False, text=text)
        return HardwareMeaning("ecc_error", "fail_stop", accuses=True, text=f"{count} uncorrected errors of {where}")
    cause = "ecc_error" if count >= _MANY_CORRECTED else ""  # a few are corrected every day, and cost nothing
    return HardwareMeaning(cause, "degraded", accuses=False, text=f"{count} corrected errors of {where}")


def _row_remap(payload: Mapping[str, Any]) -> HardwareMeaning | None:
    """Return the meaning of a ``row_remap`` event's payload."""
    if payload.get("failure") is True:
        return HardwareMeaning("ecc_error", "fail_stop", accuses=True, text="GPU memory has no spare rows left")
    if payload.get("pending") is True:
        return HardwareMeaning("ecc_error", "degraded", accuses=False, text="a memory row is remapped at next reset")
    return None


def _nvlink_error(payload: Mapping[str, Any]) -> HardwareMeaning | None:
    """Return the meaning of an ``nvlink_error`` event's payload."""
    link = _int(payload, "link")
    which = f"link {link}" if link >= 0 else "a link"
    if _text(payload, "state") == "up":
        return None
    if _text(payload, "state") == "down":
        return HardwareMeaning("nvlink_error", "fail_slow", accuses=True, text=f"NVLink: {which} is down")
    kind = _text(payload, "kind") or "errors"
    # Replays and corrected CRCs happen on good links: they explain a slow GPU, they do not accuse it.
    harmless = kind in {"replay", "crc", "symbol"}
    return HardwareMeaning("nvlink_error", "fail_slow", accuses=not harmless, text=f"NVLink: {kind} on {which}")


def _pcie_link(payload: Mapping[str, Any]) -> HardwareMeaning | None:
    """Return the meaning of a ``pcie_link`` event's payload; None at full generation and width."""
    gen, width = _int(payload, "gen"), _int(payload, "width")
    max_gen, max_width = _int(payload, "max_gen"), _int(payload, "max_width")
    if not (0 <= gen < max_gen or 0 <= width < max_width):
        return None
    text = f"PCIe runs at generation {gen} x{width}, its slot can {max_gen} x{max_width}"
    return HardwareMeaning("pcie_downgrade", "fail_slow", accuses=True, text=text)


_CLOCK_REASONS: Final = (
    # the first that is there decides
    (("hw_thermal", "hw_thermal_slowdown"), "thermal_throttle", True, "the hardware slows the clocks: too hot"),
    (("sw_thermal", "sw_thermal_slowdown"), "thermal_throttle", True, "the driver slows the clocks: too hot"),
    (
        ("hw_power_brake", "hw_power_brake_slowdown", "power_brake"),
        "power_cap",
        True,
        "the power supply asks for less: power brake",
    ),
    (("hw_slowdown",), "unknown", True, "the hardware slows the clocks: heat or power"),
    # a GPU at full load stands at its power limit: only a comparison with peers makes it a fault
    (("sw_power_cap",), "power_cap", False, "the clocks are held by the power limit"),
)


def _clocks_event(payload: Mapping[str, Any]) -> HardwareMeaning | None:
    """Return the meaning of a ``clocks_event`` event's payload, by the most serious reason."""
    reasons = payload.get("reasons")
    if not isinstance(reasons, list | tuple):
        return None
    for names, cause, accuses, text in _CLOCK_REASONS:
        if any(name in reasons for name in names):
            return HardwareMeaning(cause, "fail_slow", accuses, text)
    return None


PORT_IS_UP: Final = frozenset({"", "active", "active_defer", "up", "linkup"})
"""States of a port that is up: the kernel's names and those of other collectors. To take "up" for a fault would evict a
healthy machine."""


def _ib_port(payload: Mapping[str, Any]) -> HardwareMeaning | None:
    """Return the meaning of an ``ib_port`` event's payload."""
    port, state = _text(payload, "port") or "a port", _text(payload, "state").lower()
    if state in PORT_IS_UP:
        rate, best = _number(payload, "rate_gbps"), _number(payload, "max_rate_gbps")
        if 0 < rate < best:
            text = f"{port} runs at {rate:g} Gb/s, it had {best:g}"
            return HardwareMeaning("aoc_error", "fail_slow", accuses=True, text=text)
        if _int(payload, "flaps", 0) > 0:
            text = f"the link of {port} went down and came back"
            return HardwareMeaning("nic_dropout", "degraded", accuses=False, text=text)
        if "flaps" not in payload and payload.get("at_start") is not True and _int(payload, "link_downed", 0) > 0:
            text = f"the link of {port} was down {_int(payload, 'link_downed')} times: its cable"
            return HardwareMeaning("aoc_error", "degraded", accuses=False, text=text)
        return None
    if payload.get("at_start") is True:  # it was so before anybody looked: often a port without a cable
        return HardwareMeaning("nic_dropout", "degraded", accuses=False, text=f"{port} is {state} since the start")
    return HardwareMeaning("nic_dropout", "fail_stop", accuses=True, text=f"{port} is {state}")


def _net_link(payload: Mapping[str, Any]) -> HardwareMeaning | None:
    """Return the meaning of a ``net_link`` event's payload."""
    device = _text(payload, "device") or _text(payload, "pci") or "an interface"
    state = _text(payload, "state")
    if state == "cable_error":
        return HardwareMeaning("aoc_error", "fail_stop", accuses=True, text=f"the cable of {device} does not work")
    if state == "down":
        # it may be the management network: it accuses where RDMA or the peers say the same
        return HardwareMeaning("nic_dropout", "fail_stop", accuses=False, text=f"link of {device} is down")
    return None


def _gpu_lost(payload: Mapping[str, Any]) -> HardwareMeaning:
    """Return the meaning of a ``gpu_lost`` event's payload."""
    name = _text(payload, "uuid") or _text(payload, "pci") or "a GPU"
    return HardwareMeaning("gpu_card_drop", "fail_stop", accuses=True, text=f"{name} fell off the bus")


def _gpu_recovery(payload: Mapping[str, Any]) -> HardwareMeaning | None:
    """Return the meaning of a ``gpu_recovery`` event's payload."""
    action = _int(payload, "action", 0)
    if action <= 0:
        return None
    found = meaning_of_xid(154, recovery_action=action)
    return HardwareMeaning(found.cause, "fail_stop" if found.accuses else "degraded", found.accuses, found.meaning)


def _oom(payload: Mapping[str, Any]) -> HardwareMeaning:
    """Return the meaning of an ``oom`` event's payload."""
    name = _text(payload, "process") or "a process"
    return HardwareMeaning("process_exit", "fail_stop", accuses=False, text=f"the kernel killed {name}: no memory")


def _segfault(payload: Mapping[str, Any]) -> HardwareMeaning:
    """Return the meaning of a ``segfault`` event's payload."""
    name = _text(payload, "process") or "a process"
    where = f" in {_text(payload, 'library')}" if _text(payload, "library") else ""
    return HardwareMeaning("process_exit", "fail_stop", accuses=False, text=f"{name} crashed{where}")


def _file_system(payload: Mapping[str, Any]) -> HardwareMeaning | None:
    """Return the meaning of a ``file_system`` event's payload."""
    kind, device = _text(payload, "kind"), _text(payload, "device") or "a file system"
    if kind in {"", "ok"}:
        return None
    words = kind.replace("_", " ")
    if payload.get("remote") is True:
        # whoever diagnoses looks first whether the other hosts say it too: then it is shared_service
        return HardwareMeaning("hdfs_error", "fail_slow", accuses=True, text=f"file server {device}: {words}")
    return HardwareMeaning("unknown", "fail_stop", accuses=True, text=f"local file system on {device}: {words}")


def _thermal(payload: Mapping[str, Any]) -> HardwareMeaning:
    """Return the meaning of a ``thermal`` event's payload."""
    device = _text(payload, "device") or "a part"
    return HardwareMeaning("thermal_throttle", "fail_slow", accuses=True, text=f"{device} is too hot")


def _pcie_error(payload: Mapping[str, Any]) -> HardwareMeaning:
    """Return the meaning of a ``pcie_error`` event's payload."""
    kind = _text(payload, "kind")
    text = f"PCIe {kind or 'error'} at {_text(payload, 'pci') or 'a device'}"
    if kind == "fatal":
        return HardwareMeaning("unknown", "fail_stop", accuses=True, text=text)
    return HardwareMeaning("", "degraded", accuses=False, text=text)


_READERS: Final[Mapping[str, Callable[[Mapping[str, Any]], HardwareMeaning | None]]] = {
    events.XID: _xid,
    events.SXID: _sxid,
    events.ECC: _ecc,
    events.ROW_REMAP: _row_remap,
    events.NVLINK_ERROR: _nvlink_error,
    events.PCIE_LINK: _pcie_link,
    events.CLOCKS_EVENT: _clocks_event,
    events.IB_PORT: _ib_port,
    events.NET_LINK: _net_link,
    events.GPU_LOST: _gpu_lost,
    events.GPU_RECOVERY: _gpu_recovery,
    events.OOM: _oom,
    events.SEGFAULT: _segfault,
    events.FILE_SYSTEM: _file_system,
    events.THERMAL: _thermal,
    events.PCIE_ERROR: _pcie_error,
}
HARDWARE_EVENTS: Final = frozenset(_READERS)
"""Names of the events that ``cause_of_event`` knows."""


def _text(payload: Mapping[str, Any], name: str) -> str:
    """Return a text field of a payload, cut to 200 characters; "" if missing or no text."""
    value = payload.get(name)
    return value[:200] if isinstance(value, str) else ""


def _int(payload: Mapping[str, Any], name: str, default: int = -1) -> int:
    """Return an integer field of a payload; ``default`` if missing or no whole number."""
    value = payload.get(name)
    return value if type(value) is int else int(value) if type(value) is float and value.is_integer() else default


def _number(payload: Mapping[str, Any], name: str) -> float:
    """Return a number field of a payload; 0.0 if missing or no number."""
    value = payload.get(name)
    return float(value) if isinstance(value, int | float) and abs(value) < 1e18 else 0.0
