"""Restore the embedded engine's state from its folder at the start, and save it there during operation.

A start loads the newest readable snapshot and replays the journal after it through the same operators. The replayed
verdicts have the same ids and updates, so storing them again replaces rows by equal rows. State that cannot be used is
moved aside with a reason; it closes no verdict.
"""

from __future__ import annotations

import logging
import queue
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple

from tocsin.pipeline.runtime.embedded.engine import OPERATOR_FAILED, EmbeddedEngine
from tocsin.pipeline.runtime.embedded.persistence.journal import JournalConfig, JournalEntry, JournalKind
from tocsin.pipeline.runtime.embedded.persistence.ledger import Ledger, OnIsolated
from tocsin.pipeline.runtime.embedded.persistence.snapshots import Generation
from tocsin.pipeline.runtime.embedded.persistence.state_folder import StateFolder
from tocsin.pipeline.runtime.embedded.service_memory import ServiceMemory
from tocsin.pipeline.runtime.embedded.supervised_thread import SupervisedThread
from tocsin.schemas.errors import SnapshotError, TocsinError
from tocsin.schemas.reasons import Reason, StateLoss
from tocsin.schemas.records import METRIC_SLICE_NS, NS_PER_SECOND
from tocsin.schemas.wire.codec import decode

_LOG = logging.getLogger("tocsin.state")
_SLICE_SECONDS = METRIC_SLICE_NS // NS_PER_SECOND
_QUIET_SECOND = 3
"""Second within a metric slice at which the previous slice's frames are processed and the next ones have not arrived.
"""
_RARELY = 6
"""Factor by which snapshots are rarer while the engine catches up."""


@dataclass(frozen=True, slots=True)
class RecoveryConfig:
    """Settings of recovery.

    Attributes:
        folder: the state folder.
        snapshot_seconds: interval of snapshots in event time, which bounds what a start has to replay.
        oldest_seconds: state older than this is not used, because none of its verdicts is still open.
        most_ahead_seconds: state further ahead of the clock than this is not used.
        journal: bounds of the journal.
    """

    folder: Path
    snapshot_seconds: int = 10
    oldest_seconds: int = 600
    most_ahead_seconds: int = 5
    journal: JournalConfig = field(default_factory=JournalConfig)


class RestoreResult(NamedTuple):
    """Result of restoring the state.

    Attributes:
        is_restored: whether the engine continues from earlier state.
        replayed_count: number of replayed records.
        losses: reasons why state was not used.
    """

    is_restored: bool
    replayed_count: int = 0
    losses: tuple[StateLoss, ...] = ()


class ReplayFunctions(NamedTuple):
    """Functions that replay journal entries with their normal effects: they publish and store the results.

    Attributes:
        tick: processes a tick.
        begin_anew: restarts time at a tick, for a reason.
    """

    tick: Callable[[int], object]
    begin_anew: Callable[[int, Reason], object]


class _Cut(NamedTuple):
    """A snapshot in memory that is about to be written."""

    parts: dict[str, bytes]
    journal_index: int
    tick_ns: int
    beginnings_count: int


