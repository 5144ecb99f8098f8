"""The embedded runtime: one process, the same operators, no broker.

``take`` is called by the listener for every record that arrives, ``tick`` once a
second by the ticker (or by a replayer in recording time). All verdicts come out of
``tick``, in stream order. Thread-safe; never forks.
"""

from __future__ import annotations

import logging
import threading
import time
from collections import Counter, defaultdict
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import quote, unquote

from tocsin.pipeline.frame_blocks import FrameBlock
from tocsin.pipeline.history import HistoryConfig, JobHistory
from tocsin.pipeline.job import OWN_PART, JobConfig, JobPipeline
from tocsin.pipeline.model_book import KEEP_NS, ModelBook
from tocsin.pipeline.operators.align import AlignedHealth
from tocsin.pipeline.operators.facts import RankFacts
from tocsin.pipeline.slices import SliceBuffer, SliceConfig, Taken, Turn
from tocsin.schemas.codec import decode
from tocsin.schemas.errors import ClockAheadError, ModelRefusedError
from tocsin.schemas.reasons import ModelRefusal
from tocsin.schemas.records import IDLE_JOB_ID, NS_PER_SECOND, JobKey, ModelAnnouncement, Record, StepBatch, Tick
from tocsin.schemas.verdicts import Anomaly, Verdict

_LOG = logging.getLogger("tocsin.engine")


@dataclass(frozen=True, slots=True)
class EngineConfig:
    """Settings of the runtime and its operators."""

    slices: SliceConfig = field(default_factory=SliceConfig)
    job: JobConfig = field(default_factory=JobConfig)
    history: HistoryConfig | None = field(default_factory=HistoryConfig)
    """None: keep no numbers behind the verdicts (a replay writes no evidence tables)."""


@dataclass(frozen=True, slots=True)
class EngineOutput:
    """What one tick led to.

    Attributes:
        verdicts: new verdict lines, in stream order.
        health: job, and what its hosts' metric slices held.
        anomalies: what the detectors said.
        turn_count: how many job seconds were worked off.
    """

    verdicts: tuple[Verdict, ...]
    health: tuple[tuple[JobKey, AlignedHealth], ...]
    anomalies: tuple[Anomaly, ...]
    turn_count: int


