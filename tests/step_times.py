"""Real step times (``shared/data/step_times``) as arrays."""

from __future__ import annotations

import csv
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from tocsin.schemas.records import NS_PER_SECOND, JobKey, RankPlace, Slice, StepBatch, StepRecord, Topology

FloatArray = NDArray[np.float64]


def batch_seconds(shared_data: Path) -> FloatArray:
    """job_2: shape (samples, 10 workers), NaN = no sample; nobody of them is to blame.

    The file's times are normalised; 1000 is taken for a second, so that the job steps about once a second.
    """
    with (shared_data / "step_times" / "job_2_norm.csv").open(encoding="utf-8") as file:
        rows = [(int(row["time"]), int(row["worker"]), float(row["batch_time_norm"])) for row in csv.DictReader(file)]
    times = sorted({time for time, _, _ in rows})
    found = np.full((len(times), 10), np.nan)
    for time, worker, value in rows:
        found[times.index(time), worker] = value / 1000
    return found


def whole_samples(seconds: FloatArray) -> FloatArray:
    """Only samples of all workers: at its end the job's workers are sampled one by one."""
    whole: FloatArray = seconds[np.isfinite(seconds).all(axis=1)]
    return whole


JOB = JobKey("alibaba", "job_2")
T0 = 1_700_000_000 * NS_PER_SECOND


def worker_name(worker: int) -> str:
    """A worker is a host of its own."""
    return f"w{worker}"


def slices_of(own_seconds: FloatArray, *, waits: bool = True) -> list[Slice]:
    """The samples as steps of a synchronous job, back to back, in slices of a second.

    Args:
        own_seconds: what a worker computes in a step, shape (steps, workers), NaN = tells nothing.
        waits: with the time that it waits for the slowest; False: only each worker's own duration is told.
    """
    steps: list[tuple[int, StepBatch]] = []
    now_ns = T0
    for step, own in enumerate(own_seconds):
        lasted = float(np.nanmax(own)) + 0.02
        now_ns += int(lasted * NS_PER_SECOND)
        for worker in np.flatnonzero(np.isfinite(own)).tolist():
            mine = float(own[worker])
            row = StepRecord(now_ns, worker, step, lasted if waits else mine)
            row = row._replace(communication_seconds=lasted - mine) if waits else row
            steps.append((now_ns, StepBatch(JOB, worker_name(worker), now_ns, (row,))))
    places = [
        Topology(JOB, worker_name(w), T0, (RankPlace(w, worker_name(w), pp=0),)) for w in range(own_seconds.shape[1])
    ]
    made, at = [Slice(JOB, T0 - NS_PER_SECOND, T0, tuple(places))], 0
    for end_ns in range(T0 + NS_PER_SECOND, now_ns + 2 * NS_PER_SECOND, NS_PER_SECOND):
        first = at
        while at < len(steps) and steps[at][0] < end_ns:
            at += 1
        made.append(Slice(JOB, end_ns - NS_PER_SECOND, end_ns, tuple(batch for _, batch in steps[first:at])))
    return made
