"""Flight Recorder dumps of somebody who means harm: made here, tried at each door that reads dumps.

None of them is a dump that a rank wrote; none may be read as one, cost more than a dump of its length, or raise
anything but a ``SchemaError``. ``ODD_DUMPS`` are different: they may be read, as their fields are allowed.
"""

from __future__ import annotations

import json
import pickle
import struct
from collections.abc import Callable, Mapping
from typing import Any, Final

HEAD: Final = b"\x80\x02"


def entry(**changes: Any) -> dict[str, Any]:
    """One unfinished operation."""
    return {
        "record_id": 7, "pg_id": 0, "process_group": ("0", "default_pg"), "collective_seq_id": 29, "p2p_seq_id": 0,
        "op_id": 29, "profiling_name": "nccl:all_reduce", "time_created_ns": 1_700_000_000_000_000_000,
        "input_sizes": [[4]], "input_dtypes": ["Float"], "state": "scheduled", "time_discovered_started_ns": None,
        "time_discovered_completed_ns": None, "retired": False, "timeout_ms": 180_000, "is_p2p": False,
    } | changes  # fmt: skip


def dump(*entries: dict[str, Any], **changes: Any) -> dict[str, Any]:
    """A dump's content."""
    return {
        "version": "2.9", "nccl_version": "2.27.3", "entries": list(entries or (entry(),)),
        "pg_config": {"0": {"name": "0", "desc": "default_pg", "ranks": "[0, 1, 2, 3]"}}, "pg_status": {},
    } | changes  # fmt: skip


def pickled(*entries: dict[str, Any], **changes: Any) -> bytes:
    """A dump as a pickle."""
    return pickle.dumps(dump(*entries, **changes))


def healthy(rank: int = 0) -> bytes:
    """A dump that is read."""
    return pickled(entry(record_id=rank))


def _text(value: str) -> bytes:
    data = value.encode()
    return b"X" + struct.pack("<I", len(data)) + data


def _nested_tuples(levels: int) -> bytes:
    """Each holds the one before twice: 2 ** levels values."""
    body = b")"
    for level in range(levels):
        body += b"q" + bytes([level]) + b"0h" + bytes([level]) + b"h" + bytes([level]) + b"\x86"
    return body


def _doubled(levels: int, pair: bytes = b"\x86") -> bytes:
    """As ``_nested_tuples`` without ``POP``: the value stays on the stack and is named once more."""
    body = b")"
    for level in range(levels):
        body += b"q" + bytes([level]) + b"h" + bytes([level]) + pair
    return body


def _doubled_lists(levels: int) -> bytes:
    """Lists under keys of their own, each holding the one before twice; the last two are the entries."""
    items = _text("k0") + b"]q\x00"
    for level in range(levels):
        items += _text(f"k{level + 1}") + b"](h" + bytes([level]) + b"h" + bytes([level]) + b"eq" + bytes([level + 1])
    entries = _text("entries") + b"](" + b"h" + bytes([levels]) + b"h" + bytes([levels]) + b"e"
    return HEAD + b"}(" + _text("version") + _text("2.9") + items + entries + b"u."


def _with_value(key: str, value: bytes) -> bytes:
    """A dump with one more key, whose value is made of opcodes."""
    return HEAD + b"}(" + _text("version") + _text("2.9") + _text(key) + value + b"u."


def _shared_entries(count: int) -> bytes:
    """One entry that stands ``count`` times in the list."""
    return HEAD + b"}(" + _text("version") + _text("2.9") + _text("entries") + b"](}q\x01" + b"h\x01" * count + b"eu."


def _shared_sizes(count: int, width: int) -> bytes:
    """Entries that all name one long list of sizes."""
    sizes = b"](" + b"K\x01" * width + b"eq\x01"
    types = b"](" + _text("Float") + b"q\x02" + b"h\x02" * (width - 1) + b"eq\x03"
    one = b"}(" + _text("input_sizes") + b"h\x04" + _text("input_dtypes") + b"h\x03uq\x05"
    shapes = b"](h\x01" + b"h\x01" * (width - 1) + b"eq\x04"
    entries = b"](" + one + b"h\x05" * (count - 1) + b"e"
    # The lists are made under keys that nobody reads.
    made = _text("a") + sizes + _text("b") + types + _text("c") + shapes
    return HEAD + b"}(" + made + _text("version") + _text("2.9") + _text("entries") + entries + b"u."


