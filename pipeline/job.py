"""The operators of one job, wired: what both runtimes drive."""

from __future__ import annotations

import logging
from collections import Counter, defaultdict
from collections.abc import Callable, Container, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field, replace

from tocsin.models.documents import Model, version_of
from tocsin.models.pace import Slowdown
from tocsin.pipeline.frame_blocks import BUILTIN_TABLES, MetricSlice, join_blocks, misfit_count, slice_blocks
from tocsin.pipeline.model_book import ModelBook
from tocsin.pipeline.operators.align import Align, AlignedHealth
from tocsin.pipeline.operators.base import anomaly_from, pack_state, unpack_state
from tocsin.pipeline.operators.decide import Decide, DecideConfig
from tocsin.pipeline.operators.diagnose import Diagnose, DiagnoseConfig
from tocsin.pipeline.operators.diagnose.timing import OWN_SHARE_RATIO
from tocsin.pipeline.operators.graph import JobGraph
from tocsin.pipeline.operators.peer_load import Load
from tocsin.pipeline.operators.peer_words import DETECTOR as PEERS
from tocsin.pipeline.operators.peers import PeerDetector, PeersConfig
from tocsin.pipeline.operators.steps import DETECTOR as STEPS
from tocsin.pipeline.operators.steps import StepDetector, StepsConfig
from tocsin.pipeline.slices import Turn
from tocsin.schemas.metrics import BUILTIN_TABLE_ID
from tocsin.schemas.model_announcement import DEFAULT_VERSION
from tocsin.schemas.reasons import Reason
from tocsin.schemas.records import IDLE_JOB_ID, NS_PER_SECOND, JobKey, Slice, TableAnnouncement
from tocsin.schemas.verdicts import Anomaly, Verdict

_LOG = logging.getLogger("tocsin.models")
OWN_PART = "job"
"""The part that each job's snapshot has."""


@dataclass(frozen=True, slots=True)
class JobConfig:
    """Settings of all operators.

    Attributes:
        detectors: whose anomalies reach ``diagnose``: of all; a backtest asks what one of them is worth alone.
        steps: of the step detector.
        peers: of the peer detector.
        diagnose: of root cause.
        decide: of the life of verdicts.
    """

    detectors: tuple[str, ...] = (PEERS, STEPS)
    steps: StepsConfig = field(default_factory=StepsConfig)
    peers: PeersConfig = field(default_factory=PeersConfig)
    diagnose: DiagnoseConfig = field(default_factory=DiagnoseConfig)
    decide: DecideConfig = field(default_factory=DecideConfig)


@dataclass(frozen=True, slots=True)
class TurnResult:
    """What one job's turn led to.

    Attributes:
        verdicts: new verdict lines.
        health: per host, what its metric slices held.
        anomalies: what the detectors said.
    """

    verdicts: tuple[Verdict, ...]
    health: tuple[AlignedHealth, ...]
    anomalies: tuple[Anomaly, ...] = ()


_WAITING_SHARE_RATIO = 0.5
"""Of what the steps are longer by, the work per second must be less by so much."""


