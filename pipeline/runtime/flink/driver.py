"""Drives one job's operators from windows and timers, and keeps what a restart needs.

Knows nothing of Flink: ``functions.py`` hands in windows, timers and state. What is inside is the
embedded engine itself, with one job: both runtimes cut slices, order records and call operators
with the same code.

State is **a snapshot and a journal**. Writing the operators' whole state every second would cost
more than the operators (megabytes a job); so each window is appended to the journal as it came, and
once in a while a snapshot takes the journal's place. After a restart the snapshot is restored and the
journal is worked off again with its outputs thrown away: operators are deterministic, so the state is
the same to the byte. What was said between the last checkpoint and the failure is said again, with
the same id and update.

A large job's snapshot is not written in one go: what of it never changes any more (a finished step's
rows, most of it) is written when it is there, in the quiet second of a metric slice, and nobody reads
it until a snapshot names it (``docs/adr/0015-snapshots-ahead.md``).

Flink fires timers in bundles, and while it works off a backlog it hands in many windows before the
first of their timers. The engine must see what it would have seen live; so a window is **held** until
its second is worked off, and seconds are worked off one after the other, each once.
"""

from __future__ import annotations

import bisect
import hashlib
import logging
import struct
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from operator import itemgetter
from typing import NamedTuple, Protocol

from tocsin.pipeline.core.frame_blocks import MAGIC, decode_block
from tocsin.pipeline.core.operator import UNCHANGED
from tocsin.pipeline.core.slices import RecordOutcome
from tocsin.pipeline.identity.signed import SignatureConfig
from tocsin.pipeline.runtime.embedded.engine import EmbeddedEngine, EngineConfig
from tocsin.pipeline.runtime.flink.batch_decode import decode_many
from tocsin.pipeline.runtime.flink.identity import StreamIdentity
from tocsin.pipeline.runtime.flink.outputs import Output, canary, verdict_output
from tocsin.pipeline.runtime.flink.packing import unpack
from tocsin.pipeline.runtime.flink.reduce import named_by
from tocsin.pipeline.runtime.model_schedule import ModelSchedule
from tocsin.schemas.errors import IdentityError, SchemaError, SnapshotError
from tocsin.schemas.kafka.topics import DEAD_LETTER, LATE
from tocsin.schemas.records import METRIC_SLICE_NS, NS_PER_SECOND, ModelAnnouncement, Record, Tick
from tocsin.schemas.wire.codec import decode

_LOG = logging.getLogger("tocsin.flink")
_FAR_AHEAD_NS = 1 << 62
"""The broker refuses stamps that are ahead; a backlog's windows arrive long before their timers."""
_WINDOW, _TIMER = b"W", b"T"
_TIME = struct.Struct("<q")
_STEPS_COUNT = 60
"""Seconds that one timer works off at most: a checkpoint waits for it."""
_SLICE_SECONDS, _QUIET_SECOND = METRIC_SLICE_NS // NS_PER_SECOND, 2
_LARGE_BYTES = 1 << 20
"""A window from which on it is worth while to decode it before its timer."""
_AHEAD_NS = 2 * NS_PER_SECOND
OPERATOR_FAILED, STAMPS_DIFFER, KEY_DIFFERS = "operator_failed", "stamps_differ", "key_differs"
COUNTERS = (
    "records",
    "dead_letters",
    "late_records",
    OPERATOR_FAILED,
    "slices",
    "verdicts",
    "snapshots",
    "snapshot_bytes",
)


class _Held(NamedTuple):
    """A window that waits for its second.

    Attributes:
        end_ns: the second's end.
        data: its packed records.
        rows: ``_rows_of`` them, where that is done already.
    """

    end_ns: int
    data: bytes
    rows: list[tuple[str, bytes, Record | None]] | None = None


class DriverState(Protocol):
    """Keyed state of one job; all of it is written with the next checkpoint."""

    def parts(self) -> dict[str, bytes]:
        """Return the parts of the last snapshot, {} = none, and what was added since."""
        ...

    def journal(self) -> list[bytes]:
        """Return what came since, in order."""
        ...

    def append(self, entry: bytes) -> None:
        """Add to the journal."""
        ...

    def add(self, parts: Mapping[str, bytes]) -> None:
        """Put new parts beside those of the last snapshot; the journal goes on."""
        ...

    def replace(self, changed: Mapping[str, bytes], removed: Sequence[str]) -> None:
        """Put parts in place of older ones and begin a new journal."""
        ...

    def clear(self) -> None:
        """Forget everything: the job is over."""
        ...


