"""Backtest runner of a learned detector as a running engine runs it: slice after slice, on slice means."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from typing import Final

from tocsin.pipeline.detect.learned.config import DetectorMode, LearnedConfig
from tocsin.pipeline.detect.learned.minder import DETECTOR, StreamingMinder
from tocsin.pipeline.lab.backtest.engine_runner import announced_from
from tocsin.pipeline.lab.backtest.runner import Opinion, RunnerAccusation
from tocsin.pipeline.recording.judged_range import has_no_length
from tocsin.pipeline.recording.replay import ReplayConfig, seconds_with_models
from tocsin.pipeline.recording.tables import Recording
from tocsin.pipeline.runtime.embedded.engine import EmbeddedEngine, EngineConfig, played
from tocsin.pipeline.runtime.job_pipeline import JobConfig
from tocsin.schemas.errors import SchemaError
from tocsin.schemas.reasons import Reason
from tocsin.schemas.verdicts import ComponentKind

NAME: Final = "minder-streaming"


@dataclass(frozen=True, slots=True)
class StreamingMinderRunner:
    """Runner of streaming Minder alone, by a replay in which no other detector speaks.

    Each machine that its anomalies name counts as an accusation, at the time of the first one. In an engine they are
    evidence, or open verdicts where nobody else names a machine; here they stand for themselves, so that two models
    can be compared.

    Attributes:
        payload: the model used from the recording's start.
    """

    payload: bytes

    @property
    def name(self) -> str:
        """Name of the detector set."""
        return NAME

    def judge(self, recording: Recording) -> Opinion:
        """Return the machines that the detector names, or the most frequent reason why it could compare none."""
        announcements = announced_from({DETECTOR: self.payload}, recording.manifest.start_ns)
        learned = LearnedConfig({DETECTOR: DetectorMode.EVIDENCE})
        config = EngineConfig(history=None, job=JobConfig(detectors=(), learned=learned))
        engine = EmbeddedEngine(played(config))
        answers: dict[str, RunnerAccusation] = {}
        has_compared, abstained = False, Counter[str]()
        for tick_ns, records in seconds_with_models(recording, ReplayConfig(config, announcements=announcements)):
            for record in records:
                try:
                    engine.take_record(record)
                except SchemaError:  # single records; 'tocsin replay' tells them
                    continue
            for one in engine.tick(tick_ns).anomalies:
                if one.detector == DETECTOR and one.component.kind is ComponentKind.HOST:
                    host = one.component.name
                    answers.setdefault(host, RunnerAccusation(host, one.metric, one.start_ns, tick_ns, one.score))
            operators = _operators(engine)
            has_compared = has_compared or any(one.has_compared for one in operators)
            abstained = sum((Counter(one.abstained) for one in operators), Counter[str]()) or abstained
        if answers or has_compared:
            return Opinion.of(list(answers.values()))
        return Opinion((), _reason(recording, abstained))


def _operators(engine: EmbeddedEngine) -> list[StreamingMinder]:
    """Return the detector of each job that the engine knows."""
    pipelines = (engine.pipeline(job) for job in engine.jobs())
    found = (one.learned.operators[DETECTOR] for one in pipelines if one is not None)
    return [operator for operator in found if isinstance(operator, StreamingMinder)]


def _reason(recording: Recording, abstained: Counter[str]) -> Reason:
    """Return why no machine could be compared."""
    if has_no_length(recording.manifest):
        return Reason.SPAN_TOO_SHORT
    if abstained:
        return Reason(min(abstained, key=lambda name: (-abstained[name], name)))
    return Reason.METRIC_MISSING
