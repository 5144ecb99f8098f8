"""Trace detectors: whose operation times are spread unlike the peers', by entropy and by a one-class network.

Keyed by job. Two detectors over the same windows (``trace_windows``): ``entropy`` speaks without a model;
``bilstm`` (in the manner of DistAD with OC-NN) only with one. No engine builds this one: it runs over recordings
(``pipeline/lab/backtest/trace_runner.py``), because both found less than the detectors that judge running jobs.

Both judge a rank against the peers of its role **and** against where it stood before: what a rank was like all
along is how the job is split. A fault that was there from the first minute is therefore not theirs to find;
``steps`` sees those.

They emit anomalies and accuse nobody: a distribution that changed is no loss of time.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tocsin.models.bilstm_ocnn import OcnnModel
from tocsin.models.entropy import FEATURES, EntropyConfig, against_peers, measure, scores
from tocsin.models.op_features import FAMILIES, OpWindow, Vocabulary, sum_up
from tocsin.models.rank_past import RankPast
from tocsin.models.robust import spread
from tocsin.pipeline.core.operator import pack_state, unpack_state
from tocsin.pipeline.detect.traces.memory import SequenceMemory, past_from, past_state
from tocsin.pipeline.detect.traces.streaks import StreakConfig, Streaks
from tocsin.pipeline.detect.traces.windows import (
    PHASE_VOCABULARY,
    RoleWindow,
    TraceWindows,
    WindowConfig,
)
from tocsin.pipeline.job.graph import JobGraph
from tocsin.schemas.errors import ConfigError
from tocsin.schemas.reasons import Reason
from tocsin.schemas.records import JobKey, Slice
from tocsin.schemas.verdicts import Anomaly, Component, ComponentKind

ENTROPY = "entropy"
BILSTM = "bilstm"
_TOP_CLASSES = 5
"""Classes that an anomaly names (``seed-systems-b.md`` 5.3)."""


@dataclass(frozen=True, slots=True)
class TracesConfig:
    """Settings of the trace detectors.

    Attributes:
        detectors: which of the two judge.
        windows: how long a window is.
        entropy: lines of the entropies.
        entropy_streak: ``seed-systems-b.md`` 5.3: 3 of 4 windows.
        bilstm_streak: 4.3: 4 of 5 windows.
        min_peer_count: ranks of a role, and hosts that they are on; below, nobody is compared.
        worst_ratio: the network accuses only ranks among the worst of their role (4.3: 1 %), at least one.
        max_sigmas: the network's score must be so many robust deviations above the role's middle one.
        memory_count: windows that a rank's past reaches back over: two minutes.
        warmup_count: windows before a rank's past says anything: one minute.
        min_rise_score: the network's score must have risen by this over the rank's own past.
        max_streak_count: windows after which what is odd is learned as normal: ten minutes.
        max_host_ratio: more hosts odd together (of 16: two) are no machine's fault, as in ``StepsConfig``.
    """

    detectors: tuple[str, ...] = (ENTROPY, BILSTM)
    windows: WindowConfig = field(default_factory=WindowConfig)
    entropy: EntropyConfig = field(default_factory=EntropyConfig)
    entropy_streak: StreakConfig = field(default_factory=lambda: StreakConfig(3, 4))
    bilstm_streak: StreakConfig = field(default_factory=lambda: StreakConfig(4, 5))
    min_peer_count: int = 3
    worst_ratio: float = 0.01
    max_sigmas: float = 4.0
    memory_count: int = 12
    warmup_count: int = 6
    min_rise_score: float = 0.5
    max_streak_count: int = 60
    max_host_ratio: float = 0.125


@dataclass(frozen=True, slots=True)
class _Odd:
    """What one detector found in one role's window: scores and what to say of each rank."""

    detector: str
    family: str
    scores: Mapping[int, float]
    details: Mapping[int, Mapping[str, Any]]


