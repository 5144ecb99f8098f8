"""The starts that ``tocsin startup`` reads: from MLPerf's logs, or from a recording."""

from __future__ import annotations

import gzip
import zlib
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Final

from tocsin.models.startup.clocks import ClockShift, clock_shifts, put_back, stamps_of_tables
from tocsin.models.startup.cost import waste_gpu_seconds
from tocsin.models.startup.durations import NS, StageTable, stage_tables
from tocsin.models.startup.mllog_stages import LoggedStart, NamedStamp, StampGroup, logged_start, runs_of
from tocsin.pipeline.recording.limits import ReadLimits
from tocsin.pipeline.recording.stage_marks import RecordedStarts, read_starts
from tocsin.schemas.errors import RecordingError
from tocsin.schemas.formats.mllog import MARKER, Skipped, Stamp, stamps_of
from tocsin.schemas.verdicts import ComponentKind

_GZIP: Final = b"\x1f\x8b"
_MOST_CHARACTERS: Final = 1 << 20


@dataclass(frozen=True, slots=True)
class Start:
    """One start of a job.

    Attributes:
        name: file or attempt.
        what: the benchmark or the job, "" if unknown.
        kind: what the nodes of its stages are: ``host``, ``rank`` or ``file``.
        first_ns: the first mark.
        train_ns: begin of training, None if it did not begin.
        now_ns: until when it is known.
        tables: its stages.
        told: the same stages as the stamps tell them, before those of shifted nodes are put back.
        told_now_ns: until when those are known.
        groups: stamps without names.
        gpu_counts: node -> number of GPUs; a node that is no key counts as 1.
        process_count: number of processes, or of GPUs, as far as known.
        waste_gpu_seconds: GPU time until training began, or until now.
        skipped: file -> what was left out of it.
        shifts: nodes whose clock differs from their peers'; their stamps are put back.
        outsiders: hosts that tell stages and carry no rank of the attempt; they are left out.
    """

    name: str
    what: str
    kind: str
    first_ns: int
    train_ns: int | None
    now_ns: int
    tables: tuple[StageTable, ...]
    told: tuple[StageTable, ...]
    told_now_ns: int
    groups: tuple[StampGroup, ...]
    gpu_counts: Mapping[str, int]
    process_count: int
    waste_gpu_seconds: float
    skipped: Mapping[str, Skipped]
    shifts: tuple[ClockShift, ...] = ()
    outsiders: tuple[str, ...] = ()

    @property
    def seconds(self) -> float:
        """Time from the first mark to training, or until now."""
        return (max(self.train_ns or self.now_ns, self.first_ns) - self.first_ns) / NS


@dataclass(frozen=True, slots=True)
class _Log:
    """One file of a log."""

    name: str
    stamps: tuple[Stamp, ...]
    skipped: Skipped

    @property
    def span(self) -> tuple[int, int]:
        """Times of its first and last entry."""
        times = [stamp.ts_ns for stamp in self.stamps]
        return min(times), max(times)


def starts_of_logs(paths: Sequence[Path]) -> list[Start]:
    """Return the starts in MLPerf's logs, in the order of time; files whose times overlap belong to one start.

    Raises:
        RecordingError: a file cannot be read, has no entry, or the files of a start show no stage.
    """
    logs = sorted((log for path in paths for log in _read(path)), key=lambda log: (log.span, log.name))
    runs: list[list[_Log]] = []
    for log in logs:
        if runs and log.span[0] <= max(one.span[1] for one in runs[-1]):
            runs[-1].append(log)
        else:
            runs.append([log])
    return [_start_of_logs(run) for run in runs]


@contextmanager
def log_lines(path: Path) -> Iterator[Iterator[str]]:
    """Open a log, also one compressed by gzip, for reading its lines.

    Raises:
        RecordingError: the file cannot be read, or its compressed data is wrong.
    """
    try:
        with path.open("rb") as file:
            is_packed = file.read(len(_GZIP)) == _GZIP
        with (gzip.open if is_packed else open)(path, "rt", encoding="utf-8", errors="replace") as lines:
            yield _pieces(lines)
    except (EOFError, zlib.error) as error:
        raise RecordingError(str(path), f"is no whole gzip file ({error})") from error
    except OSError as error:
        raise RecordingError(str(path), f"cannot be read ({error.strerror or error})") from error


