"""Names of the parts of an engine's snapshot, and which job each belongs to."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from urllib.parse import quote, unquote

from tocsin.pipeline.runtime.job_pipeline import OWN_PART, JobPipeline
from tocsin.schemas.records import JobKey


def prefix_of(job: JobKey) -> str:
    """Return the prefix of the names of a job's snapshot parts."""
    return f"pipeline/{quote(job.cluster, safe='')}/{quote(job.job_id, safe='')}/{job.attempt}/"


def of_prefix(names: Collection[str], prefix: str) -> frozenset[str]:
    """Return the names that start with a prefix, without the prefix."""
    return frozenset(name.removeprefix(prefix) for name in names if name.startswith(prefix))


def snapshot_of(pipelines: Mapping[JobKey, JobPipeline], known: Collection[str]) -> dict[str, bytes]:
    """Return the snapshot parts of all jobs; immutable parts named in ``known`` are given as ``UNCHANGED``."""
    parts = {}
    for job, pipeline in pipelines.items():
        prefix = prefix_of(job)
        own = pipeline.snapshot(of_prefix(known, prefix))
        parts.update({f"{prefix}{name}": data for name, data in own.items()})
    return parts


def finished_of(pipelines: Mapping[JobKey, JobPipeline], known: Collection[str]) -> dict[str, bytes]:
    """Return the parts of the next snapshot that can no longer change, except those named in ``known``.

    Jobs that no snapshot contains yet are left out, because a restart would find only some of their parts.
    """
    found = {}
    for job, pipeline in pipelines.items():
        prefix = prefix_of(job)
        if f"{prefix}{OWN_PART}" not in known:
            continue  # no snapshot has this attempt: a restart would find some of its parts, and not the rest
        more = pipeline.finished_parts(of_prefix(known, prefix))
        found.update({f"{prefix}{name}": data for name, data in more.items()})
    return found


def parts_by_job(parts: Mapping[str, bytes]) -> dict[JobKey, dict[str, bytes]]:
    """Return job -> its snapshot parts, by their names within the job."""
    groups: dict[JobKey, dict[str, bytes]] = {}
    for name, data in parts.items():
        if name.startswith("pipeline/"):
            job_text, _, part = name.removeprefix("pipeline/").rpartition("/")
            cluster_job, _, attempt = job_text.rpartition("/")
            cluster, _, job_id = cluster_job.partition("/")
            key = JobKey(unquote(cluster), unquote(job_id), int(attempt))
            groups.setdefault(key, {})[part] = data
    return groups
