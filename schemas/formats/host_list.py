"""Slurm's host lists: ``node[01-03,7],gpu[1-2]n[0-1]`` stands for eight names."""

from __future__ import annotations

import re
from collections.abc import Iterator
from itertools import product
from typing import Final

from tocsin.schemas.errors import FieldError

MAX_NAMES: Final = 1 << 17
"""Largest number of names that one list may stand for."""
_NAME: Final = re.compile(r"(?:[^\[\],\s]|\[[^\[\]]*\])+")
_PART: Final = re.compile(r"\[([^\[\]]*)\]|[^\[\]]+")
_SPAN: Final = re.compile(r"([0-9]{1,9})(?:-([0-9]{1,9}))?")


def expand_host_list(text: str, field: str) -> tuple[str, ...]:
    """Return the names of a host list in its order; leading zeros are kept, and a name may have several brackets.

    >>> expand_host_list("node[08-10],head", "Nodes")
    ('node08', 'node09', 'node10', 'head')

    Args:
        text: the list; "" and ``(null)`` are empty.
        field: what an error calls it.

    Raises:
        FieldError: a bracket is not closed, a range is none, or the list stands for more than ``MAX_NAMES`` names.
    """
    if text in ("", "(null)"):
        return ()
    names: list[str] = []
    at = 0
    while at <= len(text):
        found = _NAME.match(text, at)
        if found is None or text[found.end() : found.end() + 1] not in ("", ","):
            raise FieldError(field, text[at:], "a host list like node[01-03,7],gpu5")
        names.extend(_expanded(found[0], field, MAX_NAMES - len(names)))
        at = found.end() + 1
    return tuple(names)


def _expanded(word: str, field: str, most: int) -> Iterator[str]:
    """Yield the names that one entry of a list stands for."""
    choices = [(part[0],) if part[1] is None else _numbers(part[1], field) for part in _PART.finditer(word)]
    count = 1
    for choice in choices:
        count *= len(choice)
    if count > most:
        raise FieldError(field, word, f"a host list of at most {MAX_NAMES} names")
    return map("".join, product(*choices))


def _numbers(text: str, field: str) -> tuple[str, ...]:
    """Return the numbers of one bracket, as they stand in names."""
    numbers: list[str] = []
    for span in text.split(","):
        found = _SPAN.fullmatch(span)
        if found is None:
            raise FieldError(field, f"[{text}]", "numbers and ranges like [01-03,7]")
        first, last = int(found[1]), int(found[2] or found[1])
        if not 0 <= last - first < MAX_NAMES - len(numbers):
            raise FieldError(field, f"[{text}]", f"rising ranges of at most {MAX_NAMES} numbers")
        numbers.extend(f"{number:0{len(found[1])}d}" for number in range(first, last + 1))
    return tuple(numbers)
