"""Scoring of several models of one detector set on the same recordings, for training, promotion and model cards."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from tocsin.pipeline.lab.backtest.detector_sets import runner_of
from tocsin.pipeline.lab.parallel import Executor, Progress, for_each
from tocsin.pipeline.recording.ops import read_with_ops
from tocsin.pipeline.recording.score import FolderScore, Score, add_up, machine_days_of, score_lines
from tocsin.pipeline.recording.tables import Recording
from tocsin.schemas.errors import RecordingError, TocsinError

Models = Mapping[str, bytes]
"""Detector -> payload of its model."""


@dataclass(frozen=True, slots=True)
class Run:
    """One recording and the models that judge it; sent to a worker process.

    Attributes:
        folder: folder of the recording.
        detectors: name of the detector set (``detector_sets``).
        models: the set's models, once for each that is compared.
    """

    folder: Path
    detectors: str
    models: tuple[Models, ...]


_TABLE_OF = {"peers": "host_metrics", "steps": "steps"}
"""Detector -> table without which its model has no effect."""


def run_models(
    folders: Sequence[Path],
    detectors: str,
    models: Sequence[Models],
    executor: Executor,
    on_progress: Progress | None = None,
) -> list[list[FolderScore]]:
    """Judge recordings that have a truth with each of the models.

    Args:
        folders: folders of the recordings.
        detectors: name of the detector set.
        models: the models to compare.
        executor: distributes the recordings to processes.
        on_progress: called with the progress.

    Returns:
        For each recording a score for each model.

    Raises:
        RecordingError: a recording cannot be read, has no truth, or cannot be judged with these models.
    """
    runs = [Run(folder, detectors, tuple(models)) for folder in folders]
    return list(for_each(executor, judge_one, runs, on_progress))


def scores_of(
    folders: Sequence[Path],
    detectors: str,
    models: Sequence[Models],
    executor: Executor,
    on_progress: Progress | None = None,
) -> list[Score]:
    """Return the score of each model over all recordings together; arguments as for ``run_models``."""
    by_folder = run_models(folders, detectors, models, executor, on_progress)
    return [add_up([scores[index] for scores in by_folder])[0] for index in range(len(models))]


def judge_one(run: Run) -> list[FolderScore] | str:
    """Judge one recording with each of the models; return their scores, or a text that says why it is impossible."""
    try:
        recording = read_with_ops(run.folder)
        if recording.truth is None:
            raise RecordingError("truth.json", f"missing in {run.folder}: nothing to score against")
        faults, days = recording.truth["faults"], machine_days_of(recording)
        lines_by_model = _lines_by_model(run, recording)
    except (TocsinError, OSError) as error:
        return str(error)
    # The lines of false accusations are long, and would cross to another process.
    return [replace(score_lines(lines, faults, days), false_lines=()) for lines in lines_by_model]


def _lines_by_model(run: Run, recording: Recording) -> list[tuple[Mapping[str, Any], ...]]:
    """Return the verdict lines of each model; models that differ only in detectors without input here are run once."""
    known: dict[tuple[tuple[str, bytes], ...], tuple[Mapping[str, Any], ...]] = {}
    lines_by_model = []
    for models in run.models:
        useful_models = tuple(sorted((name, payload) for name, payload in models.items() if _has_rows(recording, name)))
        if useful_models not in known:
            known[useful_models] = tuple(runner_of(run.detectors, models).judge(recording).lines)
        lines_by_model.append(known[useful_models])
    return lines_by_model


def _has_rows(recording: Recording, detector: str) -> bool:
    """Return whether a recording has rows in the table that the detector's model needs."""
    table = _TABLE_OF.get(detector)
    return table is None or len(next(iter(recording.tables.get(table, {}).values()), ())) > 0
