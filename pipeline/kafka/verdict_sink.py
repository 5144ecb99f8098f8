"""Write verdicts from a topic to the incident database: at least once, always as the same rows.

Rows are written first, then dead letters, then offsets are committed, so the process may be killed at any moment.
Uncommitted messages come again and give the same rows. A verdict's key is (id, update). Its actions follow from the
verdict and its earlier rows in the database, never from this process's memory.
"""

from __future__ import annotations

import logging
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from tocsin.pipeline.incidents.proposals import changes_of, proposed_before
from tocsin.pipeline.incidents.standing import StandingIncidents, incident_families
from tocsin.pipeline.kafka.consumer_api import (
    DeadLetterSink,
    Message,
    MessageSource,
    RefusedMessage,
)
from tocsin.pipeline.stores.backoff import Backoff, BackoffConfig
from tocsin.pipeline.stores.base import ActionChange, Store
from tocsin.schemas.cloudevents import decode_verdict
from tocsin.schemas.errors import (
    DatabaseNewerError,
    EngineError,
    IdentityError,
    RowRefusedError,
    SchemaError,
    StoreAwayError,
    StoreError,
    StoreRefusedError,
)
from tocsin.schemas.formats.prometheus_text import Family, Sample
from tocsin.schemas.verdicts import Verdict

_LOG = logging.getLogger("tocsin.sink")
REFUSED = (StoreRefusedError, DatabaseNewerError)
"""Errors that end the sink because a person has to act; nothing is lost, as nothing was committed."""
_STANDS_STILL_SECONDS = 300.0  # longer than the database may take for one answer


Check = Callable[[bytes, bytes | None, int], object]
"""Function (value, signature, verdict's time in ns) that raises ``IdentityError`` for a message without valid
signature.
"""


@dataclass(frozen=True, slots=True)
class VerdictSinkConfig:
    """Settings of the sink.

    Attributes:
        linger_seconds: how long messages are collected for one insert.
        batch_count: maximum number of messages per insert.
        batch_bytes: size of a batch at which no more messages are added.
        backoff: settings of the backoff while the database is unreachable.
        check: checks a message's value and signature (None = none) at its verdict's time, and raises ``IdentityError``
            for messages of no known engine. None: every writer of the topic is trusted.
    """

    linger_seconds: float = 0.25
    batch_count: int = 2_000
    batch_bytes: int = 8_000_000
    backoff: BackoffConfig = field(default_factory=BackoffConfig)
    check: Check | None = None


class _PendingMessage(NamedTuple):
    """A message and its decoded verdict."""

    message: Message
    verdict: Verdict


