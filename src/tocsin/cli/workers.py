"""Runs many jobs in parallel worker processes, for ``replay``, ``backtest``, ``train`` and ``models promote``."""

from __future__ import annotations

import contextlib
import gc
import multiprocessing
import os
import signal
import sys
import threading
import time
import traceback
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from dataclasses import dataclass
from typing import Generic, TypeVar

from tocsin.cli.main import EXIT_INTERRUPTED
from tocsin.pipeline.lab.parallel import Executor, serial
from tocsin.pipeline.runtime.gc_settings import GC_THRESHOLDS
from tocsin.schemas.errors import EngineError

_BAR_WIDTH = 30
_LOOK_SECONDS = 2.0
JobT = TypeVar("JobT")
ResultT = TypeVar("ResultT")


@dataclass(frozen=True, slots=True)
class Work(Generic[JobT, ResultT]):
    """The work on each job; both are module-level functions, so that they can be sent to another process.

    Attributes:
        do: function that returns a job's result.
        failed: function that returns the result of a job that failed, given why.
    """

    do: Callable[[JobT], ResultT]
    failed: Callable[[JobT, str], ResultT]


def side_by_side(
    jobs: Sequence[JobT],
    work: Work[JobT, ResultT],
    worker_count: int,
    draw: Callable[[float], None] | None = None,
) -> list[ResultT]:
    """Run the jobs in worker processes, and return their results in order.

    If a process is killed (out of memory), only its own job fails.

    Args:
        jobs: the jobs.
        work: the work on each of them.
        worker_count: number of processes, at most one per job.
        draw: called with the finished ratio after each job.
    """
    results = _side_by_side(jobs, work, min(worker_count, len(jobs)), draw)
    if draw is not None:
        print(file=sys.stderr)
    return results


def in_turn(
    jobs: Sequence[JobT], work: Work[JobT, ResultT], draw: Callable[[float], None] | None = None
) -> list[ResultT]:
    """Run the jobs one after another in this process, and return their results.

    It saves the start of other processes.
    """
    results = []
    for job in jobs:
        results.append(_supervised(work, job))
        if draw is not None:
            draw(len(results) / len(jobs))
    if draw is not None:
        print(file=sys.stderr)
    return results


def _side_by_side(
    jobs: Sequence[JobT], work: Work[JobT, ResultT], worker_count: int, draw: Callable[[float], None] | None
) -> list[ResultT]:
    """Run the jobs in ``worker_count`` processes, and return their results in order."""
    results = []
    # spawn: the engine's libraries start threads, and fork copies their locks
    context = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(worker_count, context, _begin_worker, (os.getpid(),)) as pool:
        futures = [pool.submit(_supervised, work, job) for job in jobs]
        try:
            for job, future in zip(jobs, futures, strict=True):
                results.append(_result_of(job, work, future, is_alone=len(jobs) == 1))
                if draw is not None:
                    draw(len(results) / len(jobs))
        except KeyboardInterrupt:
            pool.shutdown(wait=False, cancel_futures=True)
            for child in multiprocessing.active_children():
                child.terminate()
            raise
    return results


def _supervised(work: Work[JobT, ResultT], job: JobT) -> ResultT:
    """Run one job; an exception becomes the result of a failed job."""
    try:
        return work.do(job)
    except SystemExit:  # asked to end, and cleaned up: the pool would give this worker the next job
        os._exit(EXIT_INTERRUPTED)
    except Exception as error:  # noqa: BLE001  # supervising loop: the other jobs are done all the same
        traceback.print_exc()
        return work.failed(job, f"{type(error).__name__}: {error}")


def _result_of(job: JobT, work: Work[JobT, ResultT], future: Future[ResultT], *, is_alone: bool) -> ResultT:
    """Return a job's result; if its process was killed, run the job again alone once."""
    try:
        return future.result()
    except BrokenProcessPool:
        if is_alone:
            return work.failed(job, "the process that worked on it was killed (out of memory?)")
        return _side_by_side([job], work, 1, None)[0]  # nobody knows whose process it was: each one again, alone


def _begin_worker(parent_pid: int) -> None:
    """Prepare a worker process: it ignores Ctrl-C, ends cleanly on SIGTERM, and ends when its parent has.

    Ctrl-C reaches every process of the terminal; only the parent handles it and ends its workers.
    """
    gc.set_threshold(*GC_THRESHOLDS)
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(EXIT_INTERRUPTED))

    def watch() -> None:
        while os.getppid() == parent_pid:
            time.sleep(_LOOK_SECONDS)
        os.kill(os.getpid(), signal.SIGTERM)
        time.sleep(_LOOK_SECONDS)
        os._exit(EXIT_INTERRUPTED)

    threading.Thread(target=watch, name="parent", daemon=True).start()


@contextlib.contextmanager
def shared_out(worker_count: int) -> Iterator[Executor]:
    """Context manager that gives an ``Executor`` over worker processes that stay for many rounds of work.

    With one worker, the work is done in this process.

    Raises:
        EngineError: during use: a worker process was killed.
    """
    if worker_count == 1:
        yield serial
        return
    context = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(worker_count, context, _begin_worker, (os.getpid(),)) as pool:

        def share(work: Callable[[JobT], ResultT], jobs: Sequence[JobT], /) -> Iterator[ResultT]:
            try:
                yield from pool.map(work, jobs)
            except BrokenProcessPool as error:
                raise EngineError("a process was killed (out of memory?): try with fewer --jobs") from error

        try:
            yield share
        except KeyboardInterrupt:
            pool.shutdown(wait=False, cancel_futures=True)
            for child in multiprocessing.active_children():
                child.terminate()
            raise


def interrupt(*_: object) -> None:
    """Signal handler: treat SIGTERM like Ctrl-C, so that no half-written files stay."""
    raise KeyboardInterrupt


def bar_of(what: str) -> Callable[[float], None]:
    """Return a function that draws a progress bar on stderr, given the finished ratio."""

    def draw(ratio: float) -> None:
        full = round(_BAR_WIDTH * min(1.0, max(0.0, ratio)))
        bar = "#" * full + "." * (_BAR_WIDTH - full)
        print(f"\r{what} [{bar}] {min(1.0, ratio):4.0%}", end="", file=sys.stderr, flush=True)

    return draw
