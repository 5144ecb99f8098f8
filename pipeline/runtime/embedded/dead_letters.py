"""Keep unusable records (dead letters) and late records, with the reason, in files of bounded size.

Each line is one JSON object. There are two files of each kind; the older one is overwritten. They are the embedded
engine's counterpart of the topics ``dead-letter`` and ``late``.
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
"""Maximum number of bytes kept of a record; ``data_bytes`` then gives its full size."""


@dataclass(frozen=True, slots=True)
class DeadLetter:
    """A record that could not be used.

    Attributes:
        received_ns: when it arrived.
        host: host that sent it, "" = unknown.
        reason: short name of the reason.
        message: the field and value that are wrong, "" = no details.
        data: bytes of the record.
    """

    received_ns: int
    host: str
    reason: str
    message: str
    data: bytes


class DeadLetterLog:
    """Appends dead letters to ``NAME.jsonl``, which is renamed to ``NAME.old.jsonl`` before it exceeds ``max_bytes``.

    The files are readable by their owner only, because a record may contain the last lines of a program's log.
    """

    def __init__(self, folder: Path, name: str, max_bytes: int = 32_000_000) -> None:
        """Prepare the files.

        Args:
            folder: folder of the files; created if missing.
            name: ``dead-letters`` or ``late``.
            max_bytes: maximum size of each of the two files.
        """
        make_private_folder(folder)
        self._path = folder / f"{name}.jsonl"
        self._old = folder / f"{name}.old.jsonl"
        self._max_bytes = max_bytes
        self._lock = threading.Lock()
        self.counts: Counter[str] = Counter()

    def write(self, dead_letter: DeadLetter) -> None:
        """Append one dead letter.

        Raises:
            OSError: the disk refuses.
        """
        self.write_all([dead_letter])

    def write_all(self, dead_letters: Iterable[DeadLetter]) -> None:
        """Append dead letters, opening the file once for as many as fit into it.

        Raises:
            OSError: the disk refuses; the remaining dead letters are lost.
        """
        lines = deque(self._line_of(dead_letter) for dead_letter in dead_letters)
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

    def _line_of(self, dead_letter: DeadLetter) -> bytes:
        """Count a dead letter by reason, and return it as a JSON line."""
        self.counts[dead_letter.reason] += 1
        line: dict[str, object] = {
            "received_ns": dead_letter.received_ns,
            "host": dead_letter.host,
            "reason": dead_letter.reason,
            "message": dead_letter.message,
            "data_base64": base64.b64encode(dead_letter.data[:MAX_DATA_BYTES]).decode(),
        }
        if len(dead_letter.data) > MAX_DATA_BYTES:
            line["data_bytes"] = len(dead_letter.data)
        return (json.dumps(line) + "\n").encode()
