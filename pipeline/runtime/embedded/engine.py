"""The embedded runtime: one process, the same operators, no broker.

``take`` is called by the listener for every record that arrives, ``tick`` once a
second by the ticker (or by a replayer in recording time). All verdicts come out of
``tick``, in stream order. Thread-safe; never forks.
"""

from __future__ import annotations

import bisect
import logging
import threading
import time
from collections import Counter, defaultdict, deque
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace

from tocsin.pipeline.core.frame_blocks import FrameBlock
from tocsin.pipeline.core.slices import (
    RecordOutcome,
    SliceBuffer,
    SliceBundle,
    SliceConfig,
)
from tocsin.pipeline.detect.align import AlignedHealth
from tocsin.pipeline.job.rank_filter import RefusedRecords
from tocsin.pipeline.runtime.embedded.clock_watch import HostTimes
from tocsin.pipeline.runtime.embedded.engine_ledger import EngineLedger, NoLedger
from tocsin.pipeline.runtime.embedded.engine_parts import finished_of, parts_by_job, snapshot_of
from tocsin.pipeline.runtime.embedded.engine_queries import EngineQueries
from tocsin.pipeline.runtime.embedded.observers import Observers, count_late
from tocsin.pipeline.runtime.history import HistoryConfig
from tocsin.pipeline.runtime.job_failure import JobFailure, failure_of
from tocsin.pipeline.runtime.job_pipeline import JobConfig, JobPipeline
from tocsin.pipeline.runtime.model_schedule import KEEP_NS, ModelSchedule
from tocsin.schemas.errors import ClockAheadError, ModelRefusedError
from tocsin.schemas.reasons import ModelRefusal, Reason, StateLoss
from tocsin.schemas.records import JobKey, ModelAnnouncement, Record, Tick
from tocsin.schemas.trouble_log import TroubleLog
from tocsin.schemas.verdicts import Anomaly, Verdict
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
    """None: keep no numbers behind the verdicts (a replay writes no evidence tables)."""


def played(config: EngineConfig) -> EngineConfig:
    """Settings for an engine that hears a recording's player: it speaks for all hosts of its recording."""
    rank_filter = replace(config.job.rank_filter, is_played=True)
    return replace(config, job=replace(config.job, rank_filter=rank_filter))


@dataclass(frozen=True, slots=True)
class EngineOutput:
    """What one tick led to.

    Attributes:
        verdicts: new verdict lines, in stream order.
        health: job, and what its hosts' metric slices held.
        anomalies: what the detectors said.
        turn_count: how many job seconds were worked off.
        failures: jobs whose operators raised, and so began anew.
        refused: job, and what its hosts said of ranks that are not theirs: dead letters.
    """

    verdicts: tuple[Verdict, ...]
    health: tuple[tuple[JobKey, AlignedHealth], ...]
    anomalies: tuple[Anomaly, ...]
    turn_count: int
    failures: tuple[JobFailure, ...] = ()
    refused: tuple[tuple[JobKey, RefusedRecords], ...] = ()


