"""Child process: copies memory on one core for some seconds, and compares each copy with its source.

Usage: ``python -m tocsin.collectors.preflight._copy_work CORE SECONDS BYTES``; prints one JSON object.
"""

from __future__ import annotations

import json
import os
import sys
import time


def work(core: int, seconds: float, size_bytes: int) -> dict[str, object]:
    """Copy a block to and fro and return the bytes read and written a second, and the number of wrong copies."""
    if core >= 0:
        os.sched_setaffinity(0, {core})
    source = memoryview(bytearray(os.urandom(min(size_bytes, 2**20)) * max(1, size_bytes // 2**20)))
    target = memoryview(bytearray(len(source)))
    target[:] = source  # touches every page before the time counts
    copied_bytes, took_ns, wrong_count = 0, 0, 0
    until = time.monotonic() + seconds
    while not copied_bytes or time.monotonic() < until:
        start = time.perf_counter_ns()
        for _ in range(4):
            target[:] = source
        took_ns += time.perf_counter_ns() - start
        copied_bytes += 4 * len(source)
        wrong_count += target != source
        target[:8] = copied_bytes.to_bytes(8, "little")  # a copy that does nothing is seen
    return {"bytes_per_second": 2 * copied_bytes * 1e9 / max(1, took_ns), "wrong_count": wrong_count}


if __name__ == "__main__":
    sys.stdout.write(json.dumps(work(int(sys.argv[1]), float(sys.argv[2]), int(sys.argv[3]))) + "\n")
