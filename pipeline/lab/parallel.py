"""How work is shared out: in this process (``serial``), or in others (the command's pool)."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Protocol, TypeVar

from tocsin.schemas.errors import RecordingError

InT = TypeVar("InT")
OutT = TypeVar("OutT")
Progress = Callable[[str, int, int], None]
"""Progress: (what, done, of how many)."""
ROUND = "recordings"
"""A stage that comes again and again: all recordings, once for each set of candidates."""


class Executor(Protocol):
    """Does the same work for many things; answers come in the things' order."""

    def __call__(self, work: Callable[[InT], OutT], things: Sequence[InT], /) -> Iterable[OutT]:
        """Do it. The function stands at the top of a module; it and the things cross to other processes."""
        ...


def serial(work: Callable[[InT], OutT], things: Sequence[InT], /) -> Iterable[OutT]:
    """One after the other, here."""
    return map(work, things)


def for_each(
    mapper: Executor,
    work: Callable[[InT], OutT | str],
    things: Sequence[InT],
    told: Progress | None = None,
    what: str = ROUND,
) -> Iterator[OutT]:
    """The same for work on recordings, whose answer is a text where it cannot be done.

    Args:
        mapper: shares it out.
        work: what is done; our errors do not cross to another process, their texts do.
        things: folders, or what has a ``folder``.
        told: progress.
        what: is done, for it.

    Raises:
        RecordingError: names the folder, and says why.
    """
    for done, (thing, answer) in enumerate(zip(things, mapper(work, things), strict=True), 1):
        if isinstance(answer, str):
            raise RecordingError(str(getattr(thing, "folder", thing)), answer)
        if told is not None:
            told(what, done, len(things))
        yield answer
