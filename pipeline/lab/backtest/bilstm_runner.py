"""The trace detector ``bilstm`` alone, on the steps, collectives and operations of a recording."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from tocsin.models.bilstm_ocnn import OcnnModel
from tocsin.pipeline.detect.traces.detector import BILSTM, TracesConfig
from tocsin.pipeline.lab.backtest.runner import Opinion
from tocsin.pipeline.lab.backtest.trace_runner import opinion_of
from tocsin.pipeline.recording.tables import Recording
from tocsin.schemas.reasons import Reason


@dataclass(frozen=True, slots=True, eq=False)
class BilstmRunner:
    """Every anomaly as an accusation; offline only, as ``EntropyRunner``.

    Attributes:
        networks: family -> its network; none: it judges nothing.
    """

    networks: Mapping[str, OcnnModel] = field(default_factory=dict)

    @property
    def name(self) -> str:
        """For tables."""
        return BILSTM

    def judge(self, recording: Recording) -> Opinion:
        """The hosts (ranks, where no host is known) whose windows of times are unlike those of its training."""
        if not self.networks:
            return Opinion((), Reason.NO_MODEL)
        return opinion_of(recording, BILSTM, TracesConfig(), self.networks)
