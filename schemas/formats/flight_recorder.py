"""Pure parser of PyTorch Flight Recorder dumps (formats 2.0 to 2.10, pickle and JSON).

A dump is what one rank remembers of its collectives. Dumps are other people's files: a
pickle is read by a reader of plain values (nothing in it can be called), what it may cost
is bounded by its length (``tocsin.schemas.formats.plain_pickle``, ``_dump_fields``), and a wrong field
is an error that names it: nothing but ``SchemaError`` leaves this module. Unknown fields are ignored. What differs
between versions and writers is levelled here: ids as int or text, ``nccl_version`` or
``comm_lib_version``, ``None`` or 0 for an unknown time, ranks as list or as text.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from tocsin.schemas.errors import (
    DecodeError,
    FieldError,
    SchemaError,
    TruncatedError,
    VersionError,
    short_form,
)
from tocsin.schemas.formats._dump_fields import MAX_TEXT, DumpFields
from tocsin.schemas.formats.plain_pickle import load_plain, weigh
from tocsin.schemas.wire.validate import INT64_MAX

MAX_DUMP_BYTES = 24_000_000
"""A buffer of 20,000 entries with stacks stays below; a text of so many bytes takes four times the memory."""

MAX_VALUES = 2_000_000
"""Of a JSON dump: it has no stacks."""
MAX_ENTRIES = 25_000
"""PyTorch's own buffer holds 2,000, that of some launchers 20,000."""
SUPPORTED_MAJOR = 2
DTYPE_BYTES: Mapping[str, int] = {
    "Byte": 1, "Char": 1, "Bool": 1, "Short": 2, "Half": 2, "BFloat16": 2, "Int": 4, "Float": 4,
    "Long": 8, "Double": 8, "ComplexFloat": 8, "ComplexDouble": 16,
    "Float8_e5m2": 1, "Float8_e4m3fn": 1, "Float8_e5m2fnuz": 1, "Float8_e4m3fnuz": 1,
}  # fmt: skip
"""Bytes of one element, by the names of c10::ScalarType."""

_BLANKS = 4_096
_VERSION = re.compile(r"[0-9]{1,4}(\.[0-9]{1,4}){0,3}")
_P2P = re.compile(r"(?:send|recv) ([0-9]{1,7})(->|<-)([0-9]{1,7})(?![0-9])")
_RANK_AT_END = re.compile(r"(\d+)$")
_SUFFIXES = (".json", ".pickle", ".pkl")


@dataclass(frozen=True, slots=True)
class FlightEntry:
    """One operation that a rank issued.

    Attributes:
        record_id: the rank's own count: its order.
        pg_id: the rank's local number of the process group.
        group_name: the process group's name, the same on all members.
        group_desc: what the group is for, "" = not said.
        collective_seq: number of the collective in its group.
        p2p_seq: number of the point-to-point operation in its group.
        op_id: number of the operation in its group, both kinds together.
        name: as profiled: ``nccl:all_reduce``, ``nccl:send 0->1``.
        state: ``scheduled``, ``started``, ``completed``, as the watchdog discovered it.
        is_p2p: whether it is a point-to-point operation.
        retired: whether the recorder let it go.
        created_ns: wall clock when it was issued.
        started_ns: when its start was discovered, 0: unknown.
        completed_ns: when its end was discovered, 0: unknown.
        msg_bytes: bytes of the inputs, -1: unknown.
        dtype: element type of the first input, "" = none.
        timeout_ns: after this the watchdog ends the job (and writes the dumps), 0: not said.
    """

    record_id: int
    pg_id: int
    group_name: str
    group_desc: str
    collective_seq: int
    p2p_seq: int
    op_id: int
    name: str
    state: str
    is_p2p: bool
    retired: bool
    created_ns: int
    started_ns: int
    completed_ns: int
    msg_bytes: int
    dtype: str
    timeout_ns: int = 0

    @property
    def backend(self) -> str:
        """``nccl``, ``gloo`` ...; "" = not said."""
        return self.name.partition(":")[0] if ":" in self.name else ""

    @property
    def is_done(self) -> bool:
        """Whether the rank finished it.

        NCCL: as discovered; ``retired`` without ``completed`` is an operation that timed out.
        Other backends discover no states; there, retired is finished.
        """
        if self.state == "completed" or self.completed_ns:
            return True
        return self.retired and self.backend not in {"", "nccl", "xccl"}

    @property
    def p2p_peer(self) -> int:
        """The other side's rank **inside the group**, -1: none or unknown."""
        match = _P2P.search(self.name)
        return int(match.group(3)) if match else -1


