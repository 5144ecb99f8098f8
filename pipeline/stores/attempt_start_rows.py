"""Starts of attempts as rows of the table ``startup``."""

from __future__ import annotations

from typing import Final

from tocsin.pipeline.stores.attempt_starts import UNTOLD, AttemptStart, StartStage
from tocsin.pipeline.stores.rows import Row, TimeNs
from tocsin.schemas.records import NS_PER_SECOND

_UNKNOWN: Final = -1.0
_WHOLE: Final = StartStage("", UNTOLD, 0, 0, 0, 0, 0, None, "", 0, 0, "", 0)


def attempt_start_rows(told: AttemptStart) -> list[Row]:
    """Return a start as rows of ``startup``: one for the whole of it, and one for each stage."""
    return [_row(told, _WHOLE, told.untold_gpu_ns), *(_row(told, one, one.own_gpu_ns) for one in told.stages)]


def _row(told: AttemptStart, stage: StartStage, own_gpu_ns: int) -> Row:
    """Return the row of one stage."""
    return {
        "cluster": told.job.cluster,
        "job_id": told.job.job_id,
        "attempt": told.job.attempt,
        "began": TimeNs(told.began_ns),
        "start_kind": stage.start_kind,
        "stage": stage.stage,
        "told": TimeNs(told.told_ns),
        "trained": TimeNs(told.train_ns),
        "over": TimeNs(told.over_ns),
        "is_failed": told.is_failed,
        "start_up_seconds": told.start_up_ns / NS_PER_SECOND,
        "hosts": told.host_count,
        "gpus": told.gpu_count,
        "stage_began": TimeNs(stage.begin_ns),
        "stage_ended": TimeNs(stage.end_ns),
        "stage_hosts": stage.host_count,
        "open_hosts": stage.open_count,
        "lost_hosts": stage.lost_count,
        "median_seconds": _UNKNOWN if stage.median_seconds is None else stage.median_seconds,
        "slowest_host": stage.slowest_host,
        "slowest_began": TimeNs(stage.slowest_begin_ns),
        "slowest_ended": TimeNs(stage.slowest_end_ns),
        "last_host": stage.last_host,
        "saved_gpu_seconds": stage.saved_gpu_ns / NS_PER_SECOND,
        "own_gpu_seconds": own_gpu_ns / NS_PER_SECOND,
        "waiting_gpu_seconds": stage.waiting_gpu_ns / NS_PER_SECOND,
        "cache_hit_ratio": _UNKNOWN if stage.cache_hit_ratio is None else stage.cache_hit_ratio,
    }
