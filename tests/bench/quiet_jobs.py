"""Healthy jobs for ``make bench-quiet``: what they are, and what the pipeline says of each of them."""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from tocsin.pipeline.core.slices import SliceBundle
from tocsin.pipeline.job.rank_holders import RankFilterConfig
from tocsin.pipeline.lab.simulation.benign_disturbances import draw_benign_disturbances
from tocsin.pipeline.lab.simulation.case import HEALTHY, Case, draw_case
from tocsin.pipeline.lab.simulation.draw import Draw, Half
from tocsin.pipeline.lab.simulation.levels import GPU_INDEX
from tocsin.pipeline.lab.simulation.shape import SimulatedShape
from tocsin.pipeline.lab.simulation.turns import turns_of
from tocsin.pipeline.runtime.job_pipeline import JobConfig, JobPipeline
from tocsin.schemas import events
from tocsin.schemas.kinds import EventSource, Severity
from tocsin.schemas.records import NS_PER_SECOND, Event, JobKey, Slice
from tocsin.schemas.verdicts import ActionKind, FaultKind, Verdict, VerdictState

DAY_SECONDS = 86_400.0
BANDS: tuple[tuple[int, int, float], ...] = (
    (1024, 4096, 0.6),
    (256, 1023, 0.2),
    (64, 255, 0.12),
    (16, 63, 0.06),
    (4, 15, 0.02),
)
"""Hosts from, to, share of the machine-time: the worst of N grows with N."""
_LARGE_HOST_COUNT = 1024
_LARGE_STEP_SECONDS = 4.0
"""No step of a job of a thousand machines is shorter."""
_REST_SECONDS = 20
"""How long a job is listened to after its ranks ended."""
_EVICTIONS = (ActionKind.DRAIN, ActionKind.EVICT)
_LIVE = (VerdictState.OPEN, VerdictState.CONFIRMED)


@dataclass(frozen=True, slots=True)
class QuietJob:
    """One healthy job.

    Attributes:
        seed: what it is drawn from.
        host_count: machines.
        seconds: how long its attempts run, all together.
    """

    seed: int
    host_count: int
    seconds: float

    @property
    def machine_days(self) -> float:
        """Machines times days."""
        return self.host_count * self.seconds / DAY_SECONDS


def quiet_jobs(machine_days: float, first_seed: int) -> list[QuietJob]:
    """Jobs for so many machine-days, the largest first; more days of one seed hold the jobs of fewer."""
    jobs = []
    for band, (low, high, share) in enumerate(BANDS):
        rng, days = np.random.default_rng([first_seed, band]), 0.0
        while days < share * machine_days:
            seed = int(rng.integers(1 << 40))
            # Of a thousand hosts and more small jobs are more frequent than large ones; ten minutes are seven days.
            place = float(rng.random()) ** (2.5 if low >= _LARGE_HOST_COUNT else 1.0)
            host_count = round(low * (high / low) ** place)
            host_count -= host_count % (32 if low >= _LARGE_HOST_COUNT else 4 if low > 4 else 1)
            jobs.append(QuietJob(seed, host_count, 60.0 * float(rng.uniform(8.0, 25.0))))
            days += jobs[-1].machine_days
    return jobs


def attempts_of(job: QuietJob, ranges: Half) -> list[Case]:
    """The job's attempts: three of five jobs have one, the others were restarted in order, partly on other machines."""
    draw = Draw(np.random.SeedSequence([job.seed, 9]), ranges)
    count = draw.pick((1, 1, 1, 2, 3))
    case = draw_case(job.seed, job.host_count, HEALTHY, ranges, duration_seconds=job.seconds / count)
    shape = case.shape
    if shape.host_count >= _LARGE_HOST_COUNT:
        shape = replace(shape, pace=replace(shape.pace, step_seconds=max(_LARGE_STEP_SECONDS, shape.pace.step_seconds)))
    if draw.chance(0.15):
        shape = with_other_sku(shape, draw)
    attempts = [replace(case, shape=shape)]
    while len(attempts) < count:
        before = attempts[-1]
        gap_ns = shape.slice_ns * (4 + draw.index(30))
        names = list(before.shape.host_names)
        for index in range(len(names)):
            if draw.chance(0.02):
                names[index] = f"fresh-{len(attempts)}-{index:05d}"
        moved = replace(before.shape, start_ns=before.end_ns + gap_ns, host_names=tuple(names))
        plan = draw_benign_disturbances(draw, moved, job.seconds / count)
        attempts.append(replace(before, seed=before.seed + 1, shape=moved, plan=plan))
    return attempts


