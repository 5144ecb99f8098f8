"""Starts of made-up jobs, with the true durations of their stages."""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from tocsin.schemas.startup import Edge, StageMark

NS = 1_000_000_000
T0_NS = 1_764_000_000 * NS
STAGES = ("image_load", "env_setup", "model_init")
MEDIANS = {"image_load": 30.0, "env_setup": 100.0, "model_init": 150.0}


@dataclass(frozen=True)
class MadeStart:
    """Marks of a start, and node -> stage -> its true begin and end in seconds after ``T0_NS``."""

    marks: tuple[StageMark, ...]
    truth: Mapping[str, Mapping[str, tuple[float, float]]]


def make_start(
    count: int = 100,
    *,
    seed: int = 1,
    slow: Mapping[tuple[str, str], float] | None = None,
    factors: Mapping[str, float] | None = None,
    stages: Sequence[str] = STAGES,
    start_kind: str = "full",
    attempt: int = 0,
    noise: float = 0.05,
) -> MadeStart:
    """Return a start of nodes ``n000`` and so on; each stage begins on all nodes when the one before it has ended.

    Args:
        count: number of nodes.
        seed: of the noise.
        slow: (node, stage) -> factor of its duration.
        factors: stage -> factor of all durations.
        stages: the stages.
        start_kind: kind of the start.
        attempt: the attempt.
        noise: standard deviation of durations, relative.
    """
    chance = random.Random(seed)
    slow, factors = slow or {}, factors or {}
    marks: list[StageMark] = []
    truth: dict[str, dict[str, tuple[float, float]]] = {f"n{at:03d}": {} for at in range(count)}
    begin = 0.0
    for stage in stages:
        for node, spans in truth.items():
            seconds = MEDIANS[stage] * factors.get(stage, 1.0) * slow.get((node, stage), 1.0)
            end = begin + seconds * max(0.5, chance.gauss(1.0, noise))
            spans[stage] = (begin, end)
            for edge, at in ((Edge.BEGIN, begin), (Edge.END, end)):
                marks.append(StageMark(T0_NS + round(at * NS), stage, edge, node, "0", start_kind, attempt))
        begin = max(spans[stage][1] for spans in truth.values()) + 1.0
    return MadeStart(tuple(marks), truth)


def until(marks: Sequence[StageMark], seconds: float) -> list[StageMark]:
    """Return the marks that are known this long after the start."""
    return [mark for mark in marks if mark.ts_ns <= T0_NS + seconds * NS]
