"""Standard output and error while a command runs: what others wrote moves no cursor there.

Fields are made plain where they are printed (``schemas.printable.plain``); this is the net below, for every command,
for argparse's own sentences and for what somebody forgets.
"""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Iterable, Iterator
from typing import Any, TextIO, cast

from tocsin.schemas.printable import plain

_KEPT = "\n\t"


class GuardedStream:
    """A text stream that shows hidden characters escaped; line ends, tabs and a progress line's leading CR pass.

    Args:
        stream: where the text goes.
    """

    def __init__(self, stream: TextIO) -> None:
        self.unguarded = stream

    def write(self, text: str) -> int:
        """Write a text."""
        begins = "\r" if text.startswith("\r") else ""
        self.unguarded.write(begins + plain(text[len(begins) :], kept=_KEPT))
        return len(text)

    def writelines(self, lines: Iterable[str]) -> None:
        """Write several."""
        for line in lines:
            self.write(line)

    def __getattr__(self, name: str) -> Any:
        return getattr(self.unguarded, name)


@contextlib.contextmanager
def guarded() -> Iterator[None]:
    """Guard standard output and error for as long as a command runs."""
    out, err = sys.stdout, sys.stderr
    sys.stdout, sys.stderr = cast("TextIO", GuardedStream(out)), cast("TextIO", GuardedStream(err))
    try:
        yield
    finally:
        sys.stdout, sys.stderr = out, err


def unguarded(stream: TextIO) -> TextIO:
    """The stream itself, for who draws on a terminal and cleans what others wrote."""
    return stream.unguarded if isinstance(stream, GuardedStream) else stream
