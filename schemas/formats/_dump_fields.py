"""Typed reading of the fields of a Flight Recorder dump, with ranges and a budget.

A dump may refer to one list in thousands of places (``tocsin.schemas.formats.plain_pickle``). Reading lists spends a
budget, so that the cost of a dump is bounded whatever it refers to.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from typing import Any, Final

from tocsin.schemas.errors import DecodeError, FieldError
from tocsin.schemas.wire.validate import INT64_MAX, INT64_MIN, MAX_RANKS

MAX_ITEMS: Final = 1_000_000
"""Most items over all lists of a dump, each counted as often as it occurs."""
MAX_MEMBERS: Final = 1_000_000
"""Most ranks over all groups of a dump."""
MAX_RANK_TEXT: Final = 8 * MAX_MEMBERS
"""Most characters over all rank lists that are written as text."""
MAX_TEXT: Final = 512
"""Most characters of a name. Groups' names are numbers or hashes; operations have a few words."""

_WHOLE = re.compile(r"-?[0-9]{1,20}")


class DumpFields:
    """Reader of the fields of one dump; errors name the place of a wrong value.

    In all methods ``where`` is the place of the object in the dump and ``key`` the field in it, both for errors.
    """

    __slots__ = ("_left_items", "_left_members", "_left_text")

    def __init__(self) -> None:
        """Start with the full budget of items, members and text."""
        self._left_items = MAX_ITEMS
        self._left_members = MAX_MEMBERS
        self._left_text = MAX_RANK_TEXT

    def integer(self, value: object, where: str, key: str) -> int:
        """Return a whole number of at most 64 bit, also if written as text (PyTorch's writers differ).

        Raises:
            FieldError: the value is none.
        """
        if type(value) is str and _WHOLE.fullmatch(value):
            value = int(value)
        if type(value) is int and INT64_MIN <= value <= INT64_MAX:
            return value
        raise FieldError(f"{where}.{key}", value, "a whole number of at most 64 bit")

    def time(self, value: object, where: str, key: str) -> int:
        """Return a time or duration that is not negative; 0 for null."""
        found = 0 if value is None else self.integer(value, where, key)
        if found < 0:
            raise FieldError(f"{where}.{key}", value, "a time: not negative")
        return found

    def text(self, value: object, where: str, key: str) -> str:
        """Return a text of at most ``MAX_TEXT`` characters; a whole number is converted to one."""
        if type(value) is str and len(value) <= MAX_TEXT:
            return value
        if isinstance(value, int) and INT64_MIN <= value <= INT64_MAX:
            return str(value)
        raise FieldError(f"{where}.{key}", value, f"text of at most {MAX_TEXT} characters")

    def key(self, value: object, where: str) -> str:
        """Return a mapping's key as text; raise ``FieldError`` if it is neither a text nor an integer."""
        if type(value) is str and len(value) <= MAX_TEXT:
            return value
        if type(value) is int:
            return str(value)
        raise FieldError(where, value, f"keyed by texts of at most {MAX_TEXT} characters")

    def items(self, value: object, where: str, key: str) -> Sequence[Any]:
        """Return a list, empty for null, and spend its length from the budget."""
        if value is None:
            return ()
        if not isinstance(value, list | tuple):
            raise FieldError(f"{where}.{key}", value, "a list")
        self._left_items -= len(value)
        if self._left_items < 0:
            raise DecodeError(f"{where}.{key}: the dump's lists have more than {MAX_ITEMS} items")
        return value

    def mapping(self, value: object, where: str) -> Mapping[Any, Any]:
        """Return the value if it is a mapping; raise ``FieldError`` otherwise."""
        if isinstance(value, Mapping):
            return value
        raise FieldError(where, value, "a mapping")

    def ranks(self, value: object, where: str, key: str) -> tuple[int, ...]:
        """Return a group's ranks, given as a list or as text like ``"[0, 1]"``; empty for null.

        Raises:
            FieldError: the value is no list of ranks in range, each once.
            DecodeError: the budget of members or text is spent.
        """
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
        """Return the JSON list in a text and spend its length from the budget."""
        self._left_text -= len(text)
        if self._left_text < 0:
            raise DecodeError(
                f"{where}.{key}: the dump's groups list their ranks in more than {MAX_RANK_TEXT} characters"
            )
        try:
            return json.loads(text or "[]")
        except (ValueError, RecursionError) as error:
            raise FieldError(f"{where}.{key}", text, "a list of ranks") from error
