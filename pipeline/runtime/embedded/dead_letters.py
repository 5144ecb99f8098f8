"""What could not be used is kept with its reason: dead letters and late records, in bounded files.

One JSON object a line; two files of each kind, the older one goes first. Embedded, this is what
the topics ``dead-letter`` and ``late`` are in the distributed engine.
"""

from __future__ import annotations

import base64
import json
import threading
from collections import Counter, deque
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from tocsin.schemas.private_files import make_private_folder, private_file

DEAD_LETTERS: Final = "dead-letters"
LATE: Final = "late"
KINDS: Final = (DEAD_LETTERS, LATE)
MAX_DATA_BYTES: Final = 1 << 18
"""Of a record that are kept; ``data_bytes`` says how many it had."""


@dataclass(frozen=True, slots=True)
class DeadLetter:
    """A record that could not be used.

    Attributes:
        received_ns: when it came.
        host: who sent it, "" = unknown.
        reason: short name.
        message: which field and value, "" = nothing more to say.
        data: its bytes.
    """

    received_ns: int
    host: str
    reason: str
    message: str
    data: bytes


class DeadLetterLog:
    """Appends letters to ``NAME.jsonl``; before it exceeds ``max_bytes`` it becomes ``NAME.old.jsonl``.

    The files are their owner's only: a record may hold the last lines of a program's log.
    """

    def __init__(self, folder: Path, name: str, max_bytes: int = 32_000_000) -> None:
        """Open for appending.

        Args:
            folder: where; made where it is missing.
            name: ``dead-letters`` or ``late``.
            max_bytes: size of one of the two files.
        """
        make_private_folder(folder)
        self._path = folder / f"{name}.jsonl"
        self._old = folder / f"{name}.old.jsonl"
        self._max_bytes = max_bytes
        self._lock = threading.Lock()
        self.counts: Counter[str] = Counter()

    def write(self, letter: DeadLetter) -> None:
        """Append one letter.

        Raises:
            OSError: the disk refuses.
        """
        self.write_all([letter])

    def write_all(self, letters: Iterable[DeadLetter]) -> None:
        """Append letters: the file is opened once for as many as fit into it.

        Raises:
            OSError: the disk refuses; the rest of the letters is lost.
        """
        lines = deque(self._line_of(letter) for letter in letters)
        with self._lock:
            while lines:
                held_bytes = self._path.stat().st_size if self._path.exists() else 0
                if held_bytes and held_bytes + len(lines[0]) > self._max_bytes:
                    self._path.replace(self._old)
                with private_file(self._path, "a") as file:
                    room = self._max_bytes - file.tell() - len(lines[0])
                    file.write(lines.popleft())
                    while lines and room >= len(lines[0]):
                        room -= len(lines[0])
                        file.write(lines.popleft())

    def _line_of(self, letter: DeadLetter) -> bytes:
        self.counts[letter.reason] += 1
        line: dict[str, object] = {
            "received_ns": letter.received_ns,
            "host": letter.host,
            "reason": letter.reason,
            "message": letter.message,
            "data_base64": base64.b64encode(letter.data[:MAX_DATA_BYTES]).decode(),
        }
        if len(letter.data) > MAX_DATA_BYTES:
            line["data_bytes"] = len(letter.data)
        return (json.dumps(line) + "\n").encode()