class Recovery:
    """Saves and restores one engine's state.

    Attributes:
        ledger: receives the engine's state changes.
        counters: number of replayed, skipped and lost items, by name.
        pause_seconds: how long the last snapshot delayed the ticks.
    """

    def __init__(
        self,
        config: RecoveryConfig,
        engine: EmbeddedEngine,
        memory: ServiceMemory,
        on_isolated: OnIsolated = lambda _record: None,
    ) -> None:
        """Open the state folder and connect the engine to its journal.

        Args:
            config: settings.
            engine: the engine to save and restore.
            memory: the service's own state, saved with it.
            on_isolated: called with each record that is not judged because the engine died twice with it.

        Raises:
            EngineError: another engine uses the folder, or it is unusable.
        """
        self._config = config
        self._engine = engine
        self._memory = memory
        self.state = StateFolder(config.folder, config.journal)
        self.ledger = Ledger(self.state, on_isolated)
        engine.ledger = self.ledger
        self.counters: Counter[str] = Counter()
        self.pause_seconds = 0.0
        self._cut_ns = 0
        self._cuts: queue.Queue[_Cut | None] = queue.Queue(maxsize=1)
        self._is_writing = False
        self._beginnings_count = 0
        self.thread = SupervisedThread("state", self._write_forever)

    @property
    def is_writing(self) -> bool:
        """Whether a snapshot is being written at present."""
        return self._is_writing

    def restore(
        self, now_ns: int, repeat: ReplayFunctions, floors: Callable[[], dict[str, int]] = dict
    ) -> RestoreResult:
        """Restore the engine's state and open the journal for new entries.

        Args:
            now_ns: the current time.
            repeat: functions that replay journal entries.
            floors: called if there is no snapshot: returns the newest update numbers in the database. A verdict may be
                made again under the same id, and its update numbers must rise.

        Raises:
            EngineError: the journal cannot be opened.
        """
        losses: list[StateLoss] = []
        announced = self._engine.models.records()
        found = self.state.load()
        losses += [reason for reason, _ in found.aside]
        self.counters.update(f"aside_{reason.value}" for reason in losses)
        restored = False
        try:
            loss = self._loss_of_age(found.generation, now_ns)
            if loss is None:
                if found.generation is not None:
                    self._engine.restore(found.parts)
                    self._memory.restore(found.parts)
                else:
                    self._memory.floors = floors()
                self._replay(found.generation, repeat)
                restored = self._engine.now_ns is not None
            else:
                self._set_aside(*loss, losses)
                self._memory.floors = floors()
        except Exception as error:  # noqa: BLE001  # supervising: no state may keep an engine from starting
            is_named = isinstance(error, (SnapshotError, OSError))  # anything else is a fault of the program
            _LOG.error("state cannot be taken up", extra={"error": str(error)}, exc_info=not is_named)
            version = isinstance(error, SnapshotError) and "version" in str(error)
            reason = StateLoss.OTHER_VERSION if version else StateLoss.UNREADABLE
            self._set_aside(reason, f"{type(error).__name__}: {error}", losses)
            self._engine.clear()
            self._memory.forget()
            self._memory.floors = floors()
        self._engine.models.join(announced)
        self.state.begin()
        self.ledger.is_replaying = False
        self._cut_ns = self._engine.now_ns or 0
        self.thread.start()
        fields = {"snapshot_tick_ns": found.generation.tick_ns if found.generation and restored else 0}
        replayed = self.counters["replayed_records"]
        _LOG.info("state taken up", extra={**fields, "restored": restored, "replayed": replayed})
        return RestoreResult(restored, replayed, tuple(losses))

    def _loss_of_age(self, generation: Generation | None, now_ns: int) -> tuple[StateLoss, str] | None:
        newest_ns = self.state.newest_tick_ns(generation)
        if newest_ns is None:
            return None
        away_seconds = (now_ns - newest_ns) / NS_PER_SECOND
        if away_seconds > self._config.oldest_seconds:
            text = f"the engine was away for {away_seconds:.0f} s, more than {self._config.oldest_seconds} s"
            return StateLoss.TOO_OLD, text
        if away_seconds < -self._config.most_ahead_seconds:
            return StateLoss.IN_THE_FUTURE, f"its newest tick is {-away_seconds:.0f} s ahead of the clock"
        return None

    def _set_aside(self, reason: StateLoss, detail: str, losses: list[StateLoss]) -> None:
        self.state.set_aside(reason, detail)
        self.counters[f"aside_{reason.value}"] += 1
        losses.append(reason)

    def _replay(self, generation: Generation | None, repeat: ReplayFunctions) -> None:
        """Replay the journal after a snapshot, and count damaged entries."""
        self._engine.is_catching_up = True
        try:
            for entry in self.state.entries(generation):
                self._repeat(entry, repeat)
        finally:
            self._engine.is_catching_up = False
        tally = self.state.tally
        self.counters["damaged_entries"] += tally.damaged_count
        self.counters["torn_bytes"] += tally.torn_bytes

    def _repeat(self, entry: JournalEntry, repeat: ReplayFunctions) -> None:
        """Replay one journal entry."""
        if entry.kind is JournalKind.TICK:
            repeat.tick(entry.tick_ns)
            self.counters["replayed_ticks"] += 1
            return
        if entry.kind is JournalKind.ANEW:
            repeat.begin_anew(entry.tick_ns, Reason(entry.reason))
            return
        if entry.kind is JournalKind.FORGET:
            self._engine.forget_job(entry.job)
            return
        if entry.kind is JournalKind.EXCUSE:
            until_ns, hosts = entry.excuse
            self._engine.excuse(hosts, until_ns)
            return
        try:
            self._engine.take_record(decode(entry.payload), entry.payload)
            self.counters["replayed_records"] += 1
        except TocsinError as error:  # a model that is refused now as it was then
            _LOG.info("a record of the journal is not taken", extra={"error": str(error)})

    def keep(self, tick_ns: int) -> None:
        """Start a snapshot if one is due; called after each tick by the ticking thread.

        The snapshot is of this moment. Encoding it delays the ticks; another thread writes it.
        """
        journal = self.state.journal
        if journal is None:
            return
        if journal.is_whole and not self._is_due(tick_ns):
            return
        if self._is_writing:
            self.counters["snapshots_skipped"] += 1
            return
        cut = self._cut(tick_ns)
        if cut is not None:
            self._is_writing = True
            self._cuts.put(cut)

    def _is_due(self, tick_ns: int) -> bool:
        """Return whether a snapshot is due at this tick.

        It waits for a moment between two metric slices, when few frames are held. It is rarer while the engine catches
        up.
        """
        every = self._config.snapshot_seconds * (_RARELY if self._engine.is_catching_up else 1)
        over = (tick_ns - self._cut_ns) // NS_PER_SECOND - every
        is_quiet = tick_ns // NS_PER_SECOND % _SLICE_SECONDS == _QUIET_SECOND
        return over >= 0 and (is_quiet or over >= _SLICE_SECONDS)

    def _cut(self, tick_ns: int) -> _Cut | None:
        journal = self.state.journal
        if journal is None:
            return None
        begin = time.perf_counter()
        known = self.state.snapshot_files.known
        beginnings = _beginnings(self._engine)
        # A job that began anew may give a name that is known to something else: all is written then.
        engine_known = known if beginnings == self._beginnings_count else frozenset()
        try:
            parts, journal_index = self._engine.cut(engine_known, journal.cut)
            parts.update(self._memory.snapshot(known))
        except OSError as error:
            self.counters["snapshots_failed"] += 1
            _LOG.error("no new journal segment: the old one goes on", extra={"error": str(error)})
            return None
        finally:
            self._cut_ns = tick_ns
            self.pause_seconds = time.perf_counter() - begin
        return _Cut(parts, journal_index, tick_ns, beginnings)

    def _write_forever(self) -> None:
        """Write queued snapshots until None is queued."""
        while (cut := self._cuts.get()) is not None:
            self._write(cut)
            self._is_writing = False

    def _write(self, cut: _Cut) -> None:
        if self.state.write(cut.parts, cut.journal_index, cut.tick_ns):
            self._beginnings_count = cut.beginnings_count

    def stop(self) -> None:
        """Write a last snapshot, and let the folder go; nothing may tick or be taken any more."""
        if self.state.journal is not None:
            self._cuts.put(None)
            self.thread.join(30.0)
            cut = self._cut(self._engine.now_ns or 0) if self._engine.now_ns is not None else None
            if cut is not None:
                self._write(cut)
        self.state.close()

    def abandon(self) -> None:
        """Close the files without a last snapshot, as if the process had died (for tests)."""
        self._cuts.put(None)
        self.thread.join(30.0)
        self.state.close(is_abandoned=True)

    @property
    def trouble(self) -> str:
        """Reason for which the journal cannot be written just now, "": it can."""
        return "" if self.state.journal is None else self.state.journal.trouble

    @property
    def figures(self) -> dict[str, int]:
        """Numbers of what was written, replayed and lost, by name."""
        journal = self.state.journal
        written = {} if journal is None else {f"journal_{name}": count for name, count in journal.counters.items()}
        return {**self.counters, **self.state.counters, **written}


def _beginnings(engine: EmbeddedEngine) -> int:
    """Return how often a job's state was reset or forgotten since the start."""
    names = (OPERATOR_FAILED, "jobs_forgotten")
    return sum(n for name, n in dict(engine.counters).items() if name in names or name.startswith("begun_anew_"))
