"""What was changed about a running attempt that may explain what its machines show, for whoever acts on them."""

from __future__ import annotations

from typing import Final

from tocsin.pipeline.runtime.job_pipeline import JobPipeline
from tocsin.schemas.action_events import AttemptChange, AttemptChangeKind

_MOST_HOSTS: Final = 64
"""Of more machines than this one change of all machines is told."""


def changes_of_job(pipeline: JobPipeline) -> tuple[AttemptChange, ...]:
    """Return the last changes of an attempt: ranks that moved, by machine, and another model of its detectors."""
    moved, model_ns = pipeline.graph.placement.changed_ns, pipeline.models.changed_ns
    found = [AttemptChange(AttemptChangeKind.PLACES, at_ns, host) for host, at_ns in sorted(moved.items())]
    if len(found) > _MOST_HOSTS:
        found = [AttemptChange(AttemptChangeKind.PLACES, max(moved.values()))]
    if model_ns:
        found.append(AttemptChange(AttemptChangeKind.MODEL, model_ns))
    return tuple(found)
