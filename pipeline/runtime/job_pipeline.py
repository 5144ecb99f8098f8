"""Connect the operators of one job into the pipeline that both runtimes drive."""

from __future__ import annotations

import logging
from collections import Counter, defaultdict
from collections.abc import Callable, Container, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field, replace

from tocsin.pipeline.core.frame_blocks import (
    BUILTIN_TABLES,
    MetricSlice,
    join_blocks,
    misfit_count,
    slice_blocks,
)
from tocsin.pipeline.core.operator import anomaly_from, pack_state, unpack_state
from tocsin.pipeline.core.slices import SliceBundle
from tocsin.pipeline.detect.align import Align, AlignedHealth
from tocsin.pipeline.detect.learned.config import LearnedConfig
from tocsin.pipeline.detect.learned.detectors import LearnedDetectors
from tocsin.pipeline.detect.peers.anomalies import DETECTOR as PEERS
from tocsin.pipeline.detect.peers.config import PeersConfig
from tocsin.pipeline.detect.peers.detector import PeerDetector
from tocsin.pipeline.detect.peers.metric_table import TableBook
from tocsin.pipeline.detect.steps.anomalies import DETECTOR as STEPS
from tocsin.pipeline.detect.steps.config import StepsConfig
from tocsin.pipeline.detect.steps.detector import StepDetector
from tocsin.pipeline.incidents.closing import without_closings
from tocsin.pipeline.incidents.decide_config import DecideConfig
from tocsin.pipeline.incidents.lifecycle import Decide
from tocsin.pipeline.job.graph import JobGraph
from tocsin.pipeline.job.groups import GroupBounds
from tocsin.pipeline.job.rank_filter import RankFilter, RefusedRecords
from tocsin.pipeline.job.rank_holders import RankFilterConfig
from tocsin.pipeline.rca import Diagnose, DiagnoseConfig
from tocsin.pipeline.rca.evidence.silence import monitoring_ended
from tocsin.pipeline.rca.finding import Finding
from tocsin.pipeline.rca.rules.learned import LearnedEvidence
from tocsin.pipeline.runtime.job_pace import JobPace
from tocsin.pipeline.runtime.model_schedule import ModelSchedule
from tocsin.pipeline.runtime.models_in_use import ModelsInUse
from tocsin.pipeline.runtime.step_window_detectors import NAMES, StepWindowConfig, StepWindowDetectors
from tocsin.schemas.metrics import BUILTIN_TABLE_ID
from tocsin.schemas.reasons import Reason, SpeakerRefusal
from tocsin.schemas.records import (
    IDLE_JOB_ID,
    METRIC_SLICE_NS,
    NS_PER_SECOND,
    Event,
    Groups,
    JobKey,
    Slice,
    TableAnnouncement,
)
from tocsin.schemas.verdicts import Anomaly, FaultKind, Verdict

_JOB_LOG = logging.getLogger("tocsin.job")
_MOVING_NS = 30 * NS_PER_SECOND
"""Tolerance for hosts that moved to a later attempt.

Findings with an onset up to this long before the move are ignored.
"""
_OPEN_AFTER_END_NS = 3600 * NS_PER_SECOND
"""Time for which verdicts that explain a job's death stay open, if no new attempt starts."""
_MAX_LOGGED_REFUSAL_COUNT = 1000
"""Maximum number of (host, reason) pairs whose refusals are logged in a job's life."""
OWN_PART = "job"
"""Name of the pipeline's own part, which every job's snapshot contains."""


@dataclass(frozen=True, slots=True)
class JobConfig:
    """Settings of all operators of a job.

    Attributes:
        detectors: detectors whose anomalies are passed to ``diagnose``; a backtest may select a single one.
        steps: settings of the step detector.
        by_steps: settings of the detectors of causes that name no machine, of MFU, and of long forward passes.
        peers: settings of the peer detector.
        learned: which learned detectors run beside them, and what their anomalies may do.
        diagnose: settings of root-cause analysis.
        decide: settings of the verdicts' life cycle.
        rank_filter: settings of the check which host may send records of a rank.
        groups: bounds on the communication groups that one host may announce.
    """

    detectors: tuple[str, ...] = (PEERS, STEPS, *NAMES)
    steps: StepsConfig = field(default_factory=StepsConfig)
    by_steps: StepWindowConfig = field(default_factory=StepWindowConfig)
    peers: PeersConfig = field(default_factory=PeersConfig)
    learned: LearnedConfig = field(default_factory=LearnedConfig)
    diagnose: DiagnoseConfig = field(default_factory=DiagnoseConfig)
    decide: DecideConfig = field(default_factory=DecideConfig)
    rank_filter: RankFilterConfig = field(default_factory=RankFilterConfig)
    groups: GroupBounds = field(default_factory=GroupBounds)


