"""What the engine tells its state folder while it works: each record taken, each tick, each turn.

The engine calls it under its own lock, so the journal holds all in the order in which it took effect.
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


class Ledger:
    """The engine's side of an open state folder.

    Attributes:
        is_replaying: what happens now stands in the journal already.
    """

    def __init__(self, state: StateFolder, on_isolated: OnIsolated = lambda _record: None) -> None:
        """Write nothing yet: the journal is opened by ``StateFolder.begin``.

        Args:
            state: the folder.
            on_isolated: gets each record of a turn in which the engine ended twice.
        """
        self._state = state
        self._on_isolated = on_isolated
        self.is_replaying = True

    def taken(self, record: Record, data: bytes | None) -> None:
        """A record was taken; ``commit`` writes it."""
        self._append(JournalKind.RECORD, encode(record) if data is None else data)

    def turning(self, tick_ns: int) -> None:
        """A tick is about to be worked off: it is written before, with all that was taken before it."""
        self._append(JournalKind.TICK, tick_entry(tick_ns))
        self.commit()

    def forgot(self, job: JobKey) -> None:
        """A job was forgotten to make room."""
        self._append(JournalKind.FORGET, job_entry(job))

    def began_anew(self, tick_ns: int, reason: str) -> None:
        """Time began again."""
        self._append(JournalKind.ANEW, tick_entry(tick_ns, reason))
        self.commit()

    def excused(self, hosts: Collection[str], until_ns: int) -> None:
        """Nobody listened to these hosts until then."""
        self._append(JournalKind.EXCUSE, excuse_entry(until_ns, hosts))
        self.commit()

    def judging(self, turn: SliceBundle) -> tuple[SliceBundle, bool]:
        """A turn is about to be judged.

        Returns:
            The turn as it is to be judged (without its records, where the engine ended twice while it judged them),
            and whether the job's state is to blame, too: it ended once more without them.
        """
        end_count = self._state.judging(turn.job, turn.end_ns)
        if end_count < ISOLATED_END_COUNT:
            return turn, False
        for record in (*turn.fast.records, *(record for metrics in turn.metrics for record in metrics.records)):
            self._on_isolated(record)
        fast = replace(turn.fast, records=())
        return replace(turn, fast=fast, metrics=()), end_count >= FORGOTTEN_END_COUNT

    def judged(self) -> None:
        """No turn is being judged any more."""
        self._state.judged()

    def commit(self) -> bool:
        """Hand over what was taken to the kernel in one write.

        Returns:
            Whether it may be acknowledged: it survives the end of this process. False: the disk refuses for now.
        """
        journal = self._state.journal
        return journal is None or journal.flush()

    def _append(self, kind: JournalKind, payload: bytes) -> None:
        journal = self._state.journal
        if journal is not None and not self.is_replaying:
            journal.append(kind, payload)
