"""Encode and decode times of what comes in volume; the goals are those of issue 3."""

from __future__ import annotations

import dataclasses
import os
import time
from collections.abc import Callable

import numpy as np

from tests.schemas import samples
from tocsin.models.frames import Grid, stack_frames
from tocsin.schemas.metrics import BUILTIN_TABLE
from tocsin.schemas.records import Frame, StepBatch, StepRecord
from tocsin.schemas.wire.codec import decode, encode, peek

HOSTS = 2_000
GOAL_SECONDS = 0.050
STEP_ROWS = 1_000
ROUNDS = 7


def best_seconds(work: Callable[[], object], repeat: int) -> float:
    """Return the seconds of one call: the best of some rounds, as others share the machine."""
    best = float("inf")
    for _ in range(ROUNDS):
        start = time.perf_counter()
        for _ in range(repeat):
            work()
        best = min(best, (time.perf_counter() - start) / repeat)
    return best


def frame_of(host: int, random: np.random.Generator) -> Frame:
    """Return a frame of 8 GPUs that samples at its own moment within the second."""
    return dataclasses.replace(
        samples.FRAME,
        host=f"gpu-node-{host:04d}.rack17.example.net",
        first_tick_ns=samples.SLICE_NS + int(random.integers(0, 400_000_000)),
        gpu_uuids=tuple(f"GPU-{host:04x}{gpu:04x}-7f3a-5b1c-9d2e-0123456789ab" for gpu in range(8)),
        gpu_matrix=random.random(8 * 13 * 5, np.float32).tobytes(),
        host_matrix=random.random(8 * 5, np.float32).tobytes(),
    )


def main() -> None:
    """Print the times of frames, of 2,000 frames into arrays, and of step batches."""
    print(f"{os.cpu_count()} cores; best of {ROUNDS} rounds")
    random = np.random.default_rng(3)
    frames = [frame_of(host, random) for host in range(HOSTS)]
    wires = [encode(frame) for frame in frames]
    now_ns, frame, wire = samples.END_NS, frames[0], wires[0]
    print(f"frame, 8 GPUs x 13 + 8 metrics x 5 ticks: {len(wire)} bytes")
    print(f"  encode {best_seconds(lambda: encode(frame), 2_000) * 1e6:7.1f} us")
    print(f"  decode {best_seconds(lambda: decode(wire, now_ns=now_ns), 2_000) * 1e6:7.1f} us")
    print(f"  peek   {best_seconds(lambda: peek(wire), 2_000) * 1e6:7.1f} us")

    grid = Grid(samples.SLICE_NS, samples.SECOND_NS, 5)

    def decode_and_stack() -> object:
        decoded = [decode(data, now_ns=now_ns) for data in wires]
        return stack_frames([f for f in decoded if isinstance(f, Frame)], BUILTIN_TABLE, grid)

    stacked = best_seconds(decode_and_stack, 1)
    outcome = "holds" if stacked <= GOAL_SECONDS else "MISSED"
    print(f"{HOSTS} frames, bytes -> aligned arrays: {stacked * 1e3:.1f} ms")
    print(f"  goal {GOAL_SECONDS * 1e3:.0f} ms: {outcome}")

    rows = tuple(
        StepRecord(samples.SLICE_NS + i, i % 8, i // 8, 0.5, 0.01, 0.1, 0.2, 0.03, 0.1, 2.5, 1.0)
        for i in range(STEP_ROWS)
    )
    for count in (8, STEP_ROWS):
        batch = StepBatch(samples.JOB, samples.HOST, samples.END_NS, rows[:count])
        data = encode(batch)
        repeat = max(1, 20_000 // count)
        encoding = best_seconds(lambda batch=batch: encode(batch), repeat)  # type: ignore[misc]
        decoding = best_seconds(lambda data=data: decode(data, now_ns=now_ns), repeat)  # type: ignore[misc]
        print(f"step batch of {count} rows: {len(data) / count:.0f} bytes a row")
        print(f"  encode {encoding * 1e6:7.1f} us, decode {decoding * 1e6:7.1f} us")
