"""Driver of one job's operators: windows and timers in, outputs out, and the state that a restart needs.

The driver knows nothing of Flink: ``functions.py`` hands in windows, timers and state. Inside is the embedded engine
with one job, so both runtimes cut slices, order records and call operators with the same code.

State is **a snapshot and a journal**. Writing the operators' whole state each second would cost more than the
operators (megabytes a job). So each window is appended to the journal as it came, and now and then a snapshot takes
the journal's place. A restart restores the snapshot and processes the journal again, without its outputs. Operators
are deterministic, so the state is the same to the byte. Outputs between the last checkpoint and the failure are sent
again, with the same id and update.

A large job's snapshot is not written at once. Most of it is rows of finished steps, which never change again. They
are written early, in the quiet second of a metric slice. They are read only once a snapshot names them
(``docs/adr/0015-snapshots-ahead.md``).

Flink fires timers in bundles, and in a backlog it hands in many windows before the first of their timers. The engine
must see what it would have seen live. So a window is **held** until its second is processed, and seconds are
processed one after the other, each once.
"""

from __future__ import annotations

import hashlib
import logging
import struct
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Protocol

from tocsin.pipeline.core.frame_blocks import decode_block
from tocsin.pipeline.core.operator import UNCHANGED
from tocsin.pipeline.core.slices import RecordOutcome
from tocsin.pipeline.identity.signed import SignatureConfig
from tocsin.pipeline.runtime.embedded.engine import EmbeddedEngine, EngineConfig
from tocsin.pipeline.runtime.flink.beside import REPORTS_FAILED, BesideVerdicts
from tocsin.pipeline.runtime.flink.held_windows import HeldWindow, HeldWindows
from tocsin.pipeline.runtime.flink.identity import StreamIdentity
from tocsin.pipeline.runtime.flink.outputs import Output, canary, verdict_output
from tocsin.pipeline.runtime.flink.reduce import named_by
from tocsin.pipeline.runtime.model_schedule import ModelSchedule
from tocsin.schemas.errors import IdentityError, SchemaError, SnapshotError
from tocsin.schemas.kafka.topics import DEAD_LETTER, LATE
from tocsin.schemas.records import METRIC_SLICE_NS, NS_PER_SECOND, ModelAnnouncement, Record, Tick
from tocsin.schemas.wire.codec import decode

_LOG = logging.getLogger("tocsin.flink")
_FAR_AHEAD_NS = 1 << 62
"""Limit of stamps ahead of the watermark: none, since a backlog's windows arrive long before their timers."""
_WINDOW, _TIMER = b"W", b"T"
_TIME = struct.Struct("<q")
_STEPS_COUNT = 60
"""Most seconds that one call processes, since a checkpoint waits for it."""
_SLICE_SECONDS, _QUIET_SECOND = METRIC_SLICE_NS // NS_PER_SECOND, 2
_LARGE_BYTES = 1 << 20
"""Least size of a window that is decoded before its timer."""
_AHEAD_NS = 2 * NS_PER_SECOND
"""Least time by which a record's own stamp must be after Kafka's for the record to be refused."""
OPERATOR_FAILED, STAMPS_DIFFER, KEY_DIFFERS = "operator_failed", "stamps_differ", "key_differs"
COUNTERS = (
    "records",
    "dead_letters",
    "late_records",
    OPERATOR_FAILED,
    REPORTS_FAILED,
    "slices",
    "verdicts",
    "snapshots",
    "snapshot_bytes",
)


class DriverState(Protocol):
    """Keyed state of one job; Flink writes all of it with the next checkpoint."""

    def parts(self) -> dict[str, bytes]:
        """Return the parts of the last snapshot and those added since, {} = no snapshot."""
        ...

    def journal(self) -> list[bytes]:
        """Return the entries since the last snapshot, in order."""
        ...

    def append(self, entry: bytes) -> None:
        """Append an entry to the journal."""
        ...

    def add(self, parts: Mapping[str, bytes]) -> None:
        """Add new parts to those of the last snapshot; the journal goes on."""
        ...

    def replace(self, changed: Mapping[str, bytes], removed: Sequence[str]) -> None:
        """Replace changed parts, drop removed ones and begin a new journal."""
        ...

    def clear(self) -> None:
        """Forget everything, as the job is over."""
        ...


@dataclass(frozen=True, slots=True)
class DriverConfig:
    """Settings of the driver.

    Attributes:
        engine: settings of operators and slices.
        snapshot_seconds: event time between two snapshots, which a restart processes again.
        canary_seconds: event time between two verdicts of a job that only measure the way to the tables, 0 = none.
        signatures: files with the keys that ``functions.py`` opens in a worker.
    """

    engine: EngineConfig = field(default_factory=EngineConfig)
    snapshot_seconds: int = 60
    canary_seconds: int = 0
    signatures: SignatureConfig = field(default_factory=SignatureConfig)


