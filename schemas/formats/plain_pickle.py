"""Safe reader of pickles that hold plain values only: dicts, lists, tuples, texts, numbers, booleans, None.

It replaces ``pickle.Unpickler``, which builds whatever the bytes ask for. An opcode that a dump does not
need is refused by its name, nothing can be called or imported, and the cost of a pickle is bounded:

- each opcode counts, ``MAX_OPCODES`` in all, and each container, mark and text, ``MAX_MADE`` in all;
  the memory is bounded by them and by the input's length;
- a memo index is at most the input's length, and only used ones are stored;
- an integer has at most 64 bit, a key is a text or such an integer;
- a container that was read back from the memo cannot grow any more, so no value contains itself.

One value may still occur in many places through the memo, so walking through all of it may take far longer
than reading the pickle. ``weigh`` counts the occurrences up to a limit.
"""

from __future__ import annotations

import struct
from collections.abc import Callable
from typing import Any, Final, NoReturn

from tocsin.schemas.errors import DecodeError, TruncatedError
from tocsin.schemas.wire.validate import INT64_MAX, INT64_MIN

MAX_OPCODES: Final = 3_000_000
"""Most opcodes: enough for 20,000 operations with their stacks. Each costs a third of a microsecond."""
MAX_MADE: Final = 1_000_000
"""Most containers, marks and texts. Each takes some 70 bytes, other values hardly any."""
MAX_DEPTH: Final = 16
CHARACTERS_A_VALUE: Final = 16
"""Characters of text that count as one value in ``weigh``."""

_F64: Final = struct.Struct(">d")
_STOP: Final = 0x2E
_KEYS: Final = frozenset({str, int})
_NAMES: Final = {
    **dict.fromkeys(b"c\x93", "a global"),
    **dict.fromkeys(b"Rio\x81\x92b", "an object"),
    **dict.fromkeys(b"PQ", "something outside the file"),
    **dict.fromkeys(b"\x82\x83\x84", "an extension"),
    **dict.fromkeys(b"ILFSVUTgpldD", "values as protocols 0 and 1 write them"),
}
"""Refused opcode -> what it asks for, for the error."""


