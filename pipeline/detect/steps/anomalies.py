"""The anomaly that the step detector emits for a candidate."""

from __future__ import annotations

from tocsin.pipeline.detect.steps.candidates import JOB, MORE, Candidate, Turns
from tocsin.schemas.records import Slice
from tocsin.schemas.verdicts import Anomaly, Component, ComponentKind

DETECTOR = "steps"


def anomaly_of(data: Slice, name: str, candidate: Candidate, turns: Turns, model_version: str) -> Anomaly:
    """Return the anomaly of a candidate that has lasted long enough.

    Args:
        data: the slice.
        name: name of the candidate: a host, or the whole job.
        candidate: the candidate.
        turns: other hosts' turns of slowness that led to it; if any, none of them is at fault, and the job is told.
        model_version: version of the model, "" = none.
    """
    is_job = name in (JOB, MORE)
    if is_job or turns.hosts:
        component = Component(ComponentKind.JOB, data.job.job_id)
    else:
        component = Component(ComponentKind.HOST, name)
    return Anomaly(
        job=data.job,
        slice_end_ns=data.end_ns,
        component=component,
        metric="step_seconds" if is_job else "rotating_seconds" if turns.hosts else "own_seconds",
        start_ns=candidate.since_ns,
        end_ns=candidate.last_ns,
        score=candidate.score,
        detector=DETECTOR,
        model_version=model_version,
        detail={
            **candidate.detail,
            "from_start": candidate.from_start,
            "before": list(turns.hosts),
            "passed_on": list(turns.passed_on),
        },
    )
