"""Small jobs whose ranks tell their steps, or whose operations were traced; one of them may turn slow."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tests.pipeline.lab.backtest.kit import T0, fault, manifest
from tocsin.pipeline.recording.tables import Columns, Recording, Text
from tocsin.schemas.records import NS_PER_SECOND

HOSTS = 8
SLOW = 3
"""The rank that turns slow; it runs on n3."""
OP_TYPES = ("backward-compute", "forward-compute", "grads-reduce-scatter")
_PHASES = ("data", "forward", "backward", "optimizer")


def own_seconds(seconds: int, seed: int, slow_from: int | None, factor: float = 1.5) -> NDArray[np.float64]:
    """What each rank does by itself in a step: data, forward, backward, optimizer; shape (steps, ranks, 4).

    Each seed is a job with a noise of its own, 0.5 to 3 %.
    """
    noise = 1 + (0.005 + 0.005 * (seed % 6)) * np.random.default_rng(seed).standard_normal((seconds, HOSTS, 4))
    own: NDArray[np.float64] = np.array([0.02, 0.3, 0.4, 0.1]) * noise
    if slow_from is not None:
        own[slow_from:, SLOW, 1] *= factor
    return own


def step_table(own: NDArray[np.float64]) -> Columns:
    """A step a second; who is done waits for the slowest."""
    seconds = len(own)
    busy = own.sum(axis=2)
    duration = np.repeat(busy.max(axis=1) + 0.02, HOSTS)
    ends_ns = T0 + (np.repeat(np.arange(seconds), HOSTS) + 1) * NS_PER_SECOND - 1
    found: dict[str, Any] = {
        "ts_ns": ends_ns.astype(np.int64),
        "rank": np.tile(np.arange(HOSTS, dtype=np.int32), seconds),
        "step": np.repeat(np.arange(seconds), HOSTS).astype(np.int64),
        "duration_seconds": duration,
        **{f"{name}_seconds": own[:, :, column].reshape(-1) for column, name in enumerate(_PHASES)},
        "communication_seconds": duration - busy.reshape(-1),
    }
    return found


def op_table(own: NDArray[np.float64]) -> Columns:
    """Six operations of each type a step: parts of forward, of backward, and of the wait for the slowest."""
    steps = len(own)
    wait = 0.02 + own.sum(axis=2).max(axis=1)[:, None] - own.sum(axis=2)
    by_type = np.stack([own[:, :, 2], own[:, :, 1], wait], axis=2) / 6
    parts = np.repeat(by_type[:, :, :, None], 6, axis=3)
    step, rank, kind, _ = (index.reshape(-1) for index in np.indices(parts.shape))
    found: dict[str, Any] = {
        "dp_rank": rank.astype(np.int32),
        "stage": np.zeros(rank.size, np.int32),
        "rank": rank.astype(np.int32),
        "step": step.astype(np.int64) + 100,
        "optype": Text(kind.astype(np.int32), OP_TYPES),
        "start_ts": np.zeros(rank.size),
        "duration": parts.reshape(-1),
    }
    assert len(found["step"]) == steps * HOSTS * 18
    return found


def topology() -> Columns:
    """A rank a host."""
    return {"rank": np.arange(HOSTS, dtype=np.int32), "host": Text.of([f"n{rank}" for rank in range(HOSTS)])}


def traced(
    seconds: int,
    seed: int,
    *,
    slow_from: int | None = None,
    factor: float = 1.5,
    tables: Sequence[str] = ("topology", "steps"),
    healthy_truth: bool = True,
) -> Recording:
    """A recording with these tables, and the truth about it."""
    own = own_seconds(seconds, seed, slow_from, factor)
    made: Mapping[str, Columns] = {"topology": topology(), "steps": step_table(own), "ops": op_table(own)}
    faults = [] if slow_from is None else [fault(f"n{SLOW}", slow_from, seconds)]
    truth = {"faults": faults} if faults or healthy_truth else None
    return Recording(manifest(seconds), {name: made[name] for name in tables}, {}, truth)