@dataclass(frozen=True, slots=True)
class BundleResult:
    """Outputs of one job's pipeline for one slice bundle.

    Attributes:
        verdicts: new and updated verdicts.
        health: per host, a summary of its metric slices.
        anomalies: all anomalies of the detectors.
        fast: the bundle's 1 s slice without refused records; recorders store this one.
        refused: records that were refused because their host may not send them.
    """

    verdicts: tuple[Verdict, ...]
    health: tuple[AlignedHealth, ...]
    anomalies: tuple[Anomaly, ...]
    fast: Slice
    refused: tuple[RefusedRecords, ...] = ()


class JobPipeline:
    """The operators align, detect, diagnose and decide for one attempt of one job."""

    def __init__(
        self,
        config: JobConfig,
        job: JobKey,
        models: ModelSchedule | None = None,
        stopwatch: Callable[[], float] = lambda: 0.0,
    ) -> None:
        """Start without history.

        Args:
            config: settings of the operators.
            job: the job and attempt.
            models: the announced models; read at each slice, never modified.
            stopwatch: returns seconds, to measure the detectors' running time; it does not influence verdicts.
        """
        self.job = job
        self._config = config
        self._models = ModelSchedule() if models is None else models
        self._stopwatch = stopwatch
        self.models = ModelsInUse(job, self._models)
        self.seconds: dict[str, float] = defaultdict(float)
        """Detector -> its running time in seconds since this process started; not part of a snapshot."""
        self.graph = JobGraph(None if config.rank_filter.is_played else config.groups)
        self.rank_filter = RankFilter(config.rank_filter, self.graph.is_at_work)
        self.steps = StepDetector(config.steps, self.graph)
        self.by_steps = StepWindowDetectors(config.by_steps, self.graph)
        self.align = Align()
        self._tables = TableBook(is_played=config.rank_filter.is_played)
        self.peers = PeerDetector(config.peers, self.graph)
        self.learned = LearnedDetectors(config.learned, self.graph, self.models.choose, self._timed)
        self.diagnose = Diagnose(config.diagnose, self.graph)
        self.decide = Decide(config.decide, job, self.graph)
        self._operators = (self.by_steps, self.align, self.peers, self.learned, self.diagnose, self.decide)
        self._detectors = config.detectors
        self._silence = config.diagnose.silence
        self.abstained: Counter[str] = Counter()
        self._logged_refusals: set[tuple[str, str]] = set()
        self._ended = False
        self._gone_ns = 0
        """Since when all processes of the job are known to have ended, 0 = some still run."""
        self._superseded = False
        self._has_news = False
        self._metric_anomalies: tuple[Anomaly, ...] = ()
        """Anomalies of the last metric slice; they stay valid until the next one."""

    @property
    def _judges(self) -> bool:
        """Whether this attempt gets verdicts: idle hosts get none, nor does an attempt that a later one replaced."""
        return not self._superseded and self.job.job_id != IDLE_JOB_ID

    def on_bundle(self, bundle: SliceBundle) -> BundleResult:
        """Process one slice bundle and return the outputs."""
        self._has_news = bool(bundle.fast.records or bundle.metrics)
        admitted, refused = self.rank_filter.admit(bundle.fast.records, bundle.end_ns)
        fast = bundle.fast if admitted is bundle.fast.records else replace(bundle.fast, records=tuple(admitted))
        self.graph.contested = self.rank_filter.contested
        for entry in refused:
            self._log_refusal(entry)
        health: list[AlignedHealth] = []
        for metrics in bundle.metrics:
            health.extend(self._take_metrics(metrics))
        judged, closings = without_closings(fast)
        self.graph.take(judged.records)
        self._take_tables(judged)
        refused = (*refused, *self._groups_gone(bundle.end_ns))
        verdicts, anomalies = self._judge(judged, closings) if self._judges else ((), ())
        return BundleResult(tuple(verdicts), tuple(health), tuple(anomalies), fast, refused)

    def _take_tables(self, fast: Slice) -> None:
        """Learn the metric tables that hosts announce; a table is announced before its frames."""
        announced = [record for record in fast.records if isinstance(record, TableAnnouncement)]
        for record in announced:
            self._tables.take(record.host, record.table)
        if announced:
            self.peers.take_table(self._tables.chosen(self.peers.table, len(self.graph.hosts)))

    def _groups_gone(self, now_ns: int) -> list[RefusedRecords]:
        """Return a refusal for each host whose oldest groups were dropped because it announced too many."""
        reason, text = SpeakerRefusal.TOO_MANY_GROUPS, "announces more groups than are kept of it: its oldest went"
        gone = [
            RefusedRecords(host, Groups.__name__, -1, reason, f"{host} {text}", now_ns, count)
            for host, count in self.graph.group_book.take_gone()
        ]
        for entry in gone:
            self._log_refusal(entry)
        return gone

    def _log_refusal(self, refused: RefusedRecords) -> None:
        """Count a refusal, and log it once for each host and reason."""
        self.abstained[refused.reason.value] += refused.count
        if (
            len(self._logged_refusals) < _MAX_LOGGED_REFUSAL_COUNT
            and (refused.host, refused.reason) not in self._logged_refusals
        ):
            self._logged_refusals.add((refused.host, refused.reason))
            fields = {"job": self.job.job_id, "host": refused.host, "reason": refused.reason.value}
            _JOB_LOG.warning("not heard", extra={**fields, "message_of_letter": refused.sentence})

    def _judge(self, fast: Slice, closings: Sequence[Event]) -> tuple[Sequence[Verdict], Sequence[Anomaly]]:
        self.models.choose(STEPS, self.steps, fast)
        self.learned.on_slice(fast)
        with self._timed(STEPS):
            by = {STEPS: self.steps.on_slice(fast), PEERS: self._metric_anomalies}
        by |= self.by_steps.on_steps(fast, self.steps, self._timed)
        anomalies = [anomaly for name, found in by.items() if name in self._detectors for anomaly in found]
        with self._timed("diagnose"):
            learned = LearnedEvidence(self.learned.anomalies, self.learned.accusers)
            diagnosis = self.diagnose.on_slice(fast, anomalies, JobPace(self.steps, self.peers), learned)
        self.abstained.update(reason.value for reason in diagnosis.abstained)
        findings = [finding for finding in diagnosis.findings if not self._accuses_moved_hosts(finding)]
        verdicts = [line for one in closings for line in self.decide.close_by_human(one, fast.end_ns)]
        is_closed = bool(verdicts)
        verdicts += self._after_the_end(fast.end_ns)
        if is_closed and self._gone_ns:
            self._gone_ns = fast.end_ns - _OPEN_AFTER_END_NS  # a person knows of the end: it is told no more
        if self._gone_ns:
            is_over = fast.end_ns - self._gone_ns >= _OPEN_AFTER_END_NS
            findings = [] if is_over else [one for one in findings if self.decide.explains_end(one)]
        verdicts += self.decide.on_findings(fast.end_ns, findings)
        if self.graph.ended() and not self._ended:
            self._ended = True
            verdicts.extend(self.decide.close_all(fast.end_ns, Reason.JOB_ENDED))
        return verdicts, [*anomalies, *learned.anomalies]

    def _after_the_end(self, now_ns: int) -> list[Verdict]:
        """Return the verdicts to close once all processes of the job have ended.

        Verdicts that do not explain the end are closed at once, the others an hour later.
        """
        if not self.graph.all_left():
            self._gone_ns = 0
            return []
        self._gone_ns = self._gone_ns or now_ns
        if now_ns - self._gone_ns >= _OPEN_AFTER_END_NS:
            return self.decide.close_all(now_ns, Reason.JOB_ENDED)
        return self.decide.close_what_ended(now_ns)

    def _accuses_moved_hosts(self, finding: Finding) -> bool:
        """Return whether a finding only accuses hosts of stopping because they moved to a later attempt."""
        moved_ns = self.graph.moved_ns
        if not moved_ns or finding.fault not in (FaultKind.HANG, FaultKind.FAIL_STOP) or not finding.suspects:
            return False
        names = [suspect.component.name for suspect in finding.suspects]
        return all(name in moved_ns and finding.onset_ns > moved_ns[name] - _MOVING_NS for name in names)

    def _take_metrics(self, data: MetricSlice) -> Sequence[AlignedHealth]:
        """Run the peer detector on one metric slice, and return each host's health in it."""
        self.graph.take(data.records)
        with self._timed("blocks"):
            tables = {**BUILTIN_TABLES, self.peers.table.table_id: self.peers.table}
            if misfits := misfit_count(data, tables):
                self.abstained[Reason.FRAME_SHAPE_MISMATCH.value] += misfits
            blocks = slice_blocks(data, tables)
            means = join_blocks(blocks, self.peers.table)
        for block in data.blocks:
            self.graph.see_hosts(block.means.hosts, block.means.seen_ns, block.means.tick_ns)
        if self._judges:
            self.models.choose(PEERS, self.peers, data)
            self.learned.on_means(data, means, self.peers.table)
            with self._timed(PEERS):
                self._metric_anomalies = tuple(self.peers.on_means(data, means, self.steps.median_step_ns))
        whole = [(self.peers.table.table_id, means)] if means is not None else []
        others = [(b.table_id, b.means) for b in blocks if b.table_id == BUILTIN_TABLE_ID != self.peers.table.table_id]
        return self.align.on_means(data, [*others, *whole])

    @contextmanager
    def _timed(self, name: str) -> Iterator[None]:
        """Add the running time of the block to ``seconds[name]``."""
        begin = self._stopwatch()
        yield
        self.seconds[name] += self._stopwatch() - begin

    def on_new_attempt(self, now_ns: int, moved: Mapping[str, int] | None = None) -> list[Verdict]:
        """Handle hosts that have moved to a later attempt of the same job.

        The attempt continues with the hosts that have not moved. When none of those still sends records, the attempt is
        over and its verdicts are closed. It resumes if one of them sends again.

        Args:
            now_ns: the current time.
            moved: host -> when it was last heard in a later attempt; None: all hosts moved.

        Returns:
            The verdicts that were closed.
        """
        self.graph.see_moved(dict.fromkeys(self.graph.hosts, now_ns) if moved is None else moved)
        was_over, self._superseded = self._superseded, moved is None or not self._has_speakers(now_ns)
        return self.decide.close_all(now_ns, Reason.NEW_ATTEMPT) if self._superseded and not was_over else []

    @property
    def rests(self) -> bool:
        """Whether the attempt was replaced by later ones and its last bundle was empty."""
        return self._superseded and not self._has_news

    @property
    def is_superseded(self) -> bool:
        """Whether the attempt is over because all of its hosts moved to later attempts."""
        return self._superseded

    @property
    def heard_ns(self) -> dict[str, int]:
        """Host -> when it was last heard in this attempt."""
        return {host: facts.last_seen_ns for host, facts in self.graph.hosts.items()}

    def _has_speakers(self, now_ns: int) -> bool:
        """Return whether a host that has not moved to a later attempt still sends records in this one."""
        graph, silence = self.graph, self._silence
        return any(
            host not in graph.moved_ns
            and not monitoring_ended(graph, host)
            and now_ns - facts.last_seen_ns
            < silence.missed_count * (facts.report_interval_ns or METRIC_SLICE_NS) + silence.silent_after_ns
            for host, facts in graph.hosts.items()
        )

    def successor(self) -> JobPipeline:
        """Return a pipeline with fresh operators for the same attempt, which keeps the ids of open incidents."""
        fresh = JobPipeline(self._config, self.job, self._models, self._stopwatch)
        fresh.decide.follow(self.decide)
        fresh.abstained = self.abstained
        fresh._superseded = self._superseded
        return fresh

    def abstentions(self) -> dict[str, int]:
        """Return reason -> how often an operator gave no verdict for that reason."""
        return dict(self.abstained + Counter(self.steps.abstained) + Counter(self.peers.abstained))

    def finished_parts(self, known: Container[str]) -> dict[str, bytes]:
        """Return the parts of the next snapshot that can no longer change, except those named in ``known``."""
        return self.steps.finished_parts(known)

    def snapshot(self, known: Container[str] = ()) -> dict[str, bytes]:
        """Return the state as named parts; immutable parts named in ``known`` are given as ``UNCHANGED``."""
        parts = {
            OWN_PART: pack_state(
                {
                    "ended": self._ended,
                    "gone_ns": self._gone_ns,
                    "superseded": self._superseded,
                    "abstained": dict(self.abstained),
                    "models": self.models.versions(),
                    "model_changed_ns": self.models.changed_ns,
                    "tables": self._tables.to_state(),
                    "metric_anomalies": [asdict(anomaly) for anomaly in self._metric_anomalies],
                }
            ),
            **self.rank_filter.snapshot(),
            **self.graph.snapshot(),
        }
        parts.update(self.steps.snapshot(known))
        for operator in self._operators:
            parts.update(operator.snapshot())
        return parts

    def restore(self, parts: Mapping[str, bytes]) -> None:
        """Replace the state by the parts that ``snapshot`` returned."""
        state = unpack_state(parts, OWN_PART)
        self._ended = state["ended"]
        self._gone_ns = state["gone_ns"]
        self._superseded = state["superseded"]
        self.models.changed_ns = state["model_changed_ns"]
        self.abstained = Counter(state["abstained"])
        self._tables.load_state(state["tables"])
        self._metric_anomalies = tuple(anomaly_from(fields) for fields in state["metric_anomalies"])
        self.rank_filter.restore(parts)
        self.graph.restore(parts)
        self.graph.contested = self.rank_filter.contested
        for operator in (self.steps, *self._operators):
            operator.restore(parts)
