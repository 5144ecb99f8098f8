"""Write rows to the incident database in a separate thread; rows wait in memory while it is unreachable.

Rows are written in order and retried until the database accepts them. Queued writes are merged, because a server
creates a part of a table for each insert.
"""

from __future__ import annotations

import contextlib
import logging
import queue
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TypeVar

from tocsin.pipeline.runtime.embedded.open_verdicts import OpenVerdicts
from tocsin.pipeline.runtime.embedded.supervised_thread import SupervisedThread
from tocsin.pipeline.stores.alert_sent import AlertSent
from tocsin.pipeline.stores.attempt_starts import AttemptStart
from tocsin.pipeline.stores.attempt_times import AttemptTime
from tocsin.pipeline.stores.backoff import Backoff, BackoffConfig
from tocsin.pipeline.stores.base import ActionChange, EvidencePoint, HostHealth, Store
from tocsin.schemas.action_events import Ack
from tocsin.schemas.actions import Action
from tocsin.schemas.covers import Cover
from tocsin.schemas.errors import RowRefusedError, StoreError
from tocsin.schemas.operator_notes import OperatorNote
from tocsin.schemas.verdicts import Verdict

MERGED_ROWS_COUNT = 10_000
"""Approximate maximum number of rows merged into one round of inserts."""
LAST_TRY_SECONDS = 10.0
"""Longest wait of the shutdown for an unreachable database."""

_LOG = logging.getLogger("tocsin.store")
T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Write:
    """Rows of one tick.

    Attributes:
        verdicts: updates of verdicts.
        evidence: metric series behind them.
        actions: changes of actions.
        health: host health minutes.
        overdue_ns: expire open verdicts that were to be renewed by this time; 0: do not look for them.
        alerts: notices to people whose delivery ended.
        notes: judgements of verdicts and planned work.
        attempt_times: accounts of attempts.
        action_changes: changes of actions, as the controller published them.
        action_acks: executors' messages about actions.
        covers: which fleet incident stands for which verdict.
        attempt_starts: starts of attempts.
    """

    verdicts: tuple[Verdict, ...] = ()
    evidence: tuple[EvidencePoint, ...] = ()
    actions: tuple[ActionChange, ...] = ()
    health: tuple[HostHealth, ...] = ()
    overdue_ns: int = 0
    alerts: tuple[AlertSent, ...] = ()
    notes: tuple[OperatorNote, ...] = ()
    attempt_times: tuple[AttemptTime, ...] = ()
    action_changes: tuple[Action, ...] = ()
    action_acks: tuple[Ack, ...] = ()
    covers: tuple[Cover, ...] = ()
    attempt_starts: tuple[AttemptStart, ...] = ()

    def __len__(self) -> int:
        """Return the number of rows, plus one if overdue verdicts are to be expired."""
        rows_count = len(self.verdicts) + len(self.evidence) + len(self.actions) + len(self.health)
        rows_count += len(self.alerts) + len(self.notes) + len(self.attempt_times)
        rows_count += len(self.action_changes) + len(self.action_acks) + len(self.covers) + len(self.attempt_starts)
        return rows_count + (self.overdue_ns > 0)

    def __add__(self, other: Write) -> Write:
        """Return both writes merged, this one first."""
        return Write(
            self.verdicts + other.verdicts,
            self.evidence + other.evidence,
            self.actions + other.actions,
            self.health + other.health,
            max(self.overdue_ns, other.overdue_ns),
            self.alerts + other.alerts,
            self.notes + other.notes,
            self.attempt_times + other.attempt_times,
            self.action_changes + other.action_changes,
            self.action_acks + other.action_acks,
            self.covers + other.covers,
            self.attempt_starts + other.attempt_starts,
        )


