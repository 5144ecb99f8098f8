"""Parser of hardware messages in the kernel's log: one line in, at most one finding out.

Understands records of ``/dev/kmsg``, ``dmesg`` with any of its time stamps, and lines of syslog.
Unknown lines give no finding.

>>> read_line("[ 1.5] NVRM: Xid (PCI:0000:17:00): 79, pid=7, name=x, GPU has fallen off the bus.").payload["code"]
79
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Final

from tocsin.schemas import events
from tocsin.schemas.formats.kmsg import strip_prefix
from tocsin.schemas.formats.pci import normal_pci
from tocsin.schemas.formats.xid import (
    meaning_of_sxid,
    meaning_of_xid,
    nvlink_of_payload,
    severity_of,
)
from tocsin.schemas.kinds import Severity

MAX_LINE_CHARACTERS: Final = 2_048
"""Longer lines are cut; the kernel's own lines have at most about 1,000 characters."""
_TEXT_CHARACTERS: Final = 300
"""Characters of the message that a payload keeps as ``text``."""


@dataclass(frozen=True, slots=True)
class KernelFinding:
    """A hardware message found in a line of the kernel's log.

    Attributes:
        name: event name (``schemas.events``).
        severity: severity of the event by itself.
        payload: payload of the event, with the beginning of the message as ``text``.
    """

    name: str
    severity: Severity
    payload: Mapping[str, Any]


def read_line(line: str) -> KernelFinding | None:
    """Return the hardware finding in a line of the kernel's log, None without one."""
    message = strip_prefix(line[:MAX_LINE_CHARACTERS].rstrip("\n"))
    for word, pattern, make in _KINDS:
        if word not in message:
            continue
        found = pattern.search(message)
        if found:
            finding = make(found)
            if finding is not None:
                payload = {**finding.payload, "text": message[:_TEXT_CHARACTERS]}
                return KernelFinding(finding.name, finding.severity, payload)
    return None


# --- the kinds -----------------------------------------------------------------------------------


def _xid(found: re.Match[str]) -> KernelFinding:
    """Build the finding of an NVIDIA XID line; for NVLink codes the payload has the line's registers."""
    rest = found["rest"]
    code = int(found["code"])
    payload: dict[str, Any] = {"code": code, "pci": normal_pci(found["pci"]) or found["pci"], "via": "kernel_log"}
    pid, name = _PID.search(rest), _NAME.search(rest)
    if pid:
        payload["pid"] = int(pid[1])
    if name and name[1] != "<unknown>":
        payload["process"] = name[1]
    if code == 74 or 144 <= code <= 150:
        payload.update(_nvlink_fields(rest))
    if code == 154:
        action = _ACTION.search(rest)
        if action:
            payload["recovery_action"] = int(action[1], 16)
    action_number = int(payload.get("recovery_action", -1))
    meaning = meaning_of_xid(code, nvlink=nvlink_of_payload(payload), recovery_action=action_number)
    return KernelFinding(events.XID, severity_of(meaning), payload)


def _nvlink_fields(rest: str) -> dict[str, Any]:
    """Return registers, severity, link and unit in the rest of an NVLink XID line, as far as they are there."""
    fields: dict[str, Any] = {}
    registers = _REGISTERS.search(rest)
    if registers:
        fields["registers"] = [int(word, 16) for word in _HEX.findall(registers[0])][:8]
    severity, link, unit = _NVLINK_SEVERITY.search(rest), _LINK.search(rest), _UNIT.match(rest)
    if severity:
        fields["severity"] = severity[1].lower().replace("-", "")
    if link:
        fields["link"] = int(link[1])
    if unit:
        fields["unit"] = unit[1]
    return fields


def _sxid(found: re.Match[str]) -> KernelFinding:
    """Build the finding of an NVSwitch SXID line."""
    code, rest = int(found["code"]), found["rest"]
    matched = _SXID_SEVERITY.search(rest)
    severity = matched[1].lower() if matched else ""
    payload: dict[str, Any] = {"code": code, "pci": normal_pci(found["pci"]), "severity": severity}
    link = _LINK.search(rest)
    if link:
        payload["link"] = int(link[1])
    fatal = meaning_of_sxid(code, severity=severity).is_fatal
    return KernelFinding(events.SXID, Severity.FATAL if fatal else Severity.WARNING, payload)


