"""How quiet tocsin is where nothing is wrong: ``make bench-quiet``, ``ARGS="--machine-days 3000"`` for the table.

Healthy jobs, generated in memory and judged by the operators of the embedded engine; most of the machine-time in jobs
of 1,024 hosts or more. The goal is none that pages or proposes an eviction (see ``quiet_jobs.pages``).
"""

from __future__ import annotations

import argparse
import gc
import json
import math
import multiprocessing
import os
import resource
import sys
import time
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict
from pathlib import Path

from tests.bench.quiet_jobs import BANDS, QuietJob, Reported, hear, quiet_jobs
from tocsin.pipeline.runtime.gc_settings import GC_THRESHOLDS

_HEAD = (
    f"{'hosts':>11} {'jobs':>5} {'machine-days':>12} {'verdicts':>8} {'named':>5} {'page':>4} {'evict':>5}"
    f" {'pages a machine-day, 95 %':>26}"
)
_MISS_RATIO = 0.05
"""The true rate is above the upper bound in so many of such runs."""


def upper_bound(count: int) -> float:
    """The 95 % upper bound of a Poisson mean where so many were seen (3.0 at none)."""
    low, high = float(count), 2.0 * count + 10.0
    for _ in range(60):
        mean = (low + high) / 2
        chance = sum(math.exp(k * math.log(mean) - mean - math.lgamma(k + 1)) for k in range(count + 1))
        low, high = (mean, high) if chance > _MISS_RATIO else (low, mean)
    return high


def main(arguments: Sequence[str] | None = None) -> int:
    """Play the jobs and print the table; 1 when any verdict pages or proposes an eviction."""
    parser = argparse.ArgumentParser(description="healthy jobs: who is accused?")
    parser.add_argument("--machine-days", type=float, default=1000.0)
    parser.add_argument("--processes", type=int, default=min(2, os.cpu_count() or 1))
    parser.add_argument("--first-seed", type=int, default=6_000_000)
    parser.add_argument("--ranges", choices=("held", "fit"), default="held")
    parser.add_argument("--keep", type=Path, help="file of results: jobs that are in it are not played again")
    parser.add_argument("--minutes", type=float, default=math.inf, help="begin no job after so long")
    args = parser.parse_args(arguments)
    jobs = quiet_jobs(args.machine_days, args.first_seed)
    known = _read(args.keep)
    begin, told_now = time.perf_counter(), Reported()
    for job, reported in _play([job for job in jobs if job.seed not in known], args):
        known[job.seed] = reported
        told_now.add(reported)
        for found in reported.found:
            print(json.dumps(found), flush=True)
        if args.keep is not None:
            with args.keep.open("a") as file:
                file.write(json.dumps({"seed": job.seed, **asdict(reported)}) + "\n")
    print(report([(job, known[job.seed]) for job in jobs if job.seed in known]))
    missing = sum(job.seed not in known for job in jobs)
    if missing:
        print(f"{missing} of {len(jobs)} jobs were not played: --minutes was over")
    minutes = (time.perf_counter() - begin) / 60
    peak = resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss / 1024
    print(
        f"{told_now.machine_days:.0f} machine-days played in {minutes:.1f} min "
        f"({told_now.machine_days / max(minutes, 1e-9):.1f} a minute, {args.processes} processes, "
        f"{60 * told_now.machine_days / max(told_now.cpu_seconds, 1e-9):.1f} a minute of one core), "
        f"largest process {peak:.0f} MB"
    )
    return int(any(reported.page_count or reported.eviction_count for reported in known.values()))


def _read(path: Path | None) -> dict[int, Reported]:
    known = {}
    for line in path.read_text().splitlines() if path is not None and path.is_file() else ():
        fields = json.loads(line)
        seed = fields.pop("seed")
        known[seed] = Reported(**fields)
    return known


def _play(jobs: Sequence[QuietJob], args: argparse.Namespace) -> Iterator[tuple[QuietJob, Reported]]:
    """Large jobs and small ones in turn, so that a run that is cut short has seen all sizes."""
    deadline = time.time() + 60 * args.minutes
    mixed = sorted(jobs, key=lambda job: job.seed)
    # spawn: numpy's threads do not survive a fork; a process for each few jobs gives its memory back
    with multiprocessing.get_context("spawn").Pool(args.processes, maxtasksperchild=8) as pool:
        tasks = [(job, args.ranges, deadline) for job in mixed]
        for job, reported in pool.imap_unordered(_one, tasks):
            if reported is not None:
                yield job, reported


def _one(task: tuple[QuietJob, str, float]) -> tuple[QuietJob, Reported | None]:
    job, ranges, deadline = task
    if time.time() > deadline:
        return job, None
    gc.set_threshold(*GC_THRESHOLDS)  # as the engine does
    return job, hear(job, "fit" if ranges == "fit" else "held")


def report(heard: Sequence[tuple[QuietJob, Reported]]) -> str:
    """The table: by size of job, then by detector, reason and cause."""
    total = Reported()
    for _, reported in heard:
        total.add(reported)
    lines = [
        f"{len(heard)} healthy jobs, {total.machine_days:.0f} machine-days",
        "",
        _HEAD,
    ]
    for low, high, _ in sorted(BANDS):
        chosen = [reported for job, reported in heard if low <= job.host_count <= high]
        lines.append(_row(f"{low}-{high}", chosen))
    lines.append(_row("all", [reported for _, reported in heard]))
    for title in ("detector", "reason", "cause", "metric", "action"):
        lines += _by(title, total.found)
    large = sum(reported.machine_days for job, reported in heard if job.host_count >= 1024)
    lines += ["", f"in jobs of 1,024 hosts or more: {large / max(total.machine_days, 1e-9):.0%} of the machine-days"]
    for what, count in (("page", total.page_count), ("propose an eviction", total.eviction_count)):
        bound = upper_bound(count) / max(total.machine_days, 1e-9)
        lines.append(f"verdicts that {what}: {count}, at most {bound:.5f} a machine-day (95 %)")
    return "\n".join(lines)


def _row(name: str, chosen: Sequence[Reported]) -> str:
    total = Reported()
    for reported in chosen:
        total.add(reported)
    bound = upper_bound(total.page_count) / total.machine_days if total.machine_days else math.nan
    return (
        f"{name:>11} {len(chosen):>5} {total.machine_days:>12.1f} {total.verdict_count:>8} {total.named_count:>5}"
        f" {total.page_count:>4} {total.eviction_count:>5} {bound:>26.5f}"
    )


def _by(title: str, found: Sequence[Mapping[str, object]]) -> list[str]:
    counts = Counter(str(one[title]) for one in found)
    return [f"by {title}: " + ", ".join(f"{name} {count}" for name, count in counts.most_common())] if counts else []


if __name__ == "__main__":
    sys.exit(main())
