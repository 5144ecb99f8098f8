"""What could not be used is kept with its reason: dead letters and late records, in bounded files.

One JSON object a line; two files of each kind, the older one goes first. Embedded, this is what
the topics ``dead-letter`` and ``late`` are in the distributed engine.
"""

from __future__ import annotations

import base64
import json
import threading
from collections import Counter
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True, slots=True)
class Letter:
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


class LetterFile:
    """Appends letters to ``NAME.jsonl``; at ``max_bytes`` it becomes ``NAME.old.jsonl``."""

    def __init__(self, folder: Path, name: str, max_bytes: int = 32_000_000) -> None:
        """Open for appending.

        Args:
            folder: where; made where it is missing.
            name: ``dead-letters`` or ``late``.
            max_bytes: size of one of the two files.
        """
        folder.mkdir(parents=True, exist_ok=True)
        self._path = folder / f"{name}.jsonl"
        self._old = folder / f"{name}.old.jsonl"
        self._max_bytes = max_bytes
        self._lock = threading.Lock()
        self.counts: Counter[str] = Counter()

    def write(self, letter: Letter) -> None:
        """Append one letter.

        Raises:
            OSError: the disk refuses.
        """
        line = {
            "received_ns": letter.received_ns,
            "host": letter.host,
            "reason": letter.reason,
            "message": letter.message,
            "data_base64": base64.b64encode(letter.data).decode(),
        }
        with self._lock:
            self.counts[letter.reason] += 1
            if self._path.exists() and self._path.stat().st_size > self._max_bytes:
                self._path.replace(self._old)
            with self._path.open("a", encoding="utf-8") as file:
                file.write(json.dumps(line) + "\n")
