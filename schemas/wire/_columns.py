"""Columns of a batch on the wire: packing, unpacking, checks.

One column is one section. A column whose rows all have the default is not written, and a missing section reads
as the default. So a value that is not measured costs nothing.

- Integers: int32 or int64, packed.
- Floats: float64. float32 would save 4 bytes a value and lose the exact round trip: a replay must see
  the same durations as the live run.
- Optional floats: a bitmap of presence (row i is bit i % 8 of byte i // 8), then the values that are
  present. None (not measured) and NaN (measured, and no number) are kept apart.
- Texts: u32 count of distinct texts, one code a row (u8, u16 or u32, the narrowest that
  is enough), then the texts by first appearance, each terminated by NUL.
"""

from __future__ import annotations

import math
import struct
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from tocsin.schemas.errors import DecodeError, FieldError
from tocsin.schemas.wire.validate import (
    INT64_MAX,
    MAX_SECONDS,
    check_int,
    check_name,
)

_COUNT = struct.Struct("<I")
_WIDTHS: dict[str, int] = {"B": 1, "H": 2, "I": 4, "i": 4, "q": 8, "d": 8}


@dataclass(frozen=True, slots=True)
class IntColumn:
    """A column of integers.

    Attributes:
        section_id: id of the column's section.
        name: field of the row, for errors.
        code: ``i`` for int32, ``q`` for int64.
        low: least value allowed.
        default_value: value of all rows where the section is missing; None: the section is required.
        high: greatest value allowed.
    """

    section_id: int
    name: str
    code: Literal["i", "q"]
    low: int
    default_value: int | None = None
    high: int = INT64_MAX

    def pack(self, values: Sequence[int], path: str) -> bytes | None:
        """Return the packed values, one a row; None if all are the default.

        Raises:
            FieldError: a value has another type or is out of range.
        """
        if self.default_value is not None and values.count(self.default_value) == len(values):
            return None
        try:
            packed = struct.pack(f"<{len(values)}{self.code}", *values)
        except struct.error:
            self._check_each(values, path)
            raise
        self.check(values, path)
        return packed

    def unpack(self, payload: bytes | None, count: int, path: str) -> Sequence[int]:
        """Return the values of ``count`` rows.

        Args:
            payload: bytes of the section, None if it is missing.
            count: number of rows.
            path: dotted name of the batch, for errors.

        Raises:
            DecodeError: the section is required and missing, or has another length.
            FieldError: a value is out of range.
        """
        if payload is None:
            if self.default_value is None:
                raise DecodeError(f"{path}.{self.name}: section {self.section_id} is missing")
            return (self.default_value,) * count
        _check_size(payload, count * _WIDTHS[self.code], f"{path}.{self.name}")
        values = struct.unpack(f"<{count}{self.code}", payload)
        self.check(values, path)
        return values

    def check(self, values: Sequence[int], path: str) -> None:
        """Raise ``FieldError`` that names the row of a value out of range."""
        if values and (min(values) < self.low or max(values) > self.high):
            self._check_each(values, path)

    def _check_each(self, values: Sequence[int], path: str) -> None:
        """Check type and range of each value, to name the row of the first wrong one."""
        high = min(self.high, 2 ** (8 * _WIDTHS[self.code] - 1) - 1)
        for row, value in enumerate(values):
            check_int(value, f"{path}.{self.name}[{row}]", self.low, high)