class StoreWriter:
    """Writes rows to a database in its own thread.

    Attributes:
        error_count: number of failed attempts.
    """

    def __init__(
        self,
        store: Store,
        open_verdicts: OpenVerdicts | None = None,
        *,
        is_prepared: bool = True,
        config: BackoffConfig | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """Prepare the writer; ``start`` starts its thread.

        Args:
            store: the database.
            open_verdicts: remembers this engine's open verdicts on a database that others write to as well.
            is_prepared: False: migrate the database first.
            config: settings of the backoff.
            clock: monotonic time in seconds.
        """
        self._store = store
        self._open_verdicts = open_verdicts
        self._is_prepared = is_prepared
        self._backoff = Backoff(_LOG, config, clock)
        self._clock = clock
        self._queue: queue.Queue[Write | None] = queue.Queue()
        self._until: float | None = None
        self._stopping = threading.Event()
        self.thread = SupervisedThread("store", self._run)
        self.error_count = 0

    def start(self) -> None:
        """Start the writing thread."""
        self.thread.start()

    def put(self, write: Write) -> None:
        """Queue rows to be written; never waits for the database."""
        if len(write):
            self._queue.put(write)

    def stop(self) -> None:
        """Write the queued rows, wait a limited time for an unreachable database, and log the number of lost rows."""
        self._until = self._clock() + LAST_TRY_SECONDS
        self._stopping.set()
        self._queue.put(None)
        self.thread.join(3 * LAST_TRY_SECONDS)

    def is_alive(self) -> bool:
        """Return whether the thread is running."""
        return self.thread.is_alive()

    @property
    def is_prepared(self) -> bool:
        """Whether the database was migrated when this writer was created."""
        return self._is_prepared

    @property
    def trouble(self) -> str:
        """Last error if the database currently accepts nothing, "" = no error."""
        return self._backoff.last_error

    @property
    def waiting_count(self) -> int:
        """Number of queued writes."""
        return self._queue.qsize()

    def _run(self) -> None:
        """Migrate the database if needed, then write queued rows until stopped."""
        if not self._is_prepared and not self._persist(lambda: prepare(self._store)):
            self._give_up(Write())
            return
        while True:
            work, is_last = self._next()
            if not self._persist(lambda one=work: self._write(one)):  # type: ignore[misc]  # bound now
                self._give_up(work)
                return
            if is_last:
                return

    def _next(self) -> tuple[Write, bool]:
        """Wait for queued writes; return them merged, and whether they are the last."""
        work = self._queue.get()
        if work is None:
            return Write(), True
        while len(work) < MERGED_ROWS_COUNT:
            try:
                more = self._queue.get_nowait()
            except queue.Empty:
                break
            if more is None:
                return work, True
            work += more
        return work, False

    def _write(self, work: Write) -> None:
        """Write one round of rows, actions before verdicts, and expire overdue verdicts if asked to."""
        if self._open_verdicts is not None:
            self._open_verdicts.opened(work.verdicts)
        # Actions first: there is no transaction, and whoever sees an incident is to see what it proposes.
        self._rows(self._store.write_actions, work.actions)
        self._rows(self._store.write_verdicts, work.verdicts)
        self._rows(self._store.write_alerts_sent, work.alerts)
        self._rows(self._store.write_evidence, work.evidence)
        self._rows(self._store.write_host_health, work.health)
        self._rows(self._store.write_notes, work.notes)
        self._rows(self._store.write_attempt_times, work.attempt_times)
        self._rows(self._store.write_attempt_starts, work.attempt_starts)
        self._rows(self._store.write_action_changes, work.action_changes)
        self._rows(self._store.write_action_acks, work.action_acks)
        self._rows(self._store.write_covers, work.covers)
        if self._open_verdicts is not None:
            self._open_verdicts.closed(work.verdicts)
        if work.overdue_ns:
            self._expire(work.overdue_ns)

    def _expire(self, until_ns: int) -> None:
        """Expire overdue verdicts of this engine in the database."""
        known = None if self._open_verdicts is None else self._open_verdicts.ids()
        expired = self._store.expire_overdue(until_ns, known)
        if expired:
            _LOG.warning("verdicts expired: the engine that said them is gone", extra={"count": len(expired)})
            if self._open_verdicts is not None:
                self._open_verdicts.forget(expired)

    @staticmethod
    def _rows(write: Callable[[Sequence[T]], None], items: Sequence[T]) -> None:
        """Write rows together; if one cannot be stored, write them one by one and drop only that one."""
        if not items:
            return
        try:
            write(items)
        except Exception as error:  # supervising: which of the rows it is shows one by one
            if isinstance(error, StoreError) and not isinstance(error, RowRefusedError):
                raise
            for item in items:
                StoreWriter._row(write, item)

    @staticmethod
    def _row(write: Callable[[Sequence[T]], None], item: T) -> None:
        """Write one row; log and drop it if the database cannot store it."""
        try:
            write([item])
        except Exception as error:  # supervising: the next row is another's incident
            if isinstance(error, StoreError) and not isinstance(error, RowRefusedError):
                raise
            fields = {"error": f"{type(error).__name__}: {error}"[:500], "row": repr(item)[:2000]}
            _LOG.error("row lost: the database cannot take it", extra=fields)

    def _persist(self, work: Callable[[], None]) -> bool:
        """Retry ``work`` with backoff until it succeeds; return False if the writer was stopped before."""
        while True:
            try:
                work()
            except StoreError as error:
                self.error_count += 1
                wait_seconds = self._backoff.failed(error)
                if self._until is not None:
                    wait_seconds = min(wait_seconds, 0.5)
                    if self._clock() >= self._until:
                        return False
                    time.sleep(wait_seconds)
                else:
                    self._stopping.wait(wait_seconds)
            else:
                self._backoff.succeeded()
                return True

    def _give_up(self, work: Write) -> None:
        """Empty the queue and log how many rows were lost."""
        given = [work]
        with contextlib.suppress(queue.Empty):
            while True:
                given.append(self._queue.get_nowait() or Write())
        lost = {
            "verdicts": sum(len(one.verdicts) for one in given),
            "evidence": sum(len(one.evidence) for one in given),
            "alerts": sum(len(one.alerts) for one in given),
            "actions": sum(len(one.actions) for one in given),
            "health": sum(len(one.health) for one in given),
            "notes": sum(len(one.notes) for one in given),
            "attempt_times": sum(len(one.attempt_times) for one in given),
            "attempt_starts": sum(len(one.attempt_starts) for one in given),
        }
        if any(lost.values()):
            _LOG.error("rows lost: the database is still away", extra=lost)


def prepare(store: Store) -> None:
    """Migrate the database to this program's schema version; open verdicts are left as they are until they expire.

    Raises:
        StoreError: the migration failed.
    """
    store.migrate()
