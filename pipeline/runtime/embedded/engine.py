"""The embedded runtime: one process, the same operators, no broker.

The listener calls ``take`` for every record. The ticker, or a replayer in recording time, calls ``tick`` once a second.
``tick`` returns all verdicts, in stream order. Thread-safe; never forks.
"""

from __future__ import annotations

import logging
import threading
import time
from collections import Counter, defaultdict, deque
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, field, replace

from tocsin.pipeline.core.frame_blocks import FrameBlock
from tocsin.pipeline.core.slices import (
    RecordOutcome,
    SliceBuffer,
    SliceBundle,
    SliceConfig,
)
from tocsin.pipeline.runtime.embedded.clock_watch import HostTimes
from tocsin.pipeline.runtime.embedded.engine_ledger import EngineLedger, NoLedger
from tocsin.pipeline.runtime.embedded.engine_output import EngineOutput, TickResult
from tocsin.pipeline.runtime.embedded.engine_snapshots import EngineSnapshots
from tocsin.pipeline.runtime.embedded.job_attempts import JobAttempts
from tocsin.pipeline.runtime.embedded.observers import Observers, count_late
from tocsin.pipeline.runtime.history import HistoryConfig
from tocsin.pipeline.runtime.job_failure import JobFailure, failure_of
from tocsin.pipeline.runtime.job_pipeline import JobConfig, JobPipeline
from tocsin.pipeline.runtime.model_schedule import KEEP_NS, ModelSchedule
from tocsin.schemas.errors import ClockAheadError, ModelRefusedError
from tocsin.schemas.reasons import ModelRefusal, Reason, StateLoss
from tocsin.schemas.records import JobKey, ModelAnnouncement, Record, Tick
from tocsin.schemas.trouble_log import TroubleLog
from tocsin.schemas.verdicts import Verdict
from tocsin.schemas.wire.codec import decode

OPERATOR_FAILED = Reason.OPERATOR_FAILED.value
_KEPT_FAILURES = 100
_LOG = logging.getLogger("tocsin.engine")


@dataclass(frozen=True, slots=True)
class EngineConfig:
    """Settings of the runtime and its operators."""

    slices: SliceConfig = field(default_factory=SliceConfig)
    job: JobConfig = field(default_factory=JobConfig)
    history: HistoryConfig | None = field(default_factory=HistoryConfig)
    """Settings of the series behind verdicts; None: none are kept (a replay writes no evidence tables)."""


def played(config: EngineConfig) -> EngineConfig:
    """Return the settings for an engine that is fed by a replay, which may send records of all hosts."""
    rank_filter = replace(config.job.rank_filter, is_played=True)
    return replace(config, job=replace(config.job, rank_filter=rank_filter))


