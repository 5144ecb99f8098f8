"""Two models on the same recordings: the figures that a promotion stands on.

What running engines use is replayed by the engine itself, beside the current models of the other detectors:
so the figures are those of what will run. What judges recordings only is run over them.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Final

from tocsin.models.documents import FORMATS, accept
from tocsin.models.entropy_file import decode_entropy
from tocsin.models.minder_file import decode_minder
from tocsin.pipeline.backtest.minder_runner import MinderRunner, published
from tocsin.pipeline.backtest.runner import Answer, lines_of
from tocsin.pipeline.recording.reader import read_recording
from tocsin.pipeline.recording.replay import ReplayConfig
from tocsin.pipeline.recording.score import FolderScore, machine_days_of, score_lines
from tocsin.pipeline.recording.tables import Recording
from tocsin.pipeline.registry.card import ModelCard
from tocsin.pipeline.registry.comparison import Comparison, compare
from tocsin.pipeline.registry.registry import Registry
from tocsin.pipeline.training.entropy import answers_of
from tocsin.pipeline.training.mapping import Mapper, Told, for_each
from tocsin.pipeline.training.replays import announced_from_start, score_recording
from tocsin.schemas.errors import ConfigError, RecordingError, TocsinError
from tocsin.schemas.model_announcement import ModelAnnouncement


@dataclass(frozen=True, slots=True)
class Entry:
    """A model and its bytes.

    Attributes:
        card: what it is.
        payload: its bytes, those of the card.
    """

    card: ModelCard
    payload: bytes


@dataclass(frozen=True, slots=True)
class Heat:
    """One recording and who judges it; crosses to a worker process.

    Attributes:
        folder: the recording.
        entries: models of one detector, each judges it once.
        beside: models of other detectors that running engines have too.
    """

    folder: Path
    entries: tuple[Entry, ...]
    beside: tuple[Entry, ...] = ()


def entry_of(registry: Registry, detector: str, version: str) -> Entry:
    """A model of the registry.

    Raises:
        RegistryError: it is not there, or damaged.
    """
    return Entry(registry.card(detector, version), registry.payload(detector, version))


def validate(
    registry: Registry, new: Entry, folders: Sequence[Path], mapper: Mapper, told: Told | None = None
) -> Comparison:
    """Judge recordings with the current model and with a new one, and compare.

    Args:
        registry: knows the current models.
        new: the model that may become the current one.
        folders: recordings, each with its truth.
        mapper: shares the recordings out.
        told: progress.

    Raises:
        ConfigError: nobody here can run such a model.
        RecordingError: a recording cannot be read, or has no truth.
        RegistryError: a current model cannot be read.
    """
    detector = new.card.detector
    if detector not in FORMATS and detector not in _ANSWERS:
        must = f"one of {' '.join(sorted((*FORMATS, *_ANSWERS)))}: nothing here runs its models"
        raise ConfigError("DETECTOR", detector, must)
    used = registry.in_use(detector)
    current = () if used is None else (entry_of(registry, detector, used.version),)
    others = (registry.in_use(name) for name in sorted(FORMATS) if name != detector and detector in FORMATS)
    beside = tuple(entry_of(registry, one.detector, one.version) for one in others if one is not None)
    heats = [Heat(folder, (*current, new), beside) for folder in folders]
    scores = list(for_each(mapper, judge_one, heats, told))
    return compare([one[0] for one in scores] if current else None, [one[-1] for one in scores])


def judge_one(heat: Heat) -> list[FolderScore] | str:
    """Judge one recording with each model; a text says why it cannot be."""
    try:
        recording = read_recording(heat.folder)
        # The lines of false accusations are long, and would cross to another process.
        return [replace(_judge(heat, recording, entry), false_lines=()) for entry in heat.entries]
    except (TocsinError, OSError) as error:
        return str(error)


def _judge(heat: Heat, recording: Recording, entry: Entry) -> FolderScore:
    if entry.card.detector in _ANSWERS:
        if recording.truth is None:
            raise RecordingError("truth.json", f"missing in {heat.folder}: nothing to score against")
        answers = _ANSWERS[entry.card.detector](recording, entry.payload)
        return score_lines(lines_of(answers), recording.truth["faults"], machine_days_of(recording))
    announced = tuple(_announced(one, recording) for one in (*heat.beside, entry) if not one.card.is_own)
    return score_recording(heat.folder, recording, ReplayConfig(announcements=announced))


def _announced(entry: Entry, recording: Recording) -> ModelAnnouncement:
    card = entry.card
    found = announced_from_start(card.detector, entry.payload, recording.manifest.start_ns, card.version)
    found = replace(found, format=card.format)
    accept(found)  # a replay goes on without a model that is refused: the figures would be another one's
    return found


def _minder_answers(recording: Recording, payload: bytes) -> list[Answer]:
    return MinderRunner(decode_minder(payload), published("vae")).run(recording)


def _entropy_answers(recording: Recording, payload: bytes) -> list[Answer]:
    return answers_of(recording, decode_entropy(payload))


_ANSWERS: Final[Mapping[str, Callable[[Recording, bytes], list[Answer]]]] = {
    "minder": _minder_answers,
    "entropy": _entropy_answers,
}
