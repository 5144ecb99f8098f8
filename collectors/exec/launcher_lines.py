"""Parser of torchrun's stderr lines about the ends of its workers.

Only a launcher knows how its workers ended. When one has failed it asks the others to end; those are no cause.
Its lines are read as they pass::

    ... Sending process 640 closing signal SIGTERM
    ... failed (exitcode: -9) local_rank: 2 (pid: 641) of binary: /usr/bin/python
      exitcode  : -15 (pid: 640)  (SIGTERM)
"""

import os
import re
import signal
import time
from collections.abc import Callable

_LINES = re.compile(
    rb"Sending process (?P<asked>\d{1,10}) closing signal "
    rb"|failed \(exitcode: (?P<code>-?\d{1,10})\) local_rank: \d+ \(pid: (?P<failed>\d{1,10})\) of binary"
    rb"|^ *exitcode *: (?P<listed_code>-?\d{1,10}) \(pid: (?P<listed>\d{1,10})\)",
    re.MULTILINE,
)
_LONGEST_LINE = 1024

Tell = Callable[[int, int, int], object]
"""Callback with process id, return code as from ``subprocess``, and time of the end (Unix ns)."""


class WorkerEnds:
    """Reads a launcher's stderr and reports each worker's end once.

    A failed worker ended before the first of the others was asked to end, so its end is stamped with that moment. A
    worker that was asked to end is reported as ended by SIGTERM once it is gone.
    """

    def __init__(
        self,
        tell: Tell,
        is_gone: Callable[[int], bool] | None = None,
        now_ns: Callable[[], int] = time.time_ns,
    ) -> None:
        """Start without any known worker.

        Args:
            tell: called for each worker's end.
            is_gone: returns whether a process has ended (tests replace it).
            now_ns: returns the time (tests replace it).
        """
        self._report = tell
        self._is_gone = is_gone or _is_gone
        self._now_ns = now_ns
        self._rest = b""
        self._asked: set[int] = set()
        self._reported: set[int] = set()
        self._asked_ns = 0
        self._has_failed = False

    def feed(self, data: bytes) -> None:
        """Process the next bytes of the stream."""
        text = self._rest + data
        end = text.rfind(b"\n") + 1
        self._rest = text[end:][-_LONGEST_LINE:]
        for found in _LINES.finditer(text, 0, end):
            if found["asked"]:
                self._on_asked(int(found["asked"]))
            else:
                self._on_failed(int(found["failed"] or found["listed"]), int(found["code"] or found["listed_code"]))

    def close(self) -> None:
        """Report every worker that was asked to end and is gone, because the launcher has ended."""
        for pid in sorted(self._asked - self._reported):
            self._report_once(pid, -signal.SIGTERM, self._now_ns())

    def _on_asked(self, pid: int) -> None:
        """Note that a worker was asked to end."""
        if not self._asked_ns or self._has_failed:  # the first, or the first after a restart of the workers
            self._asked_ns, self._has_failed = self._now_ns(), False
        self._asked.add(pid)

    def _on_failed(self, pid: int, code: int) -> None:
        """Report a worker that failed, unless it was asked to end."""
        if pid not in self._asked:
            self._report_once(pid, code, self._asked_ns or self._now_ns())
        self._has_failed = True
        self.close()

    def _report_once(self, pid: int, code: int, ts_ns: int) -> None:
        """Report the end of a worker that is gone, unless it was reported already."""
        if pid not in self._reported and self._is_gone(pid):
            self._reported.add(pid)
            self._report(pid, code, ts_ns)


def _is_gone(pid: int) -> bool:
    """Return whether no process has this id."""
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return True
    except (PermissionError, OverflowError):
        return False
    return False
