"""Whether the lengths of its batches explain why a rank computes longer than its peers."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from tocsin.models.loading.cost import fit_cost
from tocsin.models.robust import nan_median

FloatArray = npt.NDArray[np.float64]
_LEAST_PEER_COUNT = 2
"""Fewest peers with a told batch in a step: the median of two ranks cannot say which one is longer."""
_LEAST_VARIATION_RATIO = 0.05
"""Least variation of the peers' lengths, as a share of their mean, that shows what a length costs, as for
``data_imbalance``."""
_SHOWN_RATIO = 0.5
"""Least share of the told excess that a sampled step shows; a step before the onset shows none."""
_LEAST_LEFT_RATIO = 0.1
"""Excess beyond the lengths from which on a machine is slow all the same: a job straggles from a tenth on."""
_MOST_LEFT_SHARE = 0.5
"""Largest share of an excess that lengths may leave and explain it all the same: the larger part is theirs."""


@dataclass(frozen=True, slots=True)
class WeighedLengths:
    """What a rank's lengths are beside its peers', and what they leave unexplained.

    Attributes:
        own_ratio: its computation over its peers' in the sampled steps.
        lengths_ratio: what its lengths cost, as a factor on its peers' computation.
        left_ratio: the first without the second; 1 = the lengths explain all.
        step_count: number of sampled steps.
    """

    own_ratio: float
    lengths_ratio: float
    left_ratio: float
    step_count: int

    @property
    def is_explained(self) -> bool:
        """Whether the lengths explain the excess: what they leave is below half of it and below a tenth of the time."""
        left = self.left_ratio - 1.0
        return left < _LEAST_LEFT_RATIO and left < _MOST_LEFT_SHARE * (self.own_ratio - 1.0)


def weigh_lengths(
    tokens: FloatArray, squares: FloatArray, seconds: FloatArray, is_new: npt.NDArray[np.bool_], excess_ratio: float
) -> WeighedLengths | None:
    """Return what the lengths of a rank's batches explain of its excess over its peers.

    What lengths cost is fitted to the peers' batches (``fit_cost``): nothing, where their times do not follow their
    lengths. Where those are too equal for that, it is taken for the most that they can cost: as much as tokens, or as
    their squares.

    Args:
        tokens: sums of sequence lengths by step and rank, the rank in the first column and peers of its stage in the
            others, shape (steps, 1 + peers), NaN = not told.
        squares: sums of squared lengths, of the same shape.
        seconds: computation of the same batches, of the same shape.
        is_new: whether a step is of the time for which the excess is told, shape (steps,).
        excess_ratio: by how much longer than its peers the rank computes, as a share of their time.

    Returns:
        The result; None while no step with the told excess is sampled, or none with two peers, or too few to learn
        what lengths cost.
    """
    known = np.isfinite(tokens) & np.isfinite(squares) & np.isfinite(seconds) & (seconds > 0.0)
    known &= (tokens >= 1.0) & (squares >= 1.0)
    use = known[:, 0] & (known[:, 1:].sum(axis=1) >= _LEAST_PEER_COUNT)
    tokens, squares, seconds = (np.where(known, table, np.nan)[use] for table in (tokens, squares, seconds))
    if not seconds.size:
        return None
    own = seconds[:, 0] / nan_median(seconds[:, 1:], axis=1)
    shown = is_new[use] & (own - 1.0 >= _SHOWN_RATIO * excess_ratio)
    if not shown.any():
        return None
    cost = _cost(tokens, squares, seconds)
    if cost is None:
        return None
    usual = nan_median((seconds / cost)[:, 1:], axis=1)
    left = seconds[:, 0] / cost[:, 0] / usual
    own_ratio, lengths_ratio, left_ratio = (float(np.median(values[shown])) for values in (own, own / left, left))
    return WeighedLengths(own_ratio, lengths_ratio, left_ratio, int(shown.sum()))


def _cost(tokens: FloatArray, squares: FloatArray, seconds: FloatArray) -> FloatArray | None:
    """Return what each batch costs, in any unit, by the peers' batches; the most it can, where those are alike.

    None where the peers' lengths vary, and too few of their batches are known to tell what that costs.
    """
    peers = tokens[:, 1:], squares[:, 1:], seconds[:, 1:]
    varies = [np.nanstd(table) >= _LEAST_VARIATION_RATIO * np.nanmean(table) for table in peers[:2]]
    if any(varies):
        model = fit_cost(*peers)
        return None if model is None else np.maximum(model.predict(tokens, squares), 1e-9)
    ratios = [table / nan_median(table[:, 1:], axis=1)[:, None] for table in (tokens, squares)]
    return np.maximum(*ratios)