class _PickleReader:
    """The stack machine that reads one pickle.

    Attributes:
        data: bytes of the pickle.
        place: index of the next byte.
        stack: values since the last mark.
        made: number of containers, marks and texts so far.
    """

    __slots__ = ("_far", "_marks", "_memo", "_named", "data", "made", "place", "stack")

    def __init__(self, data: bytes) -> None:
        self.data = data
        self.place = self.made = 0
        self.stack: list[Any] = []
        self._marks: list[list[Any]] = []
        """The stacks before each open mark."""
        self._memo: list[Any] = []
        self._far: dict[int, Any] = {}
        """Memo entries that were stored out of order."""
        self._named: set[int] = set()
        """Ids of containers that were read back from the memo and are therefore finished."""

    def load(self) -> object:
        """Execute the opcodes up to the end mark and return the value; bytes after it are ignored, as in ``pickle``."""
        data, opcodes = self.data, _OPCODES
        try:
            for _ in range(MAX_OPCODES):
                code = data[self.place]
                self.place += 1
                read = opcodes[code]
                if read is None:
                    if code == _STOP:
                        return self._end()
                    self._refuse(code)
                read(self)
        except IndexError:  # of the bytes: nothing else here is read by a place
            raise TruncatedError(f"the pickle ends after {len(data)} bytes, before its end mark") from None
        raise DecodeError(f"the pickle has more than {MAX_OPCODES} values")

    def _end(self) -> object:
        """Return the one value on the stack; raise ``DecodeError`` if there is not exactly one."""
        if len(self.stack) != 1 or self._marks:
            raise DecodeError(f"the pickle ends with {len(self.stack)} values on its stack")
        return self.stack[0]

    def _refuse(self, code: int) -> NoReturn:
        """Raise ``DecodeError`` that names what a refused opcode asks for."""
        what = _NAMES.get(code, "what no dump needs")
        if code == ord("c"):
            shown = self.data[self.place : self.place + 120].split(b"\n")[:2]
            what += " " + ".".join(part.decode("utf-8", "replace") for part in shown)
        elif code == 0x93 and len(self.stack) > 1:
            what += " " + ".".join(str(part)[:60] for part in self.stack[-2:] if type(part) is str)
        raise DecodeError(f"the pickle asks for {what} (opcode {bytes([code])!r}): a dump holds plain values only")

    # --- bytes -------------------------------------------------------------------------------------

    def take(self, size: int) -> bytes:
        """Return the next bytes and advance; raise ``TruncatedError`` if there are too few."""
        begin = self.place
        self.place = end = begin + size
        found = self.data[begin:end]
        if len(found) < size:
            raise TruncatedError(f"the pickle ends after {len(self.data)} bytes, a value needs {end}")
        return found

    def byte(self) -> int:
        """Return the next byte and advance."""
        place = self.place
        self.place = place + 1
        return self.data[place]

    def number(self, size: int) -> int:
        """Return the next bytes as an unsigned little-endian number and advance."""
        return int.from_bytes(self.take(size), "little")

    # --- the stack ---------------------------------------------------------------------------------

    def pop(self) -> Any:
        """Remove the last value from the stack and return it."""
        if not self.stack:
            self.fail("there is no value")
        return self.stack.pop()

    def since_mark(self) -> list[Any]:
        """Remove the last mark and return the values since then."""
        if not self._marks:
            self.fail("there is no mark")
        found, self.stack = self.stack, self._marks.pop()
        return found

    def make(self, value: object) -> None:
        """Push a container or a text; raise ``DecodeError`` beyond ``MAX_MADE``."""
        self.made += 1
        if self.made > MAX_MADE:
            raise DecodeError(f"the pickle has more than {MAX_MADE} containers, marks and texts")
        self.stack.append(value)

    def mark(self) -> None:
        """Push a mark, after which the items of a container follow."""
        self.make(None)
        self.stack.pop()
        self._marks.append(self.stack)
        self.stack = []

    def fail(self, why: str) -> NoReturn:
        """Raise ``DecodeError`` for opcodes that do not fit together."""
        raise DecodeError(f"no readable pickle, byte {self.place}: {why}")

    def growing(self, kind: type) -> Any:
        """Return the container of this type on top of the stack, to which items are added.

        Raises:
            DecodeError: there is none, or it was read back from the memo and is therefore finished.
        """
        top = self.stack[-1] if self.stack else None
        if type(top) is not kind:
            self.fail(f"there is no {kind.__name__}")
        if id(top) in self._named:
            self.fail(f"a {kind.__name__} that stands elsewhere, too, is not finished")
        return top

    # --- the memo ----------------------------------------------------------------------------------

    def remember(self, place: int) -> None:
        """Store the value on top of the stack at a memo index."""
        if place > len(self.data):
            self.fail(f"memo place {place} lies beyond the input's length")
        if not self.stack:
            self.fail("there is no value")
        if place == len(self._memo):
            self._memo.append(self.stack[-1])
        elif place < len(self._memo):
            self._memo[place] = self.stack[-1]
        else:
            self._far[place] = self.stack[-1]

    def remember_next(self) -> None:
        """Store the value on top of the stack at the next memo index."""
        self.remember(len(self._memo) + len(self._far))

    def recall(self, place: int) -> None:
        """Push the value at a memo index again; a container becomes finished."""
        if place < len(self._memo):
            value = self._memo[place]
        elif place in self._far:
            value = self._far[place]
        else:
            self.fail(f"memo place {place} holds nothing")
        if type(value) in (list, dict):
            self._named.add(id(value))  # the memo keeps it, so nobody else gets its id
        self.stack.append(value)


def _integer(reader: _PickleReader, size: int) -> None:
    """Push a signed integer of this many bytes."""
    value = int.from_bytes(reader.take(size), "little", signed=True) if size <= 9 else INT64_MAX + 1
    if not INT64_MIN <= value <= INT64_MAX:
        reader.fail(f"an integer of {size} bytes, the most are 64 bit")
    reader.stack.append(value)


def _text(reader: _PickleReader, size: int) -> None:
    """Push a text of this many bytes."""
    try:
        reader.make(reader.take(size).decode("utf-8", "surrogatepass"))
    except UnicodeDecodeError as error:
        raise DecodeError(f"no readable pickle: a text is not UTF-8: {error.reason}") from error


def _tuple(reader: _PickleReader, size: int) -> None:
    """Replace the last ``size`` values by a tuple of them."""
    items = [reader.pop() for _ in range(size)]
    reader.make(tuple(reversed(items)))


def _append(reader: _PickleReader) -> None:
    """Append the last value to the list below it."""
    item = reader.pop()
    reader.growing(list).append(item)


def _appends(reader: _PickleReader) -> None:
    """Append the values since the last mark to the list below it."""
    items = reader.since_mark()
    reader.growing(list).extend(items)


