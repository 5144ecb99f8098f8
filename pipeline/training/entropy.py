"""The alarm line of the entropy detector, fitted; what it says counts as an accusation here."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from tocsin.models.entropy import EntropyConfig
from tocsin.pipeline.backtest.runner import Answer, lines_of
from tocsin.pipeline.operators.graph import JobGraph
from tocsin.pipeline.operators.trace_training import second_slices
from tocsin.pipeline.operators.traces import ENTROPY, TraceDetector, TracesConfig
from tocsin.pipeline.recording.reader import read_recording
from tocsin.pipeline.recording.score import FolderScore, add_up, machine_days_of, score_lines
from tocsin.pipeline.recording.stream import records_of
from tocsin.pipeline.recording.tables import Recording
from tocsin.pipeline.training.budget import Choice, Tried, choose
from tocsin.pipeline.training.mapping import Mapper, Told, for_each
from tocsin.pipeline.training.numbers import check_all_labelled, check_tables
from tocsin.pipeline.training.recordings import TrainingSet
from tocsin.schemas.errors import TocsinError

OWN = EntropyConfig()
LINES = (OWN.max_sigmas, 3.0, 5.3, 7.1, 9.5, 12.6)
"""What is tried, a third apart; the program's own first: of equally good ones it stays."""


@dataclass(frozen=True, slots=True)
class Lines:
    """One recording, and the lines to judge it with; crosses to a worker process.

    Attributes:
        folder: the recording.
        configs: each line.
    """

    folder: Path
    configs: tuple[EntropyConfig, ...]


def fit_entropy(
    data: TrainingSet, budget_ratio: float, mapper: Mapper, told: Told | None = None
) -> Choice[EntropyConfig]:
    """Fit the line.

    Args:
        data: recordings, each with its truth; healthy ones too.
        budget_ratio: false accusations per machine-day, infinite: the best F1.
        mapper: shares the recordings out.
        told: progress.

    Raises:
        RecordingError: a recording has no truth, none has operations, or one cannot be read.
    """
    check_all_labelled(data)
    check_tables(data, ENTROPY)
    tried = try_lines(data.folders, [replace(OWN, max_sigmas=line) for line in LINES], mapper, told)
    return choose(tried, budget_ratio)


def try_lines(
    folders: Sequence[Path], configs: Sequence[EntropyConfig], mapper: Mapper, told: Told | None = None
) -> list[Tried[EntropyConfig]]:
    """What lines do on recordings that have a truth."""
    by_folder = list(for_each(mapper, judge_one, [Lines(folder, tuple(configs)) for folder in folders], told))
    return [Tried(config, add_up([found[index] for found in by_folder])[0]) for index, config in enumerate(configs)]


def judge_one(lines: Lines) -> list[FolderScore] | str:
    """Judge one recording with each line; a text says why it cannot be."""
    try:
        recording = read_recording(lines.folder)
        faults, days = (recording.truth or {"faults": []})["faults"], machine_days_of(recording)
        told = [lines_of(answers_of(recording, config)) for config in lines.configs]
    except (TocsinError, OSError) as error:
        return str(error)
    return [replace(score_lines(said, faults, days), false_lines=()) for said in told]


def answers_of(recording: Recording, config: EntropyConfig) -> list[Answer]:
    """Whom the detector names in a recording, and when."""
    graph = JobGraph()
    detector = TraceDetector(TracesConfig(entropy=config), graph)
    answers = []
    for data in second_slices(records_of(recording)):
        graph.take(data.records)
        for said in detector.on_slice(data):
            if said.detector == ENTROPY:
                name = said.component.name
                answers.append(Answer(name, said.metric, said.start_ns, said.slice_end_ns, said.score))
    return answers
