"""Write dead letters and late records to files in a separate thread; floods are limited and counted."""

from __future__ import annotations

import logging
import threading
import time
from collections import Counter, OrderedDict, deque
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from tocsin.pipeline.runtime.embedded.dead_letters import KINDS, DeadLetter, DeadLetterLog
from tocsin.pipeline.runtime.embedded.supervised_thread import SupervisedThread
from tocsin.schemas.trouble_log import TroubleLog

_LOG = logging.getLogger("tocsin.dead_letters")
_MAX_SOURCES: Final = 4_096
"""Maximum number of (kind, host) pairs whose rates are tracked."""


@dataclass(frozen=True, slots=True)
class DeadLetterLimits:
    """Limits on the kept dead letters.

    Attributes:
        queue_bytes: maximum size of dead letters that wait to be written.
        burst_count: dead letters of one host kept in a burst; after an outage of half an hour all its records are late.
        per_second: dead letters of one host kept per second in the long run.
        burst_in_all_count: dead letters of all hosts together kept in a burst.
        in_all_per_second: dead letters of all hosts together kept per second in the long run.
    """

    queue_bytes: int = 32 << 20
    burst_count: int = 2_000
    per_second: float = 20.0
    burst_in_all_count: int = 50_000
    in_all_per_second: float = 500.0


class _Bucket:
    """A token bucket: a rate limit that allows bursts."""

    def __init__(self, burst: float, now: float) -> None:
        self.left = burst
        self.at_seconds = now

    def take(self, burst: float, per_second: float, now: float) -> bool:
        """Take one token and return True, or return False if the bucket is empty."""
        self.left = min(burst, self.left + max(0.0, now - self.at_seconds) * per_second)
        self.at_seconds = now
        if self.left < 1.0:
            return False
        self.left -= 1.0
        return True


class DeadLetterWriter:
    """Queues dead letters and writes them in its own thread.

    Dropped ones (too many of one host, or the disk too slow) are counted in ``dropped`` by kind and reason, and logged.
    """

    def __init__(
        self, folder: Path | None, limits: DeadLetterLimits | None = None, clock: Callable[[], float] = time.monotonic
    ) -> None:
        """Prepare the writer; ``start`` starts its thread.

        Args:
            folder: folder of the files, None = dead letters are not kept.
            limits: limits, None = the defaults.
            clock: monotonic time in seconds.
        """
        self._limits = limits or DeadLetterLimits()
        self._clock = clock
        self._files = {kind: DeadLetterLog(folder, kind) for kind in KINDS if folder is not None}
        self._waiting: deque[tuple[str, DeadLetter]] = deque()
        self._waiting_bytes = 0
        self._changed = threading.Condition()
        self._closing = False
        self._all = _Bucket(self._limits.burst_in_all_count, clock())
        self._sources: OrderedDict[tuple[str, str], _Bucket] = OrderedDict()
        self._troubles = TroubleLog(_LOG)
        self.dropped: Counter[tuple[str, str]] = Counter()
        self.thread = SupervisedThread("dead_letters", self._run)

    @property
    def source_count(self) -> int:
        """Number of kinds of dead letters and hosts that have a limit of their own at present."""
        return len(self._sources)

    def start(self) -> None:
        """Start the writing thread."""
        self.thread.start()

    def close(self) -> None:
        """Write the queued dead letters and end the thread."""
        with self._changed:
            self._closing = True
            self._changed.notify()
        self.thread.join(5.0)

    def put(self, kind: str, dead_letter: DeadLetter) -> None:
        """Queue a dead letter, or drop and count it; never waits for the disk."""
        if kind not in self._files:
            return
        size = len(dead_letter.data) + len(dead_letter.message)
        with self._changed:
            why = self._why_not(kind, dead_letter.host, size)
            if not why:
                self._waiting.append((kind, dead_letter))
                self._waiting_bytes += size
                self._changed.notify()
                return
            self.dropped[kind, why] += 1
        self._troubles.warn("dead letters dropped", why, kind=kind, host=dead_letter.host, why=why)

    def _why_not(self, kind: str, host: str, size: int) -> str:
        """Return the reason to drop a dead letter of this size, "" = keep it."""
        limits, now = self._limits, self._clock()
        if self._waiting_bytes + size > limits.queue_bytes:
            return "disk_too_slow"
        source = self._sources.setdefault((kind, host), _Bucket(limits.burst_count, now))
        self._sources.move_to_end((kind, host))
        if len(self._sources) > _MAX_SOURCES:
            self._sources.popitem(last=False)
        if not source.take(limits.burst_count, limits.per_second, now):
            return "too_many_of_host"
        if not self._all.take(limits.burst_in_all_count, limits.in_all_per_second, now):
            return "too_many_in_all"
        return ""

    def _run(self) -> None:
        """Write queued dead letters until the writer is closed."""
        while True:
            with self._changed:
                while not self._waiting and not self._closing:
                    self._changed.wait(5.0)
                    self._troubles.flush()
                if not self._waiting:
                    return
                batch, self._waiting, self._waiting_bytes = self._waiting, deque(), 0
            for kind, file in self._files.items():
                dead_letters = [dead_letter for one, dead_letter in batch if one == kind]
                if not dead_letters:
                    continue
                try:
                    file.write_all(dead_letters)
                except OSError as error:
                    self._troubles.warn("dead letters lost", kind, kind=kind, error=str(error), count=len(dead_letters))
                    with self._changed:
                        self.dropped[kind, "disk_refuses"] += len(dead_letters)