def _shared_ranks(count: int, width: int) -> bytes:
    """Groups that all name one long text of ranks."""
    ranks = _text("[" + ",".join(map(str, range(width))) + "]") + b"q\x01"
    groups = b"".join(_text(str(number)) + b"}(" + _text("ranks") + b"h\x01u" for number in range(count))
    return (
        HEAD
        + b"}("
        + _text("a")
        + ranks
        + _text("version")
        + _text("2.9")
        + _text("pg_config")
        + b"}("
        + groups
        + b"uu."
    )


def _digits(count: int) -> str:
    return "2" * count


def _long(digits: int) -> bytes:
    value: int = 10**digits
    size = value.bit_length() // 8 + 1
    return b"\x8b" + struct.pack("<I", size) + value.to_bytes(size, "little", signed=True)


def _long_sizes(count: int) -> bytes:
    """One entry whose input has so many lengths of 4,000 digits."""
    shape = b"](" + _long(4_000) + b"q\x00" + b"h\x00" * (count - 1) + b"e"
    one = b"}(" + _text("input_dtypes") + b"](" + _text("Float") + b"e" + _text("input_sizes") + b"](" + shape + b"eu"
    return _with_value("entries", b"](" + one + b"e")


def _json(text: str) -> bytes:
    return b'{"version": "2.9", ' + text.encode() + b"}"


def _json_entry(**changes: Any) -> bytes:
    return json.dumps(dump(entry(**changes))).encode()


HOSTILE_DUMPS: Final[Mapping[str, Callable[[], bytes]]] = {
    # what each of these did at d946d44 stands in the report of 2026-11-24, finding C3
    "nested tuples as a key": lambda: HEAD + b"}" + _doubled(40) + b"Ns.",
    "nested tuples as a key, popped": lambda: HEAD + b"}" + _nested_tuples(40) + b"Ns.",
    "nested tuples as version": lambda: HEAD + b"}(" + _text("version") + _doubled(40) + b"u.",
    "nested tuples as pg_config": lambda: _with_value("pg_config", _doubled(40)),
    "nested lists as entries": lambda: _doubled_lists(40),
    "a frozenset as a key": lambda: HEAD + b"}(" + b"(K\x01K\x02\x91Nu.",
    "memo place 1e8": lambda: b"Nr" + struct.pack("<I", 10**8) + b".",
    "memo place 2^31-1": lambda: b"Nr" + struct.pack("<I", 2**31 - 1) + b".",
    "memo place 2^32-1 read": lambda: b"j" + struct.pack("<I", 2**32 - 1) + b".",
    "memo without an end": lambda: b"N" + b"\x94" * 3_000_001 + b".",
    "an integer of 4,000 digits": lambda: _with_value("pg_status", _long(4_000)),
    "4,000 integers of 4,000 digits": lambda: _long_sizes(4_000),
    "4,000 integers of 64 bit": lambda: pickled(entry(input_sizes=[[2**62] * 4_000])),
    "a negative size": lambda: pickled(entry(input_sizes=[[-4]])),
    "version of 5,000 digits": lambda: pickled(version=_digits(5_000)),
    "version of 5,000 digits, JSON": lambda: json.dumps(dump(version=_digits(5_000))).encode(),
    "an integer of 5,000 digits, JSON": lambda: _json('"entries": [{"record_id": ' + _digits(5_000) + "}]"),
    "an integer of 4,000 digits, JSON": lambda: _json('"entries": [{"record_id": ' + _digits(4_000) + "}]"),
    "an integer of 5,000 digits as version, JSON": lambda: b'{"version": ' + _digits(5_000).encode() + b"}",
    "profiling_name of 20,000 bits": lambda: pickled(entry(profiling_name=1 << 20_000)),
    "a key of 20,000 bits": lambda: pickled(pg_config={1 << 20_000: {}}),
    "a group's name of 20,000 bits": lambda: pickled(pg_config={"0": {"name": 1 << 20_000}}),
    "a group's name of a megabyte": lambda: pickled(pg_config={"0" * 1_000_000: {}}),
    "send to a rank of 5,000 digits": lambda: pickled(entry(profiling_name="nccl:send 0->" + _digits(5_000))),
    "ranks of 100,000 brackets": lambda: pickled(pg_config={"0": {"ranks": "[" * 100_000}}),
    "ranks of 5,000 digits": lambda: pickled(pg_config={"0": {"ranks": f"[{_digits(5_000)}]"}}),
    "rank 2^31-1": lambda: pickled(pg_config={"0": {"ranks": [2**31 - 1]}}),
    "two million ranks": lambda: pickled(pg_config={"0": {"ranks": "[" + "1," * 2_000_000 + "1]"}}),
    "brackets, JSON": lambda: b'{"version": ' + b"[" * 100_000,
    "nested 900 deep, JSON": lambda: _json('"entries": ' + "[" * 900 + "]" * 900),
    "lists without an end, JSON": lambda: _json('"entries": [' + "[]," * 1_500_000 + "[]]"),
    "objects without an end, JSON": lambda: _json('"entries": [' + '{"a":1},' * 800_000 + "{}]"),
    "lists without an end": lambda: HEAD + b"]" * 3_000_001 + b".",
    "dicts without an end": lambda: HEAD + b"}" * 3_000_001 + b".",
    "marks without an end": lambda: HEAD + b"(" * 3_000_001 + b".",
    "one-tuples without an end": lambda: HEAD + b")" + b"\x85" * 3_000_001 + b".",
    "one entry a million times": lambda: _shared_entries(1_900_000),
    "one list of sizes in each of 1,000 entries": lambda: _shared_sizes(1_000, 2_000),
    "one text of ranks in 1,000 groups": lambda: _shared_ranks(1_000, 50_000),
    "a list that holds itself": lambda: HEAD + b"]q\x00h\x00a.",
    "a list that grows after it was named": lambda: HEAD + b"](]q\x00h\x00K\x01ae.",
    "a text longer than the file": lambda: HEAD + b"}(" + b"X" + struct.pack("<I", 2**31) + b"2.9u.",
    "a text of 2^63 bytes": lambda: HEAD + b"\x8d" + struct.pack("<Q", 2**63) + b".",
    "a frame of 2^63 bytes": lambda: b"\x80\x04\x95" + struct.pack("<Q", 2**63) + b"N.",
    "an integer that says 2^31 bytes": lambda: HEAD + b"\x8b" + struct.pack("<I", 2**31 - 1) + b".",
    "a global": lambda: b"cos\nsystem\n(S'true'\ntR.",
    "a global by its name on the stack": lambda: b"\x80\x04\x8c\x02os\x8c\x06system\x93.",
    "an instance": lambda: b"(S'true'\nios\nsystem\n.",
    "a new object": lambda: HEAD + b"cbuiltins\nlist\n)\x81.",
    "an extension": lambda: HEAD + b"\x82\x01.",
    "a persistent id": lambda: b"Pwhatever\n.",
    "a buffer outside": lambda: b"\x80\x05\x97.",
    "a text without a line's end, protocol 0": lambda: b"V" + b"x" * 100_000,
    "an integer of text, protocol 0": lambda: b"L" + _digits(5_000).encode() + b"L\n.",
    "half a surrogate pair in JSON": lambda: _json('"pg_config": {"0": {"ranks": "\\ud800"}}'),
    "a number without end in JSON": lambda: _json('"entries": [{"record_id": 1e999}]'),
    "bytes as a name": lambda: pickled(entry(profiling_name=b"nccl:send")),
    "a dict as a state": lambda: pickled(entry(state={"scheduled": 1})),
    "a time of 10^30": lambda: pickled(entry(time_created_ns="9" * 30)),
    "a time before 1970": lambda: pickled(entry(time_created_ns=-(2**62))),
    "spaces only": lambda: b" " * 1_000_000,
    "larger than a dump": lambda: b"}" + b" " * 25_000_000,
}  # fmt: skip
"""Name -> its bytes. None of them is a dump."""