class EmbeddedEngine(EngineQueries):
    """All jobs of one process."""

    def __init__(
        self,
        config: EngineConfig,
        on_job: Callable[[JobKey], None] | None = None,
        models: ModelSchedule | None = None,
    ) -> None:
        """Start without jobs.

        Args:
            config: settings.
            on_job: called once for each job that appears.
            models: announcements that somebody else takes and keeps; None: this engine does.
        """
        self._config = config
        self._has_own_models = models is None
        self.models = ModelSchedule() if models is None else models
        self._buffer = SliceBuffer(config.slices)
        self._pipelines: dict[JobKey, JobPipeline] = {}
        self._attempts: dict[tuple[str, str], list[JobKey]] = {}
        """Cluster and job -> its attempts that are known, ascending."""
        self._on_job = on_job
        self._lock = threading.Lock()
        self._now_ns: int | None = None
        self._troubles = TroubleLog(_LOG)
        self.failures: deque[JobFailure] = deque(maxlen=_KEPT_FAILURES)
        """The last jobs whose operators raised."""
        self.counters: Counter[str] = Counter()
        self._observers = Observers(config.history, self.counters)
        self.taps: list[Callable[[SliceBundle], None]] = []
        """Called with each turn after the operators, without what was refused: recorders."""
        self.host_times = HostTimes()
        self.late_by_host: Counter[tuple[JobKey, str]] = Counter()
        self.verdicts_by_reason: Counter[tuple[str, str]] = Counter()
        self.ledger: EngineLedger = NoLedger()
        self.is_catching_up = False
        """The ticks are behind the time: records ahead of them are taken all the same."""

    def take(self, data: bytes, now_ns: int | None = None) -> RecordOutcome:
        """Take one record as it came over the wire.

        Args:
            data: the record's bytes.
            now_ns: the receiver's clock for the check of absurd times; None: not checked.

        Raises:
            SchemaError: the bytes are no record; a dead letter.
            ClockAheadError: stamped in the future; the sender must correct its clock.
        """
        return self.take_record(decode(data, now_ns=now_ns), data, now_ns)

    def take_record(self, record: Record, data: bytes | None = None, now_ns: int | None = None) -> RecordOutcome:
        """Take one record that is decoded already (a replay made it).

        Args:
            record: the record.
            data: its bytes, where there are any.
            now_ns: as in ``take``.

        Raises:
            ClockAheadError: as ``take``.
            SchemaError: too much is held of its host, or it is of a slice longer than any.
            ModelRefusedError: an announced model that cannot be used; the old one goes on.
        """
        if isinstance(record, Tick):
            return RecordOutcome.OK
        if isinstance(record, ModelAnnouncement):
            return self._take_model(record, now_ns)
        with self._lock:
            if now_ns is not None and record.ts_ns > now_ns + self._config.slices.max_ahead_ns:
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
        """Take frames that were reduced before.

        Args:
            block: the frames.
            data: its bytes.
        """
        with self._lock:
            taken = self._buffer.add(block, data)
            self.counters[f"blocks_{taken.value}"] += 1
            return taken

    def _take_model(self, announcement: ModelAnnouncement, now_ns: int | None) -> RecordOutcome:
        if not self._has_own_models:
            text = f"a model for {announcement.name} among a job's records: models have a topic of their own"
            raise ModelRefusedError(ModelRefusal.MISPLACED.value, text)
        with self._lock:
            if now_ns is not None and announcement.ts_ns > now_ns + self._config.slices.max_ahead_ns:
                self.counters["refused_clock_ahead"] += 1
                raise ClockAheadError(announcement.ts_ns - now_ns)
            is_new = self.models.offer(announcement, self._now_ns or 0)
            if is_new:
                self.ledger.taken(announcement, None)
        return RecordOutcome.OK if is_new else RecordOutcome.DUPLICATE

    def begin(self, tick_ns: int) -> None:
        """Time begins here, before any record: an old one is late then, and does not bring all seconds since."""
        with self._lock:
            self._now_ns = tick_ns
            self._buffer.advance(tick_ns)

    def tick(self, tick_ns: int) -> EngineOutput:
        """Move time; work off every job second that the watermark has passed."""
        with self._lock:
            self._now_ns = tick_ns
            verdicts: list[Verdict] = []
            health: list[tuple[JobKey, AlignedHealth]] = []
            anomalies: list[Anomaly] = []
            failures: list[JobFailure] = []
            refused: list[tuple[JobKey, RefusedRecords]] = []

            def fail(job: JobKey, end_ns: int, error: Exception, turn: SliceBundle | None = None) -> None:
                failures.append(failure_of(job, end_ns, error, turn))
                verdicts.extend(self._begin_job_anew(job, end_ns))

            self.ledger.turning(tick_ns)
            turns = self._buffer.advance(tick_ns, lambda job, error: fail(job, tick_ns, error))
            for given in turns:
                turn, is_state_to_blame = self.ledger.judging(given)
                if is_state_to_blame:
                    self.counters[f"begun_anew_{StateLoss.JUDGED_AT_TWO_ENDS.value}"] += 1
                    verdicts.extend(self._begin_job_anew(turn.job, turn.end_ns))
                try:
                    result = self._pipeline(turn.job).on_bundle(turn)
                    left = self._leave_older(turn.job, turn.end_ns)
                except Exception as error:  # noqa: BLE001  # supervising: one job's failure must not stop the others
                    self._troubles.exception("operators failed", type(error).__name__, job=turn.job.job_id)
                    fail(turn.job, turn.end_ns, error, turn)
                    continue
                verdicts.extend(left)
                heard = turn if result.fast is turn.fast else replace(turn, fast=result.fast)
                self._observers.on_bundle(heard, result.health, self.taps)
                refused.extend((turn.job, entry) for entry in result.refused)
                verdicts.extend(result.verdicts)
                health.extend((turn.job, entry) for entry in result.health)
                anomalies.extend(result.anomalies)
            self.ledger.judged()
            self._forget(set(self._buffer.jobs))
            if self._has_own_models:
                self.models.forget(tick_ns - KEEP_NS)
            self._count(turns, verdicts, failures)
            for _, entry in refused:
                self.counters[f"refused_{entry.reason.value}"] += entry.count
            said = tuple(verdicts), tuple(health), tuple(anomalies)
            return EngineOutput(*said, len(turns), tuple(failures), tuple(refused))

    def _count(self, turns: Sequence[SliceBundle], verdicts: Sequence[Verdict], failures: Sequence[JobFailure]) -> None:
        for verdict in verdicts:
            self.verdicts_by_reason[verdict.state.value, verdict.reason] += 1
        self.counters["turns"] += len(turns)
        self.counters["metric_slices"] += sum(len(turn.metrics) for turn in turns)
        if failures:
            self.counters[OPERATOR_FAILED] += len(failures)
            self.failures.extend(failures)
        self._troubles.flush()

    def _begin_job_anew(self, job: JobKey, now_ns: int, reason: Reason = Reason.OPERATOR_FAILED) -> list[Verdict]:
        """Give a job operators without a past; what it had said to be wrong is closed under its id."""
        old = self._pipelines.get(job)
        if old is None:
            return []
        try:
            lines = old.decide.abandon(now_ns, reason)
        except Exception:  # noqa: BLE001  # supervising: what raised once may do so again
            self._troubles.exception("verdicts cannot be closed", job=job.job_id)
            lines = []
        self._pipelines[job] = old.successor()
        self._observers.begin(job)
        return lines

    def begin_anew(self, tick_ns: int, reason: Reason) -> EngineOutput:
        """Let time begin again, perhaps before where it stood: all jobs begin anew, what was held is dropped.

        Args:
            tick_ns: the time from now on.
            reason: why; the closing lines of what was open say it.
        """
        with self._lock:
            self.ledger.began_anew(tick_ns, reason.value)
            verdicts: list[Verdict] = []
            for job in sorted(self._pipelines):
                verdicts.extend(self._begin_job_anew(job, tick_ns, reason))
            self._buffer.begin_anew(tick_ns)
            self._now_ns = tick_ns
            self.counters[f"begun_anew_{reason.value}"] += 1
            self._count((), verdicts, ())
            return EngineOutput(tuple(verdicts), (), (), 0)

    def take_detector_seconds(self) -> dict[str, float]:
        """Detector -> how long it worked, since the last call."""
        with self._lock:
            found: dict[str, float] = defaultdict(float)
            for pipeline in self._pipelines.values():
                for name, seconds in pipeline.seconds.items():
                    found[name] += seconds
                pipeline.seconds.clear()
        return found

    def _pipeline(self, job: JobKey) -> JobPipeline:
        pipeline = self._pipelines.get(job)
        if pipeline is not None:
            return pipeline
        pipeline = JobPipeline(self._config.job, job, self.models, time.perf_counter)
        attempts = self._attempts.get((job.cluster, job.job_id), [])
        if at := bisect.bisect_left(attempts, job):
            pipeline.diagnose.follow(self._pipelines[attempts[at - 1]].diagnose)
        self._pipelines[job] = pipeline  # as a whole or not at all: what is above may raise
        self._attempts[job.cluster, job.job_id] = [*attempts[:at], job, *attempts[at:]]
        self._observers.begin(job)
        _LOG.info("job appeared", extra={"job": job.job_id, "attempt": job.attempt, "cluster": job.cluster})
        if self._on_job is not None:
            self._on_job(job)
        return pipeline

    def _leave_older(self, job: JobKey, now_ns: int) -> list[Verdict]:
        """Hosts that spoke in an attempt leave the older ones of the job."""
        attempts = self._attempts[job.cluster, job.job_id]
        olders = [self._pipelines[older] for older in attempts[: bisect.bisect_left(attempts, job)]]
        if all(older.rests for older in olders):
            return []
        heard_ns = self._pipelines[job].heard_ns
        return [verdict for older in olders for verdict in older.on_new_attempt(now_ns, heard_ns)]

    def _forget(self, known: set[JobKey]) -> None:
        for job in [job for job in self._pipelines if job not in known]:
            del self._pipelines[job]
            attempts = self._attempts[job.cluster, job.job_id]
            attempts.remove(job)
            if not attempts:
                del self._attempts[job.cluster, job.job_id]
        self._observers.forget(known)

    def forget_job(self, job: JobKey) -> None:
        """Forget an attempt and all that was held of it: others need the room."""
        with self._lock:
            self._buffer.forget(job)
            self.ledger.forgot(job)
            self.counters["jobs_forgotten"] += 1

    def untap(self, tap: Callable[[SliceBundle], None]) -> None:
        """Call a tap no more; when this returns it is not being called either."""
        with self._lock:
            self.taps.remove(tap)

    def finished_parts(self, known: Collection[str]) -> dict[str, bytes]:
        """Parts of the next snapshot that do not change any more, without those of these names.

        Whoever keeps them ahead has less to write at once then; until a snapshot names them they mean nothing.
        """
        with self._lock:
            return finished_of(self._pipelines, known)

    def snapshot(self, known: Collection[str] = ()) -> dict[str, bytes]:
        """State of the runtime and of all jobs, as named parts.

        Args:
            known: names of parts that the caller has: those that never change are ``UNCHANGED`` then.
        """
        with self._lock:
            return self._snapshot(known)

    def cut(self, known: Collection[str], on_cut: Callable[[], int]) -> tuple[dict[str, bytes], int]:
        """A snapshot, and what a journal says at the same moment: what is taken from now on stands behind it.

        Args:
            known: as in ``snapshot``.
            on_cut: called while nothing is taken.
        """
        with self._lock:
            return self._snapshot(known), on_cut()

    def _snapshot(self, known: Collection[str]) -> dict[str, bytes]:
        parts = {f"slices/{name}": data for name, data in self._buffer.snapshot().items()}
        parts.update(snapshot_of(self._pipelines, known))
        if self._has_own_models:
            parts.update(self.models.snapshot())
        return parts

    def clear(self) -> None:
        """Begin as new: no time, no jobs."""
        with self._lock:
            self._buffer = SliceBuffer(self._config.slices)
            self._now_ns = None
            self._pipelines, self._attempts = {}, {}
            self._observers.forget(())
            self.late_by_host.clear()
            if self._has_own_models:
                self.models.load(())

    def excuse(self, hosts: Collection[str], until_ns: int) -> None:
        """Take it that these hosts could not be heard until then: the engine was away, and they are not back yet."""
        with self._lock:
            self.ledger.excused(hosts, until_ns)
            for pipeline in self._pipelines.values():
                pipeline.graph.excuse(hosts, until_ns)

    def restore(self, parts: Mapping[str, bytes]) -> None:
        """Take back what ``snapshot`` gave (histories of evidence start anew)."""
        with self._lock:
            self._buffer.restore(
                {name.removeprefix("slices/"): data for name, data in parts.items() if name.startswith("slices/")}
            )
            self._now_ns = (
                None
                if self._buffer.watermark_ns is None
                else (self._buffer.watermark_ns + self._config.slices.lateness_ns)
            )
            if self._has_own_models:
                self.models.restore(parts)
            self._pipelines, self._attempts = {}, {}
            for job, own in sorted(parts_by_job(parts).items()):
                self._pipelines[job] = JobPipeline(self._config.job, job, self.models, time.perf_counter)
                self._pipelines[job].restore(own)
                self._attempts.setdefault((job.cluster, job.job_id), []).append(job)
                self._observers.begin(job)
