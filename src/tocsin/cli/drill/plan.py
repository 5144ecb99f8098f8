"""Derives a drill from its seed: which rank gets the fault, when, how strong, and in which variant."""

from __future__ import annotations

import random
import zlib
from dataclasses import dataclass

from tocsin.cli.drill.faults import DrillKind, Target
from tocsin.cli.drill.orders import OrderKind
from tocsin.cli.drill.rank_config import Pause

_ONSET_STEPS = (45, 75)
"""First and last step at which a fault may be injected, after some ten seconds of healthy training."""
_CHECKPOINT_EVERY_SECONDS = (75.0, 150.0)
_CHECKPOINT_SECONDS = (5.0, 20.0)
_EVALUATION_SECONDS = (6.0, 15.0)
_STEP_SECONDS = 0.19
"""Duration of a healthy step on two idle cores; used only to place the pauses of a long job."""


@dataclass(frozen=True, slots=True)
class DrillPlan:
    """The plan of one drill, fixed before it begins.

    Attributes:
        kind: the kind of drill.
        seed: seed of all random choices.
        rank_count: number of ranks of the job.
        rank: rank that gets the fault (chosen also if the kind has none).
        onset_step: step at which the fault is injected, or a later one, after ``healthy_seconds``.
        magnitude: strength of the fault, in the kind's own unit.
        order: the fault that affected ranks inject into themselves.
        pauses: announced phases between steps.
        healthy_seconds: how long a drill without a fault trains, and another one before its fault; 0: the usual time.
        fault_seconds: how long a fault stays that the job survives, at least; 0: until its verdict is confirmed.
    """

    kind: DrillKind
    seed: int
    rank_count: int
    rank: int
    onset_step: int
    magnitude: float
    order: OrderKind
    pauses: tuple[Pause, ...] = ()
    healthy_seconds: float = 0.0
    fault_seconds: float = 0.0

    @property
    def affected_ranks(self) -> range:
        """Ranks that the fault is injected into by an order."""
        if self.kind.target is Target.ALL_RANKS:
            return range(self.rank_count)
        if self.kind.target is Target.STAGE:
            replica_count = self.rank_count // self.kind.stage_count
            first = self.rank // replica_count * replica_count
            return range(first, first + replica_count)
        return range(self.rank, self.rank + 1)

    def sentence(self) -> str:
        """Return a sentence for humans that says what happens."""
        return self.kind.sentence.format(rank=self.rank, magnitude=self.magnitude)


def make_plan(
    kind: DrillKind, seed: int, rank_count: int, healthy_seconds: float = 0.0, fault_seconds: float = 0.0
) -> DrillPlan:
    """Derive a plan from kind and seed.

    Args:
        kind: the kind of drill.
        seed: the same seed gives the same plan.
        rank_count: number of ranks of the job; a kind that needs more gets more.
        healthy_seconds: for a drill without a fault: how long to train, with checkpoints and evaluations; for another
            one: how long to train before the fault, at least.
        fault_seconds: how long a fault stays that the job survives, at least.

    Returns:
        The plan.
    """
    rank_count = max(rank_count, kind.least_ranks_count)
    chance = random.Random(seed * 1_000_003 + zlib.crc32(kind.name.encode()))
    is_struck = kind.target is not Target.NOBODY
    return DrillPlan(
        kind=kind,
        seed=seed,
        rank_count=rank_count,
        rank=chance.randrange(rank_count),
        onset_step=chance.randint(*_ONSET_STEPS),
        magnitude=chance.uniform(*kind.magnitude),
        order=chance.choice(kind.orders) if kind.orders else OrderKind.NOTHING,
        pauses=_pauses(chance, healthy_seconds) if healthy_seconds > 0 and not is_struck else (),
        healthy_seconds=healthy_seconds,
        fault_seconds=fault_seconds,
    )


def _pauses(chance: random.Random, healthy_seconds: float) -> tuple[Pause, ...]:
    """Return the announced pauses of a long job: checkpoints, and every third pause an evaluation."""
    pauses: list[Pause] = []
    at_seconds = 0.0
    step = 0
    while True:
        gap = min(chance.uniform(*_CHECKPOINT_EVERY_SECONDS), healthy_seconds / 3)
        evaluation = len(pauses) % 3 == 1
        seconds = chance.uniform(*(_EVALUATION_SECONDS if evaluation else _CHECKPOINT_SECONDS))
        at_seconds += gap + seconds
        step += int(gap / _STEP_SECONDS)
        if at_seconds > healthy_seconds:
            return tuple(pauses)
        pauses.append(Pause(step, "evaluation" if evaluation else "checkpoint", seconds))
