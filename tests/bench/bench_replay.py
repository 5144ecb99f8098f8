"""How fast a recording is judged, and in how much memory: 32 hosts of 8 GPUs, 20 minutes at 1 Hz."""

from __future__ import annotations

import os
import resource
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from tocsin.pipeline.lab.simulation.case import Case, draw_case
from tocsin.pipeline.recording.writer import write_recording

HOST_COUNT = 32
GPU_COUNT = 8
SECONDS = 1200.0
GOAL = "goal: 10 s, 1 GB"


def wide_case() -> Case:
    """The first seed whose job has eight GPUs a host, all metrics, one sample a second, steps and topology."""
    for seed in range(10_000):
        case = draw_case(seed, HOST_COUNT, "power_cap", duration_seconds=SECONDS)
        shape = case.shape
        whole = shape.has_topology and shape.step_detail == "full" and shape.tick_seconds == 1.0
        if whole and shape.rank_count == HOST_COUNT * GPU_COUNT and len(shape.metrics) >= 21:
            return case
    raise AssertionError("no seed draws such a job")


def main() -> None:
    """Print the time and the peak memory of ``tocsin replay``, as a process of its own."""
    case = wide_case()
    with tempfile.TemporaryDirectory() as made:
        folder = Path(made) / "recording"
        write_recording(folder, case.recording())
        size_mb = sum(path.stat().st_size for path in folder.iterdir()) / 1e6
        print(f"seed {case.seed}: {HOST_COUNT} hosts x {GPU_COUNT} GPUs, {SECONDS:.0f} s, {size_mb:.1f} MB on disk")
        start = time.perf_counter()
        subprocess.run([sys.executable, "-m", "tocsin", "replay", str(folder)], check=True, env=os.environ)
        wall_seconds = time.perf_counter() - start
        used = resource.getrusage(resource.RUSAGE_CHILDREN)
        lines = (folder / "verdicts.jsonl").read_text("utf-8").count("\n")
    cpu_seconds = used.ru_utime + used.ru_stime
    print(
        f"{wall_seconds:.2f} s, {cpu_seconds:.2f} s of CPU, peak {used.ru_maxrss / 1e6:.2f} GB, "
        f"{SECONDS / wall_seconds:.0f} times real time, {lines} verdict lines ({GOAL})"
    )
