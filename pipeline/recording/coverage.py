"""Determine whether a replay judged anything.

A recording without verdicts counts as healthy only if a detector had enough data to judge.
"""

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
from tocsin.pipeline.detect.steps.anomalies import DETECTOR as STEPS
from tocsin.pipeline.recording.judged_range import has_no_length, judged_span_ns
from tocsin.pipeline.recording.tables import TABLES, Recording
from tocsin.pipeline.runtime.embedded.engine import EmbeddedEngine
from tocsin.pipeline.runtime.job_pipeline import JobPipeline
from tocsin.schemas.reasons import Reason
from tocsin.schemas.records import CollectiveBatch, JobKey, ProbeAnswer

_INPUTS: Final = ("host_metrics", "steps", "collectives", "events", "probes")
"""Tables whose rows can be judged."""


class Coverage:
    """Observes an engine during a replay, and tells afterwards why nothing was judged, if so."""

    def __init__(self, engine: EmbeddedEngine, config: PeersConfig, detector: str = "") -> None:
        """Start observing the engine.

        Args:
            engine: a new engine, or one whose time is before the recording.
            config: settings of its peer detector.
            detector: count only what this detector judges (``peers`` or ``steps``); "" = what any detector judges.
        """
        self._engine, self._config, self._detector = engine, config, detector
        self._jobs: dict[JobKey, _Attempt] = {}
        engine.taps.append(self._take)

    def _take(self, bundle: SliceBundle) -> None:
        """Pass a slice bundle to its job's attempt; called by the engine after each bundle."""
        attempt = self._jobs.get(bundle.job)
        if attempt is None:
            pipeline = self._engine.pipeline(bundle.job)
            if pipeline is None:
                return
            attempt = self._jobs[bundle.job] = _Attempt(pipeline, self._config, self._detector)
        attempt.take(bundle)

    def reason(self, recording: Recording) -> Reason | None:
        """Return why nothing in the recording was judged, None if something was.

        Something was judged if machines were compared by a metric after the warm-up windows, or if the step time became
        known. Without a selected detector, collectives and dumps that show what ranks wait for count too. Events
        without a verdict do not count.

        Args:
            recording: the replayed recording.
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
        return self._reason_without_rows(recording)

    def _reason_without_rows(self, recording: Recording) -> Reason:
        """Return the reason when no detector gave one, because none received usable rows."""
        first_ns, end_ns = judged_span_ns(recording.manifest)
        if not any(((times >= first_ns) & (times < end_ns)).any() for times in _times(recording)):
            return Reason.NOTHING_RECORDED
        if self._detector:
            return Reason.METRIC_MISSING if self._detector == PEERS else Reason.NO_HOOK
        return Reason.METRIC_MISSING if "host_metrics" in recording.tables else Reason.NO_HOOK


def _times(recording: Recording) -> list[NDArray[np.int64]]:
    """Return the timestamps of the rows of each table in ``_INPUTS`` that exists."""
    tables = [(TABLES[name].time, recording.tables[name]) for name in _INPUTS if name in recording.tables]
    return [cast(NDArray[np.int64], np.asarray(columns[time])) for time, columns in tables]


@dataclass(slots=True)
class _Attempt:
    """Judged part of one attempt of a job.

    Attributes:
        pipeline: the attempt's pipeline.
        config: settings of the peer detector.
        detector: count only this detector, "" = any.
        window_count: metric slices in which enough machines had a value of one metric.
        has_judged: whether anything was judged; later bundles are then ignored.
    """

    pipeline: JobPipeline
    config: PeersConfig
    detector: str = ""
    window_count: int = 0
    has_judged: bool = False

    @property
    def abstained(self) -> Counter[str]:
        """Reason -> how often detectors judged nothing for it; warm-up windows count as too short a span."""
        found = Counter[str]()
        if self.detector != STEPS:
            found += Counter(self.pipeline.peers.abstained) + Counter({Reason.SPAN_TOO_SHORT.value: self.window_count})
        if self.detector != PEERS:
            found += Counter(self.pipeline.steps.abstained)
        return found

    def take(self, bundle: SliceBundle) -> None:
        """Check whether a slice bundle, already processed by the operators, was judged."""
        if self.has_judged:
            return
        if self.detector != PEERS:
            self.has_judged = self.pipeline.steps.median_step_ns > 0
        if not self.detector:
            has_groups = bool(self.pipeline.graph.groups)
            self.has_judged |= any(
                isinstance(record, ProbeAnswer) or (has_groups and isinstance(record, CollectiveBatch))
                for record in bundle.fast.records
            )
        for data in bundle.metrics if self.detector != STEPS else ():
            self._take_metrics(data)

    def _take_metrics(self, data: MetricSlice) -> None:
        """Count a metric slice with enough values; after the warm-up it counts as judged."""
        table = self.pipeline.peers.table
        means = join_blocks(slice_blocks(data, {**BUILTIN_TABLES, table.table_id: table}), table)
        if means is None or not self._is_comparable(means):
            return
        self.window_count += 1
        is_long = data.end_ns - data.start_ns >= self.config.long_window_ns
        taught = self.config.long_warmup_count if is_long else self.config.peers.warmup_count
        self.has_judged |= self.window_count > taught

    def _is_comparable(self, means: MetricMeans) -> bool:
        """Return whether enough machines with ranks have a value of one metric."""
        spare = self.pipeline.graph.spare_hosts()
        carries = np.array([host not in spare for host in means.hosts], bool)
        known = [np.isfinite(means.host_values)[carries].sum(axis=0)]
        if means.gpu_rows:
            place = {host: row for row, host in enumerate(means.hosts)}
            has = np.zeros((len(means.hosts), means.gpu_values.shape[1]), bool)
            np.logical_or.at(has, [place[host] for host, _ in means.gpu_rows], np.isfinite(means.gpu_values))
            known.append(has[carries].sum(axis=0))
        return max(int(counts.max(initial=0)) for counts in known) >= self.config.peers.min_peer_count
