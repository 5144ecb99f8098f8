"""What training looks at: recordings, and what they hold."""

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
    """One recording, before anything is learned of it.

    Attributes:
        folder: where it lies.
        machine_days: hosts times duration.
        fault_count: of ``truth.json``, None: it has none.
        tables: those with rows.
        metrics: built-in metrics with at least one sample.
        notes: what was passed over, a sentence each.
        error: why it cannot be used, "" = it can.
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
        members: each of them.
        source: what was named: paths, or a range of Kafka.
    """

    members: tuple[RecordingSummary, ...]
    source: tuple[str, ...]

    @property
    def folders(self) -> list[Path]:
        """Where they lie."""
        return [one.folder for one in self.members]

    @property
    def labelled(self) -> list[Path]:
        """Those whose truth is known."""
        return [one.folder for one in self.members if one.fault_count is not None]

    @property
    def machine_days(self) -> float:
        """Of all."""
        return sum(one.machine_days for one in self.members)

    @property
    def fault_count(self) -> int:
        """Of all whose truth is known."""
        return sum(one.fault_count or 0 for one in self.members)

    def described(self) -> dict[str, Any]:
        """For a model's card."""
        return {
            "fingerprint": fingerprint_of(self.folders),
            "recordings": len(self.members),
            "machine_days": round(self.machine_days, 6),
            "faults": self.fault_count,
            "source": list(self.source),
        }


def look_at(folder: Path) -> RecordingSummary:
    """Read one recording and say what it holds; one that cannot be used says why."""
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


def look_at_all(paths: Sequence[Path], mapper: Executor, source: Sequence[str] = ()) -> TrainingSet:
    """Look at all recordings that paths name.

    Raises:
        RecordingError: a path holds none, or one of them cannot be used: names folder, file, column and row.
    """
    folders = recordings_under(paths)
    members = tuple(mapper(look_at, folders))
    for one in members:
        if one.error:
            raise RecordingError(str(one.folder), one.error)
    return TrainingSet(members, tuple(source) or tuple(str(path) for path in paths))


def _sampled(recording: Recording) -> frozenset[str]:
    columns = recording.tables.get("host_metrics", {})
    names = [metric.name for metric in (*BUILTIN_TABLE.host, *BUILTIN_TABLE.gpu) if metric.name in columns]
    return frozenset(name for name in names if np.isfinite(cast("NDArray[np.float32]", columns[name])).any())


def _row_count(columns: Any) -> int:
    return len(next(iter(columns.values()), ()))