@dataclass(frozen=True, slots=True)
class FloatColumn:
    """A column of floats.

    Attributes:
        section_id: id of the column's section.
        name: field of the row, for errors.
        optional: whether a row may have None.
        evidence: True: NaN, infinity and negative values are allowed, because they are evidence. False: the value is a
            duration, and these and values above ``MAX_SECONDS`` are errors.
    """

    section_id: int
    name: str
    optional: bool = True
    evidence: bool = False

    def pack(self, values: Sequence[float | None], path: str) -> bytes | None:
        """Return the packed values, one a row; None if all rows have None.

        Raises:
            FieldError: a value has another type, or is no valid duration.
        """
        present = [v for v in values if v is not None] if self.optional else values
        if self.optional and not present:
            return None
        try:
            # One NaN and one zero, whatever their sign: equal rows give equal bytes.
            same = [v + 0.0 if v == v else math.nan for v in present]  # type: ignore[operator]  # noqa: PLR0124
            packed = struct.pack(f"<{len(same)}d", *same)
        except (TypeError, OverflowError, struct.error):
            self._check_each(values, path)
            raise
        self._check(same, values, path)
        return _bitmap(values) + packed if self.optional else packed

    def unpack(self, payload: bytes | None, count: int, path: str) -> Sequence[float | None]:
        """Return the values of ``count`` rows.

        Args:
            payload: bytes of the section, None if it is missing.
            count: number of rows.
            path: dotted name of the batch, for errors.

        Raises:
            DecodeError: the section is required and missing, or its length does not fit its bitmap.
            FieldError: a value is no valid duration.
        """
        name = f"{path}.{self.name}"
        if payload is None:
            if not self.optional:
                raise DecodeError(f"{name}: section {self.section_id} is missing")
            return (None,) * count
        if not self.optional:
            _check_size(payload, 8 * count, name)
            values = struct.unpack(f"<{count}d", payload)
            self._check(values, values, path)
            return values
        return self._unpack_optional(payload, count, path)

    def _unpack_optional(self, payload: bytes, count: int, path: str) -> Sequence[float | None]:
        """Return the values of ``count`` rows, None where the bitmap has no bit."""
        name = f"{path}.{self.name}"
        begin = (count + 7) // 8
        bits = int.from_bytes(payload[:begin], "little")
        there = bits.bit_count()
        if bits >> count:
            raise DecodeError(f"{name}: the bitmap has more bits than the batch has rows")
        _check_size(payload, begin + 8 * there, name)
        values = struct.unpack_from(f"<{there}d", payload, begin)
        if there == count:
            self._check(values, values, path)
            return values
        following = iter(values)
        spread = [next(following) if bit == "1" else None for bit in f"{bits:0{count}b}"[::-1]] if count else []
        self._check(values, spread, path)
        return spread

    def _check(self, present: Sequence[float], values: Sequence[float | None], path: str) -> None:
        """Check that all present values are valid durations, unless they are evidence.

        The sum is tested for finiteness because it is not finite if one value is not.
        """
        if self.evidence or not present:
            return
        if min(present) < 0.0 or max(present) > MAX_SECONDS or not math.isfinite(sum(present)):
            self._check_each(values, path)

    def _check_each(self, values: Sequence[float | None], path: str) -> None:
        """Check each value, to name the row of the first wrong one."""
        for row, value in enumerate(values):
            if value is None and self.optional:
                continue
            if type(value) not in (int, float):
                raise FieldError(f"{path}.{self.name}[{row}]", value, "a number")
            if not self.evidence and not (value is not None and 0.0 <= value <= MAX_SECONDS):
                must = f"a duration: not negative, at most {MAX_SECONDS:g} seconds"
                raise FieldError(f"{path}.{self.name}[{row}]", value, must)


