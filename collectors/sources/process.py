"""Watches the ranks' processes: stopped (SIGSTOP, a debugger, a duty cycle) or gone.

The process ids come from the hooks' hellos. The kernel may reuse one; with its start time it is unique.
"""

from __future__ import annotations

import os
import threading
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Final

from tocsin.collectors.api import CollectorError, HostEvent, Reading
from tocsin.collectors.clock import Clock
from tocsin.collectors.owners import Life, Sight
from tocsin.collectors.sources.procfs import (
    GONE_STATES,
    STOPPED_STATES,
    KeptFiles,
    ProcessStat,
    Roots,
    parse_process_stat,
    read_text,
)
from tocsin.schemas import events
from tocsin.schemas.records import EventSource, JobKey, Severity

STOPPED_SECONDS: Final = 0.5
GONE_SECONDS: Final = 1.0
"""Time for which a vanished process is kept before it is reported as gone, so that a supervisor's ``exit`` datagram can
arrive first."""
RATIO_SECONDS: Final = 2.0
FLAP_RATIO: Final = 0.25
"""Share of the last two seconds in the stopped state that shows a duty cycle, even if no stop lasts 0.5 s."""
PAIR_SECONDS: Final = 1.0
"""Least time between two begin events, and so between two end events."""


@dataclass(slots=True)
class _Watched:
    """One watched process and its recent states; ``*_mono`` are monotonic seconds."""

    pid: int
    path: str
    start_ticks: int
    state: str = ""
    samples: deque[tuple[float, bool]] = field(default_factory=deque)
    stopped_count: int = 0
    stopped_since_mono: float | None = None
    running_since_mono: float | None = None
    begin_mono: float = float("-inf")
    begun: bool = False
    stopped_seconds: float = 0.0
    gone_since_mono: float | None = None


class ProcessWatcher:
    """Samples /proc/PID/stat of the ranks' processes about four times a second."""

    name = "process"
    # Not 0.25: a duty cycle of 0.25, 0.5 or 1 s would always be met at the same point of it.
    # Not 0.23: then half a second is three samples, and a stop is seen later than with two of 0.27.
    period_seconds: float = 0.27

    def __init__(self, clock: Clock, roots: Roots | None = None) -> None:
        """Start without any process."""
        self._clock = clock
        self._proc = (roots or Roots()).proc
        self._files = KeptFiles()
        self._lock = threading.Lock()
        self._watched: dict[tuple[JobKey, int], _Watched] = {}

    def watch(self, job: JobKey, rank: int, pid: int) -> None:
        """Watch a rank's process; no effect if it is watched already, by process id and start time."""
        stat = _stat(read_text, self._path(pid))
        if stat is None:
            return  # pid of another namespace, or it is gone already: nothing to say about it
        with self._lock:
            known = self._watched.get((job, rank))
            if known is None or (known.pid, known.start_ticks) != (pid, stat.start_ticks):
                self._watched[job, rank] = _Watched(pid, self._path(pid), stat.start_ticks)

    def settle(self, job: JobKey, rank: int) -> None:
        """Stop watching a rank's process, because its end is known."""
        with self._lock:
            self._watched.pop((job, rank), None)

    def look(self, pid: int) -> Sight:
        """Return the observed state of a process now; may be called from any thread."""
        stat = _stat(read_text, self._path(pid)) if pid else None
        if stat is not None:
            gone = stat.state in GONE_STATES
            return Sight(Life.GONE) if gone else Sight(Life.RUNS, stat.start_ticks, stat.parent_pid)
        return Sight(Life.GONE if pid and not _exists(pid) else Life.HIDDEN)

    def state(self, job: JobKey, rank: int) -> str:
        """Return the last state letter of a rank's process, "" if it is not watched."""
        with self._lock:
            watched = self._watched.get((job, rank))
        return watched.state if watched else ""

    def collect(self, now_ns: int) -> Reading:
        """Return events for processes that stopped, continued or vanished."""
        del now_ns
        mono = self._clock.mono_ns() / 1e9
        with self._lock:
            watched = list(self._watched.items())
        seen: list[HostEvent] = []
        for (job, rank), process in watched:
            stat = _stat(self._files.read, process.path)
            found: HostEvent | None
            if stat is None or stat.start_ticks != process.start_ticks or stat.state in GONE_STATES:
                found = self._gone(job, rank, process, mono)
            else:
                process.state = stat.state
                found = _edge(job, rank, process, mono)
            if found is not None:
                seen.append(found)
        if len(self._files) > len(watched):
            self._files.close_others({process.path for _, process in watched})
        return Reading(events=tuple(seen))

    def _gone(self, job: JobKey, rank: int, process: _Watched, mono: float) -> HostEvent | None:
        """Return the event of a process that is gone for long enough, else None."""
        process.state = "X"
        if process.gone_since_mono is None:
            process.gone_since_mono = mono
        if mono - process.gone_since_mono < GONE_SECONDS:
            return None
        with self._lock:
            # settled, or replaced by a new process, while its file was read: then there is no news
            if self._watched.get((job, rank)) is not process:
                return None
            del self._watched[job, rank]
        payload = {"pid": process.pid}
        return HostEvent(events.PROCESS_GONE, EventSource.PROCESS, Severity.ERROR, payload, rank, job)

    def _path(self, pid: int) -> str:
        """Return the path of a process's stat file."""
        return f"{self._proc}/{pid}/stat"


