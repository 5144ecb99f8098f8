"""Bounds of the networks of an announced ``bilstm`` model: what a running engine takes, and why no further.

Whoever announces a model must neither stall an engine nor blind the detector in all jobs. Each bound refers to what
training makes (``models/training/bilstm_ocnn_training.py``, ``pipeline/lab/training/bilstm.py``) or to what the
features can be; a refusal names reason, field and value.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final, NoReturn

import numpy as np

from tocsin.models.bilstm_ocnn import ARRAYS, CollapseLines, OcnnModel, Singles
from tocsin.models.documents import Bounds
from tocsin.models.op_features import BIN_COUNT
from tocsin.models.sealed import refuse
from tocsin.schemas.reasons import ModelRefusal

MAX_WORDS: Final = 32
"""Most operation classes of a vocabulary: as many as training keeps."""
MAX_SEQUENCE_COUNT: Final = 12
"""Most windows of a sequence: the length in ``seed-systems-b.md`` 4.3, twice that of training, and the two minutes of a
rank's past. A rank is judged only when its sequence is whole, so a longer one would put off the first judgement."""
MAX_HIDDEN_SIZE: Final = 64
"""Most hidden features of a direction: the size in ``seed-systems-b.md`` 4.3, four times that of training."""
MAX_WORK_COUNT: Final = 375_000
"""Most multiply-adds for a rank and window: eight times the shipped network of phases (46,592). The largest that
training makes, with ``MAX_WORDS``, takes 292,000."""
MAX_WEIGHT: Final = 1000.0
"""Largest weight, as for ``minder``: gates are saturated at a hundredth of it, and no sum
overflows."""
LINE_FACTOR: Final = Bounds(0.5, 64.0)
"""Distance of the alarm line below the median, in units of the nu-quantile's distance.

Training puts it 1.25 times as far as the oddest normal sequence, at least at 1.25, and then multiplies by 0.56 to 2.37:
0.7 at least; 2.9 and 4.4 in the networks that ship. Nearer than half the quantile's distance, healthy ranks would be at
the line all the time; at 64 it is more than ten times as far as any that training has made. What blinds a network
below 64 is found by ``_check_hearing``.
"""
MEAN: Final = Bounds(-1.0, 1.0)
"""Mean of a feature: features are shares, or differences of shares."""
DEVIATION: Final = Bounds(0.01, 1.0)
"""Scale of a feature. Nothing in -1 to 1 scatters by more than 1, and a larger scale would hide every change. Training
floors it at 0.05; at a fifth of that a twentieth of a share is already cut off (``CLIP_SIGMAS``)."""
_NONSENSE_COUNT: Final = 256
"""Sequences of nonsense that a network must hear: the share that it hears is known to 3 %."""


def check_network(family: str, network: OcnnModel) -> None:
    """Check one network of an announced model.

    Args:
        family: its operation family.
        network: the network, as ``read_model`` returned it: shapes fit, and all numbers are finite.

    Raises:
        ModelRefusedError: it costs too much, or a number is out of the bounds of this module.
    """
    _check_cost(family, network)
    _check_weights(family, network.weights)
    _check_line(family, network)
    _check_hearing(family, network)


def work_count(network: OcnnModel) -> int:
    """Return the multiply-adds of a network for one rank and window (both directions, over the whole sequence)."""
    features, size = network.weights["mean"].size, int(network.weights["forward_state"].shape[1])
    return network.sequence_count * 2 * 4 * size * (features + size) + network.weights["V"].size


def _check_cost(family: str, network: OcnnModel) -> None:
    """Refuse a network that costs more than the shipped ones by more than the declared factors."""
    most = {
        "words": (len(network.vocabulary.words), MAX_WORDS),
        "sequence_count": (network.sequence_count, MAX_SEQUENCE_COUNT),
        "hidden_size": (network.weights["forward_state"].shape[1], MAX_HIDDEN_SIZE),
        "multiply-adds": (work_count(network), MAX_WORK_COUNT),
    }
    for field, (found, allowed) in most.items():
        if found > allowed:
            refuse(ModelRefusal.OUT_OF_RANGE, f"{family}.{field} = {found}: must be {allowed} at most")


