"""Trace detectors: ranks whose operation durations are distributed unlike their peers', by entropy or a network.

Two detectors judge the same windows (``windows``). ``entropy`` needs no model; ``bilstm`` (in the manner of DistAD with
OC-NN) does. Running jobs are judged through ``detect.learned.traces``, off by default, as both found less than
``peers`` and ``steps``; recordings through ``pipeline/lab/backtest/trace_runner.py``.

A rank is compared with the peers of its role and with its own past, as permanent differences stem from how the job is
split. A fault present from the first minute is therefore not found; ``steps`` finds those.

They emit anomalies and accuse no machine: a changed distribution is no loss of time.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tocsin.models.bilstm_ocnn import OcnnModel
from tocsin.models.entropy import FEATURES, EntropyConfig, against_peers, measure, scores
from tocsin.models.op_features import FAMILIES, PHASES, REST, OpWindow, is_phase_vocabulary, sum_up
from tocsin.models.rank_past import RankPast
from tocsin.models.robust import spread
from tocsin.pipeline.core.operator import pack_state, unpack_state
from tocsin.pipeline.detect.abstaining import Abstaining
from tocsin.pipeline.detect.traces.memory import SequenceMemory, past_from, past_state
from tocsin.pipeline.detect.traces.naming import class_distances, named_classes
from tocsin.pipeline.detect.traces.streaks import StreakConfig, Streaks
from tocsin.pipeline.detect.traces.windows import (
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


@dataclass(frozen=True, slots=True)
class TracesConfig:
    """Settings of the trace detectors.

    Attributes:
        detectors: names of the detectors that judge.
        windows: length of a window.
        entropy: thresholds of the entropies.
        entropy_streak: streak of the entropy detector (``seed-systems-b.md`` 5.3: 3 of 4 windows).
        bilstm_streak: streak of the network (4.3: 4 of 5 windows).
        min_peer_count: fewest ranks of a role, and fewest hosts of them, for a comparison.
        worst_ratio: share of a role's ranks that the network may name (4.3: 1 %), at least one.
        max_sigmas: least robust deviation of the network's score above the role's median.
        memory_count: windows that a rank's past covers: two minutes.
        warmup_count: windows before a rank's past is used: one minute.
        min_rise_score: least rise of the network's score over the rank's past.
        max_streak_count: windows after which an anomalous state is learned as normal: ten minutes.
        max_host_ratio: greatest share of hosts that are anomalous together, as in ``StepsConfig``.
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
class _Outliers:
    """Result of one detector for the window of one role.

    Attributes:
        detector: detector name.
        family: family of operations.
        scores: rank -> score; 1.0 or more is anomalous.
        details: rank -> details for its anomaly.
    """

    detector: str
    family: str
    scores: Mapping[int, float]
    details: Mapping[int, Mapping[str, Any]]


