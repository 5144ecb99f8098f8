"""How right tocsin is on simulated cases: 200 with a fault, 200 without, 4 to 64 hosts, by kind.

Cases of the ``held`` half: their parameters lie in bands that no threshold was fitted on. The same
seeds as the plain detector's table (``simulation``), so that the two may be laid side by side.
``TOCSIN_BENCH_CASES=40`` runs fewer.
"""

from __future__ import annotations

import multiprocessing
import os
import statistics
import time
from collections.abc import Sequence

from tocsin.cli.score import table_of
from tocsin.pipeline.recording.replay import ReplayConfig, replay
from tocsin.pipeline.recording.score import FolderScore, add_up, score_lines
from tocsin.pipeline.simulation.case import HEALTHY, draw_case
from tocsin.schemas.records import NS_PER_SECOND

FIRST_SEED = 1_000_000
HOSTS = (4, 64)


def one(seed: int, kind: str | None) -> tuple[bool, FolderScore, list[float]]:
    """Draw, replay and score a case: (healthy, score, delays of faults that stop the job and left an event)."""
    case = draw_case(seed, HOSTS, kind, "held")
    recording = case.recording()
    lines = [verdict.to_line() for verdict in replay(recording, ReplayConfig())]
    faults = (recording.truth or {"faults": []})["faults"]
    seconds = (case.end_ns - case.shape.start_ns) / NS_PER_SECOND
    score = score_lines(lines, faults, seconds / 86_400 * len(case.shape.host_names))
    reasons = {line["reason"] for line in lines}
    told = reasons & {"first_fatal_exit", "hardware_event", "nan_first_by_step"}
    stops = [
        fault.delay_seconds
        for fault in score.faults
        if told and fault.delay_seconds is not None and fault.kind in ("fail_stop", "silent_corruption")
    ]
    return case.kind == HEALTHY, score, stops


def main() -> None:
    """Print the table."""
    count = int(os.environ.get("TOCSIN_BENCH_CASES", "400"))
    start = time.perf_counter()
    # spawn: numpy's threads do not survive a fork
    with multiprocessing.get_context("spawn").Pool(os.cpu_count()) as pool:
        seeds = range(FIRST_SEED, FIRST_SEED + count // 2)
        results = pool.starmap(one, [(seed, kind) for seed in seeds for kind in (None, HEALTHY)], chunksize=4)
    scores: Sequence[FolderScore] = [score for _, score, _ in results]
    total, kinds = add_up(scores)
    healthy = sum(score.false_count for is_healthy, score, _ in results if is_healthy)
    stops = [delay for _, _, delays in results for delay in delays]
    print(f"{count} cases of the held half, half of them healthy, {HOSTS[0]} to {HOSTS[1]} hosts")
    print(table_of(total, kinds))
    print(f"\nfalse accusations in healthy cases: {healthy}")
    if stops:
        print(f"stops that left an event: {len(stops)}, median {statistics.median(stops):.1f} s")
    print(f"{time.perf_counter() - start:.0f} s")