def _fabric_manager(found: re.Match[str]) -> KernelFinding:
    """Build the finding of an SXID line of the fabric manager."""
    fatal = found["severity"] == "fatal"
    payload: dict[str, Any] = {
        "code": int(found["code"]),
        "pci": normal_pci(found["pci"]),
        "severity": found["severity"],
        "link": int(found["port"]),
    }
    return KernelFinding(events.SXID, Severity.FATAL if fatal else Severity.WARNING, payload)


def _nvlink(found: re.Match[str]) -> KernelFinding:
    """Build the finding of an NVLink error line."""
    pci = _PCI_IN_TEXT.search(found.string)
    return KernelFinding(events.NVLINK_ERROR, Severity.ERROR, {"pci": normal_pci(pci[0]) if pci else "", "count": 1})


def _lost(found: re.Match[str]) -> KernelFinding:
    """Build the finding of a GPU that fell off the bus."""
    return KernelFinding(events.GPU_LOST, Severity.FATAL, {"pci": normal_pci(found["pci"])})


def _oom(found: re.Match[str]) -> KernelFinding:
    """Build the finding of a process that the out-of-memory killer ended."""
    payload = {"pid": int(found["pid"]), "process": found["process"], "cgroup": "cgroup" in found.string[: found.end()]}
    return KernelFinding(events.OOM, Severity.ERROR, payload)


def _segfault(found: re.Match[str]) -> KernelFinding:
    """Build the finding of a process that crashed by a segmentation fault."""
    library = re.search(r" in ([^\s\[]{1,200})\[", found["rest"])
    payload = {"pid": int(found["pid"]), "process": found["process"], "library": library[1] if library else ""}
    return KernelFinding(events.SEGFAULT, Severity.ERROR, payload)


def _edac(found: re.Match[str]) -> KernelFinding:
    """Build the finding of host memory errors reported by EDAC."""
    corrected = found["kind"] == "CE"
    payload = {"kind": "corrected" if corrected else "uncorrected", "count": int(found["count"])}
    return _host_ecc(payload)


def _memory_failure(found: re.Match[str]) -> KernelFinding:
    """Build the finding of an uncorrected host memory error."""
    del found
    return _host_ecc({"kind": "uncorrected", "count": 1})


def _host_ecc(payload: dict[str, Any]) -> KernelFinding:
    """Build the finding of host memory errors from their kind and count."""
    severity = Severity.WARNING if payload["kind"] == "corrected" else Severity.ERROR
    return KernelFinding(events.ECC, severity, {**payload, "device": "host_memory"})


def _thermal(found: re.Match[str]) -> KernelFinding:
    """Build the finding of a throttled CPU or package."""
    return KernelFinding(events.THERMAL, Severity.WARNING, {"device": found["device"].lower(), "critical": False})


def _thermal_zone(found: re.Match[str]) -> KernelFinding:
    """Build the finding of a thermal zone at its critical temperature."""
    return KernelFinding(events.THERMAL, Severity.FATAL, {"device": found["device"], "critical": True})


def _aer(found: re.Match[str]) -> KernelFinding:
    """Build the finding of a PCIe AER error."""
    matched = found["kind"].lower()
    kind = "corrected" if matched.startswith("correct") else "fatal" if "(fatal)" in matched else "non_fatal"
    severity = {"corrected": Severity.INFO, "non_fatal": Severity.WARNING, "fatal": Severity.ERROR}[kind]
    return KernelFinding(events.PCIE_ERROR, severity, {"pci": normal_pci(found["pci"]), "kind": kind})


def _port_module(found: re.Match[str]) -> KernelFinding | None:
    """Build the finding of an unplugged or faulty network cable; None for a plugged one."""
    what = found["what"].strip().lower()
    if what.startswith("cable plugged"):
        return None
    state = "down" if "unplugged" in what else "cable_error"
    payload = {"device": "", "pci": normal_pci(found["pci"]), "state": state}
    return KernelFinding(events.NET_LINK, Severity.ERROR, payload)


