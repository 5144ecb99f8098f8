"""Backtest runner of the simulator's plain detector (``simulation/baseline.py``), shown beside ours in every table."""

from __future__ import annotations

from dataclasses import dataclass, field

from tocsin.pipeline.lab.backtest.runner import Opinion, RunnerAccusation
from tocsin.pipeline.lab.simulation.baseline import BaselineConfig, accusations, comparable_count
from tocsin.pipeline.recording.tables import Recording
from tocsin.schemas.reasons import Reason
from tocsin.schemas.records import NS_PER_SECOND

ALARM_LINE = 14.83
"""z-score with the best F1 on 200 + 200 cases of the ``fit`` half (``docs/simulation.md``, "How hard it is")."""
_MIN_PEER_COUNT = 3


@dataclass(frozen=True, slots=True)
class PlainRunner:
    """Runner that accuses by robust z-scores against the peers, in three consecutive windows of ten seconds."""

    config: BaselineConfig = field(default_factory=lambda: BaselineConfig(z_threshold=ALARM_LINE))

    @property
    def name(self) -> str:
        """Name of the detector set."""
        return "plain"

    def judge(self, recording: Recording) -> Opinion:
        """Return at most one accusation per machine, or why the recording cannot be judged."""
        peers = comparable_count(recording)
        if peers < _MIN_PEER_COUNT:
            return Opinion((), Reason.TOO_FEW_PEERS if peers else Reason.METRIC_MISSING)
        config, manifest = self.config, recording.manifest
        least = config.window_seconds * (config.least_bias_count + config.streak_count + 1)
        if (manifest.end_ns - manifest.start_ns) / NS_PER_SECOND < least:
            return Opinion((), Reason.SPAN_TOO_SHORT)
        found = accusations(recording, config)
        return Opinion.of([RunnerAccusation(one.host, "", one.detected_ns, one.detected_ns, 1.0) for one in found])
