"""Pure parser of PyTorch Flight Recorder dumps (formats 2.0 to 2.10, pickle and JSON).

A dump is one rank's memory of its collectives. Dumps are untrusted files. A pickle is read by a reader of
plain values, which calls nothing. The cost is bounded by the file's length
(``tocsin.schemas.formats.plain_pickle``, ``_dump_fields``). A wrong field raises an error that names it, and only
``SchemaError`` leaves this module. Unknown fields are ignored. Differences between versions and writers are removed
here: ids as int or text, ``nccl_version`` or ``comm_lib_version``, ``None`` or 0 for an unknown time, ranks as
list or as text.
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
"""Largest dump that is read. A buffer of 20,000 entries with stacks is smaller; text of this size takes four times the
memory."""

MAX_VALUES = 2_000_000
"""Most values of a JSON dump, which has no stacks."""
MAX_ENTRIES = 25_000
"""Most entries of a dump. PyTorch's own buffer holds 2,000, that of some launchers 20,000."""
SUPPORTED_MAJOR = 2
DTYPE_BYTES: Mapping[str, int] = {
    "Byte": 1, "Char": 1, "Bool": 1, "Short": 2, "Half": 2, "BFloat16": 2, "Int": 4, "Float": 4,
    "Long": 8, "Double": 8, "ComplexFloat": 8, "ComplexDouble": 16,
    "Float8_e5m2": 1, "Float8_e4m3fn": 1, "Float8_e5m2fnuz": 1, "Float8_e4m3fnuz": 1,
}  # fmt: skip
"""Element type, by its name in c10::ScalarType -> bytes of one element."""

_BLANKS = 4_096
_VERSION = re.compile(r"[0-9]{1,4}(\.[0-9]{1,4}){0,3}")
_P2P = re.compile(r"(?:send|recv) ([0-9]{1,7})(->|<-)([0-9]{1,7})(?![0-9])")
_RANK_AT_END = re.compile(r"(\d+)$")
_SUFFIXES = (".json", ".pickle", ".pkl")


@dataclass(frozen=True, slots=True)
class FlightEntry:
    """One operation that a rank issued, as its Flight Recorder remembers it.

    Attributes:
        record_id: the rank's own counter, which gives the order of entries.
        pg_id: the rank's local number of the process group.
        group_name: the process group's name, the same on all members.
        group_desc: description of the group, "" if not given.
        collective_seq: sequence number of the collective in its group.
        p2p_seq: sequence number of the point-to-point operation in its group.
        op_id: sequence number in the group over both kinds of operations.
        name: profiling name, e.g. ``nccl:all_reduce``, ``nccl:send 0->1``.
        state: ``scheduled``, ``started`` or ``completed``, as the watchdog saw it.
        is_p2p: whether it is a point-to-point operation.
        retired: whether the recorder no longer tracks it.
        created_ns: wall clock time when it was issued.
        started_ns: time when the watchdog saw it start, 0 if unknown.
        completed_ns: time when the watchdog saw it end, 0 if unknown.
        msg_bytes: bytes of all inputs, -1 if unknown.
        dtype: element type of the first input, "" for none.
        timeout_ns: time after which the watchdog ends the job (and writes the dumps), 0 if not given.
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
        """Communication backend, e.g. ``nccl`` or ``gloo``; "" if not given."""
        return self.name.partition(":")[0] if ":" in self.name else ""

    @property
    def is_done(self) -> bool:
        """Whether the rank finished the operation.

        With NCCL, as the watchdog saw it; ``retired`` without ``completed`` is an operation that timed out. With other
        backends, whose states are not watched, a retired operation is finished.
        """
        if self.state == "completed" or self.completed_ns:
            return True
        return self.retired and self.backend not in {"", "nccl", "xccl"}

    @property
    def p2p_peer(self) -> int:
        """Rank of the other side **inside the group**, -1 for none or unknown."""
        match = _P2P.search(self.name)
        return int(match.group(3)) if match else -1


@dataclass(frozen=True, slots=True)
class FlightGroup:
    """A process group as one rank knows it.

    Attributes:
        name: name of the group.
        desc: description of the group.
        ranks: its members (global ranks), empty if not given.
    """

    name: str
    desc: str
    ranks: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class FlightStatus:
    """The watchdog's state of one process group: the newest operations of both kinds.

    Attributes:
        last_enqueued_seq: sequence number of the last issued operation, -1 for none.
        last_started_seq: number of the last operation seen to start, -1 for none (or if starts are not watched).
        last_completed_seq: number of the last operation seen to end, -1 for none.
    """

    last_enqueued_seq: int
    last_started_seq: int
    last_completed_seq: int


@dataclass(frozen=True, slots=True)
class FlightDump:
    """The parsed dump of one rank.

    Attributes:
        version: format version, e.g. ``2.10``.
        comm_lib_version: version of NCCL, "" if not given.
        groups: process groups that the rank knows and that have a name.
        status: (local group number, watchdog state), by number.
        entries: operations in the rank's own order, oldest first.
        nameless_ranks: members of a group without a name (gloo writes one). The job has at least these ranks.
    """

    version: str
    comm_lib_version: str
    groups: tuple[FlightGroup, ...]
    status: tuple[tuple[int, FlightStatus], ...]
    entries: tuple[FlightEntry, ...]
    nameless_ranks: tuple[int, ...] = ()


def rank_of_filename(name: str) -> int:
    """Return the rank number at the end of a dump's file name, before ``.json``, ``.pickle`` or ``.pkl``.

    Args:
        name: file name without its folder; anything may precede the number.

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
    """Parse one Flight Recorder dump.

    Args:
        data: content of the file, pickle or JSON.

    Raises:
        DecodeError: the data is neither pickle nor JSON, cut short, too large, or a pickle that asks for a global.
        FieldError: a field has a value that is not allowed.
    """
    content = content_of(data)
    try:
        return _dump_of(content)
    except SchemaError:
        raise
    except Exception as error:  # the door for other people's files: nothing else leaves it
        raise DecodeError(f"no readable dump ({type(error).__name__}: {str(error)[:200]})") from error


def content_of(data: bytes) -> dict[Any, Any]:
    """Return the raw mapping in a dump file; its fields are not checked.

    The cost is bounded (``tocsin.schemas.formats.plain_pickle``). One list may still occur in many places.

    Raises:
        DecodeError: as for ``parse_dump``.
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
    """Return the JSON value of a dump; raise ``DecodeError`` if it has too many values."""
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
    """Build the parsed dump from its raw mapping."""
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
    """Return the process groups of ``pg_config``."""
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
    """Return the watchdog states of ``pg_status`` as (local group number, state), by number."""
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
    """Return one operation of ``entries``; ``where`` names its place for errors."""
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
    """Return name and description of an entry's process group."""
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
    """Return bytes of all inputs and element type of the first one; (-1, "") if not given."""
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
