"""Candidate numbers on recordings: replayed by the engine itself, scored as ``tocsin score`` scores."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from tocsin.models.documents import Numbers, write_numbers
from tocsin.pipeline.recording.notes import BEFORE_START_NS
from tocsin.pipeline.recording.reader import read_recording
from tocsin.pipeline.recording.replay import ReplayConfig, replay
from tocsin.pipeline.recording.score import FolderScore, Score, add_up, machine_days_of, score_lines
from tocsin.pipeline.recording.tables import Recording
from tocsin.pipeline.training.mapping import Mapper, Told, for_each
from tocsin.schemas.errors import RecordingError, TocsinError
from tocsin.schemas.model_announcement import BOUNDARY_NS, NOTICE_NS, ModelAnnouncement, content_hash


@dataclass(frozen=True, slots=True)
class Trial:
    """One recording and the models to replay it with; crosses to a worker process.

    Attributes:
        folder: the recording.
        detector: whose models.
        payloads: each of them, one replay each.
    """

    folder: Path
    detector: str
    payloads: tuple[bytes, ...]


def announced_from_start(detector: str, payload: bytes, start_ns: int, version: str = "") -> ModelAnnouncement:
    """An announcement that all slices of a recording are judged with.

    Args:
        detector: whom it is for.
        payload: the model, in the newest format.
        start_ns: of the recording.
        version: for people; what anomalies carry.
    """
    first_ns = max(0, start_ns - BEFORE_START_NS) // BOUNDARY_NS * BOUNDARY_NS
    effective_ns = max(NOTICE_NS, first_ns)
    name = content_hash(payload)
    return ModelAnnouncement(
        effective_ns - NOTICE_NS, detector, version or name[:12], f"{detector}/1", name, payload, effective_ns
    )


def score_recording(folder: Path, recording: Recording, config: ReplayConfig) -> FolderScore:
    """Replay and score one recording that has a truth.

    Raises:
        RecordingError: it has none.
    """
    if recording.truth is None:
        raise RecordingError("truth.json", f"missing in {folder}: nothing to score against")
    refused = Counter[str]()  # single records, the same with each candidate; 'tocsin replay' tells them
    lines = [verdict.to_line() for verdict in replay(recording, config, refused=refused)]
    return score_lines(lines, recording.truth["faults"], machine_days_of(recording))


def run_trial(trial: Trial) -> list[FolderScore] | str:
    """Replay a recording with each model; a text says why it could not be."""
    try:
        recording = read_recording(trial.folder)
        found = []
        for payload in trial.payloads:
            announced = announced_from_start(trial.detector, payload, recording.manifest.start_ns)
            score = score_recording(trial.folder, recording, ReplayConfig(announcements=(announced,)))
            found.append(replace(score, false_lines=()))  # they are long, and cross to another process
        return found
    except (TocsinError, OSError) as error:
        return str(error)


def evaluate(
    folders: Sequence[Path],
    detector: str,
    candidates: Sequence[Numbers],
    mapper: Mapper,
    told: Told | None = None,
) -> list[Score]:
    """What candidates do on all recordings.

    Raises:
        RecordingError: a recording cannot be replayed.
    """
    payloads = tuple(write_numbers(candidate) for candidate in candidates)
    trials = [Trial(folder, detector, payloads) for folder in folders]
    by_folder = list(for_each(mapper, run_trial, trials, told))
    return [add_up([scores[index] for scores in by_folder])[0] for index in range(len(candidates))]