@dataclass(frozen=True, slots=True)
class FlightGroup:
    """A process group as one rank knows it.

    Attributes:
        name: its name.
        desc: what it is for.
        ranks: its members (global ranks), () = not said.
    """

    name: str
    desc: str
    ranks: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class FlightStatus:
    """What a rank's watchdog says of one process group; the newest of both kinds of operations.

    Attributes:
        last_enqueued_seq: number of the last issued operation, -1: none.
        last_started_seq: number of the last one seen to start, -1: none (or starts are not watched).
        last_completed_seq: number of the last one seen to end, -1: none.
    """

    last_enqueued_seq: int
    last_started_seq: int
    last_completed_seq: int


@dataclass(frozen=True, slots=True)
class FlightDump:
    """One rank's dump.

    Attributes:
        version: format version, e.g. ``2.10``.
        comm_lib_version: NCCL's version, "" = not said.
        groups: the process groups it knows, by name.
        status: the watchdog's state by local group number.
        entries: in the rank's own order, oldest first.
        nameless_ranks: members of a group without a name (gloo writes one): ranks that the job has at least.
    """

    version: str
    comm_lib_version: str
    groups: tuple[FlightGroup, ...]
    status: tuple[tuple[int, FlightStatus], ...]
    entries: tuple[FlightEntry, ...]
    nameless_ranks: tuple[int, ...] = ()


def rank_of_filename(name: str) -> int:
    """Return the rank that a dump's file name ends in (``.json``, ``.pickle`` may follow).

    Args:
        name: file name without its folder; whatever stands before the last number is free.

    Raises:
        FieldError: the name does not end in a number.
    """
    stem = name
    for suffix in _SUFFIXES:
        stem = stem.removesuffix(suffix)
    match = _RANK_AT_END.search(stem)
    if match is None or len(match.group(1)) > 9:
        raise FieldError("file name", name, "one that ends in the rank's number")
    return int(match.group(1))


def parse_dump(data: bytes) -> FlightDump:
    """Read one dump.

    Args:
        data: the file's content, pickle or JSON.

    Raises:
        DecodeError: neither pickle nor JSON, cut short, too large, or asks for a global.
        FieldError: a field has a value that it may not have.
    """
    content = content_of(data)
    try:
        return _dump_of(content)
    except SchemaError:
        raise
    except Exception as error:  # the door for other people's files: nothing else leaves it
        raise DecodeError(f"no readable dump ({type(error).__name__}: {str(error)[:200]})") from error


def content_of(data: bytes) -> dict[Any, Any]:
    """Read one dump as it stands in the file; what its fields hold is not looked at.

    What it may cost is bounded (``tocsin.schemas.formats.plain_pickle``); a list may still stand in many places.

    Raises:
        DecodeError: as ``parse_dump``.
    """
    if len(data) > MAX_DUMP_BYTES:
        raise DecodeError(f"{len(data)} bytes: a dump has at most {MAX_DUMP_BYTES}")
    begin = data[:_BLANKS].lstrip()[:1]
    if not begin:
        raise TruncatedError("the file is empty")
    try:
        content = _from_json(data) if begin == b"{" else load_plain(data)
    except SchemaError:
        raise
    except Exception as error:  # the door for other people's files: nothing else leaves it
        raise DecodeError(f"no readable dump ({type(error).__name__}: {str(error)[:200]})") from error
    if not isinstance(content, dict):
        raise DecodeError(f"holds a {type(content).__name__}, a dump is a mapping")
    return content


def _from_json(data: bytes) -> object:
    count = 1 + sum(map(data.count, (b",", b":", b"[", b"{")))  # never fewer than there are values
    if count > MAX_VALUES:
        raise DecodeError(f"holds more than {MAX_VALUES} values")
    try:
        content = json.loads(data)
    except (ValueError, RecursionError) as error:
        raise DecodeError(f"no JSON: {error}") from error
    weigh(content, len(data) + 1)  # nothing stands twice: it asks for the depth alone
    return content


def _dump_of(content: dict[Any, Any]) -> FlightDump:
    version = content.get("version")
    if type(version) is not str or not _VERSION.fullmatch(version):
        raise FieldError("version", version, "text such as '2.10'")
    if int(version.partition(".")[0]) != SUPPORTED_MAJOR:
        raise VersionError(f"format {version}: versions 2.x are read")
    fields = DumpFields()
    entries = fields.items(content.get("entries"), "dump", "entries")
    if len(entries) > MAX_ENTRIES:
        raise FieldError("entries", len(entries), f"at most {MAX_ENTRIES} entries")
    groups = _groups(fields, fields.mapping(content.get("pg_config", {}), "pg_config"))
    parsed = [_entry(fields, fields.mapping(raw, f"entries[{i}]"), f"entries[{i}]") for i, raw in enumerate(entries)]
    library = content.get("comm_lib_version", content.get("nccl_version", ""))
    return FlightDump(
        version=version,
        comm_lib_version=library[:MAX_TEXT] if isinstance(library, str) else short_form(library),
        groups=tuple(group for group in groups if group.name),
        status=_statuses(fields, fields.mapping(content.get("pg_status", {}), "pg_status")),
        entries=tuple(sorted(parsed, key=lambda entry: entry.record_id)),
        nameless_ranks=next((group.ranks for group in groups if not group.name), ()),
    )


