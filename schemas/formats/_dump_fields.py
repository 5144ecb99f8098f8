"""Fields of a Flight Recorder dump, read with their types, their ranges and a budget.

A dump may name one list in thousands of places (``tocsin.schemas.formats.plain_pickle``): whoever walks through lists
spends a budget, so that what a dump costs does not depend on what it names.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from typing import Any, Final

from tocsin.schemas.errors import DecodeError, FieldError
from tocsin.schemas.wire.validate import INT64_MAX, INT64_MIN, MAX_RANKS

MAX_ITEMS: Final = 1_000_000
"""Items of all lists of a dump that are looked at, each as often as it stands there."""
MAX_MEMBERS: Final = 1_000_000
"""Ranks of all groups together."""
MAX_RANK_TEXT: Final = 8 * MAX_MEMBERS
MAX_TEXT: Final = 512
"""Characters of a name: groups' names are numbers or hashes, operations have a few words."""

_WHOLE = re.compile(r"-?[0-9]{1,20}")


class DumpFields:
    """Reads the fields of one dump; what is wrong is named by where it stands."""

    __slots__ = ("_left_items", "_left_members", "_left_text")

    def __init__(self) -> None:
        """Nothing is spent yet."""
        self._left_items = MAX_ITEMS
        self._left_members = MAX_MEMBERS
        self._left_text = MAX_RANK_TEXT

    def integer(self, value: object, where: str, key: str) -> int:
        """A whole number of at most 64 bit, or its text (PyTorch's own writers differ)."""
        if type(value) is str and _WHOLE.fullmatch(value):
            value = int(value)
        if type(value) is int and INT64_MIN <= value <= INT64_MAX:
            return value
        raise FieldError(f"{where}.{key}", value, "a whole number of at most 64 bit")

    def time(self, value: object, where: str, key: str) -> int:
        """A time or a span that is not negative, 0 where it is null."""
        found = 0 if value is None else self.integer(value, where, key)
        if found < 0:
            raise FieldError(f"{where}.{key}", value, "a time: not negative")
        return found

    def text(self, value: object, where: str, key: str) -> str:
        """A text of at most ``MAX_TEXT`` characters, or a whole number as one."""
        if type(value) is str and len(value) <= MAX_TEXT:
            return value
        if isinstance(value, int) and INT64_MIN <= value <= INT64_MAX:
            return str(value)
        raise FieldError(f"{where}.{key}", value, f"text of at most {MAX_TEXT} characters")

    def key(self, value: object, where: str) -> str:
        """A key as text."""
        if type(value) is str and len(value) <= MAX_TEXT:
            return value
        if type(value) is int:
            return str(value)
        raise FieldError(where, value, f"keyed by texts of at most {MAX_TEXT} characters")

    def items(self, value: object, where: str, key: str) -> Sequence[Any]:
        """A list, empty where it is null; its items are spent."""
        if value is None:
            return ()
        if not isinstance(value, list | tuple):
            raise FieldError(f"{where}.{key}", value, "a list")
        self._left_items -= len(value)
        if self._left_items < 0:
            raise DecodeError(f"{where}.{key}: the dump's lists have more than {MAX_ITEMS} items")
        return value

    def mapping(self, value: object, where: str) -> Mapping[Any, Any]:
        """A mapping."""
        if isinstance(value, Mapping):
            return value
        raise FieldError(where, value, "a mapping")

    def ranks(self, value: object, where: str, key: str) -> tuple[int, ...]:
        """Ranks stand as text ``"[0, 1]"`` or as a list."""
        if isinstance(value, str):
            value = self._listed(value, where, key)
        given = () if value is None else value
        if not isinstance(given, list | tuple):
            raise FieldError(f"{where}.{key}", value, "a list of ranks")
        self._left_members -= len(given)
        if self._left_members < 0:
            raise DecodeError(f"{where}.{key}: the dump's groups have more than {MAX_MEMBERS} ranks")
        if set(map(type, given)) <= {int}:
            ranks = tuple(given)
        else:
            ranks = tuple(self.integer(rank, where, key) for rank in given)
        if ranks and not (min(ranks) >= 0 and max(ranks) < MAX_RANKS and len(set(ranks)) == len(ranks)):
            raise FieldError(f"{where}.{key}", ranks, f"ranks from 0 to {MAX_RANKS - 1}, each once")
        return ranks

    def _listed(self, text: str, where: str, key: str) -> object:
        self._left_text -= len(text)
        if self._left_text < 0:
            raise DecodeError(
                f"{where}.{key}: the dump's groups list their ranks in more than {MAX_RANK_TEXT} characters"
            )
        try:
            return json.loads(text or "[]")
        except (ValueError, RecursionError) as error:
            raise FieldError(f"{where}.{key}", text, "a list of ranks") from error
