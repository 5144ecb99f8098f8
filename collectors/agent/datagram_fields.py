"""Typed access to the fields of a hook's datagram; a wrong value raises a ``FieldError`` that names field and value."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from tocsin.schemas.errors import FieldError
from tocsin.schemas.wire.validate import INT64_MAX, MAX_SECONDS

DAY_NS: Final = 86_400_000_000_000
MAX_COLLECTIVES: Final = 512


class Fields:
    """Typed access to the fields of one JSON object."""

    __slots__ = ("now_ns", "values")

    def __init__(self, values: Mapping[str, Any], now_ns: int) -> None:
        self.values = values
        self.now_ns = now_ns

    def integer(self, name: str, low: int, high: int = INT64_MAX, default: int | None = None) -> int:
        """Return an integer from ``low`` to ``high``, the default if it is missing."""
        value = self.values.get(name, default)
        if type(value) is not int or not low <= value <= high:
            raise FieldError(name, value, f"an integer from {low} to {high}")
        return value

    def text(self, name: str, limit: int = 256, default: str | None = None) -> str:
        """Return a text of at most ``limit`` characters, the default if it is missing."""
        return text_of(name, self.values.get(name, default), limit)

    def tail(self, name: str, limit: int) -> str:
        """Return the end of a text that a program wrote, with invalid characters replaced."""
        value = self.values.get(name, "")
        if type(value) is not str:
            raise FieldError(name, value, "a text")
        return value[-limit:].encode("utf-8", "replace").decode().replace("\0", "?")

    def choice(self, name: str, allowed: tuple[str, ...]) -> str:
        """Return a text that must be one of the allowed ones."""
        value = self.values.get(name)
        if value not in allowed:
            raise FieldError(name, value, "one of " + ", ".join(allowed))
        return str(value)

    def time(self, name: str) -> int:
        """Return a time less than a day from now."""
        return time_of(name, self.values.get(name), self.now_ns)

    def seconds(self, name: str) -> float | None:
        """Return a duration in seconds, None for null or missing."""
        value = self.values.get(name)
        if value is None:
            return None
        if type(value) not in {float, int} or not 0 <= value <= MAX_SECONDS:
            raise FieldError(name, value, f"seconds, not negative, at most {MAX_SECONDS:g}")
        return float(value)

    def ratio(self, name: str) -> float | None:
        """Return a share from 0 to 1, None for null or missing."""
        value = self.values.get(name)
        if value is None:
            return None
        if type(value) not in {float, int} or not 0 <= value <= 1:
            raise FieldError(name, value, "a number from 0 to 1")
        return float(value)

    def number(self, name: str) -> float | None:
        """Return any number, also ``nan`` or ``inf`` as text; None for null or missing."""
        value = self.values.get(name)
        if value is None:
            return None
        if type(value) is str and value in {"nan", "inf", "-inf"}:
            return float(value)
        if type(value) not in {float, int} or (type(value) is int and abs(value) > INT64_MAX):
            raise FieldError(name, value, "a number, null, 'nan', 'inf' or '-inf'")
        return float(value)

    def rows(self, name: str, width: int) -> list[list[Any]]:
        """Return a list of at most ``MAX_COLLECTIVES`` rows of ``width`` items."""
        value = self.values.get(name, [])
        if type(value) is not list or len(value) > MAX_COLLECTIVES:
            raise FieldError(name, value, f"a list of at most {MAX_COLLECTIVES} rows")
        for index, row in enumerate(value):
            if type(row) is not list or len(row) != width:
                raise FieldError(f"{name}[{index}]", row, f"a row of {width} items")
        return value


def time_of(name: str, value: object, now_ns: int, *, or_zero: bool = False) -> int:
    """Return a time less than a day from now; with ``or_zero``, also 0."""
    if type(value) is int and (abs(value - now_ns) < DAY_NS or (or_zero and value == 0)):
        return value
    raise FieldError(name, value, "Unix nanoseconds less than a day away" + (" or 0" if or_zero else ""))


def text_of(name: str, value: object, limit: int = 256, least: int = 0) -> str:
    """Return a text that the wire codec can carry: no NUL and no unpaired surrogate."""
    if type(value) is not str or not least <= len(value) <= limit:
        raise FieldError(name, value, f"a text of {least} to {limit} characters")
    if not value.isascii() and any("\ud800" <= letter <= "\udfff" for letter in value):
        raise FieldError(name, value, "text that UTF-8 can carry")
    if "\0" in value:
        raise FieldError(name, value, "without NUL")
    return value
