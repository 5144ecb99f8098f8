"""``tocsin flink status``: collects and prints the state of the cluster and the job."""

from __future__ import annotations

import json
import time
from collections.abc import Sequence
from dataclasses import asdict
from operator import itemgetter
from typing import Any, Final

from tocsin.pipeline.runtime.flink.placement import slot_of
from tocsin.pipeline.runtime.flink.rest import FlinkRest

_COUNTERS: Final = ("records", "slices", "verdicts", "dead_letters", "snapshots", "snapshot_bytes", "jobs")
_MIBI: Final = 1 << 20
_FETCH_SECONDS: Final = 0.5
_LEAST_SECONDS: Final = 30.0
"""Smallest delay that is warned about; a restart takes as long."""
_MISSED_COUNT: Final = 6


def facts(rest: FlinkRest, name: str, training_jobs: Sequence[str] = ()) -> dict[str, Any]:
    """Return the state of cluster and job as a JSON object; ``job`` is None if there is none of this name."""
    found: dict[str, Any] = {"url": rest.url, "cluster": asdict(rest.overview()), "job": None, "others": []}
    for job in rest.jobs():
        if job.name != name:
            found["others"] += [] if job.is_over else [job.name]
        elif found["job"] is None or not job.is_over:
            found["job"] = {**asdict(job), "is_running": job.is_running}
    job = found["job"]
    if job is None:
        return found
    job_id = job["job_id"]
    shown = rest.options(job_id)
    job["options"] = json.loads(shown) if shown else {}
    slot_count = job["options"].get("slot_count", 1)
    job["slots"] = {one: slot_of(one, slot_count) for one in training_jobs}
    job["checkpoints"] = asdict(rest.checkpoints(job_id))
    job["failures"] = rest.failures(job_id)
    # Flink fetches its metrics when somebody asks for them, and answers before they are there
    rest.metric(job_id, "operators.currentOutputWatermark")
    time.sleep(_FETCH_SECONDS)
    job["counters"] = {name: rest.metric(job_id, f"operators.tocsin.{name}") for name in _COUNTERS}
    watermark_ms = rest.metric(job_id, "operators.currentOutputWatermark", "min")
    # before the first one Flink shows the smallest number that there is
    job["behind_seconds"] = time.time() - watermark_ms / 1000 if watermark_ms and watermark_ms > 0 else None
    return found


def describe(found: dict[str, Any]) -> list[str]:
    """Return the lines that show the state to humans."""
    cluster, job = found["cluster"], found["job"]
    slots = f"{cluster['free_slot_count']} of {cluster['slot_count']} slots are free"
    lines = [f"Flink {cluster['version']} at {found['url']}: {cluster['task_manager_count']} TaskManagers, {slots}"]
    if found["others"]:
        lines.append(f"  other jobs   {', '.join(found['others'])}")
    if job is None:
        return [*lines, "  no job of this name"]
    version = (job["options"].get("origin") or {}).get("version", "unknown")
    lines += [
        f"job {job['name']} ({job['job_id']}): {job['state']} for {job['age_seconds']:.0f} s, tocsin {version}",
        f"  parts        {job['running_tasks_count']} of {job['tasks_count']} run",
        f"  checkpoints  {_checkpoints(job['checkpoints'])}",
        f"  counters     {_counters(job['counters'])}",
    ]
    if job["behind_seconds"] is not None:
        lines.append(f"  event time   {job['behind_seconds']:.1f} s ago")
    lines += [f"  slot {slot}       {one}" for one, slot in sorted(job["slots"].items(), key=itemgetter(1, 0))]
    lines += [f"  failure      {text}" for text in job["failures"][:3]]
    lines += [f"  WARNING      {text}" for text in warnings_of(job)]
    return lines


def warnings_of(job: dict[str, Any]) -> list[str]:
    """Return warnings about a running job: all its tasks may run although nothing progresses."""
    if not job["is_running"]:
        return []
    found = []
    every_seconds = float(job["options"].get("checkpoint_seconds", 0.0))
    done = job["checkpoints"]
    since_seconds = done["last_age_seconds"] if done["last_path"] else job["age_seconds"]
    if every_seconds and since_seconds > max(_LEAST_SECONDS, _MISSED_COUNT * every_seconds):
        found.append(
            f"no checkpoint for {since_seconds:.0f} s, one is due each {every_seconds:g} s: a part does not answer"
        )
    if (job["behind_seconds"] or 0.0) > _LEAST_SECONDS:
        text = "it does not keep up, or a topic's partition has no ticks (is tocsin ticker running?)"
        found.append(f"event time is {job['behind_seconds']:.0f} s behind: {text}")
    return found


def _checkpoints(done: dict[str, Any]) -> str:
    """Return the text about the job's checkpoints."""
    text = f"{done['done_count']} done, {done['failed_count']} failed"
    if not done["last_path"]:
        return text
    size = f"{done['last_bytes'] / _MIBI:.1f} MiB in {done['last_seconds']:.2f} s"
    return f"{text}; last {done['last_age_seconds']:.0f} s ago, {size}: {done['last_path']}"


def _counters(values: dict[str, float | None]) -> str:
    """Return the text of the job's counters."""
    known = {name: value for name, value in values.items() if value is not None}
    return ", ".join(f"{value:.0f} {name}" for name, value in known.items()) or "none yet"
