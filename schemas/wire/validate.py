"""Checks of values that name the field, shared by the wire codec and the CloudEvents.

Each check returns the value unchanged, or raises ``FieldError`` with the dotted name of the field and the value.
``ObjectReader`` reads the known keys of one JSON object and ignores the others.
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
"""Shortest sampling period: a slice is laid on a grid of this distance."""
MAX_TICK_NS = 3_600 * 1_000_000_000
"""Longest sampling period: a slice has at least five ticks, and its records are kept until it ends."""
MAX_ROWS = 1_000_000
MAX_RANKS = 1_000_000
"""Largest world size that is accepted; each rank is below it."""
MAX_ATTEMPT = INT32_MAX
"""Largest attempt number; recordings store it in 32 bit."""
MAX_GPUS = 128
"""Most GPUs, or parts of GPUs, of one host; an index is below it (recordings store it in a byte)."""
MAX_COORDINATE = 32_767
"""Largest coordinate of a rank in the parallel layout, and largest channel (recordings store 16 bit)."""
MAX_SECONDS = 1e7
"""Longest duration that is accepted, 116 days. No step, phase or fetch lasts so long, and in nanoseconds its sum with
any time fits 64 bit."""
MAX_STEP = 10**15
"""Largest step number, also of a job that counts samples or tokens; a float64 still represents it exactly."""
MAX_JSON_DEPTH = 64  # far below Python's own limit: whoever shows or copies a value may recurse
MAX_NAME_BYTES = 1_024  # a path fits; a log line that ended up as a host name does not
_MANY_DIGITS = re.compile(r"\d{19}")
"""Pattern in the text of every integer beyond 64 bit, and of hardly any other; its match triggers the exact check."""

EnumT = TypeVar("EnumT", bound=StrEnum)


def check_int(value: object, field: str, low: int, high: int = INT64_MAX) -> int:
    """Return the value if it is an integer from ``low`` to ``high``, both included.

    Raises:
        FieldError: the value has another type (bool included) or is out of range.
    """
    if type(value) is not int or not low <= value <= high:
        raise FieldError(field, value, f"an integer from {low} to {high}")
    return value


def is_number(value: object) -> TypeGuard[float]:
    """Return whether a value is a finite float or an integer of at most 64 bit; a bool is none."""
    if type(value) is int:
        return INT64_MIN <= value <= INT64_MAX
    return type(value) is float and math.isfinite(value)


def check_name(value: object, field: str, *, empty: bool = False) -> str:
    """Return the value if it is a text that can be a key: UTF-8, no NUL, at most ``MAX_NAME_BYTES``.

    Args:
        value: the value.
        field: dotted name of the field.
        empty: whether "" is allowed, meaning unknown.

    Raises:
        FieldError: the value has another type, is empty or too long, or has a NUL or an unpaired surrogate.
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
    """Return the time if it is at most a day from ``now_ns``; any time since 1970 if that is None.

    Raises:
        FieldError: the time is further away, or before 1970.
    """
    if ts_ns < 0:
        raise FieldError(field, ts_ns, "a time since 1970 in nanoseconds")
    if now_ns is not None and abs(ts_ns - now_ns) > NS_PER_DAY:
        raise FieldError(field, ts_ns, f"within a day of {now_ns}")
    return ts_ns