def _check_weights(family: str, weights: Mapping[str, Singles]) -> None:
    """Refuse weights that can only saturate, and scales that features cannot have."""
    for name, bounds in (("mean", MEAN), ("deviation", DEVIATION)):
        low, high = float(weights[name].min()), float(weights[name].max())
        slack = 1e-6  # float32 rounds
        if low < bounds.low - slack or high > bounds.high + slack:
            found = low if low < bounds.low - slack else high
            _refuse_range(f"{family}.{name}", found, bounds)
    for name in ARRAYS:
        largest = float(np.abs(weights[name]).max())
        if largest > MAX_WEIGHT:
            text = f"{family}.{name} = {largest:g}: must be {MAX_WEIGHT:g} at most"
            refuse(ModelRefusal.UNBOUNDED_WEIGHTS, text)


def _check_line(family: str, network: OcnnModel) -> None:
    """Refuse an alarm line that training cannot draw.

    An output is a sum of ``w`` with factors from 0 to 1, so it lies between the sums of the negative and the positive
    ones, and so do its quantile and its median. Training refuses a median closer to the quantile than
    ``min_spread_ratio``.
    """
    line, nu = network.line_factor, network.nu_ratio
    if not LINE_FACTOR.low <= line <= LINE_FACTOR.high:
        _refuse_range(f"{family}.line_factor", line, LINE_FACTOR)
    if not 0 < nu < 1:
        refuse(ModelRefusal.OUT_OF_RANGE, f"{family}.nu_ratio = {nu:g}: must be above 0 and below 1")
    w = network.weights["w"].astype(np.float64)
    slack, lines = 1e-4 * float(np.abs(w).sum()), CollapseLines()  # float32 sums agree to about 1e-6 of the sum
    outputs = Bounds(float(w[w < 0].sum()) - slack, float(w[w > 0].sum()) + slack)
    r, middle = network.quantile_score, network.median_score
    for name, value in (("median_score", middle), ("quantile_score", r)):
        if not outputs.low <= value <= outputs.high:
            _refuse_range(f"{family}.{name}", value, outputs)
    if middle - r < lines.min_spread_ratio * abs(r):
        text = f"{family}.median_score lies {middle - r:.3g} above quantile_score = {r:.3g}: a constant"
        refuse(ModelRefusal.COLLAPSED_SCORES, text)


def _check_hearing(family: str, network: OcnnModel) -> None:
    """Refuse a network that takes nonsense for normal, whichever number is to blame.

    Nonsense are ranks whose operations of each class all fall into one bin, and whose shares of time and of calls are
    off by anything; bin and shares are drawn. The detector names a rank whose score is 1.0 above its peers', so that
    must hold for nonsense beside a usual rank. Training asks the same with shuffled sequences, which takes data, and
    of the same share (``min_shuffled_ratio``); networks that it makes hear 95 % and more of this nonsense.
    """
    classes, draw = network.vocabulary.class_count, np.random.default_rng(0)
    bins = np.eye(BIN_COUNT)[draw.integers(0, BIN_COUNT, (_NONSENSE_COUNT, classes))]
    shares = draw.uniform(-1.0, 1.0, (_NONSENSE_COUNT, 2 * classes))
    usual = network.weights["mean"][None, :]
    nonsense = np.concatenate([bins.reshape(_NONSENSE_COUNT, -1), shares], axis=1)
    rows = np.concatenate([usual, nonsense]).astype(np.float32)
    scores = network.scores(np.repeat(rows[:, None, :], network.sequence_count, axis=1))
    heard_ratio, least = float((scores[1:] - scores[0] >= 1.0).mean()), CollapseLines().min_shuffled_ratio
    if heard_ratio < least:
        line = f"{family}.line_factor = {network.line_factor:g}"
        text = f"{line}: must let {least:.0%} of nonsense stand out from a usual rank, {heard_ratio:.0%} does"
        refuse(ModelRefusal.BLIND_TO_SHUFFLED, text)


def _refuse_range(field: str, value: float, bounds: Bounds) -> NoReturn:
    """Raise ``ModelRefusedError`` for a number outside its bounds."""
    refuse(ModelRefusal.OUT_OF_RANGE, f"{field} = {value:g}: must be {bounds.low:g} to {bounds.high:g}")