def _net_link(found: re.Match[str]) -> KernelFinding | None:
    """Build the finding of a network link that went up or down; None without an interface.

    The interface is the last word before ``link``; drivers write their name and PCI address before it.
    """
    words = found["words"].replace("(slave", "").replace(")", "").replace(":", ": ").split()
    pci = next((normal_pci(word) for word in found["words"].split() if normal_pci(word.rstrip(":"))), "")
    device = next((word.rstrip(":") for word in reversed(words) if word.rstrip(":") not in {"NIC", "Network"}), "")
    if device in {"SATA", ""}:
        return None
    down = found["state"].lower() == "down"
    payload = {"device": device, "pci": pci, "state": "down" if down else "up"}
    return KernelFinding(events.NET_LINK, Severity.ERROR if down else Severity.INFO, payload)


def _local_disk(kind: str) -> Callable[[re.Match[str]], KernelFinding]:
    """Return the builder of findings about a local disk or file system with this kind of error."""

    def make(found: re.Match[str]) -> KernelFinding:
        payload = {"kind": kind, "device": found["device"], "remote": False}
        return KernelFinding(events.FILE_SYSTEM, Severity.ERROR, payload)

    return make


def _remote_server(found: re.Match[str]) -> KernelFinding:
    """Build the finding of a file server that stopped or resumed answering."""
    fine = found["state"].strip(", ").lower() in {"ok", "restored", "hunting for new mon", "session established"}
    payload = {"kind": "ok" if fine else "not_responding", "device": found["device"], "remote": True}
    return KernelFinding(events.FILE_SYSTEM, Severity.INFO if fine else Severity.ERROR, payload)


_PCI_IN_TEXT: Final = re.compile(r"\b[0-9a-fA-F]{4,8}:[0-9a-fA-F]{2}:[0-9a-fA-F]{2}(?:\.[0-7])?\b")
_PID: Final = re.compile(r"pid='?(\d{1,10})\b")
_NAME: Final = re.compile(r"name=([^,]{1,64})")
_ACTION: Final = re.compile(r"to 0x([0-9a-fA-F]{1,8})")
_REGISTERS: Final = re.compile(r"\((?:0x[0-9a-fA-F]{1,8}[, ]*){2,8}\)")
_HEX: Final = re.compile(r"0x([0-9a-fA-F]{1,8})")
_NVLINK_SEVERITY: Final = re.compile(r"\b(non-?fatal|fatal)\b", re.IGNORECASE)
_SXID_SEVERITY: Final = re.compile(r"\b(Non-fatal|Fatal)\b")
_LINK: Final = re.compile(r"[Ll]ink (\d{1,3})\b")
_UNIT: Final = re.compile(r"[, ]*([A-Z0-9]+_[A-Z0-9_]+|TREX)\b")

