"""Write the engine's state changes (records, ticks, slice bundles) to the journal and mark of its state folder.

The engine calls these methods while holding its lock, so the journal has the order in which changes took effect.
"""

from __future__ import annotations

from collections.abc import Callable, Collection
from dataclasses import replace

from tocsin.pipeline.core.slices import SliceBundle
from tocsin.pipeline.runtime.embedded.persistence.journal import (
    JournalKind,
    excuse_entry,
    job_entry,
    tick_entry,
)
from tocsin.pipeline.runtime.embedded.persistence.state_folder import (
    FORGOTTEN_END_COUNT,
    ISOLATED_END_COUNT,
    StateFolder,
)
from tocsin.schemas.records import JobKey, JobRecord, Record
from tocsin.schemas.wire.codec import encode

OnIsolated = Callable[[JobRecord], None]
"""Function that receives a record of a slice bundle at which the process died twice."""


class Ledger:
    """The engine's interface to an open state folder.

    Attributes:
        is_replaying: whether the journal is being replayed, so that nothing is written to it again.
    """

    def __init__(self, state: StateFolder, on_isolated: OnIsolated = lambda _record: None) -> None:
        """Use a state folder; nothing is written before ``StateFolder.begin`` opens the journal.

        Args:
            state: the state folder.
            on_isolated: called with each record of a slice bundle at which the process died twice.
        """
        self._state = state
        self._on_isolated = on_isolated
        self.is_replaying = True

    def taken(self, record: Record, data: bytes | None) -> None:
        """Add an accepted record to the journal; ``commit`` writes it."""
        self._append(JournalKind.RECORD, encode(record) if data is None else data)

    def turning(self, tick_ns: int) -> None:
        """Write a tick to the journal before it is processed, together with all records accepted before it."""
        self._append(JournalKind.TICK, tick_entry(tick_ns))
        self.commit()

    def forgot(self, job: JobKey) -> None:
        """Add to the journal that a job was forgotten because memory was full."""
        self._append(JournalKind.FORGET, job_entry(job))

    def began_anew(self, tick_ns: int, reason: str) -> None:
        """Write to the journal that time was restarted at a tick, and why."""
        self._append(JournalKind.ANEW, tick_entry(tick_ns, reason))
        self.commit()

    def excused(self, hosts: Collection[str], until_ns: int) -> None:
        """Write to the journal that the engine did not listen to these hosts until then."""
        self._append(JournalKind.EXCUSE, excuse_entry(until_ns, hosts))
        self.commit()

    def judging(self, bundle: SliceBundle) -> tuple[SliceBundle, bool]:
        """Mark that a slice bundle is about to be processed.

        Returns:
            The bundle to process, without its records if the process died twice at it; and whether the job's state must
            be reset, because the process died again even without the records.
        """
        end_count = self._state.judging(bundle.job, bundle.end_ns)
        if end_count < ISOLATED_END_COUNT:
            return bundle, False
        for record in (*bundle.fast.records, *(record for metrics in bundle.metrics for record in metrics.records)):
            self._on_isolated(record)
        fast = replace(bundle.fast, records=())
        return replace(bundle, fast=fast, metrics=()), end_count >= FORGOTTEN_END_COUNT

    def judged(self) -> None:
        """Mark that no slice bundle is being processed any more."""
        self._state.judged()

    def commit(self) -> bool:
        """Hand all added journal entries to the kernel in one write.

        Returns:
            True if they may be acknowledged, because they survive the end of this process. False if the disk refuses
            for now.
        """
        journal = self._state.journal
        return journal is None or journal.flush()

    def _append(self, kind: JournalKind, payload: bytes) -> None:
        """Add an entry to the journal, unless it is being replayed or is not open."""
        journal = self._state.journal
        if journal is not None and not self.is_replaying:
            journal.append(kind, payload)
