"""The starts of a recording: marks of stages, GPUs of hosts, and when each attempt began to train."""

from __future__ import annotations

from collections.abc import Container, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

import numpy as np
from numpy.typing import NDArray

from tocsin.models.startup.marks import marks_of
from tocsin.pipeline.recording.attempt_hosts import gpu_counts
from tocsin.pipeline.recording.limits import DEFAULT_LIMITS, ReadLimits
from tocsin.pipeline.recording.places import Places
from tocsin.pipeline.recording.reader import json_payload, read_recording
from tocsin.pipeline.recording.tables import Columns, Recording, Text
from tocsin.schemas import events
from tocsin.schemas.errors import RecordingError
from tocsin.schemas.kinds import EventSource, Severity
from tocsin.schemas.records import NS_PER_SECOND, Event
from tocsin.schemas.startup import StageMark

_FILE = "events.parquet"


@dataclass(frozen=True, slots=True)
class RecordedStarts:
    """What a recording tells of its starts.

    Attributes:
        job_id: the job.
        marks: begins and ends of stages, of all attempts.
        gpu_counts: attempt -> host -> number of its ranks in the topology, which is the number of its GPUs.
        train_ns: attempt -> begin of its first step; attempts without a step are no keys.
        end_ns: end of the recording.
        outsiders: attempt -> hosts with marks that carry no rank of it; these marks are left out. None where no host
            with marks carries one, as names differ then, or there is no topology.
    """

    job_id: str
    marks: tuple[StageMark, ...]
    gpu_counts: Mapping[int, Mapping[str, int]]
    train_ns: Mapping[int, int]
    end_ns: int
    outsiders: Mapping[int, tuple[str, ...]]


def read_starts(folder: Path, limits: ReadLimits = DEFAULT_LIMITS) -> RecordedStarts:
    """Read the starts of a recording.

    Raises:
        RecordingError: the recording is wrong, a ``stage`` event lacks its stage or edge, or there is no such event.
    """
    recording = read_recording(folder, limits)
    places = Places(recording)
    tables = recording.tables
    marks = _marks(tables["events"], places, has_topology="topology" in tables) if "events" in tables else []
    if not marks:
        raise RecordingError(f"{folder.name}/{_FILE}", "has no stage event")
    begins: dict[int, int] = {}
    for mark in marks:
        begins[mark.attempt] = min(begins.get(mark.attempt, mark.ts_ns), mark.ts_ns)
    manifest, gpus = recording.manifest, gpu_counts(recording, places, begins)
    outsiders = {attempt: _outsiders(marks, attempt, gpus[attempt]) for attempt in begins}
    inside = tuple(mark for mark in marks if mark.node not in outsiders[mark.attempt])
    return RecordedStarts(manifest.job_id, inside, gpus, _train_ns(recording, places), manifest.end_ns, outsiders)


def _outsiders(marks: Sequence[StageMark], attempt: int, carriers: Container[str]) -> tuple[str, ...]:
    """Return the hosts with marks of an attempt that are no carriers of its ranks; none if all are."""
    nodes = {mark.node for mark in marks if mark.attempt == attempt}
    found = tuple(sorted(node for node in nodes if node not in carriers))
    return found if len(found) < len(nodes) else ()


def _marks(columns: Columns, places: Places, *, has_topology: bool) -> list[StageMark]:
    """Return the marks of the ``stage`` events; the host of a rank is known only with a topology."""
    names, hosts = cast(Text, columns["name"]), cast(Text, columns["host"])
    times, ranks = (cast(NDArray[Any], columns[name]) for name in ("ts_ns", "rank"))
    attempts, payload = columns.get("attempt"), columns.get("payload")
    found = []
    for row in np.flatnonzero(np.isin(names.codes, [names.words.index(events.STAGE)] if _has_stage(names) else [])):
        ts_ns, rank = int(times[row]), int(ranks[row])
        attempt = None if attempts is None else int(cast(NDArray[Any], attempts)[row])
        body = json_payload(_FILE, int(row), payload[row]) if isinstance(payload, Text) else {}
        host = hosts[row] or (places.host_of(rank, ts_ns) if has_topology else "")
        job = places.job_at(ts_ns, attempt)
        event = Event(job, host, ts_ns, max(-1, rank), EventSource.STARTUP, events.STAGE, Severity.INFO, body)
        marks = marks_of(event)
        if not marks:
            text = f"{body!r:.200}: must have a stage, and an edge that is begin or end"
            raise RecordingError(_FILE, text, column="payload", row=int(row))
        found += marks
    return found


def _has_stage(names: Text) -> bool:
    """Return whether a table of events has ``stage`` events."""
    return events.STAGE in names.words


def _train_ns(recording: Recording, places: Places) -> dict[int, int]:
    """Return attempt -> begin of its first step."""
    steps = recording.tables.get("steps")
    if steps is None:
        return {}
    ts_ns, seconds = (cast(NDArray[Any], steps[name]) for name in ("ts_ns", "duration_seconds"))
    begins = ts_ns - (np.nan_to_num(seconds) * NS_PER_SECOND).astype(np.int64)
    if "attempt" in steps:
        attempts = cast(NDArray[Any], steps["attempt"])
    else:
        attempts = np.array([places.job_at(int(time), None).attempt for time in ts_ns.tolist()], np.int64)
    return {int(attempt): int(begins[attempts == attempt].min()) for attempt in np.unique(attempts) if attempt >= 0}
