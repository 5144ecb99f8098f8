"""Pure parser of PyTorch Flight Recorder dumps (formats 2.0 to 2.10, pickle and JSON).

A dump is what one rank remembers of its collectives. Dumps are other people's files: a
pickle is read with globals forbidden (nothing in it can be called), sizes are limited,
and a wrong field is an error that names it. Unknown fields are ignored. What differs
between versions and writers is levelled here: ids as int or text, ``nccl_version`` or
``comm_lib_version``, ``None`` or 0 for an unknown time, ranks as list or as text.
"""

from __future__ import annotations

import io
import json
import pickle
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, NoReturn

from tocsin.schemas.errors import DecodeError, FieldError, TruncatedError, VersionError

MAX_DUMP_BYTES = 256 * 1024 * 1024
"""A buffer of 2,000 entries with stacks stays far below."""

MAX_RANKS = 1_000_000
MAX_ENTRIES = 1_000_000
SUPPORTED_MAJOR = 2
DTYPE_BYTES: Mapping[str, int] = {
    "Byte": 1, "Char": 1, "Bool": 1, "Short": 2, "Half": 2, "BFloat16": 2, "Int": 4, "Float": 4,
    "Long": 8, "Double": 8, "ComplexFloat": 8, "ComplexDouble": 16,
    "Float8_e5m2": 1, "Float8_e4m3fn": 1, "Float8_e5m2fnuz": 1, "Float8_e4m3fnuz": 1,
}  # fmt: skip
"""Bytes of one element, by the names of c10::ScalarType."""

_P2P = re.compile(r"(?:send|recv) (\d+)(->|<-)(\d+)")
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


class _NoGlobals(pickle.Unpickler):
    """An unpickler that can build plain values only."""

    def find_class(self, module_name: str, global_name: str, /) -> NoReturn:
        """Refuse: a dump needs no global, so one that asks for one is not a dump."""
        raise DecodeError(f"pickle asks for {module_name}.{global_name}: a dump holds plain values only")

    def persistent_load(self, pid: object, /) -> NoReturn:
        """Refuse references out of the file."""
        raise DecodeError(f"pickle refers to something outside the file ({pid!r})")


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
    return _dump_of(content_of(data))


def content_of(data: bytes) -> dict[Any, Any]:
    """Read one dump as it stands in the file, nothing checked.

    Raises:
        DecodeError: as ``parse_dump``.
    """
    if len(data) > MAX_DUMP_BYTES:
        raise DecodeError(f"{len(data)} bytes: a dump has at most {MAX_DUMP_BYTES}")
    if not data.strip():
        raise TruncatedError("the file is empty")
    content = _from_json(data) if data.lstrip()[:1] == b"{" else _from_pickle(data)
    if not isinstance(content, dict):
        raise DecodeError(f"holds a {type(content).__name__}, a dump is a mapping")
    return content


def _from_json(data: bytes) -> object:
    try:
        return json.loads(data)
    except (ValueError, RecursionError) as error:
        raise DecodeError(f"no JSON: {error}") from error


def _from_pickle(data: bytes) -> object:
    try:
        return _NoGlobals(io.BytesIO(data)).load()
    except DecodeError:
        raise
    except EOFError as error:
        raise TruncatedError(f"the pickle ends after {len(data)} bytes, before its end mark") from error
    # The unpickler has no one error for broken bytes: it stumbles in many ways.
    except (
        pickle.UnpicklingError, ValueError, KeyError, IndexError, AttributeError, TypeError,
        MemoryError, OverflowError, RecursionError, ImportError,
    ) as error:  # fmt: skip
        raise DecodeError(f"neither JSON nor a readable pickle ({type(error).__name__}: {error})") from error


def _dump_of(content: dict[Any, Any]) -> FlightDump:
    version = content.get("version")
    if not isinstance(version, str) or not re.fullmatch(r"\d+(\.\d+)*", version):
        raise FieldError("version", version, "text such as '2.10'")
    if int(version.partition(".")[0]) != SUPPORTED_MAJOR:
        raise VersionError(f"format {version}: versions 2.x are read")
    library = content.get("comm_lib_version", content.get("nccl_version", ""))
    entries = _list(content.get("entries", ()), "entries")
    if len(entries) > MAX_ENTRIES:
        raise FieldError("entries", len(entries), f"at most {MAX_ENTRIES} entries")
    groups = _groups(_mapping(content.get("pg_config", {}), "pg_config"))
    parsed = [_entry(_mapping(raw, f"entries[{i}]"), f"entries[{i}]") for i, raw in enumerate(entries)]
    return FlightDump(
        version=version,
        comm_lib_version=library if isinstance(library, str) else str(library),
        groups=tuple(group for group in groups if group.name),
        status=_statuses(_mapping(content.get("pg_status", {}), "pg_status")),
        entries=tuple(sorted(parsed, key=lambda entry: entry.record_id)),
        nameless_ranks=next((group.ranks for group in groups if not group.name), ()),
    )


def _groups(config: Mapping[Any, Any]) -> tuple[FlightGroup, ...]:
    groups = []
    for key, raw in config.items():
        where = f"pg_config[{key}]"
        group = _mapping(raw, where)
        name = _text(group.get("name", str(key)), f"{where}.name")
        desc = _text(group.get("desc", ""), f"{where}.desc")
        groups.append(FlightGroup(name, desc, _ranks(group.get("ranks", ()), f"{where}.ranks")))
    return tuple(groups)


