"""A small job whose operators get records of extreme values between its own."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any, Final

from tests.strategies import BASE_NS
from tocsin.pipeline.core.slices import SliceBuffer, SliceConfig
from tocsin.pipeline.lab.testing import JobShape, MachineShape, MetricsJob
from tocsin.pipeline.runtime.job_pipeline import JobConfig, JobPipeline
from tocsin.schemas.cloudevents import encode_verdict
from tocsin.schemas.records import CollectiveBatch, Frame, JobKey, Record, StepBatch
from tocsin.schemas.wire.codec import Kind, decode, encode

KINDS: Final = (
    Kind.EVENT, Kind.EVENT, Kind.EVENT, Kind.STEPS, Kind.STEPS, Kind.COLLECTIVES, Kind.COLLECTIVES,
    Kind.TOPOLOGY, Kind.GROUPS, Kind.HOST_STATUS, Kind.FRAME, Kind.TABLE,
)  # fmt: skip
SECONDS: Final = 14


def drive(poison: Sequence[tuple[int, Record]], seconds: int = SECONDS) -> int:
    """Play a job of four ranks with these records between its own; return how many turns its operators took.

    Args:
        poison: (second from the start, record): it is put there with the job's name and a time that fits.
        seconds: how long the job runs.
    """
    job = MetricsJob(JobShape(rank_count=4, step_seconds=1.0), MachineShape(gpu_count=1))
    buffer, turns = SliceBuffer(SliceConfig()), 0
    pipelines: dict[JobKey, JobPipeline] = {}
    for second in range(seconds):
        if second == seconds - 4:
            job.kill(1)
        records = list(job.second())
        records += [_fitted(record, job.job, job.now_ns) for at, record in poison if at == second]
        for record in records:
            data = encode(record)
            taken: Any = decode(data, now_ns=job.now_ns)
            buffer.add(taken, data)
        for turn in buffer.advance(job.now_ns):
            pipeline = pipelines.setdefault(turn.job, JobPipeline(JobConfig(), turn.job))
            for verdict in pipeline.on_bundle(turn).verdicts:
                encode_verdict(verdict)
            turns += 1
    for key, pipeline in pipelines.items():
        parts = pipeline.snapshot()
        again = JobPipeline(JobConfig(), key)
        again.restore(parts)
        assert again.snapshot() == parts
    return turns


def _fitted(record: Any, job: JobKey, now_ns: int) -> Any:
    host = record.host if record.host in {"n0", "n1", "evil"} else "n1"
    fitted = replace(record, job=job, host=host, ts_ns=now_ns - 1)
    if isinstance(record, StepBatch | CollectiveBatch):
        rows = tuple(row._replace(ts_ns=now_ns - 2 + row.ts_ns - BASE_NS) for row in record.rows)
        fitted = replace(fitted, rows=rows)
    if isinstance(record, Frame):
        fitted = replace(fitted, first_tick_ns=now_ns - 5_000_000_000 + record.first_tick_ns - BASE_NS)
    return fitted
