"""Checks that name the field: shared by the wire codec and the CloudEvents.

Each check returns what it was given, or raises ``FieldError`` with the dotted name
of the field and the value. ``ObjectReader`` reads one JSON object: it asks for the
keys that it knows and ignores the others.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Iterable, Mapping
from enum import StrEnum
from typing import Any, NoReturn, TypeGuard, TypeVar

from tocsin.schemas.errors import DecodeError, FieldError

NS_PER_DAY = 86_400 * 1_000_000_000
INT32_MAX = 2**31 - 1
INT64_MIN = -(2**63)
INT64_MAX = 2**63 - 1
UINT32_MAX = 2**32 - 1
MIN_TICK_NS = 1_000_000
"""Nobody samples more often than each millisecond: a grid of that distance is laid over a slice."""
MAX_TICK_NS = 3_600 * 1_000_000_000
"""Nobody samples less often than each hour: a slice has at least five ticks, and its records are kept until it ends."""
MAX_ROWS = 1_000_000
MAX_RANKS = 1_000_000
"""Ranks of the largest job that is believed: each rank is below it, a world size at most it."""
MAX_ATTEMPT = INT32_MAX
"""Recordings keep it in 32 bit."""
MAX_GPUS = 128
"""GPUs, or parts of GPUs, of one host; an index is below it (recordings keep it in a byte)."""
MAX_COORDINATE = 32_767
"""Largest place of a rank in one direction of the parallel layout, and largest channel (recordings keep 16 bit)."""
MAX_SECONDS = 1e7
"""Longest duration that is believed, 116 days: no step, phase or fetch lasts so long, and in nanoseconds it fits
64 bit together with any time."""
MAX_STEP = 10**15
"""Largest number of a training step, also of a job that counts samples or tokens: a float64 still tells it exactly."""
MAX_JSON_DEPTH = 64  # far below Python's own limit: whoever shows or copies a value may recurse
MAX_NAME_BYTES = 1_024  # a path fits; a log line that ended up as a host name does not
_MANY_DIGITS = re.compile(r"\d{19}")
"""What every integer beyond 64 bit has, and hardly another text."""

EnumT = TypeVar("EnumT", bound=StrEnum)


def check_int(value: object, field: str, low: int, high: int = INT64_MAX) -> int:
    """Return an integer that lies within ``low`` and ``high``, both included.

    Raises:
        FieldError: another type (bool included), or out of range.
    """
    if type(value) is not int or not low <= value <= high:
        raise FieldError(field, value, f"an integer from {low} to {high}")
    return value


def is_number(value: object) -> TypeGuard[float]:
    """Whether a value is a number that can be calculated with: finite, an integer of at most 64 bit, no bool."""
    if type(value) is int:
        return INT64_MIN <= value <= INT64_MAX
    return type(value) is float and math.isfinite(value)


def check_name(value: object, field: str, *, empty: bool = False) -> str:
    """Return a text that can be a key: UTF-8, no NUL, at most ``MAX_NAME_BYTES``.

    Args:
        value: the text.
        field: its dotted name.
        empty: whether "" may stand for unknown.

    Raises:
        FieldError: another type, empty, too long, with NUL or with half a surrogate pair.
    """
    if type(value) is not str:
        raise FieldError(field, value, "a text")
    if not value and not empty:
        raise FieldError(field, value, "not empty")
    try:
        size = len(value) if value.isascii() else len(value.encode())
    except UnicodeEncodeError:
        raise FieldError(field, value, "text that UTF-8 can carry") from None
    if size > MAX_NAME_BYTES or "\0" in value:
        raise FieldError(field, value, f"at most {MAX_NAME_BYTES} bytes without NUL")
    return value


def check_near(ts_ns: int, field: str, now_ns: int | None) -> int:
    """Return a time that is at most a day away from now; any time where now is not given.

    Raises:
        FieldError: further away, or before 1970.
    """
    if ts_ns < 0:
        raise FieldError(field, ts_ns, "a time since 1970 in nanoseconds")
    if now_ns is not None and abs(ts_ns - now_ns) > NS_PER_DAY:
        raise FieldError(field, ts_ns, f"within a day of {now_ns}")
    return ts_ns


class ObjectReader:
    """Reads the keys of one JSON object, each with its type and its range.

    Attributes:
        path: dotted name of the object, for errors.
    """

    __slots__ = ("_values", "path")

    def __init__(self, values: object, path: str) -> None:
        """Wrap what the JSON parser returned.

        Raises:
            FieldError: it is no object.
        """
        if not isinstance(values, dict):
            raise FieldError(path, values, "a JSON object")
        self._values: dict[str, Any] = values
        self.path = path

    def field(self, key: str) -> str:
        """Return the dotted name of a key."""
        return f"{self.path}.{key}"

    def value(self, key: str) -> Any:
        """Return a required value as it is.

        Raises:
            FieldError: it is missing.
        """
        try:
            return self._values[key]
        except KeyError:
            raise FieldError(self.field(key), None, "present") from None

    def integer(self, key: str, low: int, high: int = INT64_MAX) -> int:
        """Return a required integer within ``low`` and ``high``."""
        return check_int(self.value(key), self.field(key), low, high)

    def name(self, key: str, *, empty: bool = False) -> str:
        """Return a required text that can be a key."""
        return check_name(self.value(key), self.field(key), empty=empty)

    def text(self, key: str) -> str:
        """Return a required text of any length."""
        value = self.value(key)
        if type(value) is not str:
            raise FieldError(self.field(key), value, "a text")
        return value

    def boolean(self, key: str) -> bool:
        """Return a required true or false."""
        value = self.value(key)
        if type(value) is not bool:
            raise FieldError(self.field(key), value, "true or false")
        return value

    def number(self, key: str, low: float = -math.inf, high: float = math.inf) -> float:
        """Return a required finite number within ``low`` and ``high``."""
        value = self.value(key)
        if not is_number(value) or not low <= value <= high:
            raise FieldError(self.field(key), value, f"a finite number from {low} to {high}")
        return float(value)

    def seconds(self, key: str) -> float:
        """Return a required duration, at most ``MAX_SECONDS``."""
        return self.number(key, 0.0, MAX_SECONDS)

    def optional_number(self, key: str) -> float | None:
        """Return a finite number, or None where it is null or missing."""
        return None if self._values.get(key) is None else self.number(key)

    def choice(self, key: str, kind: type[EnumT]) -> EnumT:
        """Return a required member of an enumeration."""
        value = self.value(key)
        for member in kind:
            if member.value == value:
                return member
        raise FieldError(self.field(key), value, "one of " + " ".join(m.value for m in kind))

    def mapping(self, key: str) -> dict[str, Any]:
        """Return a required object as it is."""
        value = self.value(key)
        if not isinstance(value, dict):
            raise FieldError(self.field(key), value, "a JSON object")
        return value

    def items(self, key: str) -> list[Any]:
        """Return a required array of at most ``MAX_ROWS`` values."""
        value = self.value(key)
        if not isinstance(value, list) or len(value) > MAX_ROWS:
            raise FieldError(self.field(key), value, f"an array of at most {MAX_ROWS} values")
        return value

    def integers(self, key: str, low: int, high: int = INT64_MAX) -> tuple[int, ...]:
        """Return a required array of integers, each within ``low`` and ``high``."""
        field = self.field(key)
        return tuple(check_int(v, f"{field}[{i}]", low, high) for i, v in enumerate(self.items(key)))

    def optional_integers(self, key: str, low: int, high: int = INT64_MAX) -> tuple[int, ...]:
        """Return an array of integers, or () where it is null or missing."""
        return () if self._values.get(key) is None else self.integers(key, low, high)

    def objects(self, key: str) -> list[ObjectReader]:
        """Return a reader for each object of a required array."""
        field = self.field(key)
        return [ObjectReader(v, f"{field}[{i}]") for i, v in enumerate(self.items(key))]

    def optional_objects(self, key: str) -> list[ObjectReader]:
        """Return a reader for each object of an array, none where it is null or missing."""
        return [] if self._values.get(key) is None else self.objects(key)

    def optional_object(self, key: str) -> ObjectReader | None:
        """Return a reader for an object, or None where it is null or missing."""
        value = self._values.get(key)
        return None if value is None else ObjectReader(value, self.field(key))


def dump_json(values: Mapping[str, Any], path: str, *, sort: bool = True) -> bytes:
    """Encode an object as compact UTF-8 JSON; equal objects give equal bytes where ``sort``.

    Args:
        values: JSON values only.
        path: dotted name of the object, for errors.
        sort: False: keep the order of the keys.

    Raises:
        FieldError: NaN, infinity, an integer beyond 64 bit, a type that JSON has not, a circle,
            nested too deep, or text that UTF-8 cannot carry.
    """
    try:
        text = json.dumps(values, sort_keys=sort, separators=(",", ":"), ensure_ascii=False, allow_nan=False)
        _check_depth(values, text)
        if _MANY_DIGITS.search(text):
            _check_integers(values)
        return text.encode()
    except (TypeError, ValueError, RecursionError) as error:
        # Not the values: what cannot be written may be too deep or too long to be shown, too.
        raise FieldError(path, type(error).__name__, f"JSON ({error})") from error


def load_json(data: bytes, path: str) -> object:
    """Decode UTF-8 JSON, strictly: no NaN, no infinity, no integer beyond 64 bit, no half surrogate pairs.

    Raises:
        DecodeError: anything else.
    """
    try:
        text = data.decode()
        parse_int = _int64 if _MANY_DIGITS.search(text) else None
        value: object = json.loads(text, parse_constant=_refuse_constant, parse_float=_finite, parse_int=parse_int)
        _check_depth(value, text)
        if "\\ud" in text or "\\uD" in text:
            # An escape may hide half a surrogate pair, which no later writer could encode.
            json.dumps(value, ensure_ascii=False).encode()
    except (ValueError, RecursionError) as error:
        raise DecodeError(f"{path} is no JSON: {error}") from error
    return value


def _int64(digits: str) -> int:
    """Read the digits of an integer."""
    if len(digits) <= 20:
        value = int(digits)
        if INT64_MIN <= value <= INT64_MAX:
            return value
    raise ValueError(f"an integer of {len(digits)} digits is more than 64 bit hold")


def _check_integers(value: object) -> None:
    """Raise ``ValueError`` for an integer beyond 64 bit; the depth was checked before."""
    if isinstance(value, int):
        if not INT64_MIN <= value <= INT64_MAX:
            raise ValueError(f"an integer of {value.bit_length()} bit, 64 are held")
    elif isinstance(value, Mapping):
        for inner in value.values():
            _check_integers(inner)
    elif isinstance(value, list | tuple):
        for inner in value:
            _check_integers(inner)


def _check_depth(value: object, text: str) -> None:
    """Raise ``ValueError`` for JSON nested too deep; most text has too few brackets for that."""
    if text.count("[") + text.count("{") > MAX_JSON_DEPTH:
        _descend(value, MAX_JSON_DEPTH)


def _descend(value: object, left: int) -> None:
    if left == 0:
        raise ValueError(f"nested deeper than {MAX_JSON_DEPTH}")
    inners = value.values() if isinstance(value, dict) else value
    if isinstance(inners, Iterable):
        for inner in inners:
            if isinstance(inner, (dict, list, tuple)):
                _descend(inner, left - 1)


def _refuse_constant(name: str) -> NoReturn:
    raise ValueError(f"{name} is no JSON number")


def _finite(text: str) -> float:
    value = float(text)
    if math.isinf(value):
        raise ValueError(f"{text} is more than a float64 holds")
    return value
