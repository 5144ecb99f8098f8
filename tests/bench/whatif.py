"""How fast ``tocsin whatif`` is: ``python -m tests.bench.whatif`` (``make bench-whatif``).

The public trace ST, warm, beside the plain reference that simulates one operation at a time; then jobs of 125 to 1,000
workers with 100 steps, from the file to the causes, with the peak of the memory.
"""

from __future__ import annotations

import argparse
import multiprocessing
import os
import resource
import statistics
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from tests.models.whatif.plain import Job, Layout, Name, job_of, simulate_plainly, taken_from
from tests.models.whatif.traces import Effects, make
from tocsin.cli.whatif import analyse
from tocsin.models.whatif import optypes
from tocsin.models.whatif.scenarios import WhatIfModel, model_of
from tocsin.models.whatif.trace import OpTrace
from tocsin.pipeline.recording.limits import DEFAULT_LIMITS
from tocsin.pipeline.recording.op_trace import read_op_trace

ST_LAYOUT = Layout(2, 4)
STAGES, MICROBATCHES, STEPS = 8, 8, 100
WORKERS = (125, 250, 500, 1_000)
_GOAL_SECONDS = 0.15


def main(arguments: Sequence[str] | None = None) -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(prog="make bench-whatif", description=__doc__)
    parser.add_argument("--workers", type=int, nargs="*", default=WORKERS, help="sizes of jobs")
    args = parser.parse_args(arguments)
    folder = (
        Path(os.environ.get("TOCSIN_SHARED_DATA", Path(__file__).resolve().parents[3] / "shared" / "data")) / "whatif"
    )
    if folder.is_dir():
        small(folder)
    else:
        print(f"no public trace at {folder}: set TOCSIN_SHARED_DATA")
    print(f"{'workers':>8} {'steps':>6} {'operations':>11} {'seconds':>8} {'us/operation':>13} {'peak GB':>8}")
    for workers in args.workers:
        with multiprocessing.get_context("spawn").Pool(1) as pool:  # a process each: a peak never falls again
            print(pool.apply(large, (workers,)), flush=True)


def small(folder: Path) -> None:
    """Time the public trace, and the plain reference on the same scenarios."""
    trace, meta = folder / "trace-ST.parquet", folder / "meta-ST.yaml"
    seconds = timed(lambda: analyse(trace, meta, DEFAULT_LIMITS), 30)
    print(f"ST, warm: {1000 * seconds:.1f} ms from the file to the causes (goal: {1000 * _GOAL_SECONDS:.0f})")
    model = model_of(read_op_trace(trace))
    scenarios = 2 + len({optypes.MERGED.get(op.optype, op.optype) for op in model.arrays.ops}) + 2 + 4 + 4
    plain = timed(lambda: plainly(model, job_of(ST_LAYOUT)), 1)
    print(f"plain reference: {1000 * plain:.0f} ms a scenario, {plain * scenarios:.1f} s for {scenarios} scenarios")


def timed(work: Callable[[], object], count: int) -> float:
    """The median time of some calls after one that warms up."""
    taken = []
    for _ in range(count + 1):
        begin = time.perf_counter()
        work()
        taken.append(time.perf_counter() - begin)
    return statistics.median(taken[1:])


def plainly(model: WhatIfModel, job: Job) -> float:
    """The mean step time of a trace, one operation at a time."""
    names: list[Name] = [(op.optype, op.seq_id, op.stage) for op in model.arrays.ops]
    found = []
    for step in range(model.arrays.steps.size):
        seconds = {
            (name, rank): float(model.real_seconds[at, step, rank])
            for at, name in enumerate(names)
            for rank in range(job.layout.dp)
        }
        found.append(simulate_plainly(job, taken_from(seconds)).step_seconds)
    return statistics.fmean(found)


def large(workers: int) -> str:
    """Time a job of so many workers, in a process of its own."""
    trace = tiled(workers)
    with tempfile.TemporaryDirectory() as name:
        file, meta = Path(name) / "trace.parquet", Path(name) / "meta.yaml"
        write(trace, file)
        meta.write_text(f"dp_size: {-(-workers // STAGES)}\npp_size: {STAGES}\n")
        rows = trace.step.size
        del trace
        begin = time.perf_counter()
        analyse(file, meta, DEFAULT_LIMITS)
        seconds = time.perf_counter() - begin
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024 / 1e9
    return f"{workers:8,} {STEPS:6} {rows:11,} {seconds:8.2f} {1e6 * seconds / rows:13.2f} {peak:8.2f}"


def tiled(workers: int) -> OpTrace:
    """A trace of many workers and steps, made of copies of a few data-parallel ranks and steps."""
    ranks, steps = 4, 5
    small_trace = make(Layout(ranks, STAGES, microbatches=MICROBATCHES), Effects(data_sigma=0.1), 1, steps).trace
    wanted = -(-workers // STAGES)
    copies = [(rank, step) for rank in range(-(-wanted // ranks)) for step in range(STEPS // steps)]
    columns = {
        name: np.concatenate([getattr(small_trace, name) for _ in copies])
        for name in small_trace.__slots__
        if name not in ("words", "dp_rank", "step")
    }
    dp_rank = np.concatenate([small_trace.dp_rank + ranks * rank for rank, _ in copies])
    step = np.concatenate([small_trace.step + 1_000 * step for _, step in copies])
    trace = replace(small_trace, **columns, dp_rank=dp_rank, step=step)
    kept = dp_rank < wanted
    return replace(trace, **{name: getattr(trace, name)[kept] for name in trace.__slots__ if name != "words"})


def write(trace: OpTrace, path: Path) -> None:
    """Write a trace in the columns and types of the public ones."""
    columns = {name: pa.array(getattr(trace, name)) for name in ("dp_rank", "stage", "rank", "step", "seq_id")}
    columns |= {name: pa.array(getattr(trace, name)) for name in ("mc", "mb_id", "gmc")}
    columns["optype"] = pa.DictionaryArray.from_arrays(pa.array(trace.optype.astype(np.int32)), list(trace.words))
    columns["start_ts"] = pa.array(trace.start_seconds.astype(np.float32))
    columns["duration"] = pa.array(trace.duration_seconds.astype(np.float32))
    pq.write_table(pa.table(columns), path)


if __name__ == "__main__":
    main()