def _set_items(reader: _PickleReader, items: list[Any]) -> None:
    """Add keys and values, which alternate in ``items``, to the dict on top of the stack."""
    target = reader.growing(dict)
    if len(items) % 2:
        reader.fail("there is a key without a value")
    keys = items[::2]
    if set(map(type, keys)) - _KEYS:
        wrong = next(type(key) for key in keys if type(key) not in _KEYS)
        reader.fail(f"a {wrong.__name__} is a key, a dump's are texts or numbers")
    target.update(zip(keys, items[1::2], strict=True))


def _set_item(reader: _PickleReader) -> None:
    """Add the last two values as key and value to the dict below them."""
    value = reader.pop()
    _set_items(reader, [reader.pop(), value])


def _constant(value: object) -> Callable[[_PickleReader], None]:
    """Return the opcode function that pushes this value."""
    return lambda reader: reader.stack.append(value)


KNOWN_OPCODES: Final[dict[bytes, Callable[[_PickleReader], Any]]] = {
    b"\x80": lambda reader: reader.take(1),  # protocol
    b"\x95": lambda reader: reader.take(8),  # length of a frame
    b"N": _constant(None),
    b"\x88": _constant(True),  # the value that it stands for
    b"\x89": _constant(False),  # the value that it stands for
    b"K": lambda reader: reader.stack.append(reader.byte()),
    b"M": lambda reader: reader.stack.append(reader.number(2)),
    b"J": lambda reader: _integer(reader, 4),
    b"\x8a": lambda reader: _integer(reader, reader.byte()),
    b"\x8b": lambda reader: _integer(reader, reader.number(4)),
    b"G": lambda reader: reader.stack.append(_F64.unpack(reader.take(8))[0]),
    b"X": lambda reader: _text(reader, reader.number(4)),
    b"\x8c": lambda reader: _text(reader, reader.byte()),
    b"\x8d": lambda reader: _text(reader, reader.number(8)),
    b"B": lambda reader: reader.make(reader.take(reader.number(4))),
    b"C": lambda reader: reader.make(reader.take(reader.byte())),
    b"(": _PickleReader.mark,
    b"]": lambda reader: reader.make([]),
    b"}": lambda reader: reader.make({}),
    b")": lambda reader: reader.make(()),
    b"a": _append,
    b"e": _appends,
    b"s": _set_item,
    b"u": lambda reader: _set_items(reader, reader.since_mark()),
    b"\x85": lambda reader: _tuple(reader, 1),
    b"\x86": lambda reader: _tuple(reader, 2),
    b"\x87": lambda reader: _tuple(reader, 3),
    b"t": lambda reader: reader.make(tuple(reader.since_mark())),
    b"q": lambda reader: reader.remember(reader.byte()),
    b"r": lambda reader: reader.remember(reader.number(4)),
    b"\x94": lambda reader: reader.remember_next(),
    b"h": lambda reader: reader.recall(reader.byte()),
    b"j": lambda reader: reader.recall(reader.number(4)),
}
"""Opcode that a pickle of plain values may hold -> its effect."""
_OPCODES: Final = tuple(KNOWN_OPCODES.get(bytes([code])) for code in range(256))


def load_plain(data: bytes) -> object:
    """Read a pickle of plain values (protocols 2 to 5).

    Raises:
        TruncatedError: the pickle ends before its end mark.
        DecodeError: the bytes are no pickle, ask for anything but plain values, or exceed ``MAX_OPCODES`` or
            ``MAX_MADE``.
    """
    return _PickleReader(data).load()


def weigh(value: object, most: int) -> int:
    """Return how many values a value consists of, each counted as often as it occurs; a long text counts as several.

    Args:
        value: plain values only.
        most: limit of the count.

    Raises:
        DecodeError: there are more than ``most`` values, or they are nested deeper than ``MAX_DEPTH``.
    """
    count, level, depth = 0, [value], 0
    while level:
        count += len(level)
        if count > most:
            raise DecodeError(f"holds more than {most} values")
        if depth > MAX_DEPTH:
            raise DecodeError(f"is nested deeper than {MAX_DEPTH}")
        depth += 1
        inner: list[object] = []
        for item in level:
            if isinstance(item, str | bytes):
                count += len(item) // CHARACTERS_A_VALUE
            elif isinstance(item, dict):
                inner.extend(item.values())
            elif isinstance(item, list | tuple):
                inner.extend(item)
            if count + len(inner) > most:
                raise DecodeError(f"holds more than {most} values")
        level = inner
    return count
