"""Where the ranks of a recorded job ran, and in which communication groups."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from tocsin.pipeline.recording.limits import DEFAULT_LIMITS, ReadLimits, check_attempts, check_sizes
from tocsin.pipeline.recording.manifest import is_there, read_manifest
from tocsin.pipeline.recording.places import Places
from tocsin.pipeline.recording.reader import read_table
from tocsin.pipeline.recording.tables import TABLES, Recording
from tocsin.schemas.errors import RecordingError
from tocsin.schemas.records import CommGroup, RankPlace


@dataclass(frozen=True, slots=True)
class JobPlaces:
    """The last placement of a recorded job.

    Attributes:
        job_id: the job.
        attempt: the attempt whose placement it is.
        places: rank -> its place.
        groups: communication groups of that attempt, empty if none were recorded.
    """

    job_id: str
    attempt: int
    places: Mapping[int, RankPlace]
    groups: tuple[CommGroup, ...]


def read_job_places(folder: Path, limits: ReadLimits = DEFAULT_LIMITS) -> JobPlaces:
    """Read placement and groups of a recording's last attempt; other tables are not read.

    Raises:
        RecordingError: the recording is wrong, or has no topology.
    """
    manifest = read_manifest(folder, limits)
    files = [(folder / f"{name}.parquet", TABLES[name]) for name in ("topology", "groups")]
    there = [(path, spec) for path, spec in files if is_there(path)]
    check_sizes(there, limits, 0)
    recording = Recording(manifest, {spec.name: read_table(path, spec) for path, spec in there})
    check_attempts(recording.tables, limits)
    found = Places(recording)
    topologies = found.topologies()
    if not topologies:
        raise RecordingError(f"{folder.name}/topology.parquet", "is missing or empty: it says where ranks run")
    attempt = max(topology.job.attempt for topology in topologies)
    places = {
        place.rank: place for topology in topologies if topology.job.attempt == attempt for place in topology.places
    }
    groups = {group.comm_id: group for one in found.groups() if one.job.attempt == attempt for group in one.groups}
    return JobPlaces(manifest.job_id, attempt, places, tuple(groups.values()))