class TraceDetector:
    """Finds ranks whose operation times changed against their peers; the graph, shared with others, is fed first."""

    def __init__(self, config: TracesConfig, graph: JobGraph, networks: Mapping[str, OcnnModel] | None = None) -> None:
        """Start without history.

        Args:
            config: settings.
            graph: who runs where.
            networks: family -> its network; of a family without one the network abstains.

        Raises:
            ConfigError: the network of the phases is for other operations.
        """
        networks = {} if networks is None else networks
        if "phases" in networks and networks["phases"].vocabulary != PHASE_VOCABULARY:
            raise ConfigError("model.vocabulary", networks["phases"].vocabulary.words, f"{PHASE_VOCABULARY.words}")
        self._config = config
        self._graph = graph
        self._networks = networks
        self._windows = TraceWindows(config.windows, graph)
        self.abstained = self._windows.abstained
        """Reason -> how often nothing was said because of it."""
        self.judged: Counter[str] = Counter()
        """Detector -> windows of a role in which it could judge somebody."""
        self._pasts = {family: RankPast(len(FEATURES), config.memory_count) for family in FAMILIES}
        self._network_pasts = {family: RankPast(1, config.memory_count) for family in FAMILIES}
        self._sequences = {
            family: SequenceMemory(networks[family].sequence_count if family in networks else 1) for family in FAMILIES
        }
        self._streaks = {
            **{f"{ENTROPY}.{family}": Streaks(config.entropy_streak) for family in FAMILIES},
            **{f"{BILSTM}.{family}": Streaks(config.bilstm_streak) for family in FAMILIES},
        }

    @property
    def left_out_count(self) -> int:
        """Operations that were beyond the most that a rank may have in a window."""
        return self._windows.left_out_count

    def on_slice(self, data: Slice) -> Sequence[Anomaly]:
        """Take the records of one slice; anomalies come with the slice that completes a window."""
        if not self._windows.take(data):
            return []
        return [one for window in self._windows.close(data.end_ns) for one in self.on_window(data.job, window)]

    def on_window(self, job: JobKey, window: RoleWindow) -> list[Anomaly]:
        """Judge one role's window; ``on_slice`` does so with those that it cut itself."""
        if not self._has_peers(window):
            self._abstain(Reason.TOO_FEW_PEERS)
            return []
        summed = sum_up(window.rows, window.vocabulary.class_count)
        by = {ENTROPY: self._by_entropy, BILSTM: self._by_network}
        told = [judge(window, summed) for name, judge in by.items() if name in self._config.detectors]
        return [anomaly for odd in told if odd is not None for anomaly in self._emit(job, window, odd)]

    def _abstain(self, reason: Reason) -> None:
        self.abstained[reason.value] = self.abstained.get(reason.value, 0) + 1

    def _has_peers(self, window: RoleWindow) -> bool:
        ranks = np.unique(window.rows.ranks).tolist()
        least = self._config.min_peer_count
        return len(ranks) >= least and len({self._graph.host_of(rank) for rank in ranks}) >= least

    def _by_entropy(self, window: RoleWindow, summed: OpWindow) -> _Odd | None:
        measured = measure(summed.seconds, summed.counts, self._config.entropy)
        if measured.reason is not None:
            self._abstain(measured.reason)
            return None
        past, streaks = self._pasts[window.family], self._streaks[f"{ENTROPY}.{window.family}"]
        relative = against_peers(measured)
        counts, means, own = past.look(summed.ranks)
        good = np.isfinite(relative).all(axis=1)
        known = (counts >= self._config.warmup_count) & good
        if known.any():
            self.judged[ENTROPY] += 1
        else:
            self._abstain(Reason.WARMING_UP)
        score = scores(relative, means, np.maximum(own, measured.floors), self._config.entropy)
        score = np.where(known, score, 0.0)
        self._see(streaks, past, (summed.ranks[good], score[good], relative[good]), window)
        details = {
            rank: _entropy_detail(measured.values[row], measured.parts[row], window.vocabulary)
            for row, rank in enumerate(summed.ranks.tolist())
            if score[row] >= 1
        }
        return _Odd(ENTROPY, window.family, _by_rank(summed.ranks, score), details)

    def _by_network(self, window: RoleWindow, summed: OpWindow) -> _Odd | None:
        network, past = self._networks.get(window.family), self._network_pasts[window.family]
        if network is None:
            self._abstain(Reason.NO_MODEL)
            return None
        if network.vocabulary != window.vocabulary:
            summed = sum_up(window.in_words_of(network.vocabulary), network.vocabulary.class_count)
        enough = summed.has_enough(self._config.entropy.min_operations_factor)
        if not enough.any():
            self._abstain(Reason.TOO_FEW_OPERATIONS)
            return None
        memory = self._sequences[window.family]
        memory.take(summed.ranks[enough], summed.features[enough].astype(np.float32), window.begin_ns)
        ranks, sequences = memory.whole(summed.ranks[enough])
        if not ranks.size:
            self._abstain(Reason.WARMING_UP)
            return None
        raw = network.scores(sequences)
        counts, means, _ = past.look(ranks)
        if (counts >= self._config.warmup_count).any():
            self.judged[BILSTM] += 1
        else:
            self._abstain(Reason.WARMING_UP)
        rise = (raw - means[:, 0]) / self._config.min_rise_score
        # Where all ranks of a role are odd together (sequences of many lengths), the oddest of them is no outlier.
        scatter = max(1.0, self._config.max_sigmas * float(spread(raw[None, :], 1)[0]))
        above = (raw - float(np.median(raw))) / scatter
        score = np.clip(np.minimum(above, rise), 0.0, None)
        score = np.where(counts >= self._config.warmup_count, score, 0.0)
        worst_count = max(1, int(self._config.worst_ratio * ranks.size))
        least = np.sort(score)[-worst_count]
        hot = np.where(score >= max(least, 1.0), score, 0.0)
        self._see(self._streaks[f"{BILSTM}.{window.family}"], past, (ranks, hot, raw[:, None]), window)
        details = {rank: {"output": float(raw[row])} for row, rank in enumerate(ranks.tolist()) if hot[row] >= 1}
        return _Odd(BILSTM, window.family, _by_rank(ranks, hot), details)

    def _see(
        self,
        streaks: Streaks,
        past: RankPast,
        judged: tuple[NDArray[np.int64], NDArray[np.float64], NDArray[np.float64]],
        window: RoleWindow,
    ) -> None:
        """Count the odd windows; learn from the others, and from what has been odd for so long that it is normal."""
        ranks, score, values = judged
        hot = {rank for rank, value in zip(ranks.tolist(), score.tolist(), strict=True) if value >= 1}
        streaks.see(ranks.tolist(), hot, window.begin_ns)
        most = self._config.max_streak_count
        teaches = np.array([not 0 < streaks.lasted_count(rank) <= most for rank in ranks.tolist()])
        past.learn(ranks[teaches], values[teaches])

    def _emit(self, job: JobKey, window: RoleWindow, odd: _Odd) -> list[Anomaly]:
        lasting = self._streaks[f"{odd.detector}.{odd.family}"].lasting(odd.scores)
        hosts: dict[str, list[int]] = {}
        for rank in sorted(lasting):
            hosts.setdefault(self._graph.host_of(rank), []).append(rank)
        if len(odd.details) > len(lasting):
            self._abstain(Reason.NOT_CONTINUOUS)
        if len(hosts) > max(1, int(self._config.max_host_ratio * len(self._graph.hosts))):
            self._abstain(Reason.AMBIGUOUS)
            return []
        anomalies = []
        for host, ranks in sorted(hosts.items()):
            worst = max(ranks, key=lambda rank: (odd.scores[rank], -rank))
            named = Component(ComponentKind.HOST, host) if host else Component(ComponentKind.RANK, str(worst))
            detail = {**odd.details[worst], "ranks": ranks, "family": odd.family}
            begin_ns = min(lasting[rank] for rank in ranks)
            anomalies.append(
                Anomaly(
                    job=job,
                    slice_end_ns=window.end_ns,
                    component=named,
                    metric=f"{odd.family}_distribution",
                    start_ns=begin_ns,
                    end_ns=window.end_ns,
                    score=odd.scores[worst],
                    detector=odd.detector,
                    detail=detail,
                )
            )
        return anomalies

    def snapshot(self) -> dict[str, bytes]:
        """State in two parts: what is open, and what was learned."""
        learned = {
            "pasts": {family: past_state(past) for family, past in self._pasts.items()},
            "network_pasts": {family: past_state(past) for family, past in self._network_pasts.items()},
            "sequences": {family: memory.to_state() for family, memory in self._sequences.items()},
            "judged": dict(self.judged),
            "streaks": {name: streaks.to_state() for name, streaks in self._streaks.items()},
        }
        return {"trace_windows": pack_state(self._windows.to_state()), "traces": pack_state(learned)}

    def restore(self, parts: Mapping[str, bytes]) -> None:
        """Take back what ``snapshot`` gave."""
        self._windows.load_state(unpack_state(parts, "trace_windows"))
        self.abstained = self._windows.abstained
        learned = unpack_state(parts, "traces")
        for family in FAMILIES:
            past_from(self._pasts[family], learned["pasts"][family])
            past_from(self._network_pasts[family], learned["network_pasts"][family])
            self._sequences[family].load_state(learned["sequences"][family])
        self.judged = Counter(learned["judged"])
        for name, streaks in self._streaks.items():
            streaks.load_state(learned["streaks"][name])


def _by_rank(ranks: NDArray[np.int64], score: NDArray[np.float64]) -> dict[int, float]:
    return dict(zip(ranks.tolist(), score.tolist(), strict=True))


def _entropy_detail(values: NDArray[np.float64], parts: NDArray[np.float64], vocabulary: Vocabulary) -> dict[str, Any]:
    """Nats by feature, and the classes that make the difference, most first."""
    total = max(float(parts.sum()), 1e-12)
    top = np.argsort(-parts, kind="stable")[:_TOP_CLASSES].tolist()
    classes = [[vocabulary.classes[column], float(parts[column]) / total] for column in top if parts[column] > 0]
    return {**dict(zip(FEATURES, values.tolist(), strict=True)), "classes": classes}
