"""A queue of alerts of which nothing is sent before its state is stored elsewhere."""

from __future__ import annotations

import threading
from pathlib import Path

from tocsin.pipeline.alerts.queue import AlertQueue, QueuedNotice


class CommitGate:
    """Lets threads wait until what they have just changed is stored; one thread stores.

    Attributes:
        is_closed: whether nothing is stored any more.
    """

    def __init__(self) -> None:
        """Start open, with nothing stored."""
        self._changed = threading.Condition()
        self._begun = self._done = self._wanted = 0
        self.is_closed = False

    @property
    def is_awaited(self) -> bool:
        """Whether a thread waits for a commit that has not begun yet."""
        with self._changed:
            return self._wanted > self._begun

    def begin(self) -> None:
        """Note that the changes made so far are read now."""
        with self._changed:
            self._begun += 1

    def done(self) -> None:
        """Note that the changes that were read last are stored."""
        with self._changed:
            self._done = self._begun
            self._changed.notify_all()

    def close(self) -> None:
        """Let nobody wait any more: nothing is stored from here on."""
        with self._changed:
            self.is_closed = True
            self._changed.notify_all()

    def wait(self, seconds: float) -> bool:
        """Wait until all changes made before this call are stored; return False if they are not in that time."""
        with self._changed:
            wanted = self._wanted = self._begun + 1
            self._changed.wait_for(lambda: self.is_closed or self._done >= wanted, seconds)
            return self._done >= wanted


class CommittedQueue(AlertQueue):
    """A queue that gives notices to a sender only once it is stored that they are being sent.

    So a process that takes over knows what may have been sent, and one that may not store any more sends nothing.
    """

    def __init__(self, path: Path, now_ns: int, gate: CommitGate, wait_seconds: float = 30.0) -> None:
        """Open the queue's file.

        Args:
            path: the file.
            now_ns: the present time.
            gate: tells when changes are stored.
            wait_seconds: longest wait for that.

        Raises:
            ConfigError: the file cannot be opened.
        """
        super().__init__(path, now_ns)
        self._gate = gate
        self._wait_seconds = wait_seconds

    def take(self, receiver: str, now_ns: int, most_count: int) -> list[QueuedNotice]:
        """Return notices as the base class does, once their being sent is stored; none if that fails."""
        found = [] if self._gate.is_closed else super().take(receiver, now_ns, most_count)
        return found if not found or self._gate.wait(self._wait_seconds) else []

    def resends(self, receiver: str, sent_before_ns: int, most_count: int) -> list[QueuedNotice]:
        """Return notices as the base class does, once a change of the state shows that this process may send."""
        found = [] if self._gate.is_closed else super().resends(receiver, sent_before_ns, most_count)
        if not found:
            return []
        with self._lock, self._db:
            self._db.execute("INSERT OR REPLACE INTO state VALUES (?, ?)", (f"resent/{receiver}", str(sent_before_ns)))
        return found if self._gate.wait(self._wait_seconds) else []
