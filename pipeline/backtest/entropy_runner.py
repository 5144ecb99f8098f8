"""The trace detector ``entropy`` alone, on the steps and collectives of a recording."""

from __future__ import annotations

from dataclasses import dataclass, field, replace

from tocsin.models.entropy import EntropyConfig
from tocsin.pipeline.backtest.runner import Answer, Opinion
from tocsin.pipeline.operators.graph import JobGraph
from tocsin.pipeline.operators.trace_training import second_slices
from tocsin.pipeline.operators.traces import ENTROPY, TraceDetector, TracesConfig
from tocsin.pipeline.recording.score import host_count_of
from tocsin.pipeline.recording.span import has_no_length, in_span
from tocsin.pipeline.recording.stream import records_of
from tocsin.pipeline.recording.tables import Recording
from tocsin.schemas.job_key import LONE_RANK_PREFIX
from tocsin.schemas.reasons import Reason

_READS = ("steps", "collectives")


@dataclass(frozen=True, slots=True)
class EntropyRunner:
    """Every anomaly as an accusation: live, ``diagnose`` asks for more than that."""

    config: EntropyConfig = field(default_factory=EntropyConfig)

    @property
    def name(self) -> str:
        """For tables."""
        return ENTROPY

    def judge(self, recording: Recording) -> Opinion:
        """The hosts (ranks, where no host is known) whose times are spread unlike before."""
        if not any(len(recording.tables[name]["ts_ns"]) for name in _READS if name in recording.tables):
            return Opinion((), Reason.NO_HOOK)
        if has_no_length(recording.manifest):
            return Opinion((), Reason.SPAN_TOO_SHORT)
        answers = [
            replace(answer, host=answer.host.removeprefix(LONE_RANK_PREFIX))
            for answer in answers_of(recording, self.config)
        ]
        too_few = "topology" in recording.tables and host_count_of(recording) < TracesConfig().min_peer_count
        return Opinion.of(answers, Reason.TOO_FEW_PEERS if too_few else None)


def answers_of(recording: Recording, config: EntropyConfig) -> list[Answer]:
    """Whom the detector names in a recording, and when."""
    graph = JobGraph()
    detector = TraceDetector(TracesConfig(entropy=config), graph)
    answers = []
    for data in second_slices(in_span(records_of(recording), recording.manifest)):
        graph.take(data.records)
        for said in detector.on_slice(data):
            if said.detector == ENTROPY:
                name = said.component.name
                answers.append(Answer(name, said.metric, said.start_ns, said.slice_end_ns, said.score))
    return answers
