"""Random parameters from wide ranges that are split into two disjoint halves.

Every range is divided into bands; ``fit`` draws from the even ones, ``held`` from the odd ones. Both halves cover small
and large values, and share none. So what is fitted on ``fit`` seeds is judged on magnitudes (and, by ``shape``, on
shapes) that it has not seen.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Literal, TypeVar

import numpy as np

Half = Literal["fit", "held"]
T = TypeVar("T")

BAND_COUNT = 6
"""Number of bands of a range; even ones are ``fit``, odd ones ``held``."""


class Draw:
    """Random draws for one seed and one half.

    Args:
        seed: start of the sequence.
        half: ``fit`` or ``held``.

    Attributes:
        seed: start of the random sequence.
    """

    def __init__(self, seed: np.random.SeedSequence, half: Half) -> None:
        self.rng = np.random.Generator(np.random.SFC64(seed))
        self.half = half

    def band(self, low: float, high: float) -> float:
        """Return a random number of the range, from this half's bands only."""
        index = 2 * int(self.rng.integers(BAND_COUNT // 2)) + (self.half == "held")
        return low + (high - low) * (index + float(self.rng.random())) / BAND_COUNT

    def log_band(self, low: float, high: float) -> float:
        """Return a random number of the range, from this half's bands only, uniform in the logarithm."""
        return math.exp(self.band(math.log(low), math.log(high)))

    def uniform(self, low: float, high: float) -> float:
        """Return a random number of the range, the same range for both halves."""
        return low + (high - low) * float(self.rng.random())

    def log_uniform(self, low: float, high: float) -> float:
        """Return a random number of the range, the same for both halves, uniform in the logarithm."""
        return math.exp(self.uniform(math.log(low), math.log(high)))

    def chance(self, ratio: float) -> bool:
        """Return True with this probability."""
        return bool(self.rng.random() < ratio)

    def index(self, count: int) -> int:
        """Return a random integer from 0 to count - 1."""
        return int(self.rng.integers(count))

    def pick(self, choices: Sequence[T]) -> T:
        """Return one of the choices at random."""
        return choices[self.index(len(choices))]

    def shape(self, both: Sequence[T], fit: Sequence[T], held: Sequence[T]) -> T:
        """Return one of the choices of both halves, or of those of this half only."""
        return self.pick([*both, *(held if self.half == "held" else fit)])

    def weighted(self, weights: dict[T, float]) -> T:
        """Return one of the keys at random, by weight."""
        keys = list(weights)
        shares = np.array([weights[key] for key in keys])
        return keys[int(self.rng.choice(len(keys), p=shares / shares.sum()))]

    def some(self, count: int, low: int, high: int) -> tuple[int, ...]:
        """Return ``low`` to ``high`` different random indices below ``count``, sorted."""
        wanted = min(count, int(self.rng.integers(low, high + 1)))
        return tuple(sorted(self.rng.choice(count, wanted, replace=False).tolist()))

    def times(self, duration_seconds: float, per_hour: float, at_least: int = 1) -> list[float]:
        """Return the instants of a Poisson process over the duration in seconds, sorted, at least ``at_least``."""
        count = max(at_least, int(self.rng.poisson(per_hour * duration_seconds / 3600.0)))
        return sorted((self.rng.random(count) * duration_seconds).tolist())
