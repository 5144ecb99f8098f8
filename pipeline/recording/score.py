"""Score verdicts against the truth: precision, recall, false accusations, causes, detection delays.

The rules are those of the recording format. A verdict is judged by its last update. A cancelled or degraded verdict, or
one without suspects, accuses nobody.
"""

from __future__ import annotations

import json
import statistics
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from tocsin.pipeline.recording.limits import DEFAULT_LIMITS, ReadLimits, check_sizes
from tocsin.pipeline.recording.manifest import read_manifest, read_truth
from tocsin.pipeline.recording.reader import read_table
from tocsin.pipeline.recording.replay import VERDICTS_FILE
from tocsin.pipeline.recording.tables import (
    HOST_METRICS_TABLE,
    TOPOLOGY,
    Column,
    Manifest,
    Recording,
    TableSpec,
    Text,
)
from tocsin.schemas.errors import RecordingError
from tocsin.schemas.records import NS_PER_SECOND

EARLY_NS = 2 * NS_PER_SECOND
"""Greatest lead of a verdict over the stated onset."""
AFTER_END_NS = 120 * NS_PER_SECOND
"""Greatest delay of a verdict after the fault's end."""
_DAY_SECONDS = 86_400


@dataclass(frozen=True, slots=True)
class FaultScore:
    """Detection result of one true fault.

    Attributes:
        kind: its kind in ``truth.json``; its cause if no kind is given.
        cause: its cause.
        delay_seconds: time from onset to the first update with its suspects, None = missed.
        cause_right: whether the matching verdict's last update names the cause, None = missed.
        verdict_id: id of the matching verdict, "" = missed.
    """

    kind: str
    cause: str
    delay_seconds: float | None
    cause_right: bool | None
    verdict_id: str = ""


@dataclass(frozen=True, slots=True)
class FolderScore:
    """Score of one recording.

    Attributes:
        faults: result of each true fault.
        false_count: number of accusations that match no fault.
        machine_days: number of hosts times duration.
        false_lines: last updates of the false accusations.
        ever_wrong: components that were ever accused without a fault, even if taken back (degraded ones do not count).
    """

    faults: tuple[FaultScore, ...]
    false_count: int
    machine_days: float
    false_lines: tuple[Mapping[str, Any], ...] = ()
    ever_wrong: frozenset[str] = frozenset()


