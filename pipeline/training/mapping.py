"""How work is shared out: in this process (``alone``), or in others (the command's pool)."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Protocol, TypeVar

InT = TypeVar("InT")
OutT = TypeVar("OutT")


class Mapper(Protocol):
    """Does the same work for many things; answers come in the things' order."""

    def __call__(self, work: Callable[[InT], OutT], things: Sequence[InT], /) -> Iterable[OutT]:
        """Do it. The function stands at the top of a module; it and the things cross to other processes."""
        ...


def alone(work: Callable[[InT], OutT], things: Sequence[InT], /) -> Iterable[OutT]:
    """One after the other, here."""
    return map(work, things)
