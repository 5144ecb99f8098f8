"""Recordings for training, and a summary of what they hold."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

import numpy as np
from numpy.typing import NDArray

from tocsin.pipeline.lab.parallel import Executor
from tocsin.pipeline.lab.registry import fingerprint_of
from tocsin.pipeline.recording.import_warnings import notes_of
from tocsin.pipeline.recording.ops import read_with_ops
from tocsin.pipeline.recording.score import machine_days_of
from tocsin.pipeline.recording.tables import Recording
from tocsin.pipeline.recording.under import recordings_under
from tocsin.schemas.errors import RecordingError, TocsinError
from tocsin.schemas.metrics import BUILTIN_TABLE

_MANIFEST = "manifest.json"


@dataclass(frozen=True, slots=True)
class RecordingSummary:
    """Contents of one recording, before anything is learned from it.

    Attributes:
        folder: folder of the recording.
        machine_days: number of hosts times days.
        fault_count: number of faults in ``truth.json``, None without that file.
        tables: names of the tables with rows.
        metrics: built-in metrics with at least one sample.
        notes: what was skipped, one sentence each.
        error: why it cannot be used, "" if it can.
    """

    folder: Path
    machine_days: float = 0.0
    fault_count: int | None = None
    tables: frozenset[str] = frozenset()
    metrics: frozenset[str] = frozenset()
    notes: tuple[str, ...] = ()
    error: str = ""


@dataclass(frozen=True, slots=True)
class TrainingSet:
    """All recordings of one training.

    Attributes:
        members: summary of each recording.
        source: what the user named: paths, or a range of Kafka.
    """

    members: tuple[RecordingSummary, ...]
    source: tuple[str, ...]

    @property
    def folders(self) -> list[Path]:
        """Folders of the recordings."""
        return [one.folder for one in self.members]

    @property
    def labelled(self) -> list[Path]:
        """Folders of the recordings with a truth."""
        return [one.folder for one in self.members if one.fault_count is not None]

    @property
    def machine_days(self) -> float:
        """Machine-days of all recordings."""
        return sum(one.machine_days for one in self.members)

    @property
    def fault_count(self) -> int:
        """Number of faults in all recordings with a truth."""
        return sum(one.fault_count or 0 for one in self.members)

    def described(self) -> dict[str, Any]:
        """Return the description of the training data for a model's card."""
        return {
            "fingerprint": fingerprint_of(self.folders),
            "recordings": len(self.members),
            "machine_days": round(self.machine_days, 6),
            "faults": self.fault_count,
            "source": list(self.source),
        }


def look_at(folder: Path) -> RecordingSummary:
    """Read one recording and return its summary; one that cannot be used has an ``error``."""
    try:
        recording = read_with_ops(folder)
        if recording.manifest.end_ns == recording.manifest.start_ns:
            text = f"{recording.manifest.end_ns}: the same as start_ns, there is nothing to learn from"
            raise RecordingError(_MANIFEST, text, column="end_ns")
        return RecordingSummary(
            folder,
            machine_days_of(recording),
            None if recording.truth is None else len(recording.truth["faults"]),
            frozenset(name for name, columns in recording.tables.items() if _row_count(columns)),
            _sampled(recording),
            notes_of(recording),
        )
    except (TocsinError, OSError) as error:
        return RecordingSummary(folder, error=str(error))


def look_at_all(paths: Sequence[Path], executor: Executor, source: Sequence[str] = ()) -> TrainingSet:
    """Return the training set of all recordings below these paths.

    Args:
        paths: folders of recordings, or folders that contain such.
        executor: distributes the work to processes.
        source: description of the source; empty: the paths.

    Raises:
        RecordingError: a path has no recording, or one cannot be used; names folder, file, column and row.
    """
    folders = recordings_under(paths)
    members = tuple(executor(look_at, folders))
    for one in members:
        if one.error:
            raise RecordingError(str(one.folder), one.error)
    return TrainingSet(members, tuple(source) or tuple(str(path) for path in paths))


def _sampled(recording: Recording) -> frozenset[str]:
    """Return the built-in metrics with at least one sample."""
    columns = recording.tables.get("host_metrics", {})
    names = [metric.name for metric in (*BUILTIN_TABLE.host, *BUILTIN_TABLE.gpu) if metric.name in columns]
    return frozenset(name for name in names if np.isfinite(cast("NDArray[np.float32]", columns[name])).any())


def _row_count(columns: Any) -> int:
    """Return the number of rows of a table."""
    return len(next(iter(columns.values()), ()))
