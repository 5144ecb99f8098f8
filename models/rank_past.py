"""Each rank's usual values among its peers: moving means and deviations, a few numbers a rank.

Score first, then learn: ``look`` returns what was known before the window, ``learn`` adds the window.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

FloatArray = npt.NDArray[np.float64]
IntArray = npt.NDArray[np.int64]


@dataclass(slots=True)
class RankPast:
    """The moving mean and variance of each rank's values.

    Attributes:
        column_count: number of values for each rank.
        memory_count: number of windows in the moving mean; before so many windows it is the plain mean.
        ranks: known ranks, ascending.
        counts: windows learned, at most ``memory_count``, shape (ranks,).
        means: shape (ranks, columns).
        variances: shape (ranks, columns).
    """

    column_count: int
    memory_count: int
    ranks: IntArray = field(default_factory=lambda: np.zeros(0, np.int64))
    """Known ranks, ascending."""
    counts: FloatArray = field(default_factory=lambda: np.zeros(0))
    means: FloatArray = field(init=False)
    variances: FloatArray = field(init=False)

    def __post_init__(self) -> None:
        """Start without any known rank."""
        self.means = np.zeros((0, self.column_count))
        self.variances = np.zeros((0, self.column_count))

    def look(self, ranks: IntArray) -> tuple[FloatArray, FloatArray, FloatArray]:
        """Return the learned statistics of these ranks; zeros for an unknown one.

        A deviation of few windows is widened by sqrt((n + 1) / (n - 1)), because it is an estimate itself.

        Returns:
            Windows learned, shape (ranks,), means and standard deviations, shape (ranks, columns) each.
        """
        rows = self._rows(ranks)
        counts = self.counts[rows]
        widened = (counts + 1) / np.maximum(counts - 1, 1)
        return counts, self.means[rows], np.sqrt(self.variances[rows] * widened[:, None])

    def learn(self, ranks: IntArray, values: FloatArray) -> None:
        """Add one window's values, shape (ranks, columns), to the moving statistics; a row with NaN is skipped."""
        good = np.isfinite(values).all(axis=1)
        rows = self._rows(ranks[good])
        self.counts[rows] = np.minimum(self.counts[rows] + 1, self.memory_count)
        weight = (1.0 / self.counts[rows])[:, None]
        away = values[good] - self.means[rows]
        self.means[rows] += weight * away
        self.variances[rows] = (1 - weight) * (self.variances[rows] + weight * away**2)

    def _rows(self, ranks: IntArray) -> IntArray:
        """Return the row index of each rank; unknown ranks get a new row of zeros."""
        new = np.setdiff1d(ranks, self.ranks)
        if new.size:
            places = np.searchsorted(self.ranks, new)
            self.ranks = np.insert(self.ranks, places, new)
            self.counts = np.insert(self.counts, places, 0.0)
            self.means = np.insert(self.means, places, 0.0, axis=0)
            self.variances = np.insert(self.variances, places, 0.0, axis=0)
        found: IntArray = np.searchsorted(self.ranks, ranks)
        return found
