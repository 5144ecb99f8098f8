"""Encoding of small dataclasses as JSON objects by their fields, and strict decoding.

Allowed are fields of text, integer, number, boolean, enumeration, such a dataclass, one of them or None, and tuples of
texts, enumerations or dataclasses. A text may be empty if its field has a default. A missing key takes the default.
Unknown keys are ignored.
"""

from __future__ import annotations

import dataclasses
import functools
import types
import typing
from enum import StrEnum
from typing import Any, Final, TypeVar

from tocsin.schemas.errors import FieldError
from tocsin.schemas.wire.validate import ObjectReader, check_name

T = TypeVar("T")
_NAMELESS: Final = frozenset({"boot_id", "note", "detail", "reason"})
"""Fields of text that may be empty although they have no default."""


def plain_object(value: Any) -> dict[str, Any]:
    """Return the JSON object of a dataclass: one key a field, in the fields' order."""
    return {name: _plain(getattr(value, name)) for name in value.__dataclass_fields__}


def _plain(value: Any) -> Any:
    if isinstance(value, StrEnum):
        return value.value
    if isinstance(value, tuple):
        return [_plain(one) for one in value]
    return plain_object(value) if dataclasses.is_dataclass(value) else value


def read_object(kind: type[T], values: object, path: str) -> T:
    """Return the dataclass of a JSON object.

    Args:
        kind: the dataclass.
        values: the JSON value.
        path: dotted name of the value, for errors.

    Raises:
        FieldError: a key is missing or has a wrong value; the error names it.
    """
    reader = ObjectReader(values, path)
    found: dict[str, Any] = {}
    for name, hint, has_default in _fields_of(typing.cast("typing.Hashable", kind)):
        if has_default and not reader.has(name):
            continue
        found[name] = _read(hint, reader, name, may_be_empty=has_default or name in _NAMELESS)
    return kind(**found)


@functools.cache
def _fields_of(kind: Any) -> tuple[tuple[str, Any, bool], ...]:
    """Return name, type and whether there is a default, for each field of a dataclass."""
    hints = typing.get_type_hints(kind)
    return tuple(
        (one.name, hints[one.name], one.default is not dataclasses.MISSING) for one in dataclasses.fields(kind)
    )


def _read(hint: Any, reader: ObjectReader, name: str, *, may_be_empty: bool) -> Any:
    """Return the value of one field."""
    if typing.get_origin(hint) is tuple:
        inner, field = typing.get_args(hint)[0], reader.field(name)
        return tuple(_item(inner, one, f"{field}[{i}]") for i, one in enumerate(reader.items(name)))
    if isinstance(hint, types.UnionType):
        if reader.value(name) is None:
            return None
        hint = next(one for one in typing.get_args(hint) if one is not types.NoneType)
    if hint is str:
        return reader.name(name, empty=may_be_empty)
    if hint is bool:
        return reader.boolean(name)
    if hint is int:
        return reader.integer(name, 0)
    if hint is float:
        return reader.seconds(name)
    if issubclass(hint, StrEnum):
        return reader.choice(name, hint)
    return read_object(hint, reader.value(name), reader.field(name))


def _item(kind: Any, value: object, path: str) -> Any:
    """Return one entry of a tuple."""
    if kind is str:
        return check_name(value, path)
    if issubclass(kind, StrEnum):
        for member in kind:
            if member.value == value:
                return member
        raise FieldError(path, value, "one of " + " ".join(member.value for member in kind))
    return read_object(kind, value, path)