@dataclass(slots=True)
class Score:
    """Score of several recordings together, or of one kind of fault."""

    hit_count: int = 0
    missed_count: int = 0
    false_count: int = 0
    ever_wrong_count: int = 0
    cause_right_count: int = 0
    machine_days: float = 0.0
    delays_seconds: list[float] = field(default_factory=list)

    def take(self, fault: FaultScore) -> None:
        """Add the result of one fault."""
        if fault.delay_seconds is None:
            self.missed_count += 1
            return
        self.hit_count += 1
        self.cause_right_count += bool(fault.cause_right)
        self.delays_seconds.append(fault.delay_seconds)

    @property
    def precision(self) -> float | None:
        """Fraction of the accusations that match a fault, None without accusations."""
        return _ratio(self.hit_count, self.hit_count + self.false_count)

    @property
    def recall(self) -> float | None:
        """Fraction of the faults that were found, None without faults."""
        return _ratio(self.hit_count, self.hit_count + self.missed_count)

    @property
    def f1(self) -> float | None:
        """Harmonic mean of precision and recall, None without faults and accusations."""
        return _ratio(2 * self.hit_count, 2 * self.hit_count + self.false_count + self.missed_count)

    @property
    def cause_accuracy(self) -> float | None:
        """Fraction of the found faults whose cause is right, None without found faults."""
        return _ratio(self.cause_right_count, self.hit_count)

    @property
    def false_per_machine_day(self) -> float | None:
        """False accusations per machine and day, None without machine-days."""
        return self.false_count / self.machine_days if self.machine_days else None

    @property
    def median_seconds(self) -> float | None:
        """Median time from onset to detection, None without found faults."""
        return statistics.median(self.delays_seconds) if self.delays_seconds else None

    @property
    def p90_seconds(self) -> float | None:
        """90th percentile of the time from onset to detection, None without found faults."""
        if not self.delays_seconds:
            return None
        ordered = sorted(self.delays_seconds)
        return ordered[-(-9 * len(ordered) // 10) - 1]

    def to_object(self) -> dict[str, Any]:
        """Return the score as a dict for ``--json``."""
        return {
            "faults": self.hit_count + self.missed_count,
            "hits": self.hit_count,
            "missed": self.missed_count,
            "false_accusations": self.false_count,
            "ever_named_wrongly": self.ever_wrong_count,
            "precision": self.precision,
            "recall": self.recall,
            "f1": self.f1,
            "false_accusations_per_machine_day": self.false_per_machine_day,
            "cause_accuracy": self.cause_accuracy,
            "median_seconds": self.median_seconds,
            "p90_seconds": self.p90_seconds,
        }


def _ratio(part: int, whole: int) -> float | None:
    """Return part / whole, None if whole is 0."""
    return part / whole if whole else None


def score_folder(folder: Path, limits: ReadLimits = DEFAULT_LIMITS) -> FolderScore:
    """Score ``verdicts.jsonl`` of a folder against its ``truth.json``.

    Args:
        folder: the recording.
        limits: limits on its size.

    Raises:
        RecordingError: one of the files is missing or invalid.
    """
    truth = read_truth(folder)
    if truth is None:
        raise RecordingError("truth.json", f"missing in {folder}: nothing to score against")
    manifest = read_manifest(folder, limits)
    machine_days = _days(manifest) * _host_count(folder, limits)
    return score_lines(read_lines(folder / VERDICTS_FILE), truth["faults"], machine_days)


@dataclass(frozen=True, slots=True)
class Extent:
    """Size of recordings, known without judging them.

    Attributes:
        fault_count: number of true faults.
        machine_days: number of hosts times duration.
    """

    fault_count: int
    machine_days: float


def extent_of(folders: Sequence[Path], limits: ReadLimits = DEFAULT_LIMITS) -> Extent:
    """Return the number of faults and machine-days of recordings, reading only host names, truths and manifests.

    Args:
        folders: the recordings.
        limits: limits on the size of each.

    Raises:
        RecordingError: a recording has no truth, or is invalid.
    """
    fault_count, machine_days = 0, 0.0
    for folder in folders:
        truth = read_truth(folder)
        if truth is None:
            raise RecordingError("truth.json", f"missing in {folder}: nothing to score against")
        fault_count += len(truth["faults"])
        machine_days += _days(read_manifest(folder, limits)) * _host_count(folder, limits)
    return Extent(fault_count, machine_days)


def machine_days_of(recording: Recording) -> float:
    """Return the number of hosts times duration, counted as ``score_folder`` does."""
    return _days(recording.manifest) * host_count_of(recording)


def host_count_of(recording: Recording) -> int:
    """Return the number of machines in a recording's topology, or else in its metrics; at least 1."""
    for name in ("topology", "host_metrics"):
        if name in recording.tables and (count := _different(recording.tables[name]["host"])):
            return count
    return 1


def _days(manifest: Manifest) -> float:
    """Return the length of a recording in days."""
    return (manifest.end_ns - manifest.start_ns) / NS_PER_SECOND / _DAY_SECONDS


def read_lines(path: Path) -> list[dict[str, Any]]:
    """Read the verdict updates in ``verdicts.jsonl``.

    Raises:
        RecordingError: the file is missing, or a line is not a verdict.
    """
    if not path.is_file():
        raise RecordingError(path.name, f"missing in {path.parent}: run 'tocsin replay' first")
    lines = []
    # Not splitlines: a host's name or an error text may hold what Python takes for the end of a line.
    for row, text in enumerate(path.read_bytes().split(b"\n")):
        if not text.strip():
            continue
        try:
            line = json.loads(text)
        except (ValueError, RecursionError) as error:
            raise RecordingError(path.name, f"no JSON: {error}", row=row) from error
        _check_line(path.name, row, line)
        lines.append(line)
    return lines


def _check_line(file: str, row: int, line: object) -> None:
    """Raise ``RecordingError`` if a parsed line is not a verdict update."""
    if not isinstance(line, dict):
        raise RecordingError(file, f"holds a {type(line).__name__}: must be an object", row=row)
    for key in ("id", "suspects", "detected_ns", "state", "fault"):
        if key not in line:
            raise RecordingError(file, "the required field is missing", column=key, row=row)
    if not isinstance(line["detected_ns"], int):
        raise RecordingError(file, f"{line['detected_ns']!r}: must be an integer", column="detected_ns", row=row)
    suspects = line["suspects"]
    if not isinstance(suspects, list) or not all(isinstance(s, dict) and "name" in s for s in suspects):
        text = f"{suspects!r}: must be a list of objects with a name"
        raise RecordingError(file, text, column="suspects", row=row)


def _host_count(folder: Path, limits: ReadLimits) -> int:
    """Return the number of machines in a folder as ``host_count_of`` does, reading only host names."""
    for name, spec in (("topology", TOPOLOGY), ("host_metrics", HOST_METRICS_TABLE)):
        path, names = folder / f"{name}.parquet", TableSpec(name, (spec.column("host"),))
        if not path.is_file():
            continue
        check_sizes([(path, names)], limits, 0)
        if count := _different(read_table(path, names)["host"]):
            return count
    return 1


def _different(hosts: Column) -> int:
    """Return the number of distinct hosts in a column."""
    return len(np.unique(hosts.codes)) if isinstance(hosts, Text) else 0


def score_lines(
    lines: Sequence[Mapping[str, Any]], faults: Sequence[Mapping[str, Any]], machine_days: float
) -> FolderScore:
    """Score the verdicts of one recording.

    Args:
        lines: all verdict updates, in order.
        faults: the true faults.
        machine_days: number of hosts times duration.
    """
    hits: dict[int, tuple[float, bool, str]] = {}
    false_lines = []
    for detected_ns, last in accusations_of(lines):
        may_hit = _may_hit(detected_ns, last, faults)
        if not may_hit:
            false_lines.append(last)
            continue
        new = [index for index in may_hit if index not in hits]
        if new:
            # Where it may be about two faults it is about the later one.
            index = max(new, key=lambda index: int(faults[index]["onset_ns"]))
            delay_seconds = (detected_ns - int(faults[index]["onset_ns"])) / NS_PER_SECOND
            hits[index] = (delay_seconds, last.get("cause") == faults[index].get("cause"), str(last["id"]))
    scores = []
    for index, fault in enumerate(faults):
        delay, right, verdict_id = hits.get(index, (None, None, ""))
        cause = str(fault.get("cause", ""))
        scores.append(FaultScore(str(fault.get("kind") or cause), cause, delay, right, verdict_id))
    return FolderScore(tuple(scores), len(false_lines), machine_days, tuple(false_lines), _ever_wrong(lines, faults))


def _ever_wrong(lines: Sequence[Mapping[str, Any]], faults: Sequence[Mapping[str, Any]]) -> frozenset[str]:
    """Return the components that were ever accused although no fault is theirs."""
    guilty = frozenset(name for fault in faults for name in _names(fault["suspects"]))
    named = (line for line in lines if line["fault"] != "degraded" and line["state"] != "cancelled")
    return frozenset(name for line in named for name in _names(line["suspects"])) - guilty


def accusations_of(lines: Sequence[Mapping[str, Any]]) -> list[tuple[int, Mapping[str, Any]]]:
    """Return the verdicts that accuse somebody, in order of time.

    Returns:
        For each verdict (when its final suspects were first named in ns, its last update).
    """
    found = [
        (_detected_ns(updates), updates[-1])
        for updates in _by_id(lines)
        if updates[-1]["state"] != "cancelled" and updates[-1]["fault"] != "degraded" and updates[-1]["suspects"]
    ]
    return sorted(found, key=lambda one: one[0])


def _by_id(lines: Sequence[Mapping[str, Any]]) -> list[list[Mapping[str, Any]]]:
    """Return the updates of each verdict as a list."""
    updates: dict[str, list[Mapping[str, Any]]] = {}
    for line in lines:
        updates.setdefault(str(line["id"]), []).append(line)
    return list(updates.values())


def _names(suspects: Sequence[Mapping[str, Any]]) -> frozenset[str]:
    """Return the names of suspects."""
    return frozenset(str(suspect["name"]) for suspect in suspects)


def _detected_ns(updates: Sequence[Mapping[str, Any]]) -> int:
    """Return when a verdict first named its final suspects, in ns."""
    names = _names(updates[-1]["suspects"])
    return int(next(line for line in updates if _names(line["suspects"]) == names)["detected_ns"])


def _may_hit(detected_ns: int, last: Mapping[str, Any], faults: Sequence[Mapping[str, Any]]) -> list[int]:
    """Return the indexes of the faults with the same suspects whose time span contains the detection."""
    names = _names(last["suspects"])
    return [
        index
        for index, fault in enumerate(faults)
        if names == _names(fault["suspects"])
        and fault["onset_ns"] - EARLY_NS <= detected_ns <= fault["end_ns"] + AFTER_END_NS
    ]


def add_up(scores: Sequence[FolderScore]) -> tuple[Score, dict[str, Score]]:
    """Return the total score of all recordings, and the scores by the fault's cause (its kind if it has no cause)."""
    total = Score()
    for score in scores:
        total.machine_days += score.machine_days
        total.false_count += score.false_count
        total.ever_wrong_count += len(score.ever_wrong)
        for fault in score.faults:
            total.take(fault)
    return total, _by(scores, lambda fault: fault.cause or fault.kind)


def by_kind(scores: Sequence[FolderScore]) -> dict[str, Score]:
    """Return the scores of all recordings by the fault's kind."""
    return _by(scores, lambda fault: fault.kind)


def _by(scores: Sequence[FolderScore], name_of: Callable[[FaultScore], str]) -> dict[str, Score]:
    """Return scores grouped by ``name_of`` of the fault, sorted by name."""
    found: dict[str, Score] = {}
    for score in scores:
        for fault in score.faults:
            found.setdefault(name_of(fault), Score()).take(fault)
    return dict(sorted(found.items()))
