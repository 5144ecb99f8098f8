"""Whether values fit the types that Grafana's own classes declare; the classes themselves take any value."""

from __future__ import annotations

from collections.abc import Iterator
from enum import Enum
from types import UnionType
from typing import Any, Literal, Union, get_args, get_origin, get_type_hints

_OURS = "grafana_foundation_sdk.models"


def misfits(value: object, at: str = "dashboard") -> list[str]:
    """Return the places of values that do not fit, in an object of Grafana's classes and all that it holds."""
    return list(_misfits(value, at))


def _misfits(value: object, at: str) -> Iterator[str]:
    if isinstance(value, list):
        for number, one in enumerate(value):
            yield from _misfits(one, f"{at}[{number}]")
    elif type(value).__module__.startswith(_OURS) and not isinstance(value, Enum):
        for name, hint in get_type_hints(type(value)).items():
            inner = getattr(value, name)
            if not _fits(inner, hint):
                yield f"{at}.{name}"
            yield from _misfits(inner, f"{at}.{name}")


def _fits(value: object, hint: Any) -> bool:
    origin, choices = get_origin(hint), get_args(hint)
    if hint is Any or hint is object:
        return True
    if origin in {Union, UnionType}:
        return any(_fits(value, one) for one in choices)
    if origin is list:
        return isinstance(value, list) and all(_fits(one, choices[0]) for one in value)
    if origin is dict:
        return isinstance(value, dict)
    if origin is Literal:
        return value in choices
    if hint in {int, float}:
        return isinstance(value, (int, hint)) and not isinstance(value, bool)
    if issubclass(hint, Enum):
        return value in {one.value for one in hint}
    return isinstance(value, hint)