@dataclass(frozen=True, slots=True)
class TextColumn:
    """A column of texts, dictionary-encoded.

    Attributes:
        section_id: id of the column's section.
        name: field of the row, for errors.
        default_value: value of all rows where the section is missing; None: the section is required.
        empty: whether a row may have "".
        choices: the only allowed values; empty: any.
    """

    section_id: int
    name: str
    default_value: str | None = None
    empty: bool = False
    choices: tuple[str, ...] = ()

    def pack(self, values: Sequence[str], path: str) -> bytes | None:
        """Return the packed values, one a row; None if all are the default.

        Raises:
            FieldError: a value is no text, or not one of the choices.
        """
        if self.default_value is not None and values.count(self.default_value) == len(values):
            return None
        try:
            codes = {text: code for code, text in enumerate(dict.fromkeys(values))}
        except TypeError:
            codes = {}
        for row, value in enumerate(values if not codes else ()):
            check_name(value, f"{path}.{self.name}[{row}]", empty=self.empty)
        self._check(tuple(codes), values, path)
        width = _code_of(len(codes))
        numbers = map(codes.__getitem__, values)
        packed = bytes(numbers) if width == "B" else struct.pack(f"<{len(values)}{width}", *numbers)
        return _COUNT.pack(len(codes)) + packed + pack_texts(codes)

    def unpack(self, payload: bytes | None, count: int, path: str) -> Sequence[str]:
        """Return the values of ``count`` rows.

        Args:
            payload: bytes of the section, None if it is missing.
            count: number of rows.
            path: dotted name of the batch, for errors.

        Raises:
            DecodeError: the section is required and missing, cut short, or has a code without a text.
            FieldError: a text is not allowed.
        """
        name = f"{path}.{self.name}"
        if payload is None:
            if self.default_value is None:
                raise DecodeError(f"{name}: section {self.section_id} is missing")
            return (self.default_value,) * count
        if len(payload) < _COUNT.size:
            raise DecodeError(f"{name}: {len(payload)} bytes are no column of texts")
        (distinct,) = _COUNT.unpack_from(payload)
        if distinct > count:
            raise DecodeError(f"{name}: {distinct} distinct texts in {count} rows")
        width = _code_of(distinct)
        texts_at = _COUNT.size + count * _WIDTHS[width]
        if len(payload) < texts_at:
            raise DecodeError(f"{name}: {len(payload)} bytes, the codes end at {texts_at}")
        codes = struct.unpack_from(f"<{count}{width}", payload, _COUNT.size)
        texts = unpack_texts(payload[texts_at:], distinct, name)
        if codes and max(codes) >= distinct:
            raise DecodeError(f"{name}: code {max(codes)} of {distinct} texts")
        values = [texts[code] for code in codes]
        self._check(texts, values, path)
        return values

    def _check(self, texts: Sequence[str], values: Sequence[str], path: str) -> None:
        """Check the distinct texts; the error names the first row of a wrong one."""
        for text in texts:
            field = f"{path}.{self.name}"
            if self.choices and text not in self.choices:
                raise FieldError(_row_of(values, text, field), text, "one of " + " ".join(self.choices))
            try:
                check_name(text, field, empty=self.empty)
            except FieldError:
                check_name(text, _row_of(values, text, field), empty=self.empty)


Column = IntColumn | FloatColumn | TextColumn


def pack_texts(texts: Sequence[str] | dict[str, int]) -> bytes:
    """Return texts as UTF-8, each terminated by NUL; the caller has checked that none contains NUL."""
    return "".join([f"{text}\0" for text in texts]).encode()


def unpack_texts(payload: bytes, count: int, field: str) -> tuple[str, ...]:
    """Decode exactly ``count`` texts, each terminated by NUL.

    Raises:
        DecodeError: there are more or fewer texts, or the bytes are not UTF-8.
    """
    try:
        texts = payload.decode().split("\0")
    except UnicodeDecodeError as error:
        raise DecodeError(f"{field} is not UTF-8: {error}") from error
    if len(texts) != count + 1 or texts[-1]:
        raise DecodeError(f"{field}: {len(payload)} bytes are not {count} texts closed by NUL")
    return tuple(texts[:-1])


def _code_of(distinct: int) -> Literal["B", "H", "I"]:
    """Return the ``struct`` code of the narrowest integer for so many distinct texts."""
    if distinct <= 1 << 8:
        return "B"
    return "H" if distinct <= 1 << 16 else "I"


def _bitmap(values: Sequence[float | None]) -> bytes:
    """Return the bitmap of presence: row i is bit i % 8 of byte i // 8, set where the value is not None."""
    size = (len(values) + 7) // 8
    if None not in values:
        return ((1 << len(values)) - 1).to_bytes(size, "little")
    digits = "".join(["0" if value is None else "1" for value in values])
    return int(digits[::-1], 2).to_bytes(size, "little")


def _row_of(values: Sequence[str], text: str, field: str) -> str:
    """Return the field's name with the index of the first row that has this text."""
    return f"{field}[{values.index(text)}]" if text in values else field


def _check_size(payload: bytes, size: int, field: str) -> None:
    """Raise ``DecodeError`` if a payload has not exactly this size."""
    if len(payload) != size:
        raise DecodeError(f"{field}: {len(payload)} bytes, its rows need {size}")
