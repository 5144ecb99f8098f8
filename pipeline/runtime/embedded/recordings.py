"""The interface to recordings of a running engine, which the room above makes."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Protocol

from tocsin.pipeline.runtime.embedded.control_socket import Message


class Recordings(Protocol):
    """Recordings of a running engine, made by ``pipeline/recording/live.py``."""

    def record(self, request: Message) -> Message | Iterator[Message]:
        """Begin a recording, or answer how it goes."""

    def record_stop(self, request: Message) -> Message:
        """End a recording."""

    def close(self) -> None:
        """End all recordings."""