class EmbeddedEngine(EngineSnapshots):
    """All jobs of one process.

    Attributes:
        models: announced models.
        failures: the last jobs whose operators raised.
        counters: numbers of records by their outcome, and of other occurrences.
        taps: called with each turn after the operators, without refused records: recorders.
        more_live: each returns verdicts that stand and that no job's operators hold, such as the fleet's.
        host_times: how the hosts' clocks relate to the engine's.
        late_by_host: numbers of late records by job and host.
        verdicts_by_reason: numbers of verdict lines by state and reason.
        ledger: keeps what was taken for a restart.
        is_catching_up: whether ticks are behind the time; records ahead of them are taken all the same.
    """

    def __init__(
        self,
        config: EngineConfig,
        on_job: Callable[[JobKey], None] | None = None,
        models: ModelSchedule | None = None,
    ) -> None:
        """Start without jobs.

        Args:
            config: settings.
            on_job: called once for each attempt that appears.
            models: announced models that the caller keeps; None: this engine takes and keeps them.
        """
        self._slice_config = config.slices
        self._has_own_models = models is None
        self.models = ModelSchedule() if models is None else models
        self._buffer = SliceBuffer(config.slices)
        self._jobs = JobAttempts(lambda job: JobPipeline(config.job, job, self.models, time.perf_counter))
        self._on_job = on_job
        self._lock = threading.Lock()
        self._now_ns: int | None = None
        self._troubles = TroubleLog(_LOG)
        self.failures: deque[JobFailure] = deque(maxlen=_KEPT_FAILURES)
        self.counters: Counter[str] = Counter()
        self._observers = Observers(config.history, self.counters)
        self.taps: list[Callable[[SliceBundle], None]] = []
        self.more_live: list[Callable[[], Sequence[Verdict]]] = []
        self.host_times = HostTimes()
        self.late_by_host: Counter[tuple[JobKey, str]] = Counter()
        self.verdicts_by_reason: Counter[tuple[str, str]] = Counter()
        self.ledger: EngineLedger = NoLedger()
        self.is_catching_up = False

    def take(self, data: bytes, now_ns: int | None = None) -> RecordOutcome:
        """Take one record as it came over the wire.

        Args:
            data: the record's bytes.
            now_ns: the receiver's clock, against which the record's time is checked; None: it is not checked.

        Raises:
            SchemaError: the bytes are no record; they become a dead letter.
            ClockAheadError: the record's time is in the future; the sender must correct its clock.
        """
        return self.take_record(decode(data, now_ns=now_ns), data, now_ns)

    def take_record(self, record: Record, data: bytes | None = None, now_ns: int | None = None) -> RecordOutcome:
        """Take one record that is decoded already, such as a replay's.

        Args:
            record: the record.
            data: its bytes; None: there are none.
            now_ns: as in ``take``.

        Raises:
            ClockAheadError: as in ``take``.
            SchemaError: too much is held of its host, or its slice is too long.
            ModelRefusedError: it announces a model that cannot be used; the old model stays.
        """
        if isinstance(record, Tick):
            return RecordOutcome.OK
        if isinstance(record, ModelAnnouncement):
            return self._take_model(record, now_ns)
        with self._lock:
            if now_ns is not None and record.ts_ns > now_ns + self._slice_config.max_ahead_ns:
                self.counters["refused_clock_ahead"] += 1
                self.host_times.heard(record.host, is_on_time=False)
                raise ClockAheadError(record.ts_ns - now_ns)
            taken = self._buffer.add(record, data, may_be_ahead=self.is_catching_up)
            self.counters[f"records_{taken.value}"] += 1
            if taken is not RecordOutcome.DUPLICATE:
                self.host_times.heard(record.host, is_on_time=taken is RecordOutcome.OK)
            if taken is RecordOutcome.OK:
                self.ledger.taken(record, data)
            if taken is RecordOutcome.LATE:
                is_named = count_late(self.late_by_host, record.job, record.host, lambda: self._buffer.jobs)
                self.counters["late_of_unnamed_hosts"] += not is_named
            if taken is RecordOutcome.AHEAD:
                raise ClockAheadError(record.ts_ns - (self._now_ns or record.ts_ns))
        return taken

    def take_block(self, block: FrameBlock, data: bytes) -> RecordOutcome:
        """Take metric frames that another process has reduced to a block.

        Args:
            block: the frames.
            data: the block's bytes.
        """
        with self._lock:
            taken = self._buffer.add(block, data)
            self.counters[f"blocks_{taken.value}"] += 1
            return taken

    def _take_model(self, announcement: ModelAnnouncement, now_ns: int | None) -> RecordOutcome:
        """Take an announced model, unless somebody else keeps the models."""
        if not self._has_own_models:
            text = f"a model for {announcement.name} among a job's records: models have a topic of their own"
            raise ModelRefusedError(ModelRefusal.MISPLACED.value, text)
        with self._lock:
            if now_ns is not None and announcement.ts_ns > now_ns + self._slice_config.max_ahead_ns:
                self.counters["refused_clock_ahead"] += 1
                raise ClockAheadError(announcement.ts_ns - now_ns)
            is_new = self.models.offer(announcement, self._now_ns or 0)
            if is_new:
                self.ledger.taken(announcement, None)
        return RecordOutcome.OK if is_new else RecordOutcome.DUPLICATE

    def begin(self, tick_ns: int) -> None:
        """Set the time before any record is taken, so that an old record is late and does not begin the time.

        Args:
            tick_ns: the time.
        """
        with self._lock:
            self._now_ns = tick_ns
            self._buffer.advance(tick_ns)

    def tick(self, tick_ns: int) -> EngineOutput:
        """Move time, and work off every job second that the watermark has passed.

        Args:
            tick_ns: the time from now on.
        """
        with self._lock:
            self._now_ns = tick_ns
            result = TickResult()
            self.ledger.turning(tick_ns)
            turns = self._buffer.advance(tick_ns, lambda job, error: self._fail(result, job, tick_ns, error))
            for turn in turns:
                self._work_off(turn, result)
            self.ledger.judged()
            self._forget(set(self._buffer.jobs))
            if self._has_own_models:
                self.models.forget(tick_ns - KEEP_NS)
            self._count(turns, result.verdicts, result.failures)
            for _, entry in result.refused:
                self.counters[f"refused_{entry.reason.value}"] += entry.count
            return result.output(len(turns))

    def _work_off(self, given: SliceBundle, result: TickResult) -> None:
        """Give a job its turn, and add what follows to the tick's result; operators that raise start without state."""
        turn, is_state_to_blame = self.ledger.judging(given)
        if is_state_to_blame:
            self.counters[f"begun_anew_{StateLoss.JUDGED_AT_TWO_ENDS.value}"] += 1
            result.verdicts.extend(self._begin_job_anew(turn.job, turn.end_ns))
        try:
            judged = self._pipeline(turn.job).on_bundle(turn)
            left = self._jobs.leave_older(turn.job, turn.end_ns)
        except Exception as error:  # noqa: BLE001  # supervising: one job's failure must not stop the others
            self._troubles.exception("operators failed", type(error).__name__, job=turn.job.job_id)
            self._fail(result, turn.job, turn.end_ns, error, turn)
            return
        result.verdicts.extend(left)
        heard = turn if judged.fast is turn.fast else replace(turn, fast=judged.fast)
        self._observers.on_bundle(heard, judged.health, self.taps)
        result.add(turn.job, judged)

    def _fail(
        self, result: TickResult, job: JobKey, end_ns: int, error: Exception, turn: SliceBundle | None = None
    ) -> None:
        """Add a failure to the tick's result, and let the job's operators start without state.

        Args:
            result: the tick's result.
            job: the attempt.
            end_ns: the end of the slice that failed.
            error: what was raised.
            turn: the slice that failed; None: it was not complete.
        """
        result.failures.append(failure_of(job, end_ns, error, turn))
        result.verdicts.extend(self._begin_job_anew(job, end_ns))

    def _count(self, turns: Sequence[SliceBundle], verdicts: Sequence[Verdict], failures: Sequence[JobFailure]) -> None:
        """Count a tick's turns, verdict lines and failures."""
        for verdict in verdicts:
            self.verdicts_by_reason[verdict.state.value, verdict.reason] += 1
        self.counters["turns"] += len(turns)
        self.counters["metric_slices"] += sum(len(turn.metrics) for turn in turns)
        if failures:
            self.counters[OPERATOR_FAILED] += len(failures)
            self.failures.extend(failures)
        self._troubles.flush()

    def _begin_job_anew(self, job: JobKey, now_ns: int, reason: Reason = Reason.OPERATOR_FAILED) -> list[Verdict]:
        """Replace an attempt's operators by ones without state; return the lines that close its open verdicts.

        Args:
            job: the attempt.
            now_ns: the time.
            reason: the reason on the closing lines.
        """
        old = self._jobs.pipelines.get(job)
        if old is None:
            return []
        try:
            lines = old.decide.abandon(now_ns, reason)
        except Exception:  # noqa: BLE001  # supervising: what raised once may do so again
            self._troubles.exception("verdicts cannot be closed", job=job.job_id)
            lines = []
        self._jobs.pipelines[job] = old.successor()
        self._observers.begin(job)
        return lines

    def begin_anew(self, tick_ns: int, reason: Reason) -> EngineOutput:
        """Set the time anew, also to an earlier one: all jobs start without state, and records held are dropped.

        Args:
            tick_ns: the time from now on.
            reason: the reason on the lines that close open verdicts.
        """
        with self._lock:
            self.ledger.began_anew(tick_ns, reason.value)
            verdicts: list[Verdict] = []
            for job in sorted(self._jobs.pipelines):
                verdicts.extend(self._begin_job_anew(job, tick_ns, reason))
            self._buffer.begin_anew(tick_ns)
            self._now_ns = tick_ns
            self.counters[f"begun_anew_{reason.value}"] += 1
            self._count((), verdicts, ())
            return EngineOutput(tuple(verdicts), (), (), 0)

    def take_detector_seconds(self) -> dict[str, float]:
        """Return detector -> how long it worked since the last call, in seconds."""
        with self._lock:
            found: dict[str, float] = defaultdict(float)
            for pipeline in self._jobs.pipelines.values():
                for name, seconds in pipeline.seconds.items():
                    found[name] += seconds
                pipeline.seconds.clear()
        return found

    def _pipeline(self, job: JobKey) -> JobPipeline:
        """Return an attempt's operators; a new attempt gets some."""
        pipeline = self._jobs.pipelines.get(job)
        if pipeline is not None:
            return pipeline
        pipeline = self._jobs.begin(job)
        self._observers.begin(job)
        _LOG.info("job appeared", extra={"job": job.job_id, "attempt": job.attempt, "cluster": job.cluster})
        if self._on_job is not None:
            self._on_job(job)
        return pipeline

    def _forget(self, known: set[JobKey]) -> None:
        """Forget all attempts but these."""
        self._jobs.forget(known)
        self._observers.forget(known)

    def forget_job(self, job: JobKey) -> None:
        """Forget an attempt and the records held of it, to make room for others."""
        with self._lock:
            self._buffer.forget(job)
            self.ledger.forgot(job)
            self.counters["jobs_forgotten"] += 1

    def untap(self, tap: Callable[[SliceBundle], None]) -> None:
        """Remove a tap; it is not being called any more when this returns."""
        with self._lock:
            self.taps.remove(tap)

    def excuse(self, hosts: Collection[str], until_ns: int) -> None:
        """Let the silence of these hosts count only from a time on, because the engine was away until then.

        Args:
            hosts: the hosts that have not come back yet.
            until_ns: the time.
        """
        with self._lock:
            self.ledger.excused(hosts, until_ns)
            for pipeline in self._jobs.pipelines.values():
                pipeline.graph.excuse(hosts, until_ns)
