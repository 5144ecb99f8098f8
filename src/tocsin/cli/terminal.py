"""Protects the terminal while a command runs: text from others cannot send control characters to it.

Fields are cleaned where they are printed (``schemas.printable.plain``). This is a second line of defence, for every
command, for argparse's own messages and for a field that was forgotten.
"""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Iterable, Iterator
from typing import Any, TextIO, cast

from tocsin.schemas.printable import plain

_ALLOWED = "\n\t"


class GuardedStream:
    """A text stream that escapes hidden characters, except line ends, tabs and a carriage return at the beginning.

    Args:
        stream: where the text goes.

    Attributes:
        stream: stream that the text is written to.
    """

    def __init__(self, stream: TextIO) -> None:
        self.unguarded = stream

    def write(self, text: str) -> int:
        """Write a text with its hidden characters escaped; return the number of characters given."""
        begins = "\r" if text.startswith("\r") else ""
        self.unguarded.write(begins + plain(text[len(begins) :], kept=_ALLOWED))
        return len(text)

    def writelines(self, lines: Iterable[str]) -> None:
        """Write several texts."""
        for line in lines:
            self.write(line)

    def __getattr__(self, name: str) -> Any:
        return getattr(self.unguarded, name)


@contextlib.contextmanager
def guarded() -> Iterator[None]:
    """Context manager that guards standard output and error while a command runs."""
    out, err = sys.stdout, sys.stderr
    sys.stdout, sys.stderr = cast("TextIO", GuardedStream(out)), cast("TextIO", GuardedStream(err))
    try:
        yield
    finally:
        sys.stdout, sys.stderr = out, err


def unguarded(stream: TextIO) -> TextIO:
    """Return the stream without the guard, for code that draws on a terminal and cleans the text itself."""
    return stream.unguarded if isinstance(stream, GuardedStream) else stream
