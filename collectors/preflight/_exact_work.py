"""Child process: repeats work whose result is known bit for bit, on one core, for some seconds.

Only operations whose result IEEE 754 or the integers define exactly are used: sums, products, quotients and square
roots of doubles in a fixed order, modular powers, and hashes. Therefore every sound machine has the same digests.

Usage: ``python -m tocsin.collectors.preflight._exact_work CORE SECONDS``; prints one JSON object.
"""

from __future__ import annotations

import hashlib
import json
import math
import os
import struct
import sys
import time
import zlib
from typing import Final

KNOWN: Final = (
    "2348dbfaa484a107ec420f2ac7b6592124575ab6aaf0c8679349c41718e22eec",
    "28f169a9bdc38b914b14596bf327784ad50633cf62cdda383e94d8be53b408e9",
    "8f632107aafcb1f22879b1a9de944e291449318f52de0af561441946e95b3045",
    "0bdc2541f9a1171341e2a126b7e8a6dea3b8a81157b4c16d9d0cedb148003990",
    "9a8569dd990bc578c2abb22db2950ad38a5b289571277119f6794d9bd57c7a44",
    "28ed875bcf3da9974ab43147bf28e124bde49f8148df607453d8ae5893400e93",
    "136930dca4be657de8f6ed54e2a5ddb2ccb022c25f83a9899cc0101a538496e2",
    "391993b2852cd5a794f1024498f2a7df239a2def4c9b1ac78eaf36c41abaf015",
)
"""Digest of each block, by its number; computed on x86-64 with CPython 3.11, 3.12 and 3.13."""

_SIZE: Final = 20
_ROUNDS: Final = 4
_PRIME: Final = 2**1279 - 1
_BUFFER: Final = bytes(range(256)) * 2048


def digest_of_block(number: int) -> str:
    """Return the digest of one block of work, some milliseconds long."""
    state = number + 1
    values = []
    for _ in range(_SIZE * _SIZE):
        state = (state * 6364136223846793005 + 1442695040888963407) & 0xFFFF_FFFF_FFFF_FFFF
        values.append((state >> 11) / 2**53 + 0.5)
    matrix = [values[row * _SIZE : (row + 1) * _SIZE] for row in range(_SIZE)]
    product = matrix
    for _ in range(_ROUNDS):
        product = _next(product, matrix)
    hashed = hashlib.sha256()
    for row in product:
        hashed.update(struct.pack(f"<{_SIZE}d", *row))
    hashed.update(pow(state | 1, 65_537 + number, _PRIME).to_bytes(160, "little"))
    hashed.update(hashlib.blake2b(_BUFFER, salt=struct.pack("<Q", number)).digest())
    hashed.update(struct.pack("<I", zlib.crc32(_BUFFER, number)))
    return hashed.hexdigest()


def _next(one: list[list[float]], other: list[list[float]]) -> list[list[float]]:
    """Return the square roots of a matrix product divided by its size."""
    columns = list(zip(*other, strict=True))
    out = []
    for row in one:
        line = []
        for column in columns:
            total = 0.0
            for left, right in zip(row, column, strict=True):
                total += left * right
            line.append(math.sqrt(total / _SIZE))
        out.append(line)
    return out


def work(core: int, seconds: float) -> dict[str, object]:
    """Repeat the blocks on a core for some seconds and return how many, how fast, and which were wrong."""
    if core >= 0:
        os.sched_setaffinity(0, {core})
    start = time.monotonic()
    count, wrong_count = 0, 0
    wrong: list[dict[str, object]] = []
    while not count or time.monotonic() - start < seconds:
        number = count % len(KNOWN)
        found = digest_of_block(number)
        if found != KNOWN[number]:
            wrong_count += 1
            if len(wrong) < 5:
                wrong.append({"block": number, "found": found})
        count += 1
    took = time.monotonic() - start
    return {
        "core": core,
        "blocks_count": count,
        "blocks_per_second": count / took,
        "wrong_count": wrong_count,
        "wrong": wrong,
    }


if __name__ == "__main__":
    sys.stdout.write(json.dumps(work(int(sys.argv[1]), float(sys.argv[2]))) + "\n")
