"""Write verdicts from a topic to the incident database: at least once, always as the same rows.

Rows are written first, then dead letters, then offsets are committed, so the process may be killed at any moment.
Uncommitted messages come again and give the same rows. A verdict's key is (id, update). Its actions follow from the
verdict and its earlier rows in the database, never from this process's memory.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator, Sequence
from typing import NamedTuple

from tocsin.pipeline.incidents.proposals import changes_of, proposed_before
from tocsin.pipeline.incidents.standing import StandingIncidents, incident_families
from tocsin.pipeline.kafka.consumer_api import (
    DeadLetterSink,
    Message,
    MessageSource,
    RefusedMessage,
)
from tocsin.pipeline.kafka.planned_actions import PlannedActions
from tocsin.pipeline.kafka.topic_sink import REFUSED, Check, TopicSink, TopicSinkConfig
from tocsin.pipeline.stores.base import ActionChange, Store
from tocsin.schemas.cloudevents import decode_verdict
from tocsin.schemas.errors import (
    IdentityError,
    RowRefusedError,
    SchemaError,
    StoreAwayError,
    StoreError,
)
from tocsin.schemas.formats.prometheus_text import Family
from tocsin.schemas.verdicts import Verdict


class _PendingMessage(NamedTuple):
    """A message and its decoded verdict."""

    message: Message
    verdict: Verdict


class VerdictSink(TopicSink):
    """Reads verdicts from a source and writes them to a store.

    Args:
        source: delivers the messages.
        store: receives the rows; need not be migrated or reachable yet.
        dead_letter_sink: stores the dead letters.
        config: settings.
        clock: monotonic time in seconds.
        wall_ns: Unix time in nanoseconds.

    Attributes:
        planned: says which rows of actions wait under planned work; None: none does. Set it before ``run``.
        is_replaced: whether the controller's actions are written in place of what verdicts propose. Set it before
            ``run``.
        silence: returns the named reason for which nobody is told of a verdict now, "" for none. Set it before ``run``.
        standing: the incidents that stand, of what was written.
    """

    def __init__(
        self,
        source: MessageSource,
        store: Store,
        dead_letter_sink: DeadLetterSink,
        config: TopicSinkConfig | None = None,
        clock: Callable[[], float] = time.monotonic,
        wall_ns: Callable[[], int] = time.time_ns,
    ) -> None:
        """Connect source, store and dead letters; ``run`` does the work."""
        super().__init__(source, store, dead_letter_sink, config, clock)
        self.planned: PlannedActions | None = None
        self.is_replaced = False
        self.silence: Callable[[Verdict], str] = lambda _verdict: ""
        self._wall_ns = wall_ns
        self.standing = StandingIncidents()
        self._known_good: dict[bool, Verdict] = {}
        """Last verdicts written successfully.

        One that proposes an action and one that does not, as they fill different tables.
        """

    def _gather(self, stop: threading.Event) -> list[Message]:
        """Return messages as the base class does, and forget incidents of partitions that others have now."""
        batch = super()._gather(stop)
        held = self._source.partitions()
        if held is not None:
            self.standing.keep_partitions(held)
        if self.planned is not None and self.planned.is_due():
            self._persist(self._write_due, stop)
        return batch

    def _write_due(self) -> None:
        """Write the rows of actions that change because planned work began or ended."""
        assert self.planned is not None, "called where it is not"  # noqa: S101
        self._check()
        changes = self.planned.due(self.standing.verdicts(self._wall_ns()), self._store.actions_of)
        if changes:
            self._store.write_actions(changes)
        self.planned.done()

    def _write(self, batch: Sequence[Message], stop: threading.Event) -> bool:
        """Bring a batch into the database and the dead letters; False: told to stop before it was done."""
        refused: list[RefusedMessage] = []
        entries: list[_PendingMessage] = []
        for message in batch:
            entry = _read(message, self._config.check)
            if isinstance(entry, RefusedMessage):
                refused.append(entry)
            else:
                entries.append(entry)
        if not self._persist(lambda: self._insert_sound(entries, refused), stop):
            return False
        if refused and not self._persist(lambda: self._dead_letter_sink.write(refused), stop):
            return False
        self._count_dead_letters(refused)
        for entry in entries:
            self.standing.take((entry.verdict,), self._wall_ns(), entry.message.partition_index)
        return True

    def _insert_sound(self, entries: list[_PendingMessage], refused: list[RefusedMessage]) -> None:
        """Insert what the database takes; what it refuses alone moves to ``refused``."""
        self._check()
        try:
            self._insert([entry.verdict for entry in entries])
        except (StoreAwayError, *REFUSED):
            raise
        except StoreError as error:
            bad = self._blamed(entries, error)
            refused += bad
            guilty = {id(dead_letter.message) for dead_letter in bad}
            entries[:] = [entry for entry in entries if id(entry.message) not in guilty]
            self._insert([entry.verdict for entry in entries])
        self.counters["written"] += len(entries)
        self._known_good.update((_proposes(entry.verdict), entry.verdict) for entry in entries)

    def _blamed(self, entries: Sequence[_PendingMessage], error: StoreError) -> list[RefusedMessage]:
        """Return the entries for which the database refused them all; raise ``error`` where none is.

        A value that does not fit its column is certain proof. Any other error may be the table's fault. An entry is
        then blamed only if it fails before and after another one succeeded that fills the same tables.
        """
        if not isinstance(error, RowRefusedError) and any(map(self._fails, self._known_good.values())):
            raise error
        failed = [(entry, rejection) for entry in entries if (rejection := self._fails(entry.verdict))]
        certain: list[tuple[_PendingMessage, StoreError]] = [
            one for one in failed if isinstance(one[1], RowRefusedError)
        ]
        suspects = {entry for entry, _ in failed}
        sound = [entry.verdict for entry in entries if entry not in suspects]
        for acts in (True, False):
            doubtful = [
                e for e, rejection in failed if not isinstance(rejection, RowRefusedError) and _acts(e.verdict) == acts
            ]
            if not doubtful:
                continue
            known_good = self._known_good_verdict(sound, acts=acts)
            if known_good is None or self._fails(known_good):
                raise error
            certain += [(entry, rejection) for entry in doubtful if (rejection := self._fails(entry.verdict))]
        return [RefusedMessage(entry.message, rejection.reason, str(rejection)) for entry, rejection in certain]

    def _known_good_verdict(self, sound: Sequence[Verdict], *, acts: bool) -> Verdict | None:
        """Return a verdict that was inserted successfully, None if there is none.

        With ``acts`` one that proposes an action.
        """
        return next((one for one in (*sound, *self._known_good.values()) if _proposes(one) or not acts), None)

    def _fails(self, verdict: Verdict) -> StoreError | None:
        """Insert one verdict; return the database's error, None if it succeeded."""
        try:
            self._insert([verdict])
        except (StoreAwayError, *REFUSED):
            raise
        except StoreError as error:
            return error
        return None

    def _insert(self, verdicts: Sequence[Verdict]) -> None:
        """Insert verdicts, then the changes of their actions."""
        if not verdicts:
            return
        self._store.write_verdicts(verdicts)
        changes = [] if self.is_replaced else list(self._changes(verdicts))
        if changes:
            self._store.write_actions(changes)

    def _changes(self, verdicts: Sequence[Verdict]) -> Iterator[ActionChange]:
        """Yield the action changes of these verdicts, given the earlier rows in the database and in this batch."""
        older = sorted({v.verdict_id for v in verdicts if v.update > 0})
        known: dict[str, dict[object, ActionChange]] = {}
        for change in self._store.actions_of(older) if older else ():
            known.setdefault(change.action.verdict_id, {})[_row_of(change)] = change
        for verdict in sorted(verdicts, key=lambda v: (v.verdict_id, v.update)):
            rows = known.setdefault(verdict.verdict_id, {})
            for change in changes_of(verdict, proposed_before(verdict, rows.values())):
                latest = rows.get(_row_of(change))
                if latest is None or latest.changed_ns <= change.changed_ns:
                    rows[_row_of(change)] = change
                yield change if self.planned is None else self.planned.held(change, verdict)

    def families(self) -> list[Family]:
        """Return the sink's metrics for ``/metrics``."""
        verdicts, dropped_count = self.standing.verdicts(self._wall_ns()), self.standing.dropped_count
        standing = incident_families(verdicts, dropped_count, silence=self.silence)
        return [*super().families(), *standing]


def _read(message: Message, check: Check | None) -> _PendingMessage | RefusedMessage:
    if message.value is None:
        return RefusedMessage(message, "no_value", "the message has no value: must be a CloudEvent of a verdict")
    try:
        entry = _PendingMessage(message, decode_verdict(message.value))
        if check is not None:
            check(message.value, message.signature, entry.verdict.detected_ns)
        return entry
    except (SchemaError, IdentityError) as error:
        return RefusedMessage(message, error.reason, str(error))


def _row_of(change: ActionChange) -> object:
    """Return the key of an action's row within its verdict: update, kind and target."""
    return change.action.verdict_update, change.action.kind, change.action.target


def _proposes(verdict: Verdict) -> bool:
    """Return whether a verdict proposes an action."""
    return verdict.action.value != "none"


def _acts(verdict: Verdict) -> bool:
    """Return whether a verdict may change action rows: it proposes an action, or may end earlier ones."""
    return _proposes(verdict) or verdict.update > 0