ODD_DUMPS: Final[Mapping[str, Callable[[], bytes]]] = {
    "nested tuples as comm_lib_version": lambda: _with_value("comm_lib_version", _doubled(40)),
    "nested tuples under a key that nobody reads": lambda: _with_value("x", _doubled(40)),
    "nested lists under a key that nobody reads": lambda: _with_value("x", b")" + b"\x85" * 500_000),
    "an integer as comm_lib_version": lambda: pickled(comm_lib_version=22_703),
    "20,000 unfinished operations": lambda: pickled(*[entry(record_id=number) for number in range(20_000)]),
    "a million ranks in one group": lambda: pickled(
        pg_config={"0": {"name": "0", "desc": "default_pg", "ranks": json.dumps(list(range(1_000_000)))}}
    ),
    "a time at the end of all times": lambda: pickled(entry(time_created_ns=2**63 - 1, timeout_ms=2**63 - 1)),
    "frames that each entry names": lambda: pickled(*_with_frames(2_000)),
}
"""Name -> its bytes. They may be read; what they cost is bounded all the same."""


def _with_frames(count: int) -> list[dict[str, Any]]:
    frames = [{"name": f"f{depth}", "filename": "train.py", "line": depth} for depth in range(30)]
    return [entry(record_id=number, frames=frames) for number in range(count)]
