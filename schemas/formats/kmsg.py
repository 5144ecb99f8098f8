"""Parser of the outer form of kernel log lines: /dev/kmsg records, time stamps of dmesg and syslog."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Final

from tocsin.schemas.errors import FieldError


@dataclass(frozen=True, slots=True)
class KmsgRecord:
    """One record of /dev/kmsg.

    Attributes:
        priority: syslog priority and facility in one number.
        seq: the kernel's sequence number.
        message: text without continuation lines.
    """

    priority: int
    seq: int
    message: str


_PREFIXES: Final = (
    re.compile(r"<\d{1,4}>"),
    re.compile(r"[a-z0-9]+ *:[a-z]+ *: "),  # dmesg -x
    re.compile(r"\[ *\d{1,12}\.\d{1,9}\] ?"),
    re.compile(r"\[\w{3} \w{3} +\d{1,2} [\d:]{8} \d{4}\] ?"),  # dmesg -T
    re.compile(r"\d{4}-\d\d-\d\dT[\d:]{8}(?:[.,]\d{1,9})?(?:Z|[+-]\d\d:?\d\d)? "),
    re.compile(r"\w{3} +\d{1,2} [\d:]{8} "),  # syslog; a host name follows
)
_HOST_KERNEL: Final = re.compile(r"\S{1,255} kernel: ?")


def parse_kmsg(text: str) -> KmsgRecord:
    r"""Parse a record of /dev/kmsg: ``priority,seq,microseconds,flags[,more];message\n KEY=value...``.

    >>> parse_kmsg("6,3964,206764307,-;nvidia-nvswitch2: open\n SUBSYSTEM=pci\n").message
    'nvidia-nvswitch2: open'

    Raises:
        FieldError: the text is no such record.
    """
    head, semicolon, rest = text.partition(";")
    fields = head.split(",")
    if not semicolon or len(fields) < 4 or not all(f.isascii() and f.isdigit() and len(f) < 20 for f in fields[:3]):
        raise FieldError("kmsg", text[:80], "a record 'priority,seq,microseconds,flags;message'")
    return KmsgRecord(int(fields[0]), int(fields[1]), rest.partition("\n")[0])


def strip_prefix(line: str) -> str:
    """Return a log line without its time stamp, level and host.

    >>> strip_prefix("kern  :warn  : 2025-01-21T04:41:44,285060+00:00 x: y")
    'x: y'
    >>> strip_prefix("Feb 23 16:24:18 n012 kernel: [  12.5] x: y")
    'x: y'
    """
    for pattern in _PREFIXES:
        found = pattern.match(line)
        if found:
            line = line[found.end() :]
    found = _HOST_KERNEL.match(line)
    if found:
        line = line[found.end() :]
        inner = _PREFIXES[2].match(line)
        line = line[inner.end() :] if inner else line
    return line
