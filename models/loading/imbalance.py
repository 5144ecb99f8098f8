"""How unevenly the batches of a step are shared out among data-parallel ranks, and what waiting for data costs."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

FloatArray = npt.NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class Imbalance:
    """Imbalance of one quantity (tokens, squared lengths, predicted seconds) among data-parallel ranks.

    Attributes:
        max_to_mean_ratio: I_dp, the largest rank's part over the mean one, the mean over steps; at least 1.
        most_ratio: the same in the most uneven step.
        excess_ratio: the largest rank's part beyond the median one, as a share of the mean.
        longest: index of the rank with the largest part in each step.
    """

    max_to_mean_ratio: float
    most_ratio: float
    excess_ratio: float
    longest: tuple[int, ...]

    @property
    def moves(self) -> bool:
        """Whether no rank is the longest in more than half of the steps."""
        return 2 * int(np.bincount(self.longest).max()) <= len(self.longest)


def find_imbalance(parts: FloatArray) -> Imbalance | None:
    """Return how unevenly steps are shared out.

    Args:
        parts: each rank's part of each step, at least 0, shape (steps, ranks).

    Returns:
        The imbalance; None without a step in which some rank has a part, or with one rank.
    """
    if parts.ndim != 2 or parts.shape[1] < 2:
        return None
    parts = parts[parts.sum(axis=1) > 0.0]
    if not parts.shape[0]:
        return None
    means = parts.mean(axis=1)
    ratios = parts.max(axis=1) / means
    excess = (parts.max(axis=1) - np.median(parts, axis=1)) / means
    longest = tuple(int(rank) for rank in parts.argmax(axis=1))
    return Imbalance(float(ratios.mean()), float(ratios.max()), float(excess.mean()), longest)


def loader_cost_seconds(compute: FloatArray, waits: FloatArray) -> float:
    """Return what waiting for data costs a step: how much earlier the last rank would be done without it, seconds.

    A wait that is hidden because another rank computes for longer costs nothing.

    Args:
        compute: each rank's own time without data, shape (steps, ranks), seconds.
        waits: each rank's time in the loader, of the same shape.
    """
    return max(0.0, float(((compute + waits).max(axis=1) - compute.max(axis=1)).mean()))
