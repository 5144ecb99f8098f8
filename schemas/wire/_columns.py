"""Columns of a batch on the wire: packing, unpacking, checks.

One column is one section. A column whose rows all have the default is not written,
and a missing section reads as the default: a sender that does not measure something
pays nothing for it, and an older reader misses nothing that it knows.

- integers: int32 or int64, packed.
- floats: float64. float32 would save 4 bytes a value and lose the exact round trip:
  a replay must see the very durations that the live run saw.
- floats that may be missing: a bitmap of presence (row i is bit i % 8 of byte i // 8),
  then the values that are there. None (not measured) and NaN (measured, and it is
  no number) stay apart.
- texts: u32 count of distinct texts, one code a row (u8, u16 or u32, the narrowest that
  is enough), then the texts by first appearance, each closed by NUL.
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
    """Integers.

    Attributes:
        section_id: section id.
        name: field of the row.
        code: ``i`` for int32, ``q`` for int64.
        low: least value that a row may have.
        default_value: value of all rows where the section is missing; None: it must be there.
        high: greatest value that a row may have.
    """

    section_id: int
    name: str
    code: Literal["i", "q"]
    low: int
    default_value: int | None = None
    high: int = INT64_MAX

    def pack(self, values: Sequence[int], path: str) -> bytes | None:
        """Pack one value a row; None where all are the default.

        Raises:
            FieldError: a value of another type or out of range.
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
        """Unpack ``count`` rows.

        Raises:
            DecodeError: missing, or of another length.
            FieldError: a value out of range.
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
        """Raise ``FieldError`` that names the row of a value that is too small or too large."""
        if values and (min(values) < self.low or max(values) > self.high):
            self._check_each(values, path)

    def _check_each(self, values: Sequence[int], path: str) -> None:
        high = min(self.high, 2 ** (8 * _WIDTHS[self.code] - 1) - 1)
        for row, value in enumerate(values):
            check_int(value, f"{path}.{self.name}[{row}]", self.low, high)


@dataclass(frozen=True, slots=True)
class FloatColumn:
    """Floats.

    Attributes:
        section_id: section id.
        name: field of the row.
        optional: whether a row may have None.
        evidence: True: NaN, infinity and negative values are evidence; False: they are
            errors, as the value is a duration, and so is one above ``MAX_SECONDS``.
    """

    section_id: int
    name: str
    optional: bool = True
    evidence: bool = False

    def pack(self, values: Sequence[float | None], path: str) -> bytes | None:
        """Pack one value a row; None where all rows have None.

        Raises:
            FieldError: a value of another type, or one that no duration has.
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
        """Unpack ``count`` rows.

        Raises:
            DecodeError: missing, or of another length than the bitmap asks for.
            FieldError: a value that no duration has.
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
        """Check durations: the sum is no number where one of them is none."""
        if self.evidence or not present:
            return
        if min(present) < 0.0 or max(present) > MAX_SECONDS or not math.isfinite(sum(present)):
            self._check_each(values, path)

    def _check_each(self, values: Sequence[float | None], path: str) -> None:
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
    """Texts, dictionary-encoded.

    Attributes:
        section_id: section id.
        name: field of the row.
        default_value: value of all rows where the section is missing; None: it must be there.
        empty: whether a row may have "".
        choices: the only values allowed; (): any.
    """

    section_id: int
    name: str
    default_value: str | None = None
    empty: bool = False
    choices: tuple[str, ...] = ()

    def pack(self, values: Sequence[str], path: str) -> bytes | None:
        """Pack one value a row; None where all are the default.

        Raises:
            FieldError: a value that is no text, or not one of the choices.
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
        """Unpack ``count`` rows.

        Raises:
            DecodeError: missing, cut, or a code without its text.
            FieldError: a text that is not allowed.
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
    """Encode texts, each closed by NUL (checked before: none holds one)."""
    return "".join([f"{text}\0" for text in texts]).encode()


def unpack_texts(payload: bytes, count: int, field: str) -> tuple[str, ...]:
    """Decode exactly ``count`` texts.

    Raises:
        DecodeError: more or fewer, or not UTF-8.
    """
    try:
        texts = payload.decode().split("\0")
    except UnicodeDecodeError as error:
        raise DecodeError(f"{field} is not UTF-8: {error}") from error
    if len(texts) != count + 1 or texts[-1]:
        raise DecodeError(f"{field}: {len(payload)} bytes are not {count} texts closed by NUL")
    return tuple(texts[:-1])


def _code_of(distinct: int) -> Literal["B", "H", "I"]:
    if distinct <= 1 << 8:
        return "B"
    return "H" if distinct <= 1 << 16 else "I"


def _bitmap(values: Sequence[float | None]) -> bytes:
    size = (len(values) + 7) // 8
    if None not in values:
        return ((1 << len(values)) - 1).to_bytes(size, "little")
    digits = "".join(["0" if value is None else "1" for value in values])
    return int(digits[::-1], 2).to_bytes(size, "little")


def _row_of(values: Sequence[str], text: str, field: str) -> str:
    return f"{field}[{values.index(text)}]" if text in values else field


def _check_size(payload: bytes, size: int, field: str) -> None:
    if len(payload) != size:
        raise DecodeError(f"{field}: {len(payload)} bytes, its rows need {size}")