@dataclass(frozen=True, slots=True)
class DriverConfig:
    """Settings.

    Attributes:
        engine: operators and slices.
        canary_seconds: every so often each job gets a verdict that only measures the way to the tables, 0: never.
        snapshot_seconds: a snapshot takes the journal's place after so much stream time: what a restart works
            off again.
        signatures: files with keys, for whoever opens the driver in a worker.
    """

    engine: EngineConfig = field(default_factory=lambda: EngineConfig(history=None))
    snapshot_seconds: int = 60
    canary_seconds: int = 0
    signatures: SignatureConfig = field(default_factory=SignatureConfig)


class JobDriver:
    """The operators of one job (all its attempts), their windows and timers."""

    def __init__(
        self,
        config: DriverConfig,
        key: bytes,
        state: DriverState,
        models: ModelSchedule | None = None,
        identity: StreamIdentity | None = None,
    ) -> None:
        """Take up what the state holds.

        Args:
            config: settings.
            key: which job.
            state: its keyed state.
            models: what is announced to all jobs; it holds at least what it held when the journal was written.
            identity: checks records and signs verdicts; None: neither.

        Raises:
            SnapshotError: it was written by another version.
        """
        slices = replace(config.engine.slices, max_ahead_ns=_FAR_AHEAD_NS)
        self._config = replace(config, engine=replace(config.engine, slices=slices, history=None))
        self._key = key
        self._named = named_by(key.decode("utf-8", "replace"))
        self._state = state
        self._models = ModelSchedule() if models is None else models
        self._identity = identity or StreamIdentity()
        self._digests: dict[str, bytes] = {}
        """Of the parts that the state holds."""
        self._adds = False
        """Whether there is a snapshot, and of this engine: its parts may be known by their names."""
        self._since_snapshot_count = 0
        self._held: list[_Held] = []
        self._done_ns: int | None = None
        # Snapshots of many jobs do not fall on the same second.
        self._first_count = int.from_bytes(hashlib.blake2b(key, digest_size=2).digest(), "big")
        self.counters: Counter[str] = Counter()
        """By ``COUNTERS``, since whoever reads them cleared them."""
        self.labelled: Counter[tuple[str, str, str]] = Counter()
        """So, too: (name, label, its value)."""
        self._engine = self._new_engine()
        self._resume()

    def _new_engine(self) -> EmbeddedEngine:
        return EmbeddedEngine(self._config.engine, models=self._models)

    def _resume(self) -> None:
        parts = self._state.parts()
        if parts:
            try:
                self._engine.restore(parts)
            except SnapshotError as error:
                name = self._key.decode("utf-8", "replace")
                way_out = "start without a savepoint, or with the version that wrote it"
                msg = f"the state of job {name} cannot be taken over: {error}; {way_out}"
                raise SnapshotError(msg) from error
            self._done_ns = self._engine.watermark_ns
            self._adds = True
        self._digests = {name: _digest(data) for name, data in parts.items()}
        for entry in self._state.journal():
            at_ns, body = _TIME.unpack_from(entry, 1)[0], entry[1 + _TIME.size :]
            if entry[:1] == _WINDOW:
                self._hold(at_ns, body)
                continue
            for _ in self._work_off(at_ns):
                pass  # it was said before

    @property
    def is_idle(self) -> bool:
        """Whether no job is left: it ended, or was silent for an hour."""
        return not self._held and not self._engine.jobs()

    def on_window(self, end_ns: int, data: bytes) -> None:
        """Take packed records of the second that ends there.

        A second has a window for each metric group; each group's come in the order of their ends.
        """
        self._state.append(_WINDOW + _TIME.pack(end_ns) + data)
        self._hold(end_ns, data)
        if end_ns == self.next_ns and len(data) >= _LARGE_BYTES:
            # Live: its second's timer waits for the windows of the other metric groups, which are still reduced.
            index = bisect.bisect(self._held, end_ns, key=itemgetter(0)) - 1
            self._held[index] = self._held[index]._replace(rows=_rows_of(data))

    def _hold(self, end_ns: int, data: bytes) -> None:
        bisect.insort(self._held, _Held(end_ns, data), key=itemgetter(0))

    def on_time(self, watermark_ns: int) -> list[Output]:
        """Work off the seconds that end by this time; no window of theirs comes any more.

        What cannot be used goes to the dead letters. One call does a minute at most: call again while
        ``next_ns`` is not later than the watermark.
        """
        most_ns = self.next_ns + (_STEPS_COUNT - 1) * NS_PER_SECOND
        until_ns = min(watermark_ns // NS_PER_SECOND * NS_PER_SECOND, most_ns)
        if until_ns < self.next_ns:
            return []
        self._state.append(_TIMER + _TIME.pack(until_ns))
        found = list(self._work_off(until_ns))
        if self.is_idle:
            self._state.clear()
            self._done_ns, self._digests, self._adds = None, {}, False
        elif self._is_snapshot_due():
            self._snapshot()
        elif self._is_quiet():
            self._add_finished()
        return found

    @property
    def next_ns(self) -> int:
        """End of the second that is to be worked off next."""
        if self._done_ns is not None:
            return self._done_ns + NS_PER_SECOND
        return self._held[0][0] if self._held else _FAR_AHEAD_NS

    def _work_off(self, until_ns: int) -> Iterator[Output]:
        for end_ns in range(self.next_ns, until_ns + 1, NS_PER_SECOND):
            if self._done_ns is None or self._engine.watermark_ns is None:
                self._engine.begin(end_ns - NS_PER_SECOND + self._config.engine.slices.lateness_ns)
            while self._held and self._held[0][0] <= end_ns:
                yield from self._take(self._held.pop(0))
            yield from self._tick(end_ns)
            self._done_ns = end_ns
            self._since_snapshot_count += 1
            if self.is_idle:
                return  # forgotten: what comes later begins anew

    def _is_snapshot_due(self) -> bool:
        """Whether it is time, and between two metric slices: a large job's snapshot takes a second.

        In a backlog, which is worked off in long strides, it is not waited for that.
        """
        over = self._since_snapshot_count - self._snapshot_count()
        return over >= 0 and (self._is_quiet() or over >= _SLICE_SECONDS)

    def _is_quiet(self) -> bool:
        return (self._done_ns or 0) // NS_PER_SECOND % _SLICE_SECONDS == _QUIET_SECOND

    def _snapshot_count(self) -> int:
        every = self._config.snapshot_seconds
        return every if self._digests else 1 + self._first_count % every

    def _take(self, held: _Held) -> Iterator[Output]:
        for origin, record, known in _rows_of(held.data) if held.rows is None else held.rows:
            self.counters["records"] += 1
            try:
                if _is_block(origin, record):
                    block = decode_block(record)
                    self.counters["records"] += len(block.means.hosts) - 1
                    self._engine.take_block(block, record)
                    continue
                yield from self._take_record(held.end_ns, decode(record) if known is None else known, record, origin)
            except (SchemaError, IdentityError) as error:
                yield self._refused(DEAD_LETTER, record, error.reason, str(error), origin)
            except Exception as error:  # noqa: BLE001  # supervising: a record that breaks us must not come for ever
                _LOG.exception("a record broke the decoder", extra={"origin": origin})
                yield self._refused(DEAD_LETTER, record, OPERATOR_FAILED, f"{type(error).__name__}: {error}", origin)

    def _take_record(self, end_ns: int, decoded: Record, record: bytes, origin: str) -> Iterator[Output]:
        plain = self._identity.checked(decoded, record)
        if not isinstance(decoded, ModelAnnouncement | Tick):  # the engine refuses them, and says why
            if (decoded.job.cluster, decoded.job.job_id) != self._named:
                text = f"it is of job {decoded.job.cluster}/{decoded.job.job_id}, its key names {self._key!r}"
                yield self._refused(DEAD_LETTER, record, KEY_DIFFERS, text, origin)
                return
            if decoded.ts_ns >= end_ns + _AHEAD_NS:
                text = f"its own stamp lies {(decoded.ts_ns - end_ns) / NS_PER_SECOND:.0f} s after Kafka's"
                yield self._refused(DEAD_LETTER, record, STAMPS_DIFFER, text, origin)
                return
        if self._engine.take_record(decoded, plain) is RecordOutcome.LATE:
            text = f"its own stamp lies {(end_ns - decoded.ts_ns) / NS_PER_SECOND:.0f} s before Kafka's"
            yield self._refused(LATE, record, "late", text, origin)

    def _tick(self, end_ns: int) -> Iterator[Output]:
        lateness_ns = self._config.engine.slices.lateness_ns
        try:
            output = self._engine.tick(end_ns + lateness_ns)
            said = [
                self._identity.signed(verdict_output(verdict)) for verdict in output.verdicts
            ]  # which refuses what is no verdict
        except Exception as error:  # noqa: BLE001  # supervising: one job's failure must not restart all jobs for ever
            _LOG.exception("operators failed", extra={"key": self._key.decode("utf-8", "replace")})
            self.counters[OPERATOR_FAILED] += 1
            self._engine = self._new_engine()
            self._adds = False
            text = f"{type(error).__name__}: {error}; the job's state begins anew"
            yield self._refused(DEAD_LETTER, b"", OPERATOR_FAILED, text, f"::{end_ns // NS_PER_SECOND}")
            return
        for failure in output.failures:  # the engine gave those jobs operators without a past
            self.counters[OPERATOR_FAILED] += 1
            self._adds = False
            yield self._refused(DEAD_LETTER, b"", OPERATOR_FAILED, failure.text, f"::{end_ns // NS_PER_SECOND}")
        self.counters["slices"] += output.turn_count
        for name, seconds in self._engine.take_detector_seconds().items():
            self.labelled["detector_microseconds", "detector", name] += round(seconds * 1e6)
        for verdict in output.verdicts:
            self.counters["verdicts"] += 1
            self.labelled["verdict_lines", "reason", verdict.reason] += 1
        for _, entry in output.refused:
            yield self._refused(
                DEAD_LETTER, entry.data, entry.reason.value, entry.sentence, f"::{end_ns // NS_PER_SECOND}"
            )
        yield from said
        every_ns = self._config.canary_seconds * NS_PER_SECOND
        if every_ns and end_ns % every_ns == 0:
            for job in self._engine.jobs():
                yield self._identity.signed(verdict_output(canary(job, end_ns)))

    def _refused(self, where: str, record: bytes, reason: str, detail: str, origin: str) -> Output:
        self.counters["dead_letters" if where == DEAD_LETTER else "late_records"] += 1
        topic, partition, offset = ([*origin.split(":"), "", "", ""])[:3]
        told = {"reason": reason, "topic": topic, "partition": partition, "offset": offset, "detail": detail}
        return Output(where, self._key, record, {name: text.encode() for name, text in told.items()})

    def _add_finished(self) -> None:
        """Write ahead what the next snapshot will hold as it is now."""
        parts = self._engine.finished_parts(self._digests.keys()) if self._adds else {}
        if not parts:
            return
        self._state.add(parts)
        self._digests.update({name: _digest(data) for name, data in parts.items()})
        self.counters["snapshot_bytes"] += sum(map(len, parts.values()))

    def _snapshot(self) -> None:
        parts = self._engine.snapshot(self._digests.keys() if self._adds else ())
        known = self._digests
        digests = {name: known[name] if data == UNCHANGED else _digest(data) for name, data in parts.items()}
        changed = {name: data for name, data in parts.items() if known.get(name) != digests[name]}
        self._state.replace(changed, sorted(known.keys() - digests.keys()))
        for held in self._held:  # the new journal begins with what is not worked off
            self._state.append(_WINDOW + _TIME.pack(held.end_ns) + held.data)
        self._digests = digests
        self._adds = True
        self._since_snapshot_count = 0
        self.counters["snapshots"] += 1
        self.counters["snapshot_bytes"] += sum(map(len, changed.values()))


def _rows_of(data: bytes) -> list[tuple[str, bytes, Record | None]]:
    """Origin, bytes and record of each; None: a block, or what cannot be decoded: ``_take`` says what becomes of it."""
    packed = list(unpack(data))
    try:
        together = decode_many([record for _, record in packed])
    except Exception:  # noqa: BLE001  # supervising: records that break it are decoded one by one
        _LOG.exception("records could not be decoded together")
        together = [None] * len(packed)
    return [
        (origin, record, _alone(origin, record) if found is None else found)
        for (origin, record), found in zip(packed, together, strict=True)
    ]


def _is_block(origin: str, record: bytes) -> bool:
    """Whether it is what ``reduce_and_pack`` made of frames: what came from Kafka has an origin."""
    return not origin and record.startswith(MAGIC)


def _alone(origin: str, record: bytes) -> Record | None:
    try:
        return None if _is_block(origin, record) else decode(record)
    except Exception:  # noqa: BLE001  # supervising: it is decoded once more where it becomes a dead letter
        return None


def _digest(data: bytes) -> bytes:
    return hashlib.blake2b(data, digest_size=16).digest()