class JobDriver:
    """Operators of one job (all its attempts), with their windows and timers."""

    def __init__(
        self,
        config: DriverConfig,
        key: bytes,
        state: DriverState,
        models: ModelSchedule | None = None,
        identity: StreamIdentity | None = None,
    ) -> None:
        """Restore the operators from the state.

        Args:
            config: settings.
            key: Kafka key of the job's records.
            state: the job's keyed state.
            models: models announced to all jobs, at least those that were known when the journal was written.
            identity: checks records and signs verdicts, None = neither.

        Raises:
            SnapshotError: another version wrote the state.
        """
        slices = replace(config.engine.slices, max_ahead_ns=_FAR_AHEAD_NS)
        self._config = replace(config, engine=replace(config.engine, slices=slices))
        self._key = key
        self._named = named_by(key.decode("utf-8", "replace"))
        self._state = state
        self._models = ModelSchedule() if models is None else models
        self._identity = identity or StreamIdentity()
        self._digests: dict[str, bytes] = {}
        """Part -> digest of its bytes, of the parts that the state holds."""
        self._adds = False
        """Whether the state holds a snapshot of this engine, so that parts of the same name are the same."""
        self._since_snapshot_count = 0
        self._held = HeldWindows()
        self._done_ns: int | None = None
        # Snapshots of many jobs do not fall on the same second.
        self._first_count = int.from_bytes(hashlib.blake2b(key, digest_size=2).digest(), "big")
        self.counters: Counter[str] = Counter()
        """Name of ``COUNTERS`` -> count since the reader cleared them."""
        self.labelled: Counter[tuple[str, str, str]] = Counter()
        """(name, label, label's value) -> count since the reader cleared them."""
        self._beside = BesideVerdicts(key.decode("utf-8", "replace"), self._identity, self.counters)
        self._engine = self._new_engine()
        self._resume()

    def _new_engine(self) -> EmbeddedEngine:
        """Return an engine without state."""
        engine = EmbeddedEngine(self._config.engine, models=self._models)
        engine.taps.append(self._beside.tap)
        return engine

    def _resume(self) -> None:
        """Restore the snapshot and process the journal without its outputs."""
        parts = self._state.parts()
        if parts:
            try:
                self._beside.restore(self._engine, parts)
            except SnapshotError as error:
                name = self._key.decode("utf-8", "replace")
                way_out = "start without a savepoint, or with the version that wrote it"
                msg = f"the state of job {name} cannot be taken over: {error}; {way_out}"
                raise SnapshotError(msg) from error
            self._done_ns = self._engine.watermark_ns
            self._adds = self._done_ns is not None
        self._digests = {name: _digest(data) for name, data in parts.items()}
        for entry in self._state.journal():
            at_ns, body = _TIME.unpack_from(entry, 1)[0], entry[1 + _TIME.size :]
            if entry[:1] == _WINDOW:
                self._held.add(at_ns, body)
                continue
            for _ in self._work_off(at_ns):
                pass  # sent before the restart

    @property
    def is_idle(self) -> bool:
        """Whether no job is left, as it ended or was silent for an hour, and all was told of it."""
        if self._held or self._engine.jobs():
            return False
        return self._done_ns is None or self._beside.is_settled(self._tick_ns(self._done_ns))

    @property
    def kept_until_ns(self) -> int:
        """When ``on_time`` drops what is left of an idle job, 0 = nothing is left."""
        return self._beside.kept_until_ns

    def on_window(self, end_ns: int, data: bytes) -> None:
        """Take the packed records of the second that ends at ``end_ns``.

        A second has a window for each metric group; the windows of one group come in the order of their ends.
        """
        self._state.append(_WINDOW + _TIME.pack(end_ns) + data)
        self._held.add(end_ns, data)
        if end_ns == self.next_ns and len(data) >= _LARGE_BYTES:
            # Live: its second's timer waits for the windows of the other metric groups, which are still reduced.
            self._held.decode_newest(end_ns)

    def on_time(self, watermark_ns: int) -> list[Output]:
        """Process the seconds that end by the watermark and return the outputs, dead letters included.

        One call processes a minute at most: call again while ``next_ns`` is not later than the watermark.

        Args:
            watermark_ns: no window of a second that ends by this time comes any more.
        """
        most_ns = self.next_ns + (_STEPS_COUNT - 1) * NS_PER_SECOND
        until_ns = min(watermark_ns // NS_PER_SECOND * NS_PER_SECOND, most_ns)
        if until_ns < self.next_ns:
            if self.is_idle and 0 < self.kept_until_ns <= watermark_ns:
                self._state.clear()
                self._beside.forget()
            return []
        self._state.append(_TIMER + _TIME.pack(until_ns))
        found = list(self._work_off(until_ns))
        if self.is_idle:
            self._state.clear()
            self._state.add(kept := self._beside.kept())
            self._done_ns, self._digests, self._adds = None, {name: _digest(data) for name, data in kept.items()}, False
        elif self._is_snapshot_due():
            self._snapshot()
        elif self._is_quiet():
            self._add_finished()
        return found

    @property
    def next_ns(self) -> int:
        """End of the second that is processed next."""
        if self._done_ns is not None:
            return self._done_ns + NS_PER_SECOND
        first_ns = self._held.first_ns
        return _FAR_AHEAD_NS if first_ns is None else first_ns

    def _work_off(self, until_ns: int) -> Iterator[Output]:
        """Process the seconds that end by this time, one after the other, and yield their outputs."""
        for end_ns in range(self.next_ns, until_ns + 1, NS_PER_SECOND):
            if self._done_ns is None or self._engine.watermark_ns is None:
                self._engine.begin(self._tick_ns(end_ns - NS_PER_SECOND))
            for held in self._held.pop_until(end_ns):
                yield from self._take(held)
            yield from self._tick(end_ns)
            self._done_ns = end_ns
            self._since_snapshot_count += 1
            if self.is_idle:
                return  # forgotten: what comes later begins anew

    def _tick_ns(self, end_ns: int) -> int:
        """Return the engine's time when it works off the second that ends at ``end_ns``."""
        return end_ns + self._config.engine.slices.lateness_ns

    def _is_snapshot_due(self) -> bool:
        """Return whether a snapshot is due now.

        A large job's snapshot takes a second, so it waits for the quiet second between two metric slices. In a
        backlog, which is processed in long strides, it waits for one metric slice at most.
        """
        over = self._since_snapshot_count - self._snapshot_count()
        return over >= 0 and (self._is_quiet() or over >= _SLICE_SECONDS)

    def _is_quiet(self) -> bool:
        """Return whether the second just processed is the quiet one of a metric slice."""
        return (self._done_ns or 0) // NS_PER_SECOND % _SLICE_SECONDS == _QUIET_SECOND

    def _snapshot_count(self) -> int:
        """Return the seconds until the next snapshot is due; jobs write their first one at different seconds."""
        every = self._config.snapshot_seconds
        return every if self._digests else 1 + self._first_count % every

    def _take(self, held: HeldWindow) -> Iterator[Output]:
        """Hand a window's records to the engine; yield the dead letters and late records among them."""
        for row in held.rows():
            origin, record, known = row
            self.counters["records"] += 1
            try:
                if row.is_block:
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
        """Hand one record to the engine; yield it as a dead letter or a late record where it is refused."""
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
        """Run the operators at the end of a second; yield verdicts, dead letters and canaries."""
        tick_ns = self._tick_ns(end_ns)
        try:
            output = self._engine.tick(tick_ns)
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
        yield from self._beside.on_output(self._engine, output, tick_ns)
        every_ns = self._config.canary_seconds * NS_PER_SECOND
        if every_ns and end_ns % every_ns == 0:
            for job in self._engine.jobs():
                yield self._identity.signed(verdict_output(canary(job, end_ns)))

    def _refused(self, where: str, record: bytes, reason: str, detail: str, origin: str) -> Output:
        """Count a refused record and return it with its reason and origin, for the topic ``where``."""
        self.counters["dead_letters" if where == DEAD_LETTER else "late_records"] += 1
        topic, partition, offset = ([*origin.split(":"), "", "", ""])[:3]
        fields = {"reason": reason, "topic": topic, "partition": partition, "offset": offset, "detail": detail}
        return Output(where, self._key, record, {name: text.encode() for name, text in fields.items()})

    def _add_finished(self) -> None:
        """Write the parts of the next snapshot that will not change any more."""
        parts = self._engine.finished_parts(self._digests.keys()) if self._adds else {}
        if not parts:
            return
        self._state.add(parts)
        self._digests.update({name: _digest(data) for name, data in parts.items()})
        self.counters["snapshot_bytes"] += sum(map(len, parts.values()))

    def _snapshot(self) -> None:
        """Write the changed parts of a snapshot and begin a new journal with the windows that wait."""
        have = self._digests.keys() if self._adds else ()
        parts = {**self._engine.snapshot(have), **self._beside.snapshot(self._engine, have)}
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


def _digest(data: bytes) -> bytes:
    """Return a part's digest, 16 bytes."""
    return hashlib.blake2b(data, digest_size=16).digest()