class EmbeddedEngine:
    """All jobs of one process."""

    def __init__(
        self,
        config: EngineConfig,
        on_job: Callable[[JobKey], None] | None = None,
        models: ModelBook | None = None,
    ) -> None:
        """Start without jobs.

        Args:
            config: settings.
            on_job: called once for each job that appears.
            models: announcements that somebody else takes and keeps; None: this engine does.
        """
        self._config = config
        self._has_own_models = models is None
        self.models = ModelBook() if models is None else models
        self._buffer = SliceBuffer(config.slices)
        self._pipelines: dict[JobKey, JobPipeline] = {}
        self._histories: dict[JobKey, JobHistory] = {}
        self._on_job = on_job
        self._lock = threading.Lock()
        self._now_ns: int | None = None
        self.taps: list[Callable[[Turn], None]] = []
        """Called with each turn after the operators: recorders."""
        self.counters: Counter[str] = Counter()
        self.late_by_host: Counter[tuple[JobKey, str]] = Counter()
        self.verdicts_by_reason: Counter[tuple[str, str]] = Counter()

    def take(self, data: bytes, now_ns: int | None = None) -> Taken:
        """Take one record as it came over the wire.

        Args:
            data: the record's bytes.
            now_ns: the receiver's clock for the check of absurd times; None: not checked.

        Raises:
            SchemaError: the bytes are no record; a dead letter.
            ClockAheadError: stamped in the future; the sender must correct its clock.
        """
        return self.take_record(decode(data, now_ns=now_ns), data, now_ns)

    def take_record(self, record: Record, data: bytes | None = None, now_ns: int | None = None) -> Taken:
        """Take one record that is decoded already (a replay made it).

        Args:
            record: the record.
            data: its bytes, where there are any.
            now_ns: as in ``take``.

        Raises:
            ClockAheadError: as ``take``.
            ModelRefusedError: an announced model that cannot be used; the old one goes on.
        """
        if isinstance(record, Tick):
            return Taken.OK
        if isinstance(record, ModelAnnouncement):
            return self._take_model(record, now_ns)
        with self._lock:
            if now_ns is not None and record.ts_ns > now_ns + self._config.slices.max_ahead_ns:
                self.counters["refused_clock_ahead"] += 1
                raise ClockAheadError(record.ts_ns - now_ns)
            taken = self._buffer.add(record, data)
            self.counters[f"records_{taken.value}"] += 1
            if taken is Taken.LATE:
                self.late_by_host[record.job, record.host] += 1
            if taken is Taken.AHEAD:
                raise ClockAheadError(record.ts_ns - (self._now_ns or record.ts_ns))
        return taken

    def take_block(self, block: FrameBlock, data: bytes) -> Taken:
        """Take frames that were reduced before.

        Args:
            block: the frames.
            data: its bytes.
        """
        with self._lock:
            taken = self._buffer.add(block, data)
            self.counters[f"blocks_{taken.value}"] += 1
            return taken

    def _take_model(self, announcement: ModelAnnouncement, now_ns: int | None) -> Taken:
        if not self._has_own_models:
            text = f"a model for {announcement.name} among a job's records: models have a topic of their own"
            raise ModelRefusedError(ModelRefusal.MISPLACED.value, text)
        with self._lock:
            if now_ns is not None and announcement.ts_ns > now_ns + self._config.slices.max_ahead_ns:
                self.counters["refused_clock_ahead"] += 1
                raise ClockAheadError(announcement.ts_ns - now_ns)
            is_new = self.models.offer(announcement, self._now_ns or 0)
        return Taken.OK if is_new else Taken.DUPLICATE

    def begin(self, tick_ns: int) -> None:
        """Time begins here, before any record: an old one is late then, and does not bring all seconds since."""
        with self._lock:
            self._now_ns = tick_ns
            self._buffer.advance(tick_ns)

    def tick(self, tick_ns: int) -> EngineOutput:
        """Move time; work off every job second that the watermark has passed."""
        with self._lock:
            self._now_ns = tick_ns
            turns = self._buffer.advance(tick_ns)
            verdicts: list[Verdict] = []
            health: list[tuple[JobKey, AlignedHealth]] = []
            anomalies: list[Anomaly] = []
            for turn in turns:
                result = self._pipeline(turn.job, turn.end_ns, verdicts).on_turn(turn)
                self._remember(turn, result.health)
                for tap in self.taps:
                    tap(turn)
                verdicts.extend(result.verdicts)
                health.extend((turn.job, entry) for entry in result.health)
                anomalies.extend(result.anomalies)
            self._forget(set(self._buffer.jobs))
            if self._has_own_models:
                self.models.forget(tick_ns - KEEP_NS)
            for verdict in verdicts:
                self.verdicts_by_reason[verdict.state.value, verdict.reason] += 1
            self.counters["turns"] += len(turns)
            self.counters["metric_slices"] += sum(len(turn.metrics) for turn in turns)
            return EngineOutput(tuple(verdicts), tuple(health), tuple(anomalies), len(turns))

    def take_detector_seconds(self) -> dict[str, float]:
        """Detector -> how long it worked, since the last call."""
        with self._lock:
            found: dict[str, float] = defaultdict(float)
            for pipeline in self._pipelines.values():
                for name, seconds in pipeline.seconds.items():
                    found[name] += seconds
                pipeline.seconds.clear()
        return found

    def _pipeline(self, job: JobKey, now_ns: int, verdicts: list[Verdict]) -> JobPipeline:
        pipeline = self._pipelines.get(job)
        if pipeline is not None:
            return pipeline
        pipeline = self._pipelines[job] = JobPipeline(self._config.job, job, self.models, time.perf_counter)
        if self._config.history is not None:
            self._histories[job] = JobHistory(self._config.history)
        olders = {
            other.attempt: older
            for other, older in self._pipelines.items()
            if (other.cluster, other.job_id) == (job.cluster, job.job_id) and other.attempt < job.attempt
        }
        for older in olders.values():
            verdicts.extend(older.on_new_attempt(now_ns))
        if olders:
            pipeline.diagnose.follow(olders[max(olders)].diagnose)
        _LOG.info("job appeared", extra={"job": job.job_id, "attempt": job.attempt, "cluster": job.cluster})
        if self._on_job is not None:
            self._on_job(job)
        return pipeline

    def _remember(self, turn: Turn, health: Sequence[AlignedHealth]) -> None:
        history = self._histories.get(turn.job)
        if history is None:
            return
        history.take_steps([record for record in turn.fast.records if isinstance(record, StepBatch)])
        history.take_health(health)

    def _forget(self, known: set[JobKey]) -> None:
        for job in [job for job in self._pipelines if job not in known]:
            del self._pipelines[job]
            self._histories.pop(job, None)

    def untap(self, tap: Callable[[Turn], None]) -> None:
        """Call a tap no more; when this returns it is not being called either."""
        with self._lock:
            self.taps.remove(tap)

    def pipeline(self, job: JobKey) -> JobPipeline | None:
        """A job's operators, None: not known; for taps, to look at."""
        return self._pipelines.get(job)

    def history(self, job: JobKey) -> JobHistory | None:
        """The numbers behind a job's verdicts."""
        return self._histories.get(job)

    @property
    def watermark_ns(self) -> int | None:
        """What ended by then is worked off; None: nothing yet."""
        return self._buffer.watermark_ns

    def jobs(self) -> tuple[JobKey, ...]:
        """Jobs that are known, by name."""
        with self._lock:
            return tuple(sorted(self._pipelines))

    def running_jobs(self) -> tuple[JobKey, ...]:
        """Jobs that have not ended, by name."""
        with self._lock:
            return tuple(
                sorted(
                    job
                    for job, pipeline in self._pipelines.items()
                    if job.job_id != IDLE_JOB_ID and not pipeline.graph.ended()
                )
            )

    def status(self, job_id: str | None = None) -> dict[str, Any]:
        """Why there is (no) verdict: hosts, ranks, groups, lateness, clocks, abstentions."""
        with self._lock:
            jobs = [
                self._status_of(job, pipeline)
                for job, pipeline in sorted(self._pipelines.items())
                if job_id is None or job.job_id == job_id
            ]
            return {
                "now_ns": self._now_ns,
                "counters": dict(self.counters),
                "jobs": jobs,
                "models": self.models.status(self._now_ns or 0),
            }

    def _status_of(self, job: JobKey, pipeline: JobPipeline) -> dict[str, Any]:
        graph, now_ns = pipeline.graph, self._now_ns or 0
        step_seconds = pipeline.steps.median_step_ns / NS_PER_SECOND
        return {
            "cluster": job.cluster,
            "job_id": job.job_id,
            "attempt": job.attempt,
            "world_size": graph.world_size,
            "ended": graph.ended(),
            "max_step": graph.max_step,
            "step_seconds": step_seconds,
            "groups": len(graph.groups),
            "hook_present": any(host.hook_present for host in graph.hosts.values()) or bool(graph.ranks),
            "hosts": {
                name: {
                    "last_seen_seconds": (now_ns - facts.last_seen_ns) / NS_PER_SECOND,
                    "clock_offset_seconds": facts.clock_offset_ns / NS_PER_SECOND,
                    "clock_error_seconds": facts.clock_error_ns / NS_PER_SECOND,
                    "late": self.late_by_host[job, name],
                    "hook_present": facts.hook_present,
                }
                for name, facts in sorted(graph.hosts.items())
            },
            "ranks": {
                str(rank): {
                    "host": graph.host_of(rank),
                    "step": facts.last_step,
                    "steps_per_second": 0.0 if _stands(facts) else pipeline.steps.rate_of(rank, now_ns),
                    "last_seen_seconds": (now_ns - facts.last_step_ns) / NS_PER_SECOND if facts.last_step_ns else None,
                    "stopped": facts.stopped_since_ns > 0,
                    "exited": facts.exit is not None,
                }
                for rank, facts in sorted(graph.ranks.items())
            },
            "abstained": pipeline.abstentions(),
            "models": pipeline.models_in_use(),
            "verdicts": [verdict.to_line() for verdict in pipeline.decide.live],
        }

    def finished_parts(self, known: Collection[str]) -> dict[str, bytes]:
        """Parts of the next snapshot that do not change any more, without those of these names.

        Whoever keeps them ahead has less to write at once then; until a snapshot names them they mean nothing.
        """
        with self._lock:
            found = {}
            for job, pipeline in self._pipelines.items():
                prefix = _prefix_of(job)
                if f"{prefix}{OWN_PART}" not in known:
                    continue  # no snapshot has this attempt: a restart would find some of its parts, and not the rest
                more = pipeline.finished_parts(_of_prefix(known, prefix))
                found.update({f"{prefix}{name}": data for name, data in more.items()})
            return found

    def snapshot(self, known: Collection[str] = ()) -> dict[str, bytes]:
        """State of the runtime and of all jobs, as named parts.

        Args:
            known: names of parts that the caller has: those that never change are ``UNCHANGED`` then.
        """
        with self._lock:
            parts = {f"slices/{name}": data for name, data in self._buffer.snapshot().items()}
            for job, pipeline in self._pipelines.items():
                prefix = _prefix_of(job)
                own = pipeline.snapshot(_of_prefix(known, prefix))
                parts.update({f"{prefix}{name}": data for name, data in own.items()})
            if self._has_own_models:
                parts.update(self.models.snapshot())
            return parts

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
            groups: dict[JobKey, dict[str, bytes]] = {}
            for name, data in parts.items():
                if name.startswith("pipeline/"):
                    job_text, _, part = name.removeprefix("pipeline/").rpartition("/")
                    cluster_job, _, attempt = job_text.rpartition("/")
                    cluster, _, job_id = cluster_job.partition("/")
                    key = JobKey(unquote(cluster), unquote(job_id), int(attempt))
                    groups.setdefault(key, {})[part] = data
            self._pipelines = {}
            for job, own in groups.items():
                self._pipelines[job] = JobPipeline(self._config.job, job, self.models, time.perf_counter)
                self._pipelines[job].restore(own)
                if self._config.history is not None:
                    self._histories[job] = JobHistory(self._config.history)


def _stands(facts: RankFacts) -> bool:
    """Whether a rank is known to make no step now."""
    return bool(facts.exit is not None or facts.bye_ns or facts.stopped_since_ns or facts.stall is not None)


def _prefix_of(job: JobKey) -> str:
    """What the names of a job's parts begin with."""
    return f"pipeline/{quote(job.cluster, safe='')}/{quote(job.job_id, safe='')}/{job.attempt}/"


def _of_prefix(names: Collection[str], prefix: str) -> frozenset[str]:
    return frozenset(name.removeprefix(prefix) for name in names if name.startswith(prefix))