def _ranks(value: object, where: str) -> tuple[int, ...]:
    """Ranks stand as text ``"[0, 1]"`` or as a list."""
    if isinstance(value, str):
        try:
            value = json.loads(value or "[]")
        except ValueError as error:
            raise FieldError(where, value, "a list of ranks") from error
    ranks = tuple(_int(rank, where) for rank in _list(value, where))
    if len(set(ranks)) != len(ranks) or not all(0 <= rank < MAX_RANKS for rank in ranks):
        raise FieldError(where, ranks[:32], f"ranks from 0 to {MAX_RANKS - 1}, each once")
    return ranks


def _statuses(raw: Mapping[Any, Any]) -> tuple[tuple[int, FlightStatus], ...]:
    statuses = []
    for key, value in raw.items():
        where = f"pg_status[{key}]"
        status = _mapping(value, where)
        enqueued, started, completed = (
            _int(status.get(f"last_{edge}_collective", -1), f"{where}.last_{edge}_collective")
            for edge in ("enqueued", "started", "completed")
        )
        statuses.append((_int(key, where), FlightStatus(enqueued, started, completed)))
    return tuple(sorted(statuses, key=lambda pair: pair[0]))


def _entry(raw: Mapping[Any, Any], where: str) -> FlightEntry:
    group_name, group_desc = _group_of(raw, where)
    name = _text(raw.get("profiling_name", ""), f"{where}.profiling_name")
    # Until 2.1 one counter served all operations of a group.
    seq = raw.get("collective_seq_id", raw.get("seq_id", 0))
    sizes, dtypes = raw.get("input_sizes", ()), raw.get("input_dtypes", ())
    msg_bytes, dtype = _size(_list(sizes, f"{where}.input_sizes"), dtypes, where)
    return FlightEntry(
        record_id=_int(raw.get("record_id", raw.get("id", 0)), f"{where}.record_id"),
        pg_id=_int(raw.get("pg_id", 0), f"{where}.pg_id"),
        group_name=group_name,
        group_desc=group_desc,
        collective_seq=_int(seq, f"{where}.collective_seq_id"),
        p2p_seq=_int(raw.get("p2p_seq_id", 0), f"{where}.p2p_seq_id"),
        op_id=_int(raw.get("op_id", 0), f"{where}.op_id"),
        name=name,
        state=_text(raw.get("state") or "scheduled", f"{where}.state"),
        is_p2p=bool(raw.get("is_p2p", _P2P.search(name) is not None)),
        retired=bool(raw.get("retired", False)),
        created_ns=_time(raw.get("time_created_ns"), f"{where}.time_created_ns"),
        started_ns=_time(raw.get("time_discovered_started_ns"), f"{where}.time_discovered_started_ns"),
        completed_ns=_time(raw.get("time_discovered_completed_ns"), f"{where}.time_discovered_completed_ns"),
        msg_bytes=msg_bytes,
        dtype=dtype,
        timeout_ns=_time(raw.get("timeout_ms"), f"{where}.timeout_ms") * 1_000_000,
    )


def _group_of(raw: Mapping[Any, Any], where: str) -> tuple[str, str]:
    value = raw.get("process_group")
    if value is None:
        return str(_int(raw.get("pg_id", 0), f"{where}.pg_id")), ""
    if isinstance(value, str):
        return value, ""
    parts = _list(value, f"{where}.process_group")
    if not parts:
        raise FieldError(f"{where}.process_group", value, "(name, description)")
    desc = _text(parts[1], f"{where}.process_group") if len(parts) > 1 else ""
    return _text(parts[0], f"{where}.process_group"), "" if desc == "undefined" else desc


def _size(sizes: list[Any], dtypes: object, where: str) -> tuple[int, str]:
    """Bytes of all inputs, and the first one's type; (-1, "") where they are not said."""
    types = [_text(name, f"{where}.input_dtypes") for name in _list(dtypes, f"{where}.input_dtypes")]
    if not sizes or len(types) != len(sizes) or any(name not in DTYPE_BYTES for name in types):
        return -1, types[0] if types else ""
    total = 0
    for shape, name in zip(sizes, types, strict=True):
        count = 1
        for length in _list(shape, f"{where}.input_sizes"):
            count *= _int(length, f"{where}.input_sizes")
        total += count * DTYPE_BYTES[name]
    return total, types[0]


def _int(value: object, where: str) -> int:
    """An int, or its text (PyTorch's own writers differ)."""
    if isinstance(value, int) and not isinstance(value, bool):
        return value
    if isinstance(value, str) and re.fullmatch(r"-?\d{1,20}", value):
        return int(value)
    raise FieldError(where, value, "a whole number")


def _time(value: object, where: str) -> int:
    return 0 if value is None else _int(value, where)


def _text(value: object, where: str) -> str:
    if isinstance(value, str):
        return value
    if isinstance(value, int):
        return str(value)
    raise FieldError(where, value, "text")


def _list(value: object, where: str) -> list[Any]:
    if isinstance(value, (list, tuple)):
        return list(value)
    if value is None:
        return []
    raise FieldError(where, value, "a list")


def _mapping(value: object, where: str) -> Mapping[Any, Any]:
    if isinstance(value, Mapping):
        return value
    raise FieldError(where, value, "a mapping")