def _pieces(lines: IO[str]) -> Iterator[str]:
    """Yield lines; one without end comes in pieces, so that it does not fill the memory."""
    while line := lines.readline(_MOST_CHARACTERS):
        yield line


def has_entry(path: Path) -> bool:
    """Return whether a log has an entry of MLPerf's log.

    Raises:
        RecordingError: the file cannot be read.
    """
    with log_lines(path) as lines:
        return any(MARKER in line for line in lines)


def _read(path: Path) -> list[_Log]:
    """Return the entries of one file, those of each run apart."""
    skipped = Skipped()
    with log_lines(path) as lines:
        stamps = tuple(stamps_of(lines, skipped))
    if not stamps:
        places = ", ".join(
            f"line {skipped.first_lines[reason]}: {reason} ({count} in all)" for reason, count in skipped.counts.items()
        )
        raise RecordingError(str(path), f"has no entry of MLPerf's log, a line with :::MLLOG ({places or 'empty'})")
    runs = runs_of(stamps)
    if len(runs) == 1:
        return [_Log(path.name, stamps, skipped)]
    return [_Log(f"{path.name} run {at}", run, skipped if at == 1 else Skipped()) for at, run in enumerate(runs, 1)]


def _start_of_logs(run: Sequence[_Log]) -> Start:
    """Return the start in the files of one run."""
    stamps = [NamedStamp(stamp, log.name if len(run) > 1 else stamp.process) for log in run for stamp in log.stamps]
    found: LoggedStart | None = logged_start(stamps)
    name = ", ".join(log.name for log in run)
    if found is None:
        raise RecordingError(name, "shows no start-up stage (no init_start, init_stop or run_start)")
    until_ns = found.last_ns if found.train_ns is None else found.train_ns
    count = found.process_count
    return Start(
        name,
        found.benchmark,
        "file" if len(run) > 1 else ComponentKind.RANK,
        found.first_ns,
        found.train_ns,
        found.last_ns,
        found.tables,
        found.told,
        max(stamp.ts_ns for log in run for stamp in log.stamps),
        found.groups,
        {},
        count,
        count * (until_ns - found.first_ns) / NS,
        {log.name: log.skipped for log in run if log.skipped.counts},
        found.shifts,
    )


def starts_of_recording(folder: Path, limits: ReadLimits) -> list[Start]:
    """Return the starts of a recording, one for each attempt with a stage.

    Raises:
        RecordingError: the recording is wrong, or has no ``stage`` event.
    """
    read = read_starts(folder, limits)
    attempts = dict.fromkeys(table.attempt for table in stage_tables(read.marks))
    return [_start_of_attempt(read, at) for at in attempts]


def _start_of_attempt(read: RecordedStarts, attempt: int) -> Start:
    """Return the start of one attempt, on one clock."""
    told = [mark for mark in read.marks if mark.attempt == attempt]
    told_tables = tuple(stage_tables(told))
    shifts = tuple(clock_shifts(stamps_of_tables(told_tables)))
    marks = put_back(told, shifts)
    tables = tuple(stage_tables(marks))
    allocated: dict[str, int] = {}
    for mark in marks:
        allocated[mark.node] = min(allocated.get(mark.node, mark.ts_ns), mark.ts_ns)
    counts = read.gpu_counts[attempt]
    gpus = {node: counts.get(node, 1) for node in allocated}
    later = [mark.ts_ns for mark in read.marks if mark.attempt > attempt]
    ahead_ns = max((one.shift_ns for one in shifts), default=0)
    # The end of the recording may be told by a clock that is ahead; no stage lasts until then for it.
    end_ns = min(read.end_ns, max(read.end_ns - max(ahead_ns, 0), *(mark.ts_ns for mark in marks)))
    now_ns = min([end_ns, *later])
    train_ns = read.train_ns.get(attempt)
    return Start(
        f"attempt {attempt}",
        read.job_id,
        _kind(tables),
        min(allocated.values()),
        train_ns,
        now_ns,
        tables,
        told_tables,
        min([read.end_ns, *later]),
        (),
        gpus,
        sum(gpus.values()),
        waste_gpu_seconds(gpus, allocated, now_ns if train_ns is None else train_ns),
        {},
        shifts,
        read.outsiders[attempt],
    )


def _kind(tables: Sequence[StageTable]) -> str:
    """Return what the nodes are: ranks if all their names are numbers."""
    names = [span.node for table in tables for span in table.spans]
    return ComponentKind.RANK if all(name.isdigit() for name in names) else ComponentKind.HOST