class VerdictSink:
    """Reads verdicts from a source and writes them to a store.

    Args:
        source: delivers the messages.
        store: receives the rows; need not be migrated or reachable yet.
        letters: stores the dead letters.
        config: settings.
        clock: monotonic time in seconds.
        wall_ns: Unix time in nanoseconds.

    Attributes:
        standing: the incidents that stand, of what was written.
    """

    def __init__(
        self,
        source: MessageSource,
        store: Store,
        letters: DeadLetterSink,
        config: VerdictSinkConfig | None = None,
        clock: Callable[[], float] = time.monotonic,
        wall_ns: Callable[[], int] = time.time_ns,
    ) -> None:
        """Connect source, store and dead letters; ``run`` does the work."""
        self._source = source
        self._store = store
        self._letters = letters
        self._config = config or VerdictSinkConfig()
        self._clock = clock
        self._wall_ns = wall_ns
        self.standing = StandingIncidents()
        self._is_checked = False
        self._known_good: dict[bool, Verdict] = {}
        """Last verdicts written successfully.

        One that proposes an action and one that does not, as they fill different tables.
        """
        self._backoff = Backoff(_LOG, self._config.backoff, clock)
        self._last_work = clock()
        self.counters: Counter[str] = Counter()
        self.dead_letters: Counter[str] = Counter()
        self.store_errors: Counter[str] = Counter()

    def run(self, stop: threading.Event) -> None:
        """Process batches until stopped; an unfinished batch is delivered again later.

        Raises:
            StoreRefusedError: the database refuses this program.
            DatabaseNewerError: a newer tocsin wrote the database.
            EngineError: the source has failed permanently.
        """
        self._persist(self._check, stop, only_away=True)
        while not stop.is_set():
            batch = self._gather(stop)
            self._last_work = self._clock()
            held = self._source.partitions()
            if held is not None:
                self.standing.keep_partitions(held)
            if batch and self._write(batch, stop):
                self._source.commit(batch)
                self.counters["committed"] += len(batch)

    def _check(self) -> None:
        """Migrate the database if that has not been done since the last failure."""
        if not self._is_checked:
            self._store.migrate()
            self._is_checked = True

    def _gather(self, stop: threading.Event) -> list[Message]:
        """Wait for messages, collect more for up to ``linger_seconds``, and return them."""
        batch = list(self._source.poll(0.5))
        until = self._clock() + self._config.linger_seconds
        size_bytes = sum(len(message.value or b"") for message in batch)
        while batch and len(batch) < self._config.batch_count and size_bytes < self._config.batch_bytes:
            left = until - self._clock()
            if left <= 0 or stop.is_set():
                break
            more = self._source.poll(left)
            if not more:
                break
            size_bytes += sum(len(message.value or b"") for message in more)
            batch += more
        return batch

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
        if refused and not self._persist(lambda: self._letters.write(refused), stop):
            return False
        self._count_dead_letters(refused)
        for entry in entries:
            self.standing.take((entry.verdict,), self._wall_ns(), entry.message.partition_index)
        return True

    def _count_dead_letters(self, letters: Sequence[RefusedMessage]) -> None:
        """Count each, log the first of each reason: a flood of them must not become one of log lines."""
        for reason, count in Counter(dead_letter.reason for dead_letter in letters).items():
            self.dead_letters[reason] += count
            first = next(dead_letter for dead_letter in letters if dead_letter.reason == reason)
            place = {
                "topic": first.message.topic,
                "partition": first.message.partition_index,
                "offset": first.message.offset_count,
            }
            _LOG.warning("dead letters", extra={"reason": reason, "count": count, "detail": first.detail, **place})

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
        """Which entries are the reason that the database refused them all; raises ``error`` where none is.

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
        changes = list(self._changes(verdicts))
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
                yield change

    def _persist(self, work: Callable[[], None], stop: threading.Event, *, only_away: bool = False) -> bool:
        """Repeat ``work`` while the database, or the broker for dead letters, is unreachable.

        Args:
            work: what to do; may be started again.
            stop: ends the waiting.
            only_away: raise all other errors, because at the start a person is watching.

        Returns:
            True when it is done, False if stopped before.
        """
        while True:
            try:
                work()
            except REFUSED:
                raise
            except (StoreError, EngineError) as error:
                if only_away and not isinstance(error, StoreAwayError):
                    raise
                self._is_checked = False  # it may come back as another one: empty, or newer
                self.store_errors[error.reason] += 1
                if not self._wait(self._backoff.failed(error), stop):
                    return False
            else:
                self._backoff.succeeded()
                return True

    def _wait(self, seconds: float, stop: threading.Event) -> bool:
        """Wait while staying a member of the group; return False if stopped."""
        until = self._clock() + seconds
        while (left := until - self._clock()) > 0 and not stop.is_set():
            self._source.keep_alive(min(left, 0.5))
            self._last_work = self._clock()
        return not stop.is_set()

    def health(self) -> tuple[bool, str]:
        """Return whether the sink works, with a text, for ``/healthz``.

        An unreachable database does not count as unhealthy.
        """
        idle_seconds = self._clock() - self._last_work
        if idle_seconds > _STANDS_STILL_SECONDS:
            return False, f"stands still for {idle_seconds:.0f} s"
        words = self._backoff.last_error
        return True, f"waits for the database: {words}" if words else "ok"

    def families(self) -> list[Family]:
        """Return the sink's metrics for ``/metrics``."""
        return [
            _counter("tocsin_sink_messages_total", "Messages by what became of them.", "outcome", self.counters),
            _counter("tocsin_sink_dead_letters_total", "Dead letters by reason.", "reason", self.dead_letters),
            _counter("tocsin_sink_failures_total", "Writes that failed and are repeated.", "reason", self.store_errors),
            Family(
                "tocsin_sink_waiting",
                "gauge",
                "1: waits for the database.",
                (Sample({}, self._backoff.failure_count > 0),),
            ),
            *incident_families(self.standing.verdicts(self._wall_ns()), self.standing.dropped_count),
        ]


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


def _counter(name: str, text: str, label: str, counts: Counter[str]) -> Family:
    """Return a counter metric with one sample per key."""
    return Family(
        name, "counter", text, tuple(Sample({label: key}, value) for key, value in sorted(dict(counts).items()))
    )
