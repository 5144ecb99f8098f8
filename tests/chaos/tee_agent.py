"""``tocsin agent``, which also keeps each record that its collectors made, and when: what an undisturbed engine hears.

``python -m tests.chaos.tee_agent FILE [arguments of tocsin agent]``
"""

from __future__ import annotations

import os
import struct
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from tocsin.cli import agent as agent_cli
from tocsin.cli.main import main
from tocsin.schemas.records import Record
from tocsin.schemas.wire.codec import encode

HEAD = struct.Struct("<QI")


class Tee:
    """A sink in front of the real one."""

    def __init__(self, sink: Any, path: str) -> None:
        """Append to a file, each record in one write."""
        self._sink = sink
        self._fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)

    def put(self, record: Record) -> None:
        """Keep it, then send it."""
        data = encode(record)
        os.write(self._fd, HEAD.pack(time.time_ns(), len(data)) + data)
        self._sink.put(record)

    def __getattr__(self, name: str) -> Any:
        """All else is the real sink's."""
        return getattr(self._sink, name)


def kept(path: Path) -> Iterator[tuple[int, bytes]]:
    """When, and what."""
    data, at = path.read_bytes(), 0
    while at < len(data):
        when_ns, size = HEAD.unpack_from(data, at)
        at += HEAD.size
        yield when_ns, data[at : at + size]
        at += size


if __name__ == "__main__":
    file, real = sys.argv[1], agent_cli.make_sink
    agent_cli.make_sink = lambda *given: Tee(real(*given), file)
    sys.exit(main(["agent", *sys.argv[2:]]))