def with_other_sku(shape: SimulatedShape, draw: Draw) -> SimulatedShape:
    """Some hosts have accelerators of another kind, which are as fast or faster: other power, clock, activity."""
    few = max(1, round(shape.host_count * draw.pick((0.0, 0.02, 0.1))))
    hosts = draw.rng.choice(shape.host_count, few, replace=False)
    bias, load = shape.gpu_bias_factor.copy(), shape.rank_load.copy()
    for name, index in GPU_INDEX.items():
        if name != "gpu_util_ratio":
            bias[index, hosts] *= np.float32(draw.uniform(0.6, 1.3))
    ranks = (hosts[:, None] * shape.gpus_per_host_count + np.arange(shape.gpus_per_host_count)).reshape(-1)
    load[ranks] *= draw.uniform(0.6, 1.0)
    return replace(shape, gpu_bias_factor=bias, rank_load=load)


def ending(case: Case, job: JobKey) -> Iterator[SliceBundle]:
    """What comes after an attempt: all ranks end in order within two seconds, then nothing."""
    shape = case.shape
    width = shape.gpus_per_host_count
    lags = np.random.default_rng(case.seed).integers(0, 2, shape.rank_count).tolist()
    for second in range(_REST_SECONDS):
        begin_ns = case.end_ns + second * NS_PER_SECOND
        ended = tuple(
            Event(
                job,
                shape.host_names[rank // width],
                begin_ns,
                rank,
                EventSource.PROCESS,
                events.EXIT,
                Severity.INFO,
                {"code": 0, "signal": 0},
            )
            for rank, lag in enumerate(lags)
            if lag == second
        )
        end_ns = begin_ns + NS_PER_SECOND
        yield SliceBundle(job, end_ns, Slice(job, begin_ns, end_ns, ended), ())


# -- what is said of them ---------------------------------------------------------------


def pages(lines: Sequence[Verdict]) -> bool:
    """Whether one verdict's lines wake somebody up.

    It says that something is wrong (not ``degraded``, which is shown and asks for nothing), names somebody or a job
    that does not go on (not "all of it is slower, nobody's fault"), and stands: it was confirmed, or was never
    taken back.
    """
    live = [line for line in lines if line.state in _LIVE]
    wrong = [line for line in live if line.fault is not FaultKind.DEGRADED]
    wrong = [line for line in wrong if line.suspects or line.fault is not FaultKind.FAIL_SLOW]
    stands = lines[-1].state is not VerdictState.CANCELLED and lines[-1].fault is not FaultKind.DEGRADED
    return any(line.state is VerdictState.CONFIRMED for line in wrong) or (bool(wrong) and stands)


def evicts(lines: Sequence[Verdict]) -> bool:
    """Whether any line of one verdict proposes to take a machine away."""
    return any(line.action in _EVICTIONS for line in lines)


def names_somebody(lines: Sequence[Verdict]) -> bool:
    """Whether any line of one verdict names a machine for more than ``degraded``, be it for a second."""
    return any(line.state in _LIVE and bool(line.suspects) and line.fault is not FaultKind.DEGRADED for line in lines)


@dataclass(slots=True)
class Reported:
    """What was said of one job (or of many).

    Attributes:
        machine_days: heard.
        verdict_count: verdicts of any kind.
        named_count: verdicts that named somebody, those taken back included.
        page_count: see ``pages``.
        eviction_count: see ``evicts``.
        found: the verdicts that page or evict, as dicts.
        cpu_seconds: what it cost.
    """

    machine_days: float = 0.0
    verdict_count: int = 0
    named_count: int = 0
    page_count: int = 0
    eviction_count: int = 0
    found: list[dict[str, Any]] = field(default_factory=list)
    cpu_seconds: float = 0.0

    def add(self, other: Reported) -> None:
        """Take another's figures too."""
        self.machine_days += other.machine_days
        self.verdict_count += other.verdict_count
        self.named_count += other.named_count
        self.page_count += other.page_count
        self.eviction_count += other.eviction_count
        self.found += other.found
        self.cpu_seconds += other.cpu_seconds


def tell(lines: Iterable[Verdict], machine_days: float, about: dict[str, Any]) -> Reported:
    """Count one job's verdict lines.

    Args:
        lines: all of them, in order.
        machine_days: of the job.
        about: what the table says of where they come from.
    """
    reported = Reported(machine_days)
    by_id: dict[str, list[Verdict]] = {}
    for line in lines:
        by_id.setdefault(line.verdict_id, []).append(line)
    for updates in by_id.values():
        reported.verdict_count += 1
        reported.named_count += names_somebody(updates)
        is_page, is_eviction = pages(updates), evicts(updates)
        reported.page_count += is_page
        reported.eviction_count += is_eviction
        if is_page or is_eviction:
            reported.found.append({**about, **_described(updates), "page": is_page, "eviction": is_eviction})
    return reported


def _described(updates: Sequence[Verdict]) -> dict[str, Any]:
    worst = next((line for line in updates if line.action in _EVICTIONS), None)
    line = worst or [one for one in updates if one.state in _LIVE and one.fault is not FaultKind.DEGRADED][-1]
    return {
        "detector": line.evidence[0].detector if line.evidence else "",
        "metric": line.evidence[0].metric if line.evidence else "",
        "reason": line.reason,
        "fault": line.fault.value,
        "cause": line.cause,
        "action": line.action.value,
        "suspects": [suspect.component.name for suspect in line.suspects],
        "onset_ns": line.onset_ns,
        "detected_ns": line.detected_ns,
    }


_PLAYED = JobConfig(rank_filter=RankFilterConfig(is_played=True))
"""The records are a recording's: one host announces what all have."""


def listen(cases: Sequence[Case], config: JobConfig | None = None) -> Iterator[Verdict]:
    """The verdict lines of a job's attempts, one after the other, each ended in order."""
    for attempt, case in enumerate(cases):
        pipeline: JobPipeline | None = None
        for turn in turns_of(case, attempt):
            pipeline = pipeline or JobPipeline(config or _PLAYED, turn.job)
            yield from pipeline.on_bundle(turn).verdicts
        if pipeline is not None:
            for turn in ending(case, pipeline.job):
                yield from pipeline.on_bundle(turn).verdicts
            yield from pipeline.on_new_attempt(case.end_ns + _REST_SECONDS * NS_PER_SECOND)


def hear(job: QuietJob, ranges: Half) -> Reported:
    """Play one job and count what is said of it."""
    begin = time.process_time()
    cases = attempts_of(job, ranges)
    shape = cases[0].shape
    about = {
        "seed": job.seed,
        "hosts": shape.host_count,
        "attempts": len(cases),
        "steps": shape.step_detail,
        "start_ns": shape.start_ns,
        "innocents": sorted({name for case in cases for name in case.plan.benign_disturbances}),
    }
    days = sum((case.end_ns - case.shape.start_ns) / NS_PER_SECOND / DAY_SECONDS for case in cases)
    reported = tell(listen(cases), days * shape.host_count, about)
    reported.cpu_seconds = time.process_time() - begin
    return reported
