"""Accounts of attempts as rows of the table ``ettr``."""

from __future__ import annotations

from tocsin.pipeline.stores.attempt_times import AttemptTime, TimePart
from tocsin.pipeline.stores.rows import Row, TimeNs
from tocsin.schemas.records import NS_PER_SECOND


def attempt_time_row(told: AttemptTime) -> Row:
    """Return an attempt's account as a row of ``ettr``."""
    parts = {f"{part.value}_seconds": told.parts_ns.get(part, 0) / NS_PER_SECOND for part in TimePart}
    return {
        "cluster": told.job.cluster,
        "job_id": told.job.job_id,
        "attempt": told.job.attempt,
        "began": TimeNs(told.began_ns),
        "until": TimeNs(told.until_ns),
        "told": TimeNs(told.told_ns),
        "is_over": told.is_over,
        "wall_seconds": told.wall_ns / NS_PER_SECOND,
        **parts,
        "unattributed_seconds": told.unattributed_ns / NS_PER_SECOND,
        "ettr_ratio": told.ettr_ratio,
        "steps": told.steps_count,
        "recomputed_steps": told.recomputed_steps_count,
        "last_step": told.last_step,
        "gpus": told.gpu_count,
    }