def _groups(fields: DumpFields, config: Mapping[Any, Any]) -> tuple[FlightGroup, ...]:
    groups = []
    for number, raw in config.items():
        key = fields.key(number, "pg_config")
        where = f"pg_config[{key}]"
        group = fields.mapping(raw, where)
        name = fields.text(group.get("name", key), where, "name")
        desc = fields.text(group.get("desc", ""), where, "desc")
        groups.append(FlightGroup(name, desc, fields.ranks(group.get("ranks"), where, "ranks")))
    return tuple(groups)


def _statuses(fields: DumpFields, raw: Mapping[Any, Any]) -> tuple[tuple[int, FlightStatus], ...]:
    statuses = []
    for number, value in raw.items():
        key = fields.key(number, "pg_status")
        where = f"pg_status[{key}]"
        status = fields.mapping(value, where)
        enqueued, started, completed = (
            fields.integer(status.get(name, -1), where, name)
            for name in ("last_enqueued_collective", "last_started_collective", "last_completed_collective")
        )
        statuses.append((fields.integer(key, where, "number"), FlightStatus(enqueued, started, completed)))
    return tuple(sorted(statuses, key=lambda pair: pair[0]))


def _entry(fields: DumpFields, raw: Mapping[Any, Any], where: str) -> FlightEntry:
    group_name, group_desc = _group_of(fields, raw, where)
    name = fields.text(raw.get("profiling_name", ""), where, "profiling_name")
    # Until 2.1 one counter served all operations of a group.
    seq = raw.get("collective_seq_id", raw.get("seq_id", 0))
    msg_bytes, dtype = _size(fields, raw, where)
    return FlightEntry(
        record_id=fields.integer(raw.get("record_id", raw.get("id", 0)), where, "record_id"),
        pg_id=fields.integer(raw.get("pg_id", 0), where, "pg_id"),
        group_name=group_name,
        group_desc=group_desc,
        collective_seq=fields.integer(seq, where, "collective_seq_id"),
        p2p_seq=fields.integer(raw.get("p2p_seq_id", 0), where, "p2p_seq_id"),
        op_id=fields.integer(raw.get("op_id", 0), where, "op_id"),
        name=name,
        state=fields.text(raw.get("state") or "scheduled", where, "state"),
        is_p2p=bool(raw.get("is_p2p", _P2P.search(name) is not None)),
        retired=bool(raw.get("retired", False)),
        created_ns=fields.time(raw.get("time_created_ns"), where, "time_created_ns"),
        started_ns=fields.time(raw.get("time_discovered_started_ns"), where, "time_discovered_started_ns"),
        completed_ns=fields.time(raw.get("time_discovered_completed_ns"), where, "time_discovered_completed_ns"),
        msg_bytes=msg_bytes,
        dtype=dtype,
        timeout_ns=min(INT64_MAX, fields.time(raw.get("timeout_ms"), where, "timeout_ms") * 1_000_000),
    )


def _group_of(fields: DumpFields, raw: Mapping[Any, Any], where: str) -> tuple[str, str]:
    value = raw.get("process_group")
    if value is None:
        return str(fields.integer(raw.get("pg_id", 0), where, "pg_id")), ""
    if isinstance(value, str):
        return fields.text(value, where, "process_group"), ""
    parts = fields.items(value, where, "process_group")
    if not parts:
        raise FieldError(f"{where}.process_group", value, "(name, description)")
    desc = fields.text(parts[1], where, "process_group") if len(parts) > 1 else ""
    return fields.text(parts[0], where, "process_group"), "" if desc == "undefined" else desc


def _size(fields: DumpFields, raw: Mapping[Any, Any], where: str) -> tuple[int, str]:
    """Bytes of all inputs, and the first one's type; (-1, "") where they are not said."""
    sizes = fields.items(raw.get("input_sizes"), where, "input_sizes")
    types = [
        fields.text(name, where, "input_dtypes")
        for name in fields.items(raw.get("input_dtypes"), where, "input_dtypes")
    ]
    if not sizes or len(types) != len(sizes) or any(name not in DTYPE_BYTES for name in types):
        return -1, types[0] if types else ""
    total = 0
    for shape, name in zip(sizes, types, strict=True):
        size = DTYPE_BYTES[name]
        for length in fields.items(shape, where, "input_sizes"):
            size *= fields.integer(length, where, "input_sizes")
            if not 0 <= size <= INT64_MAX:
                raise FieldError(f"{where}.input_sizes", shape, "lengths whose product is a size of at most 64 bit")
        total += size
    if total > INT64_MAX:
        raise FieldError(f"{where}.input_sizes", sizes, "sizes that are at most 64 bit together")
    return total, types[0]