Make = Callable[[re.Match[str]], KernelFinding | None]
_KINDS: Final[tuple[tuple[str, re.Pattern[str], Make], ...]] = (
    (
        "Xid",
        re.compile(r"NVRM: Xid \((?:PCI:)?(?P<pci>[0-9a-fA-F:.]{5,20})\): (?P<code>\d{1,6})\b(?P<rest>.*)"),
        _xid,
    ),
    ("SXid", re.compile(r"SXid \((?:PCI:)?(?P<pci>[0-9a-fA-F:.]{5,20})\): (?P<code>\d{1,6})\b(?P<rest>.*)"), _sxid),
    (
        "NVSwitch",
        re.compile(
            r"detected NVSwitch (?P<severity>non-fatal|fatal) error (?P<code>\d{1,6}) on .{0,40}?pci bus id "
            r"(?P<pci>[0-9a-fA-F:.]{5,20}) .{0,40}?port (?P<port>\d{1,3})"
        ),
        _fabric_manager,
    ),
    (
        "fallen off the bus",
        re.compile(r"NVRM: .{0,40}?\b(?P<pci>[0-9a-fA-F]{4,8}:[0-9a-fA-F]{2}:[0-9a-fA-F]{2}(?:\.\d)?)"),
        _lost,
    ),
    (
        "illed process",
        re.compile(
            r"(?:[Oo]ut of memory|oom).{0,80}?[Kk]illed process (?P<pid>\d{1,10}),? \((?P<process>[^)]{0,64})\)"
        ),
        _oom,
    ),
    (
        "segfault",
        re.compile(r"(?P<process>[^\[\]]{1,64})\[(?P<pid>\d{1,10})\]: segfault at (?P<rest>.{0,300})"),
        _segfault,
    ),
    ("EDAC", re.compile(r"EDAC \w+: (?P<count>\d{1,9}) (?P<kind>CE|UE)\b"), _edac),
    ("Memory failure", re.compile(r"Memory failure: 0x[0-9a-f]+: "), _memory_failure),
    (
        "temperature above threshold",
        re.compile(r"(?P<device>CPU\d+): (?:Core|Package) temperature above threshold"),
        _thermal,
    ),
    (
        "ritical temperature",
        re.compile(r"thermal (?P<device>thermal_zone\d+): [Cc]ritical temperature reached"),
        _thermal_zone,
    ),
    (
        "AER: ",
        re.compile(
            r"(?P<pci>[0-9a-f]{4}:[0-9a-f]{2}:[0-9a-f]{2}\.[0-7]): AER: (?:Multiple )?"
            r"(?P<kind>Corrected|Correctable|Uncorrect\w+ \(Fatal\)|Uncorrect\w+ \(Non-Fatal\))",
        ),
        _aer,
    ),
    (
        "PCIe Bus Error",
        re.compile(
            r"(?P<pci>[0-9a-f]{4}:[0-9a-f]{2}:[0-9a-f]{2}\.[0-7]): PCIe Bus Error: severity="
            r"(?P<kind>Corrected|Correctable|Uncorrect\w+ \(Fatal\)|Uncorrect\w+ \(Non-Fatal\))",
        ),
        _aer,
    ),
    (
        "Port module event",
        re.compile(r"mlx\w+ (?P<pci>[0-9a-f:.]{7,16}): .{0,60}?Port module event[^:]{0,20}: module \d+, (?P<what>.*)"),
        _port_module,
    ),
    (
        "ink",
        re.compile(
            r"^(?P<words>[\w.:()\- ]{2,80}?):? (?:NIC |Network )?[Ll]ink (?:is |status definitely )?"
            r"(?P<state>[Dd]own|[Uu]p)\b"
        ),
        _net_link,
    ),
    (
        "EXT4-fs",
        re.compile(r"EXT4-fs error \(device (?P<device>[\w-]{1,64})\)"),
        _local_disk("error"),
    ),
    ("XFS", re.compile(r"XFS \((?P<device>[\w-]{1,64})\): .*?(?:error|[Cc]orruption|[Ss]hut)"), _local_disk("error")),
    ("BTRFS", re.compile(r"BTRFS (?:error|critical) \(device (?P<device>[\w-]{1,64})"), _local_disk("error")),
    (
        "ead-only",
        re.compile(r"(?P<device>[\w-]{1,64})\)?:? [Rr]emounting filesystem read-only"),
        _local_disk("read_only"),
    ),
    ("I/O error", re.compile(r"I/O error,? (?:on )?dev(?:ice)? (?P<device>[\w-]{1,64})"), _local_disk("io_error")),
    (
        "nvme",
        re.compile(r"nvme (?P<device>nvme\d+): (?:controller is down|Device not ready|I/O .{0,40}timeout)"),
        _local_disk("io_error"),
    ),
    ("nfs: ", re.compile(r"nfs: server (?P<device>\S{1,255}) (?P<state>not responding|OK)"), _remote_server),
    (
        "LustreError",
        re.compile(r"LustreError: .{0,200}?(?P<device>\S{1,128})(?P<state>: operation \w+ .{0,60}failed)"),
        _remote_server,
    ),
    (
        "Lustre: ",
        re.compile(r"Lustre: (?P<device>[^: ]{1,128}): Connection (?:to .{0,80} was )?(?P<state>lost|restored)"),
        _remote_server,
    ),
    (
        "ceph",
        re.compile(r"(?:libceph|ceph): (?P<device>(?:mon|osd|mds)\d+).{0,80}? (?P<state>hung|session established)"),
        _remote_server,
    ),
    (
        "beegfs",
        re.compile(r"beegfs: (?P<device>.{0,40}?)(?P<state>Connect failed|Retrying communication)"),
        _remote_server,
    ),
    ("NVRM: ", re.compile(r"NVRM: .{0,80}?nvlink.{0,100}?(?:error|fail|down)", re.IGNORECASE), _nvlink),
)
"""Rows: (word that the line must contain, pattern, function that builds the finding); the first match counts."""