class ObjectReader:
    """Typed reading of the keys of one JSON object; errors name the key.

    Attributes:
        path: dotted name of the object, for errors.
    """

    __slots__ = ("_values", "path")

    def __init__(self, values: object, path: str) -> None:
        """Wrap a value from the JSON parser.

        Raises:
            FieldError: the value is no object.
        """
        if not isinstance(values, dict):
            raise FieldError(path, values, "a JSON object")
        self._values: dict[str, Any] = values
        self.path = path

    def field(self, key: str) -> str:
        """Return the dotted name of a key, for errors."""
        return f"{self.path}.{key}"

    def has(self, key: str) -> bool:
        """Return whether the key is there."""
        return key in self._values

    def value(self, key: str) -> Any:
        """Return the value of a required key, unchecked.

        Raises:
            FieldError: the key is missing.
        """
        try:
            return self._values[key]
        except KeyError:
            raise FieldError(self.field(key), None, "present") from None

    def integer(self, key: str, low: int, high: int = INT64_MAX) -> int:
        """Return a required integer from ``low`` to ``high``."""
        return check_int(self.value(key), self.field(key), low, high)

    def name(self, key: str, *, empty: bool = False) -> str:
        """Return a required text that can be a key; ``empty``: "" is allowed."""
        return check_name(self.value(key), self.field(key), empty=empty)

    def optional_name(self, key: str) -> str:
        """Return a text that can be a key; "" if the key is missing."""
        return self.name(key, empty=True) if key in self._values else ""

    def text(self, key: str) -> str:
        """Return a required text of any length."""
        value = self.value(key)
        if type(value) is not str:
            raise FieldError(self.field(key), value, "a text")
        return value

    def boolean(self, key: str) -> bool:
        """Return a required boolean."""
        value = self.value(key)
        if type(value) is not bool:
            raise FieldError(self.field(key), value, "true or false")
        return value

    def number(self, key: str, low: float = -math.inf, high: float = math.inf) -> float:
        """Return a required finite number from ``low`` to ``high``."""
        value = self.value(key)
        if not is_number(value) or not low <= value <= high:
            raise FieldError(self.field(key), value, f"a finite number from {low} to {high}")
        return float(value)

    def seconds(self, key: str) -> float:
        """Return a required duration in seconds, at most ``MAX_SECONDS``."""
        return self.number(key, 0.0, MAX_SECONDS)

    def optional_number(self, key: str, low: float = -math.inf, high: float = math.inf) -> float | None:
        """Return a finite number from ``low`` to ``high``, None if the key is null or missing."""
        return None if self._values.get(key) is None else self.number(key, low, high)

    def choice(self, key: str, kind: type[EnumT]) -> EnumT:
        """Return the required member of an enumeration with the key's value."""
        value = self.value(key)
        for member in kind:
            if member.value == value:
                return member
        raise FieldError(self.field(key), value, "one of " + " ".join(m.value for m in kind))

    def mapping(self, key: str) -> dict[str, Any]:
        """Return a required JSON object as a dict."""
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
        """Return a required array of integers, each from ``low`` to ``high``."""
        field = self.field(key)
        return tuple(check_int(v, f"{field}[{i}]", low, high) for i, v in enumerate(self.items(key)))

    def optional_integers(self, key: str, low: int, high: int = INT64_MAX) -> tuple[int, ...]:
        """Return an array of integers, () if the key is null or missing."""
        return () if self._values.get(key) is None else self.integers(key, low, high)

    def objects(self, key: str) -> list[ObjectReader]:
        """Return a reader for each object in a required array."""
        field = self.field(key)
        return [ObjectReader(v, f"{field}[{i}]") for i, v in enumerate(self.items(key))]

    def optional_objects(self, key: str) -> list[ObjectReader]:
        """Return a reader for each object in an array, [] if the key is null or missing."""
        return [] if self._values.get(key) is None else self.objects(key)

    def optional_object(self, key: str) -> ObjectReader | None:
        """Return a reader for an object, None if the key is null or missing."""
        value = self._values.get(key)
        return None if value is None else ObjectReader(value, self.field(key))


def dump_json(values: Mapping[str, Any], path: str, *, sort: bool = True) -> bytes:
    """Encode an object as compact UTF-8 JSON; with ``sort``, equal objects give equal bytes.

    Args:
        values: JSON values only.
        path: dotted name of the object, for errors.
        sort: True: sort the keys. False: keep their order.

    Raises:
        FieldError: the object has a NaN, an infinity, an integer beyond 64 bit, another type, a cycle, too deep
            nesting, or text that UTF-8 cannot encode.
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
    """Decode UTF-8 JSON strictly.

    NaN, infinity, integers beyond 64 bit, unpaired surrogates and nesting beyond ``MAX_JSON_DEPTH`` are refused.

    Args:
        data: the JSON text.
        path: dotted name of the value, for errors.

    Raises:
        DecodeError: the data is not such JSON.
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
    """Return the integer of these digits; raise ``ValueError`` beyond 64 bit."""
    if len(digits) <= 20:
        value = int(digits)
        if INT64_MIN <= value <= INT64_MAX:
            return value
    raise ValueError(f"an integer of {len(digits)} digits is more than 64 bit hold")


def _check_integers(value: object) -> None:
    """Raise ``ValueError`` for an integer beyond 64 bit anywhere in a value, whose depth is already checked."""
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
    """Raise ``ValueError`` for JSON nested too deep; only text with many brackets is walked through."""
    if text.count("[") + text.count("{") > MAX_JSON_DEPTH:
        _descend(value, MAX_JSON_DEPTH)


def _descend(value: object, left: int) -> None:
    """Raise ``ValueError`` if a value has more than ``left`` levels."""
    if left == 0:
        raise ValueError(f"nested deeper than {MAX_JSON_DEPTH}")
    inners = value.values() if isinstance(value, dict) else value
    if isinstance(inners, Iterable):
        for inner in inners:
            if isinstance(inner, (dict, list, tuple)):
                _descend(inner, left - 1)


def _refuse_constant(name: str) -> NoReturn:
    """Raise ``ValueError`` for NaN or Infinity."""
    raise ValueError(f"{name} is no JSON number")


def _finite(text: str) -> float:
    """Return the float of a JSON number; raise ``ValueError`` if it overflows."""
    value = float(text)
    if math.isinf(value):
        raise ValueError(f"{text} is more than a float64 holds")
    return value
