"""A host that holds no rank of a job, and says from the first second on that all ranks run there."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace

from tocsin.pipeline.lab.testing.fake_job import FakeJob
from tocsin.pipeline.lab.testing.job_shape import JobShape
from tocsin.pipeline.runtime.embedded.engine import EmbeddedEngine, EngineConfig
from tocsin.schemas.records import HostStatus, JobKey, JobRecord, RankPlace, Topology
from tocsin.schemas.verdicts import Verdict

STRANGER = "x99"
HOST_COUNT = 8
FAULTS: dict[str, Callable[[FakeJob], None]] = {
    "kill": lambda job: job.kill(5),
    "freeze": lambda job: job.freeze(5),
    "slow": lambda job: job.slow(5, "forward", 3.0),
}


def claims(job: JobKey, now_ns: int) -> Iterator[JobRecord]:
    """All ranks run at the stranger's, and were heard of there."""
    places = tuple(RankPlace(rank, STRANGER, world_size=HOST_COUNT) for rank in range(HOST_COUNT))
    yield Topology(job, STRANGER, now_ns - 10**6, places)
    ranks = tuple(range(HOST_COUNT))
    yield HostStatus(job, STRANGER, now_ns - 10**6, 0, 2 * 10**6, ranks, True, 0, 0)


def judged(fault: str, *, reserves: bool, fault_second: int = 40, seconds: int = 90) -> list[Verdict]:
    """Verdicts of a job that is struck.

    Args:
        fault: a key of ``FAULTS``.
        reserves: the stranger claims the ranks of an attempt before it begins; else as it begins.
        fault_second: when the fault strikes.
        seconds: how long the job is watched.
    """
    engine = EmbeddedEngine(EngineConfig(history=None))
    first = FakeJob(JobShape(rank_count=HOST_COUNT))
    job, found = first, []
    if reserves:
        later = replace(first.job, attempt=1)
        for second in range(40):
            records = [*first.second(), *(claims(later, first.now_ns) if second % 5 == 0 else ())]
            found += _turn(engine, records, first.now_ns)
        job = FakeJob(JobShape(rank_count=HOST_COUNT, seed=2, start_ns=first.now_ns), later)
    for second in range(seconds):
        if second == fault_second:
            FAULTS[fault](job)
        records = [*job.second(), *(claims(job.job, job.now_ns) if second % 5 == 0 else ())]
        found += _turn(engine, records, job.now_ns)
    return found


def _turn(engine: EmbeddedEngine, records: list[JobRecord], now_ns: int) -> list[Verdict]:
    for record in records:
        engine.take_record(record)
    return list(engine.tick(now_ns).verdicts)


def named(verdicts: list[Verdict]) -> set[str]:
    """Hosts that any line names."""
    return {suspect.component.name for verdict in verdicts for suspect in verdict.suspects}
