"""Reports about the data loader of a rank: queue, fetch time, source, lengths, workers' memory, new starts.

The training thread takes two times a fetch, and reads the batch of one step in a few seconds. The hook's thread reads
the workers' memory and sends.
"""

import inspect
import os
import time
from collections import deque
from typing import Any

from tocsin.collectors.hook._lengths import BatchFacts, clean_name, facts_of

REPORT_NS = 5_000_000_000
"""Least time between two reports about steps."""
COST_FACTOR = 500
"""Reports are at least this many times as far apart as it takes to read a batch: 0.2 % of the time."""
MAX_EVERY = 1 << 20
WAITING_NS = 3_000_000_000
"""A fetch that takes longer is reported while it goes on, and again after this time."""
MAX_REPORTS = 64
MAX_WRAPPERS = 8
"""Most data sets around a data set that are looked through for its name."""

_PAGE_BYTES = os.sysconf("SC_PAGE_SIZE")
_now_ns = time.perf_counter_ns

Report = dict[str, object]


class LoaderWatch:
    """What is known of a rank's loaders; written by the training thread, read by the hook's.

    Steps are reported whose number is a multiple of ``every``, a power of two: so ranks report the same steps without
    a word between them.

    Attributes:
        every: distance of reported steps.
        reports: reports that wait for the hook's thread, oldest first.
        restart_count: passes that began because the last one had failed.
        source: name of the source of the loader that was begun last.
    """

    __slots__ = (
        "_began", "_depth", "_facts", "_failed", "_fetch_ns", "_is_sampled", "_is_urgent", "_pids", "_read_ns",
        "_recovery_seconds", "_reported", "_step", "_step_count", "_told_wait", "every", "reports", "restart_count",
        "source",
    )  # fmt: skip

    def __init__(self) -> None:
        self.every = 1
        self.reports: deque[Report] = deque(maxlen=MAX_REPORTS)
        self.restart_count = 0
        self.source = ""
        self._began = 0
        """Begin of the fetch in progress (``perf_counter_ns``), 0 = none."""
        self._told_wait = 0
        self._step = -1
        self._step_count = 0
        """Steps since the last report."""
        self._fetch_ns = 0
        """Time of the fetches since the last report."""
        self._is_sampled = False
        self._is_urgent = False
        self._facts: list[BatchFacts] = []
        self._depth: int | None = None
        self._read_ns = 0
        self._reported = _now_ns()
        self._failed = 0
        """When the loader failed (``perf_counter_ns``), 0 = it did not since its last begin."""
        self._recovery_seconds: float | None = None
        self._pids: tuple[int, ...] = ()

    # --- training thread -------------------------------------------------------------------------

    def begin_pass(self, iterator: Any, source: str) -> None:
        """Take that a pass over a loader begins."""
        self.source = source
        self._pids = worker_pids(iterator)

    def begin_fetch(self, iterator: Any, step: int) -> None:
        """Take that a batch is fetched for a step."""
        now = _now_ns()
        if step != self._step:
            if self._is_sampled:
                self._report(now)
            self._step = step
            self._step_count += 1
            self._is_sampled = step % self.every == 0
            self._depth = queue_depth(iterator) if self._is_sampled else None
        self._began = now

    def end_fetch(self, batch: Any) -> None:
        """Take a batch that was fetched."""
        now = _now_ns()
        self._fetch_ns += now - self._began
        self._began = self._told_wait = 0
        if self._failed:
            self.restart_count += 1
            self._recovery_seconds = (now - self._failed) / 1e9
            self._failed = 0
            self._is_sampled = self._is_urgent = True
        if self._is_sampled:
            self._facts.append(facts_of(batch))
            self._read_ns = _now_ns() - now
            if self._is_urgent:
                self._report(now)

    def cancel_fetch(self, *, failed: bool) -> None:
        """Take that a fetch gave no batch: the pass is over, or the loader failed."""
        self._failed = self._began if failed else self._failed
        self._began = self._told_wait = 0

    def _report(self, now: int) -> None:
        """Queue the report of the sampled step, and choose the distance of the next one."""
        facts = self._facts
        row: Report = {
            "step": self._step,
            "source": next((one.source for one in facts if one.source), self.source),
            "fetch_seconds": round(self._fetch_ns / 1e9 / max(self._step_count, 1), 6),
            "rows": _sum(one.rows for one in facts),
        }
        optional = {
            "queue_depth": self._depth,
            "tokens": _sum(one.tokens for one in facts),
            "max_length": max((one.max_length for one in facts if one.max_length is not None), default=None),
            "sum_squared_lengths": _sum(one.sum_squared_lengths for one in facts),
        }
        row.update({key: value for key, value in optional.items() if value is not None})
        if self.restart_count:
            row.update(restarts=self.restart_count, recovery_seconds=self._recovery_seconds)
        self.reports.append(row)
        least_ns = max(REPORT_NS, COST_FACTOR * self._read_ns)
        step_ns = max((now - self._reported) // max(self._step_count, 1), 1)
        self.every = 1
        while self.every * step_ns < least_ns and self.every < MAX_EVERY:
            self.every *= 2
        self._reported, self._step_count, self._fetch_ns = now, 0, 0
        self._facts, self._is_sampled, self._is_urgent = [], False, False

    # --- the hook's thread -----------------------------------------------------------------------

    def take(self) -> list[Report]:
        """Return the reports to send now, with the workers' memory, and forget them."""
        rows = [self.reports.popleft() for _ in range(len(self.reports))]
        began, now = self._began, _now_ns()
        if began and now - max(began, self._told_wait) >= WAITING_NS:
            self._told_wait = now
            waited_seconds = round((now - began) / 1e9, 3)
            rows.append({"source": self.source, "queue_depth": 0, "fetch_seconds": waited_seconds, "rows": 0})
        if rows and self._pids:
            rows[-1]["worker_count"] = len(self._pids)
            rows[-1]["memory_bytes"] = sum(map(resident_bytes, self._pids))
        return rows


def source_of(loader: Any, given: str | None) -> str:
    """Return the name of a loader's source: what the script gives, else its data set's name, else its class.

    Looked for are ``source``, ``name`` and ``dataset_name``, plain texts that the data set or its class has as an
    attribute; no property or method is called. Wrappers such as ``Subset`` are looked through.
    """
    if given is not None:
        return clean_name(given)
    found = _own(loader, "dataset")
    for _ in range(MAX_WRAPPERS):
        if found is None:
            break
        for owner in (found, _own(found, "_info")):
            for name in ("source", "name", "dataset_name"):
                if type(value := _own(owner, name)) is str and value:
                    return clean_name(value)
        inner = _own(found, "dataset")
        if inner is None:
            return clean_name(type(found).__name__)
        found = inner
    return ""


def _own(owner: Any, name: str) -> Any:
    """Return an attribute as it is stored, None without one; neither a property nor ``__getattr__`` is called."""
    return inspect.getattr_static(owner, name, None)


def _has_workers(iterator: Any) -> bool:
    """Return whether an iterator is torch's own with worker processes."""
    return type(iterator).__name__ == "_MultiProcessingDataLoaderIter"


def worker_pids(iterator: Any) -> tuple[int, ...]:
    """Return the processes that fill a loader's queue; () without any."""
    workers = _own(iterator, "_workers") if _has_workers(iterator) else None
    return tuple(pid for pid in (getattr(one, "pid", None) for one in workers or ()) if type(pid) is int)


def queue_depth(iterator: Any) -> int | None:
    """Return how many batches are ready in a loader's queue, None if it has none or does not show it."""
    if not _has_workers(iterator):
        return None
    early = _own(iterator, "_task_info")
    try:
        ready = int(_own(iterator, "_data_queue").qsize())
    except (AttributeError, NotImplementedError, OSError):
        return None
    return ready + sum(len(info) > 1 for info in early.values()) if type(early) is dict else ready


def resident_bytes(pid: int) -> int:
    """Return the memory that a process holds, shared pages included; 0 once it has gone."""
    try:
        with open(f"/proc/{pid}/statm", "rb", buffering=0) as file:
            return int(file.read(256).split()[1]) * _PAGE_BYTES
    except (OSError, IndexError, ValueError):
        return 0


def _sum(values: Any) -> int | None:
    """Return the sum of the numbers that are known, None if none is."""
    known = [value for value in values if value is not None]
    return sum(known) if known else None
