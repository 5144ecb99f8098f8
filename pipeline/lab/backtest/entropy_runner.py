"""Backtest runner of the trace detector ``entropy``, over a recording's steps, collectives and operations."""

from __future__ import annotations

from dataclasses import dataclass, field

from tocsin.models.entropy import EntropyConfig
from tocsin.pipeline.detect.traces.detector import ENTROPY, TracesConfig
from tocsin.pipeline.lab.backtest.runner import Opinion
from tocsin.pipeline.lab.backtest.trace_runner import opinion_of
from tocsin.pipeline.recording.tables import Recording


@dataclass(frozen=True, slots=True)
class EntropyRunner:
    """Runner that turns every anomaly of ``entropy`` into an accusation."""

    config: EntropyConfig = field(default_factory=EntropyConfig)

    @property
    def name(self) -> str:
        """Name of the detector set."""
        return ENTROPY

    def judge(self, recording: Recording) -> Opinion:
        """Return accusations of the hosts whose operation times are distributed unlike before.

        Of ranks without a known host.
        """
        return opinion_of(recording, ENTROPY, TracesConfig(entropy=self.config))