def _exists(pid: int) -> bool:
    """Return whether the kernel knows a process; /proc may hide those of other users."""
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except (PermissionError, OverflowError):
        return True
    return True


def _stat(read: Callable[[str], str], path: str) -> ProcessStat | None:
    """Return the parsed stat file of a process, None if it is gone or unreadable."""
    try:
        return parse_process_stat(read(path))
    except (FileNotFoundError, ProcessLookupError):
        return None
    except CollectorError:
        return None  # read in the moment of its death: the next sample tells


def _edge(job: JobKey, rank: int, process: _Watched, mono: float) -> HostEvent | None:
    """Add one sample; return the ``stopped`` event to send, None for no event."""
    stopped = process.state in STOPPED_STATES
    ratio = _remember(process, stopped, mono)
    if not process.begun:
        held = process.stopped_since_mono is not None and mono - process.stopped_since_mono >= STOPPED_SECONDS
        if not (held or _flaps(process, ratio)) or mono - process.begin_mono < PAIR_SECONDS:
            return None
        process.begun, process.begin_mono = True, mono
        return _stopped(job, rank, process, "begin", ratio)
    ran = process.running_since_mono is not None and mono - process.running_since_mono >= STOPPED_SECONDS
    if stopped or not (ran or not _flaps(process, ratio)):
        return None
    process.begun = False
    found = _stopped(job, rank, process, "end", ratio)
    process.stopped_seconds = 0.0
    process.stopped_count = 0
    process.samples.clear()  # the same stop must not begin once more by its share of the last seconds
    return found


def _remember(process: _Watched, stopped: bool, mono: float) -> float:  # noqa: FBT001  # private, one caller
    """Add a sample; return the share of the last two seconds in the stopped state."""
    samples = process.samples
    if stopped and samples and samples[-1][1]:
        process.stopped_seconds += mono - samples[-1][0]
    samples.append((mono, stopped))
    process.stopped_count += stopped
    while samples[0][0] < mono - RATIO_SECONDS:
        process.stopped_count -= samples.popleft()[1]
    if stopped:
        process.running_since_mono = None
        process.stopped_since_mono = process.stopped_since_mono or mono
    else:
        process.stopped_since_mono = None
        process.running_since_mono = process.running_since_mono or mono
        if not process.begun and not process.stopped_count:
            process.stopped_seconds = 0.0
    return process.stopped_count / len(samples)


def _flaps(process: _Watched, ratio: float) -> bool:
    """Return whether a process stopped at least twice, for at least ``FLAP_RATIO`` of the time."""
    if ratio < FLAP_RATIO:
        return False
    flags = [was for _, was in process.samples]
    return sum(1 for before, after in zip([False, *flags], flags, strict=False) if after and not before) >= 2


def _stopped(job: JobKey, rank: int, process: _Watched, edge: str, ratio: float) -> HostEvent:
    """Build a ``stopped`` event; ``edge``: ``begin`` or ``end``."""
    payload = {
        "pid": process.pid,
        "edge": edge,
        "seconds": round(process.stopped_seconds, 3),
        "stopped_ratio": round(ratio, 3),
    }
    return HostEvent(events.STOPPED, EventSource.PROCESS, Severity.WARNING, payload, rank, job)
