"""Streaming Minder: which machine's windows of a metric are far from its role's, slice after slice.

As published (NSDI'25), each metric has an LSTM-VAE, machines are compared by its reconstructions, one that stays the
farthest is named, and metrics have an order. Here machines of one role are compared with the role's centre in every
slice (``models.minder_stream``), and the deviations of one machine add up (CUSUM), as those of ``peers`` do. So a
strong one is named after some slices, and a weak one later; the published call names it after 4 to 12 minutes.

A sample is the mean of a slice, because that is what reaches a job's operators: a window spans 8 slices.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from tocsin.models.documents import Model, version_of
from tocsin.models.frames import FloatArray
from tocsin.models.lstm_vae import WINDOW_TICKS
from tocsin.models.metric_means import MetricMeans
from tocsin.models.minder import MinderModel
from tocsin.models.minder_file import decode_minder
from tocsin.models.minder_stream import LEAST_MACHINES, centre_scores, embeddings_of, windows_of
from tocsin.pipeline.core.arrays import array_from, array_state
from tocsin.pipeline.core.operator import pack_state, unpack_state
from tocsin.pipeline.detect.baselines.minder_ticks import Ticks, ticks_of_means
from tocsin.pipeline.detect.learned.operator import LONGEST_NS, Judged, LearnedOperator
from tocsin.pipeline.detect.learned.shipped import shipped_model
from tocsin.pipeline.detect.peers.cusum import Cusum, MetricDeviation, SumConfig
from tocsin.pipeline.detect.peers.rows import groups_of
from tocsin.pipeline.job.graph import JobGraph
from tocsin.schemas.errors import ConfigError
from tocsin.schemas.metrics import MetricTable
from tocsin.schemas.model_announcement import BUILTIN_VERSION, content_hash
from tocsin.schemas.reasons import Reason
from tocsin.schemas.records import METRIC_SLICE_NS, Slice
from tocsin.schemas.verdicts import Anomaly, Component, ComponentKind

DETECTOR: Final = "minder"


@dataclass(frozen=True, slots=True)
class StreamingMinderConfig:
    """Settings of the streaming detector.

    Attributes:
        sums: how deviations add up; ``drift_sigmas`` is the similarity threshold.
        warmup_count: windows that are only learned from.
        memory_count: windows that a machine's own usual distance covers: ten minutes of slices of 5 s.
    """

    sums: SumConfig = field(default_factory=lambda: SumConfig(max_sigmas=12.0, drift_sigmas=5.0))
    warmup_count: int = 12
    memory_count: int = 120


@cache
def _shipped() -> tuple[MinderModel | None, str]:
    """Return the model that ships and its hash; (None, "") if none does."""
    data = shipped_model(DETECTOR)
    return (None, "") if data is None else (decode_minder(data), content_hash(data))


class StreamingMinder(LearnedOperator):
    """Finds machines whose reconstructed windows are far from those of their role."""

    def __init__(self, config: StreamingMinderConfig, graph: JobGraph) -> None:
        """Start without history, with the model that ships.

        Args:
            config: settings.
            graph: facts of the job, fed with each slice before the detector is.
        """
        self._config = config
        self._graph = graph
        self.abstained: dict[str, int] = {}
        """Reason -> how often nothing was judged for it."""
        self._model, self._hash = _shipped()
        self._version = BUILTIN_VERSION if self._model is not None else ""
        self._begin_anew()

    def _begin_anew(self) -> None:
        """Forget what was learned with another model."""
        self._learned_hash = self._hash
        metrics = () if self._model is None else self._model.priority
        self._hosts: list[str] = []
        self._samples: FloatArray = np.full((0, len(metrics), WINDOW_TICKS), np.nan, np.float32)
        """Newest slice means, shape (hosts, metrics, ticks), NaN = no sample."""
        self._usual: FloatArray = np.zeros((0, len(metrics)), np.float32)
        """Each machine's usual deviation, shape (hosts, metrics)."""
        self._seen: NDArray[np.int64] = np.zeros((0, len(metrics)), np.int64)
        """Windows that taught it, same shape."""
        self._sums = Cusum(self._config.sums, len(metrics))
        self._taken_ns = 0
        """End of the newest slice that had means, 0 = none yet."""

    def on_model(self, model: Model | None) -> None:
        """Judge with an announced model, None = with the one that ships, from the next slice on.

        Raises:
            ConfigError: the model is of another detector.
        """
        if model is None or model.trained is None:
            self._model, self._hash = _shipped()
            self._version = BUILTIN_VERSION if self._model is not None else ""
            return
        if not isinstance(model.trained, MinderModel):
            raise ConfigError("model", type(model.trained).__name__, "a model of minder")
        self._model, self._hash, self._version = model.trained, model.content_hash, version_of(model)

    def on_slice(self, data: Slice) -> Judged:
        """Abstain once for each metric slice that could have ended while no machine has told a metric."""
        is_turn = data.start_ns // METRIC_SLICE_NS != data.end_ns // METRIC_SLICE_NS  # a restart changes nothing
        if is_turn and self._model is not None and not self._hosts:
            self._abstain(Reason.METRIC_MISSING)
        return None

    def on_means(self, data: Slice, means: MetricMeans | None, table: MetricTable) -> Judged:
        """Take the means of one metric slice and return the machines that are far from their role's."""
        if self._hash != self._learned_hash:
            self._begin_anew()
        if self._model is None:
            self._abstain(Reason.NO_MODEL)
            return ()
        if means is None:
            if self._hosts:  # without machines ``on_slice`` says it
                self._abstain(Reason.METRIC_MISSING)
            return None
        if data.start_ns - self._taken_ns > LONGEST_NS:  # windows of samples before and after a gap say nothing
            self._samples = np.full_like(self._samples, np.nan)
            self._sums.clear()
        self._taken_ns = data.end_ns
        self._take(ticks_of_means(data, means, table, self._model.priority))
        groups = self._groups()
        if (groups < 0).all():
            self._abstain(Reason.TOO_FEW_PEERS)
            return ()
        if self._graph.in_announced_phase(data.start_ns, data.end_ns):
            self._abstain(Reason.ANNOUNCED_PHASE)
            return ()
        self._judge(data, self._scores(self._model, groups))
        return self._anomalies(data, groups, self._model.priority)

    @property
    def has_compared(self) -> bool:
        """Whether the usual deviation of some machine is known, so that its windows can be judged."""
        return bool((self._seen >= self._config.warmup_count).any())

    def _take(self, found: Ticks) -> None:
        """Append the slice's samples to the windows; add new machines, and drop those without a sample in theirs."""
        grown = sorted(set(self._hosts).union(found.hosts)) if list(found.hosts) != self._hosts else self._hosts
        self._follow(grown)
        newest = np.full(self._samples.shape[:2], np.nan, np.float32)
        place = {host: row for row, host in enumerate(self._hosts)}
        newest[[place[host] for host in found.hosts]] = found.values[:, :, 0]
        self._samples = np.concatenate([self._samples[:, :, 1:], newest[:, :, None]], axis=2)
        silent = ~np.isfinite(self._samples).any(axis=(1, 2))
        if silent.any():
            self._keep(np.flatnonzero(~silent))

    def _follow(self, hosts: list[str]) -> None:
        """Lay out the rows for these hosts, which contain all known ones."""
        if hosts == self._hosts:
            return
        place = {host: row for row, host in enumerate(hosts)}
        rows = [place[host] for host in self._hosts]
        for name, fill in (("_samples", np.nan), ("_usual", 0), ("_seen", 0)):
            old = getattr(self, name)
            new = np.full((len(hosts), *old.shape[1:]), fill, old.dtype)
            new[rows] = old
            setattr(self, name, new)
        self._sums.grow(rows, len(hosts))
        self._hosts = hosts

    def _keep(self, rows: NDArray[np.intp]) -> None:
        """Keep only these rows."""
        self._hosts = [self._hosts[row] for row in rows]
        self._samples, self._usual, self._seen = self._samples[rows], self._usual[rows], self._seen[rows]
        self._sums.keep(rows.tolist())

    def _groups(self) -> NDArray[np.intp]:
        """Return the role's number of each machine; -1: it is spare, or there are too few machines."""
        roles, spare = self._graph.placement.roles_of_hosts(), self._graph.spare_hosts()
        return groups_of([None if host in spare else roles.get(host, ()) for host in self._hosts], LEAST_MACHINES)

    def _scores(self, model: MinderModel, groups: NDArray[np.intp]) -> FloatArray:
        """Return each machine's deviation by metric, shape (hosts, metrics), NaN = not compared."""
        found = np.full(self._usual.shape, np.nan, np.float32)
        for column, metric in enumerate(model.priority):
            windows = windows_of(self._samples[:, column])
            if np.isfinite(windows[:, -1]).sum() < LEAST_MACHINES:
                has_samples = np.isfinite(self._samples[:, column, -1]).sum() >= LEAST_MACHINES
                self._abstain(Reason.SPAN_TOO_SHORT if has_samples else Reason.METRIC_MISSING)
                continue
            found[:, column] = centre_scores(embeddings_of(windows, model.single[metric]), groups)
        return found

    def _judge(self, data: Slice, scores: FloatArray) -> None:
        """Add a window's deviations beyond each machine's usual ones to the sums, and learn what is usual."""
        known = np.isfinite(scores)
        is_warm = self._seen >= self._config.warmup_count
        excess = np.where(known & is_warm, np.maximum(0.0, scores - self._usual), np.nan).astype(np.float32)
        if known.any() and not (known & is_warm).any():
            self._abstain(Reason.WARMING_UP)
        self._sums.add(np.stack([excess, np.zeros_like(excess)]), data.start_ns, data.end_ns)
        # A machine that deviates teaches nothing, or its fault would become its usual state.
        teaches = known & ~(excess > self._config.sums.drift_sigmas)
        self._seen += teaches
        weight = 1.0 / np.minimum(np.maximum(self._seen, 1), self._config.memory_count)
        moved = self._usual + weight * (np.where(known, scores, 0.0) - self._usual)
        self._usual = np.where(teaches, moved, self._usual).astype(np.float32)

    def _anomalies(self, data: Slice, groups: NDArray[np.intp], order: Sequence[str]) -> list[Anomaly]:
        """Return an anomaly for each machine with an alarm; it names the alarming metric that comes first in order."""
        found = []
        for row in self._sums.alarms():
            deviations = self._sums.of_host(row)
            line = min(1.0, deviations[0].score)
            first = min((one for one in deviations if one.score >= line), key=lambda one: one.column)
            expected = self._peer_value(row, first.column, groups)
            found.append(self._anomaly(data, row, first, order[first.column], expected))
        return found

    def _peer_value(self, row: int, column: int, groups: NDArray[np.intp]) -> float:
        """Return the median of the newest samples of the machine's role."""
        values = self._samples[(groups == groups[row]) & (groups >= 0), column, -1]
        return float(np.median(values[np.isfinite(values)])) if np.isfinite(values).any() else float("nan")

    def _anomaly(self, data: Slice, row: int, deviation: MetricDeviation, metric: str, expected: float) -> Anomaly:
        detail: dict[str, Any] = {"present_ratio": round(deviation.present_ratio, 4)}
        value = float(self._samples[row, deviation.column, -1])
        if np.isfinite(value) and np.isfinite(expected):
            detail |= {"value": float(f"{value:.5g}"), "expected": float(f"{expected:.5g}")}
        return Anomaly(
            job=data.job,
            slice_end_ns=data.end_ns,
            component=Component(ComponentKind.HOST, self._hosts[row]),
            metric=metric,
            start_ns=deviation.since_ns,
            end_ns=deviation.last_ns,
            score=deviation.score,
            detector=DETECTOR,
            model_version=self._version,
            detail=detail,
        )

    def card(self) -> Mapping[str, Any]:
        """Return version, hash, metrics in their order and the threshold of the model in use."""
        metrics: Sequence[str] = () if self._model is None else self._model.priority
        line = self._config.sums.drift_sigmas
        return {"version": self._version, "content_hash": self._hash, "metrics": list(metrics), "line_sigmas": line}

    def snapshot(self) -> dict[str, bytes]:
        """Return the state as a single part."""
        state = {
            "hash": self._learned_hash,
            "hosts": self._hosts,
            "samples": array_state(self._samples),
            "usual": array_state(self._usual),
            "seen": array_state(self._seen),
            "sums": self._sums.to_state(),
            "taken_ns": self._taken_ns,
            "abstained": self.abstained,
        }
        return {DETECTOR: pack_state(state)}

    def restore(self, parts: Mapping[str, bytes]) -> None:
        """Replace the state by the part that ``snapshot`` returned."""
        state = unpack_state(parts, DETECTOR)
        self._learned_hash, self._hosts, self.abstained = state["hash"], state["hosts"], state["abstained"]
        self._samples, self._usual, self._seen = (array_from(state[name]) for name in ("samples", "usual", "seen"))
        self._sums = Cusum(self._config.sums, self._usual.shape[1])
        self._sums.load_state(state["sums"])
        self._taken_ns = state["taken_ns"]
