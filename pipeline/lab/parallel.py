"""Distribution of work: in this process (``serial``), or to others (the command's pool)."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Protocol, TypeVar

from tocsin.schemas.errors import RecordingError

InT = TypeVar("InT")
OutT = TypeVar("OutT")
Progress = Callable[[str, int, int], None]
"""Callback for progress: (what, number done, number in all)."""
ROUND = "recordings"
"""Name of the repeated stage in which all recordings are judged, once for each set of candidates."""


class Executor(Protocol):
    """Interface of a function that does the same work for many things; results are in the things' order."""

    def __call__(self, work: Callable[[InT], OutT], things: Sequence[InT], /) -> Iterable[OutT]:
        """Do the work for each thing. The function must be at module level, because it is sent to other processes."""
        ...


def serial(work: Callable[[InT], OutT], things: Sequence[InT], /) -> Iterable[OutT]:
    """Do the work for each thing in this process, one after the other."""
    return map(work, things)


def for_each(
    executor: Executor,
    work: Callable[[InT], OutT | str],
    things: Sequence[InT],
    on_progress: Progress | None = None,
    what: str = ROUND,
) -> Iterator[OutT]:
    """Do work on recordings and yield the results; a result that is a text is an error.

    Args:
        executor: distributes the work.
        work: function that is called; it returns error texts instead of raising, because errors cannot be sent between
            processes.
        things: folders, or objects with a ``folder``.
        on_progress: called with the progress.
        what: name of the work, for the progress.

    Raises:
        RecordingError: a recording could not be processed; the error names its folder and says why.
    """
    for done, (thing, answer) in enumerate(zip(things, executor(work, things), strict=True), 1):
        if isinstance(answer, str):
            raise RecordingError(str(getattr(thing, "folder", thing)), answer)
        if on_progress is not None:
            on_progress(what, done, len(things))
        yield answer