@dataclass(frozen=True, slots=True)
class JobPace:
    """The job's pace by its steps; where it tells none, by the work its machines do per second."""

    steps: StepDetector
    peers: PeerDetector

    @property
    def median_step_ns(self) -> int:
        """The job's step time over its history, 0: not known."""
        return self.steps.median_step_ns

    def slowdown_since(self, onset_ns: int, now_ns: int) -> Slowdown | None:
        """How much longer the steps take since then; None: nobody can tell."""
        if self.steps.median_step_ns:
            found = self.steps.slowdown_since(onset_ns, now_ns)
            if found is not None and found.is_of_own and self.own_time_holds_waits:
                return replace(found, is_of_own=False)
            return found
        return self.peers.work.slowdown_since(onset_ns, now_ns)

    def own_excess_seconds(self, host: str) -> float | None:
        """How much longer than its peers the slowest rank of a host computes in a step; None: not measured."""
        excess_seconds = self.steps.own_excess_seconds(host)
        growth = self.steps.own_growth
        if excess_seconds is None or growth is None:
            return excess_seconds
        least_seconds = OWN_SHARE_RATIO * growth[1] * self.median_step_ns / NS_PER_SECOND
        return None if excess_seconds < least_seconds and self.own_time_holds_waits else excess_seconds

    def grown_excess_seconds(self, host: str, onset_ns: int) -> float:
        """By how much more than before an onset a host computes longer than its peers, beyond all others; 0: not."""
        return self.steps.grown_excess_seconds(host, onset_ns)

    @property
    def own_time_holds_waits(self) -> bool:
        """Whether all ranks' own time is longer, and the machines do less work a second since: they wait within it.

        Ranks that have more to compute do as much work a second as before, for longer.
        """
        growth = self.steps.own_growth
        if growth is None:
            return False
        since_ns, growth_ratio = growth
        work = self.peers.work.slowdown_since(since_ns, self.steps.newest_ns)
        return work is not None and work.is_certain and work.ratio >= _WAITING_SHARE_RATIO * growth_ratio

    def most_growth_seconds(self, onset_ns: int, now_ns: int) -> float | None:
        """By how much the job's steps may at most be longer since then; None: too few steps tell."""
        return self.steps.most_growth_seconds(onset_ns, now_ns)

    def more_work(self, host: str) -> Load | None:
        """How much more work than its peers a host lately does, None: no more, or nobody knows."""
        return self.peers.load.more_work(host)

    def moves_no_more(self, host: str) -> bool:
        """Whether a host's tensor cores and links are known to do no more than expected."""
        return self.peers.load.moves_no_more(host)

    def wastes_power(self, host: str) -> bool:
        """Whether a host lately draws more power than expected and does not do as much more with it."""
        return self.peers.load.wastes_power(host)

    @property
    def work_is_known(self) -> bool:
        """Whether metrics show the machines' work."""
        return self.peers.work.is_known

    @property
    def work_goes_on(self) -> bool:
        """Whether the machines work about as much as ever, whatever the steps do."""
        return self.peers.work.goes_on

    @property
    def other_work_since_ns(self) -> int:
        """Since when the machines compute as much as ever and move much less, 0: they do not, or nobody knows."""
        return self.peers.work.other_work_since_ns

    @property
    def standing_since_ns(self) -> int:
        """Since when the machines do no work, 0: they work, or nobody knows."""
        return self.peers.work.standing_since_ns

    @property
    def standing_known_ns(self) -> int:
        """When that became known."""
        return self.peers.work.standing_known_ns

    @property
    def longest_pause_ns(self) -> int:
        """The longest time between two steps that ended, beyond a usual step; not where the job announced a pause."""
        return self.steps.longest_pause_ns

    @property
    def longest_standing_ns(self) -> int:
        """The longest such time that ended by itself."""
        return self.peers.work.longest_standing_ns

    @property
    def processes_wait_since_ns(self) -> int:
        """Since when GPUs draw less while their memory is in use as ever: processes live and wait; 0: they do not."""
        return self.peers.work.resting_since_ns if self.peers.memory_is_held else 0

    @property
    def ended_at_once(self) -> Mapping[str, int]:
        """Host -> about when its processes ended, where those of nearly all did so within seconds; else empty."""
        return self.peers.ended_at_once


