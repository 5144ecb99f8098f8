"""Whether a replay judged anything: a recording without verdicts is only healthy if something was looked at."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from typing import Final, cast

import numpy as np
from numpy.typing import NDArray

from tocsin.models.metric_means import MetricMeans
from tocsin.pipeline.core.frame_blocks import (
    BUILTIN_TABLES,
    MetricSlice,
    join_blocks,
    slice_blocks,
)
from tocsin.pipeline.core.slices import SliceBundle
from tocsin.pipeline.detect.peers.anomalies import DETECTOR as PEERS
from tocsin.pipeline.detect.peers.config import PeersConfig
from tocsin.pipeline.detect.steps.detector import DETECTOR as STEPS
from tocsin.pipeline.recording.judged_range import has_no_length, judged_span_ns
from tocsin.pipeline.recording.tables import TABLES, Recording
from tocsin.pipeline.runtime.embedded.engine import EmbeddedEngine
from tocsin.pipeline.runtime.job_pipeline import JobPipeline
from tocsin.schemas.reasons import Reason
from tocsin.schemas.records import CollectiveBatch, JobKey, ProbeAnswer

_INPUTS: Final = ("host_metrics", "steps", "collectives", "events", "probes")


class Coverage:
    """Looks on while an engine judges a recording."""

    def __init__(self, engine: EmbeddedEngine, config: PeersConfig, detector: str = "") -> None:
        """Look on from now on.

        Args:
            engine: a new one, or one that stands before the recording.
            config: of its peer detector.
            detector: only what this one judges counts (``peers``, ``steps``); "" = whatever anybody does.
        """
        self._engine, self._config, self._detector = engine, config, detector
        self._jobs: dict[JobKey, _Attempt] = {}
        engine.taps.append(self._take)

    def _take(self, turn: SliceBundle) -> None:
        attempt = self._jobs.get(turn.job)
        if attempt is None:
            pipeline = self._engine.pipeline(turn.job)
            if pipeline is None:
                return
            attempt = self._jobs[turn.job] = _Attempt(pipeline, self._config, self._detector)
        attempt.take(turn)

    def reason(self, recording: Recording) -> Reason | None:
        """Why nothing of the recording was judged, where no verdict came of it; None: something was.

        Judged is: machines were compared by a metric, after the windows that only teach; or the job's pace by a step;
        or what ranks wait for, by collectives or dumps (of a single detector: its own of these). Events that led to no
        verdict say nothing of those who sent none.

        Args:
            recording: what the engine was fed with.
        """
        if not recording.dumps and not any(map(len, _times(recording))):
            return Reason.NOTHING_RECORDED
        if has_no_length(recording.manifest):
            return Reason.SPAN_TOO_SHORT
        attempts = self._jobs.values()
        if any(attempt.has_judged for attempt in attempts):
            return None
        abstained = sum((attempt.abstained for attempt in attempts), Counter[str]())
        if abstained:
            return Reason(min(abstained, key=lambda name: (-abstained[name], name)))
        return self._unsaid(recording)

    def _unsaid(self, recording: Recording) -> Reason:
        """What no detector named, because it was never asked: nothing came of the rows."""
        first_ns, end_ns = judged_span_ns(recording.manifest)
        if not any(((times >= first_ns) & (times < end_ns)).any() for times in _times(recording)):
            return Reason.NOTHING_RECORDED
        if self._detector:
            return Reason.METRIC_MISSING if self._detector == PEERS else Reason.NO_HOOK
        return Reason.METRIC_MISSING if "host_metrics" in recording.tables else Reason.NO_HOOK


def _times(recording: Recording) -> list[NDArray[np.int64]]:
    """The times of the rows of each input that is there."""
    tables = [(TABLES[name].time, recording.tables[name]) for name in _INPUTS if name in recording.tables]
    return [cast(NDArray[np.int64], np.asarray(columns[time])) for time, columns in tables]


@dataclass(slots=True)
class _Attempt:
    """What was judged of one attempt.

    Attributes:
        pipeline: its operators.
        config: of the peer detector.
        detector: whose judgements count, "" = anybody's.
        window_count: metric slices in which enough machines had a number of the same metric.
        has_judged: whether anything was; what follows is not looked at.
    """

    pipeline: JobPipeline
    config: PeersConfig
    detector: str = ""
    window_count: int = 0
    has_judged: bool = False

    @property
    def abstained(self) -> Counter[str]:
        """Why detectors judged nothing, as often as they said so; windows that only taught were too few."""
        found = Counter[str]()
        if self.detector != STEPS:
            found += Counter(self.pipeline.peers.abstained) + Counter({Reason.SPAN_TOO_SHORT.value: self.window_count})
        if self.detector != PEERS:
            found += Counter(self.pipeline.steps.abstained)
        return found

    def take(self, turn: SliceBundle) -> None:
        """See what a turn held, after the operators took it."""
        if self.has_judged:
            return
        if self.detector != PEERS:
            self.has_judged = self.pipeline.steps.median_step_ns > 0
        if not self.detector:
            has_groups = bool(self.pipeline.graph.groups)
            self.has_judged |= any(
                isinstance(record, ProbeAnswer) or (has_groups and isinstance(record, CollectiveBatch))
                for record in turn.fast.records
            )
        for data in turn.metrics if self.detector != STEPS else ():
            self._take_metrics(data)

    def _take_metrics(self, data: MetricSlice) -> None:
        table = self.pipeline.peers.table
        means = join_blocks(slice_blocks(data, {**BUILTIN_TABLES, table.table_id: table}), table)
        if means is None or not self._is_comparable(means):
            return
        self.window_count += 1
        is_long = data.end_ns - data.start_ns >= self.config.long_window_ns
        taught = self.config.long_warmup_count if is_long else self.config.peers.warmup_count
        self.has_judged |= self.window_count > taught

    def _is_comparable(self, means: MetricMeans) -> bool:
        """Whether enough machines that carry ranks have a number of the same metric."""
        spare = self.pipeline.graph.spare_hosts()
        carries = np.array([host not in spare for host in means.hosts], bool)
        known = [np.isfinite(means.host_values)[carries].sum(axis=0)]
        if means.gpu_rows:
            place = {host: row for row, host in enumerate(means.hosts)}
            has = np.zeros((len(means.hosts), means.gpu_values.shape[1]), bool)
            np.logical_or.at(has, [place[host] for host, _ in means.gpu_rows], np.isfinite(means.gpu_values))
            known.append(has[carries].sum(axis=0))
        return max(int(counts.max(initial=0)) for counts in known) >= self.config.peers.min_peer_count
