"""Backtest runner of the trace detector ``bilstm``, over a recording's steps, collectives and operations."""

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
    """Runner that turns every anomaly of ``bilstm`` into an accusation.

    Attributes:
        networks: operation family -> its network; without any, nothing is judged.
    """

    networks: Mapping[str, OcnnModel] = field(default_factory=dict)

    @property
    def name(self) -> str:
        """Name of the detector set."""
        return BILSTM

    def judge(self, recording: Recording) -> Opinion:
        """Return accusations of the hosts whose operation times are unlike those in training.

        Of ranks without a known host.
        """
        if not self.networks:
            return Opinion((), Reason.NO_MODEL)
        return opinion_of(recording, BILSTM, TracesConfig(), self.networks)