class JobPipeline:
    """align -> detect -> diagnose -> decide, for one attempt of one job."""

    def __init__(
        self,
        config: JobConfig,
        job: JobKey,
        models: ModelBook | None = None,
        stopwatch: Callable[[], float] = lambda: 0.0,
    ) -> None:
        """Start without history.

        Args:
            config: the operators' own settings.
            job: whose pipeline.
            models: what was announced; read at each slice, never written.
            stopwatch: the runtime's, in seconds: how long detectors work is measured with it, and nothing decided.
        """
        self.job = job
        self._models = ModelBook() if models is None else models
        self._stopwatch = stopwatch
        self._in_use: dict[str, Model | None] = {}
        self.seconds: dict[str, float] = defaultdict(float)
        """Detector -> time that it took, since the start of this process (no state: it decides nothing)."""
        self.graph = JobGraph()
        self.steps = StepDetector(config.steps, self.graph)
        self.align = Align()
        self.peers = PeerDetector(config.peers, self.graph)
        self.diagnose = Diagnose(config.diagnose, self.graph)
        self.decide = Decide(config.decide, job)
        self._heard = config.detectors
        self.abstained: Counter[str] = Counter()
        self._ended = False
        self._superseded = False
        self._metric_anomalies: tuple[Anomaly, ...] = ()
        """What the last metric slice showed: it holds until the next one."""

    @property
    def _judges(self) -> bool:
        return not self._superseded and self.job.job_id != IDLE_JOB_ID

    def on_turn(self, turn: Turn) -> TurnResult:
        """Take what happened up to ``turn.end_ns``; return what follows from it."""
        health: list[AlignedHealth] = []
        for record in turn.fast.records:
            if isinstance(record, TableAnnouncement):
                self.peers.take_table(record.table)
        for metrics in turn.metrics:
            health.extend(self._take_metrics(metrics))
        self.graph.take(turn.fast.records)
        if not self._judges:
            return TurnResult((), tuple(health))
        self._choose_model(STEPS, self.steps, turn.fast)
        with self._timed(STEPS):
            by = {STEPS: self.steps.on_slice(turn.fast), PEERS: self._metric_anomalies}
        anomalies = [anomaly for name, said in by.items() if name in self._heard for anomaly in said]
        with self._timed("diagnose"):
            diagnosis = self.diagnose.on_slice(turn.fast, anomalies, JobPace(self.steps, self.peers))
        self.abstained.update(reason.value for reason in diagnosis.abstained)
        verdicts = self.decide.on_findings(turn.end_ns, diagnosis.findings)
        if self.graph.ended() and not self._ended:
            self._ended = True
            verdicts.extend(self.decide.close_all(turn.end_ns, Reason.JOB_ENDED))
        return TurnResult(tuple(verdicts), tuple(health), tuple(anomalies))

    def _take_metrics(self, data: MetricSlice) -> Sequence[AlignedHealth]:
        self.graph.take(data.records)
        with self._timed("blocks"):
            tables = {**BUILTIN_TABLES, self.peers.table.table_id: self.peers.table}
            if misfits := misfit_count(data, tables):
                self.abstained[Reason.MISFIT_FRAME.value] += misfits
            blocks = slice_blocks(data, tables)
            means = join_blocks(blocks, self.peers.table)
        for block in data.blocks:
            self.graph.see_hosts(block.means.hosts, block.means.seen_ns, block.means.tick_ns)
        if self._judges:
            self._choose_model(PEERS, self.peers, data)
            with self._timed(PEERS):
                self._metric_anomalies = tuple(self.peers.on_means(data, means, self.steps.median_step_ns))
        whole = [(self.peers.table.table_id, means)] if means is not None else []
        others = [(b.table_id, b.means) for b in blocks if b.table_id == BUILTIN_TABLE_ID != self.peers.table.table_id]
        return self.align.on_means(data, [*others, *whole])

    def _choose_model(self, name: str, detector: PeerDetector | StepDetector, data: Slice) -> None:
        """Give a detector the model of this slice, where that is another one than before."""
        model = self._models.at(name, data.start_ns)
        if model == self._in_use.get(name):
            return
        self._in_use[name] = model
        detector.on_model(model)
        told = {"job": self.job.job_id, "model": name, "version": version_of(model) or DEFAULT_VERSION}
        _LOG.info("model in use", extra={**told, "since_ns": data.start_ns})

    def models_in_use(self) -> dict[str, str]:
        """Detector -> version of its announced model; detectors with their own settings are left out."""
        return {name: version_of(model) for name, model in sorted(self._in_use.items()) if version_of(model)}

    @contextmanager
    def _timed(self, name: str) -> Iterator[None]:
        begin = self._stopwatch()
        yield
        self.seconds[name] += self._stopwatch() - begin

    def on_new_attempt(self, now_ns: int) -> list[Verdict]:
        """A later attempt of the same job began: this one's verdicts are history."""
        self._superseded = True
        return self.decide.close_all(now_ns, Reason.NEW_ATTEMPT)

    def abstentions(self) -> dict[str, int]:
        """Reason -> how often, over all operators."""
        return dict(self.abstained + Counter(self.steps.abstained) + Counter(self.peers.abstained))

    def finished_parts(self, known: Container[str]) -> dict[str, bytes]:
        """Parts of the next snapshot that do not change any more, without those of these names."""
        return self.steps.finished_parts(known)

    def snapshot(self, known: Container[str] = ()) -> dict[str, bytes]:
        """State as named parts; those of these names that never change are ``UNCHANGED``."""
        parts = {
            OWN_PART: pack_state(
                {
                    "ended": self._ended,
                    "superseded": self._superseded,
                    "abstained": dict(self.abstained),
                    "models": self.models_in_use(),
                    "metric_anomalies": [asdict(anomaly) for anomaly in self._metric_anomalies],
                }
            ),
            **self.graph.snapshot(),
        }
        parts.update(self.steps.snapshot(known))
        for operator in (self.align, self.peers, self.diagnose, self.decide):
            parts.update(operator.snapshot())
        return parts

    def restore(self, parts: Mapping[str, bytes]) -> None:
        """Take back what ``snapshot`` gave."""
        state = unpack_state(parts, OWN_PART)
        self._ended = state["ended"]
        self._superseded = state["superseded"]
        self.abstained = Counter(state["abstained"])
        self._metric_anomalies = tuple(anomaly_from(fields) for fields in state["metric_anomalies"])
        self.graph.restore(parts)
        for operator in (self.steps, self.align, self.peers, self.diagnose, self.decide):
            operator.restore(parts)
