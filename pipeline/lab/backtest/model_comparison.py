"""Several models of one detector set on the same recordings: what training, promotion and cards stand on."""

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
"""Detector -> payload."""


@dataclass(frozen=True, slots=True)
class Run:
    """One recording and who judges it; crosses to a worker process.

    Attributes:
        folder: the recording.
        detectors: the set that judges (``detector_sets``).
        models: of the set, once for each that is compared.
    """

    folder: Path
    detectors: str
    models: tuple[Models, ...]


_TABLE_OF = {"peers": "host_metrics", "steps": "steps"}
"""Detector -> the table without which its model decides nothing."""


def run_heats(
    folders: Sequence[Path], detectors: str, models: Sequence[Models], mapper: Executor, told: Progress | None = None
) -> list[list[FolderScore]]:
    """Judge recordings that have a truth: for each recording a score for each of the models.

    Raises:
        RecordingError: one cannot be read, has no truth, or cannot be judged with these models.
    """
    heats = [Run(folder, detectors, tuple(models)) for folder in folders]
    return list(for_each(mapper, judge_one, heats, told))


def scores_of(
    folders: Sequence[Path], detectors: str, models: Sequence[Models], mapper: Executor, told: Progress | None = None
) -> list[Score]:
    """The same, all recordings together: a score for each of the models."""
    by_folder = run_heats(folders, detectors, models, mapper, told)
    return [add_up([scores[index] for scores in by_folder])[0] for index in range(len(models))]


def judge_one(heat: Run) -> list[FolderScore] | str:
    """Judge one recording with each of the models; a text says why it cannot be."""
    try:
        recording = read_with_ops(heat.folder)
        if recording.truth is None:
            raise RecordingError("truth.json", f"missing in {heat.folder}: nothing to score against")
        faults, days = recording.truth["faults"], machine_days_of(recording)
        said = _said(heat, recording)
    except (TocsinError, OSError) as error:
        return str(error)
    # The lines of false accusations are long, and would cross to another process.
    return [replace(score_lines(lines, faults, days), false_lines=()) for lines in said]


def _said(heat: Run, recording: Recording) -> list[tuple[Mapping[str, Any], ...]]:
    """What each of the models says; models that differ in nothing that this recording holds are asked once."""
    known: dict[tuple[tuple[str, bytes], ...], tuple[Mapping[str, Any], ...]] = {}
    said = []
    for models in heat.models:
        telling = tuple(sorted((name, payload) for name, payload in models.items() if _has_rows(recording, name)))
        if telling not in known:
            known[telling] = tuple(runner_of(heat.detectors, models).judge(recording).lines)
        said.append(known[telling])
    return said


def _has_rows(recording: Recording, detector: str) -> bool:
    table = _TABLE_OF.get(detector)
    return table is None or len(next(iter(recording.tables.get(table, {}).values()), ())) > 0
