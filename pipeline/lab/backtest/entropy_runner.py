"""The trace detector ``entropy`` alone, on the steps, collectives and operations of a recording."""

from __future__ import annotations

from dataclasses import dataclass, field

from tocsin.models.entropy import EntropyConfig
from tocsin.pipeline.detect.traces.detector import ENTROPY, TracesConfig
from tocsin.pipeline.lab.backtest.runner import Opinion
from tocsin.pipeline.lab.backtest.trace_runner import opinion_of
from tocsin.pipeline.recording.tables import Recording


@dataclass(frozen=True, slots=True)
class EntropyRunner:
    """Every anomaly as an accusation. Offline only: no engine runs this detector, so nothing asks for more."""

    config: EntropyConfig = field(default_factory=EntropyConfig)

    @property
    def name(self) -> str:
        """For tables."""
        return ENTROPY

    def judge(self, recording: Recording) -> Opinion:
        """The hosts (ranks, where no host is known) whose times are spread unlike before."""
        return opinion_of(recording, ENTROPY, TracesConfig(entropy=self.config))
