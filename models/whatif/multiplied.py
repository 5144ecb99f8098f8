"""Are a worker's computations its peers' computations times one factor, or are its data longer?

A slow machine multiplies all: short microbatches as long ones, forward as backward. Longer data add to what each
microbatch costs at least (weights, padding, text beside pictures), and add their own parts forward and backward. Where
no microbatch costs more than another one there is nothing to tell them by, nor where longer data multiply all.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from tocsin.models.whatif.compute import LEAST_VARIATION_RATIO, Computation
from tocsin.models.whatif.trace import FloatArray

LEAST_CORRELATION = 0.9
"""Least correlation of a worker's forward and backward times that vary with the data (``seed-systems-a.md`` 4.8)."""
MOST_ERRORS = 3.0
"""Most standard errors by which chance makes two figures differ, as for the shares of causes."""
_TINY = float(np.finfo(float).tiny)


@dataclass(frozen=True, slots=True)
class _Pair:
    """Computations of a stage in relative terms, each with shape (n, steps, dp).

    Attributes:
        forward: over the mean of the chunk on all ranks but the judged one.
        backward: the same.
        microbatch_count: independent ones in a step.
    """

    forward: FloatArray
    backward: FloatArray
    microbatch_count: int


def data_are_longer(own: list[Computation], dp: int) -> bool:
    """Return whether a worker that computes longer than its peers does so because its data are longer.

    It takes microbatches that differ, forward and backward together. Then the data are longer if the worker's times
    scatter otherwise than its peers', in proportion; or if its backward times are to its forward times as its peers'
    longer microbatches are, and not as its peers' multiplied.

    Args:
        own: computations of the worker's stage, forward and backward.
        dp: the worker's data-parallel rank.
    """
    pair = _pair(own, dp)
    if pair is None or not _vary_together(pair, dp):
        return False
    return _scatters_otherwise(pair, dp) or _lies_on_the_line_of_peers(pair, dp)


def _pair(own: list[Computation], dp: int) -> _Pair | None:
    """Return the stage's times over its peers' means; None where forward and backward cannot be paired."""
    by_direction = {part.direction: part for part in own}
    ahead, back = by_direction.get("forward"), by_direction.get("backward")
    if ahead is None or back is None or ahead.seconds.shape != back.seconds.shape:
        return None
    forward, backward = (
        part.seconds / np.maximum(np.delete(part.typical_seconds, dp, axis=1).mean(axis=1), _TINY)[:, None, None]
        for part in (ahead, back)
    )
    return _Pair(forward, backward, np.unique(ahead.microbatches).size)


def _vary_together(pair: _Pair, dp: int) -> bool:
    """Return whether the worker's microbatches differ, forward and backward alike.

    In a step of one microbatch, its peers' must as well: over steps, the pace of a machine may change.
    """
    deviations = []
    for values in (pair.forward, pair.backward):
        relative = values / values.mean(axis=(0, 1))
        deviations.append(_moving(relative, pair.microbatch_count))
    groups = [[dp]]
    if pair.microbatch_count == 1:
        groups.append([rank for rank in range(pair.forward.shape[-1]) if rank != dp])
    for ranks in groups:
        ahead, back = (values[..., ranks] for values in deviations)
        spread = float(np.sqrt(np.square(ahead).mean())), float(np.sqrt(np.square(back).mean()))
        if spread[0] < LEAST_VARIATION_RATIO or (ahead * back).mean() < LEAST_CORRELATION * spread[0] * spread[1]:
            return False
    return True


def _moving(values: FloatArray, microbatch_count: int) -> FloatArray:
    """Return what changes from step to step in each computation, less what the whole step has in common.

    A machine may slow one chunk more than another one, or the first microbatch; that stays, and is no data. The pace of
    a machine may change from one step to the next; that is common, unless the step has one microbatch only.
    """
    moving: FloatArray = values - values.mean(axis=1, keepdims=True)
    return moving - moving.mean(axis=0) if microbatch_count > 1 else moving


def _scatters_otherwise(pair: _Pair, dp: int) -> bool:
    """Return whether the logarithms of the worker's times scatter otherwise than its peers'.

    Those of multiplied times scatter alike. The standard error is that of a standard deviation by the fourth moment.
    """
    errors = []
    for values in (pair.forward, pair.backward):
        squares = np.square(_moving(np.log(np.maximum(values, _TINY)), pair.microbatch_count))
        peers = np.delete(squares, dp, axis=-1)
        expected = float(peers.mean())
        kurtosis = float(np.square(peers).mean()) / max(expected**2, _TINY)
        count = pair.microbatch_count * squares.shape[1]
        error = np.sqrt(max(kurtosis - 1.0, 0.5) / (4 * count) * (1 + 1 / peers.shape[-1]))
        ratio = float(squares[..., dp].mean()) / max(expected, _TINY)
        errors.append(0.5 * np.log(max(ratio, _TINY)) / error)
    return bool(abs(np.mean(errors)) > MOST_ERRORS)


def _lies_on_the_line_of_peers(pair: _Pair, dp: int) -> bool:
    """Return whether the worker's backward over its forward times go on along its peers' line.

    A machine moves this line away from the origin: what backward passes cost beside the forward times is multiplied as
    well. Where both cost nothing beside, the lines are one, and chance decides nothing.
    """
    ahead, back = (np.delete(values, dp, axis=-1).ravel() for values in (pair.forward, pair.backward))
    scatter = np.cov(ahead, back)
    axis = np.linalg.eigh(scatter)[1][:, 1]
    if axis[0] == 0.0:
        return False
    slope = float(axis[1] / axis[0])
    offset = float(back.mean() - slope * ahead.mean())
    own_ahead, own_back = pair.forward[..., dp], pair.backward[..., dp]
    factor = float(own_ahead.mean() / ahead.mean())
    apart = (factor - 1.0) * offset
    beside = own_back - slope * own_ahead - offset
    peers = float(np.square(back - slope * ahead - offset).mean()) / ahead.size
    far = (factor - 1.0) ** 2 * float(ahead.mean()) ** 2 / max(float(scatter[0, 0]), _TINY)
    error = float(np.sqrt(beside.var() / beside.size + peers * (1.0 + far)))
    is_told = abs(apart) > 2 * MOST_ERRORS * error
    return is_told and abs(float(beside.mean())) < abs(float(beside.mean()) - apart)