class TraceDetector(Abstaining):
    """Detector of ranks whose operation durations changed against their peers.

    The job graph is shared with other operators and must be fed first.
    """

    def __init__(self, config: TracesConfig, graph: JobGraph, networks: Mapping[str, OcnnModel] | None = None) -> None:
        """Start without history.

        Args:
            config: settings.
            graph: the job's ranks and hosts.
            networks: family -> its network; without one, the network abstains for that family.

        Raises:
            ConfigError: the network of the phases was trained on other operation classes than phases.
        """
        self._config = config
        self._graph = graph
        self._windows = TraceWindows(config.windows, graph)
        self.abstained = self._windows.abstained
        """Reason -> number of times that a detector abstained."""
        self.judged: Counter[str] = Counter()
        """Detector -> number of role windows in which it judged at least one rank."""
        self._pasts = {family: RankPast(len(FEATURES), config.memory_count) for family in FAMILIES}
        """Family -> each rank's past entropies, relative to its peers."""
        self._network_pasts = {family: RankPast(1, config.memory_count) for family in FAMILIES}
        """Family -> each rank's past network scores."""
        self._sequences: dict[str, SequenceMemory] = {}
        """Family -> features of each rank's last windows, input of the network."""
        self._streaks = {f"{ENTROPY}.{family}": Streaks(config.entropy_streak) for family in FAMILIES}
        """"detector.family" -> streaks of anomalous windows."""
        self.use_networks({} if networks is None else networks)

    @property
    def left_out_count(self) -> int:
        """Number of operations dropped because a rank had too many in a window."""
        return self._windows.left_out_count

    @property
    def has_sources(self) -> bool:
        """Whether the job ever sent what the detectors look at: steps, or whole collectives."""
        return self._windows.has_sources

    def use_line(self, max_sigmas: float) -> None:
        """Judge the entropies by this alarm line from now on; what was learned of the ranks stays."""
        self._config = replace(self._config, entropy=replace(self._config.entropy, max_sigmas=max_sigmas))

    def use_networks(self, networks: Mapping[str, OcnnModel], *, are_same: bool = False) -> None:
        """Judge with these networks from now on.

        Args:
            networks: operation family -> its network; a family without one is not judged by ``bilstm``.
            are_same: they are the networks of the restored state. Otherwise ranks' past scores are forgotten, because
                another network gave them.

        Raises:
            ConfigError: the network of the phases was trained on other operation classes than phases.
        """
        if "phases" in networks and not is_phase_vocabulary(words := networks["phases"].vocabulary.words):
            raise ConfigError("model.vocabulary", words, f"of {PHASES}, in this order and with {REST}")
        self._networks = networks
        for family in FAMILIES:
            length = networks[family].sequence_count if family in networks else 1
            if are_same:
                self._sequences[family].length = length
                continue
            self._sequences[family] = SequenceMemory(length)
            self._network_pasts[family] = RankPast(1, self._config.memory_count)
            self._streaks[f"{BILSTM}.{family}"] = Streaks(self._config.bilstm_streak)

    def on_slice(self, data: Slice) -> Sequence[Anomaly]:
        """Take the records of one slice and return the anomalies of the window that it completes, if any."""
        return self.judge(data) or []

    def judge(self, data: Slice) -> list[Anomaly] | None:
        """Take the records of one slice; return the anomalies of the window that it completes, None if it is open."""
        if not self._windows.take(data):
            return None
        return [one for window in self._windows.close(data.end_ns) for one in self.on_window(data.job, window)]

    def on_window(self, job: JobKey, window: RoleWindow) -> list[Anomaly]:
        """Judge the window of one role and return its anomalies; ``on_slice`` calls it for its own windows."""
        if not self._has_peers(window):
            self._abstain(Reason.TOO_FEW_PEERS)
            return []
        summed = sum_up(window.rows, window.vocabulary.class_count)
        by = {ENTROPY: self._by_entropy, BILSTM: self._by_network}
        results = [judge(window, summed) for name, judge in by.items() if name in self._config.detectors]
        return [
            anomaly for outliers in results if outliers is not None for anomaly in self._emit(job, window, outliers)
        ]

    def _has_peers(self, window: RoleWindow) -> bool:
        """Return whether the window has enough ranks, on enough hosts, for a comparison."""
        ranks = np.unique(window.rows.ranks).tolist()
        least = self._config.min_peer_count
        return len(ranks) >= least and len({self._graph.host_of(rank) for rank in ranks}) >= least

    def _by_entropy(self, window: RoleWindow, summed: OpWindow) -> _Outliers | None:
        """Return the scores of the entropy detector for a window; None if it abstains for the whole role."""
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
        self._update(streaks, past, (summed.ranks[good], score[good], relative[good]), window)
        details = {
            rank: {**named_classes(summed, row, measured.parts[row], window), **_entropies(measured.values[row])}
            for row, rank in enumerate(summed.ranks.tolist())
            if score[row] >= 1
        }
        return _Outliers(ENTROPY, window.family, _by_rank(summed.ranks, score), details)

    def _by_network(self, window: RoleWindow, summed: OpWindow) -> _Outliers | None:
        """Return the scores of the one-class network for a window; None if it abstains for the whole role."""
        network, past = self._networks.get(window.family), self._network_pasts[window.family]
        if network is None:
            self._abstain(Reason.NO_MODEL)
            return None
        if not window.has_sources_of(network.vocabulary):
            self._abstain(Reason.SOURCES_MISSING)
            return None
        if network.vocabulary != window.vocabulary:
            window = window.in_vocabulary(network.vocabulary)
            summed = sum_up(window.rows, window.vocabulary.class_count)
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
        hot = self._outlying(raw, means[:, 0], counts >= self._config.warmup_count)
        named = set(ranks[hot >= 1].tolist())
        self._update(self._streaks[f"{BILSTM}.{window.family}"], past, (ranks, hot, raw[:, None]), window)
        details = {
            rank: named_classes(summed, row, class_distances(summed, row), window)
            for row, rank in enumerate(summed.ranks.tolist())
            if rank in named
        }
        return _Outliers(BILSTM, window.family, _by_rank(ranks, hot), details)

    def _outlying(
        self, raw: NDArray[np.float64], past: NDArray[np.float64], known: NDArray[np.bool_]
    ) -> NDArray[np.float64]:
        """Return how far each rank's output is above its role's and its own past, 0 for all but the worst ranks.

        Args:
            raw: the network's scores of one role's ranks.
            past: their mean scores so far.
            known: whether that past is long enough to count.
        """
        rise = (raw - past) / self._config.min_rise_score
        # Where all ranks of a role are odd together (sequences of many lengths), the oddest of them is no outlier.
        scatter = max(1.0, self._config.max_sigmas * float(spread(raw[None, :], 1)[0]))
        above = (raw - float(np.median(raw))) / scatter
        score = np.where(known, np.clip(np.minimum(above, rise), 0.0, None), 0.0)
        least = np.sort(score)[-max(1, int(self._config.worst_ratio * raw.size))]
        return np.where(score >= max(least, 1.0), score, 0.0)

    def _update(
        self,
        streaks: Streaks,
        past: RankPast,
        judged: tuple[NDArray[np.int64], NDArray[np.float64], NDArray[np.float64]],
        window: RoleWindow,
    ) -> None:
        """Update streaks, and learn values of ranks that are not anomalous, or have been so long that it is normal.

        Args:
            streaks: streaks of the detector.
            past: ranks' pasts.
            judged: ranks, their scores, and their values.
            window: window of the role.
        """
        ranks, score, values = judged
        hot = {rank for rank, value in zip(ranks.tolist(), score.tolist(), strict=True) if value >= 1}
        streaks.see(ranks.tolist(), hot, window.begin_ns)
        most = self._config.max_streak_count
        teaches = np.array([not 0 < streaks.lasted_count(rank) <= most for rank in ranks.tolist()])
        past.learn(ranks[teaches], values[teaches])

    def _emit(self, job: JobKey, window: RoleWindow, outliers: _Outliers) -> list[Anomaly]:
        """Return one anomaly per host whose ranks have a lasting streak; [] if too many hosts have one."""
        lasting = self._streaks[f"{outliers.detector}.{outliers.family}"].lasting(outliers.scores)
        hosts: dict[str, list[int]] = {}
        for rank in sorted(lasting):
            hosts.setdefault(self._graph.host_of(rank), []).append(rank)
        if len(outliers.details) > len(lasting):
            self._abstain(Reason.NOT_CONTINUOUS)
        if len(hosts) > max(1, int(self._config.max_host_ratio * len(self._graph.hosts))):
            self._abstain(Reason.AMBIGUOUS)
            return []
        anomalies = []
        for host, ranks in sorted(hosts.items()):
            worst = max(ranks, key=lambda rank: (outliers.scores[rank], -rank))
            named = Component(ComponentKind.HOST, host) if host else Component(ComponentKind.RANK, str(worst))
            detail = {**outliers.details[worst], "ranks": ranks, "family": outliers.family}
            begin_ns = min(lasting[rank] for rank in ranks)
            anomalies.append(
                Anomaly(
                    job=job,
                    slice_end_ns=window.end_ns,
                    component=named,
                    metric=f"{outliers.family}_distribution",
                    start_ns=begin_ns,
                    end_ns=window.end_ns,
                    score=outliers.scores[worst],
                    detector=outliers.detector,
                    detail=detail,
                )
            )
        return anomalies

    def snapshot(self, prefix: str = "") -> dict[str, bytes]:
        """Return the state in two parts, whose names begin with ``prefix``: the open window, and what was learned."""
        learned = {
            "pasts": {family: past_state(past) for family, past in self._pasts.items()},
            "network_pasts": {family: past_state(past) for family, past in self._network_pasts.items()},
            "sequences": {family: memory.to_state() for family, memory in self._sequences.items()},
            "judged": dict(self.judged),
            "streaks": {name: streaks.to_state() for name, streaks in self._streaks.items()},
        }
        windows = pack_state(self._windows.to_state())
        return {f"{prefix}trace_windows": windows, f"{prefix}traces": pack_state(learned)}

    def restore(self, parts: Mapping[str, bytes], prefix: str = "") -> None:
        """Restore the state from the parts that ``snapshot`` returned with the same prefix; others are ignored."""
        self._windows.load_state(unpack_state(parts, f"{prefix}trace_windows"))
        self.abstained = self._windows.abstained
        learned = unpack_state(parts, f"{prefix}traces")
        for family in FAMILIES:
            past_from(self._pasts[family], learned["pasts"][family])
            past_from(self._network_pasts[family], learned["network_pasts"][family])
            self._sequences[family].load_state(learned["sequences"][family])
        self.judged = Counter(learned["judged"])
        for name, streaks in self._streaks.items():
            streaks.load_state(learned["streaks"][name])


def _by_rank(ranks: NDArray[np.int64], score: NDArray[np.float64]) -> dict[int, float]:
    """Return rank -> score."""
    return dict(zip(ranks.tolist(), score.tolist(), strict=True))


def _entropies(values: NDArray[np.float64]) -> dict[str, Any]:
    """Return entropies and divergences in nats by name."""
    return dict(zip(FEATURES, values.tolist(), strict=True))
