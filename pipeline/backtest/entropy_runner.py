"""The trace detector ``entropy`` alone, on the steps and collectives of a recording."""

from __future__ import annotations

from dataclasses import dataclass, field

from tocsin.pipeline.backtest.runner import Answer, Opinion
from tocsin.pipeline.operators.graph import JobGraph
from tocsin.pipeline.operators.trace_training import second_slices
from tocsin.pipeline.operators.traces import ENTROPY, TraceDetector, TracesConfig
from tocsin.pipeline.recording.score import host_count_of
from tocsin.pipeline.recording.stream import records_of
from tocsin.pipeline.recording.tables import Recording
from tocsin.schemas.job_key import LONE_RANK_PREFIX
from tocsin.schemas.reasons import Reason

_READS = ("steps", "collectives")


@dataclass(frozen=True, slots=True)
class EntropyRunner:
    """Every anomaly as an accusation: live, ``diagnose`` asks for more than that."""

    config: TracesConfig = field(default_factory=TracesConfig)

    @property
    def name(self) -> str:
        """For tables."""
        return ENTROPY

    def judge(self, recording: Recording) -> Opinion:
        """The hosts (ranks, where no host is known) whose times are spread unlike before."""
        if not any(len(recording.tables[name]["ts_ns"]) for name in _READS if name in recording.tables):
            return Opinion((), Reason.NO_HOOK)
        graph = JobGraph()
        detector = TraceDetector(self.config, graph)
        answers = []
        for data in second_slices(records_of(recording)):
            graph.take(data.records)
            for one in detector.on_slice(data):
                name = one.component.name.removeprefix(LONE_RANK_PREFIX)
                answers.append(Answer(name, one.metric, one.start_ns, one.slice_end_ns, one.score))
        too_few = "topology" in recording.tables and host_count_of(recording) < self.config.min_peer_count
        return Opinion.of(answers, Reason.TOO_FEW_PEERS if too_few else None)
