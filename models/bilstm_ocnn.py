"""A Bi-LSTM with the one-class objective of OC-NN over distributions of operation times: inference in numpy.

It follows the approach of DistAD (a withdrawn preprint) with OC-NN (Chalapathy et al. 2018); it reproduces neither.

A rank's last ``sequence_count`` windows of features go through both directions. Online, the backward pass
sees only these windows, never the future. Then

    y = w . g(V x)                x: last forward and last backward state, g: sigmoid
    S = y - r,  S < 0: anomaly    r: nu-quantile of y on normal data

g is bounded because with a linear g the objective is degenerate: it goes to zero or grows without bound
(``seed-systems-b.md`` 4.2). ``collapse_of`` detects a model that learned nothing.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, NoReturn

import numpy as np
from numpy.typing import NDArray

from tocsin.models.op_features import Vocabulary, feature_count
from tocsin.models.weights import read_weights, write_weights
from tocsin.schemas.errors import FieldError, ModelRefusedError, SchemaError
from tocsin.schemas.reasons import ModelRefusal

Singles = NDArray[np.float32]

KIND = "bilstm_ocnn/1"
CLIP_SIGMAS = 5.0
"""Standardised features are clipped to plus or minus this. One extreme feature is enough for an alarm, and without the
clip it would drown all others."""
_LSTM = ("input", "state", "bias")
ARRAYS = ("mean", "deviation", *(f"{way}_{part}" for way in ("forward", "backward") for part in _LSTM), "V", "w")
"""Weights by name: ``forward_input`` (4H, F), ``forward_state`` (4H, H), ``forward_bias`` (4H,), the same
backward, ``V`` (P, 2H), ``w`` (P,); gates in torch's order: input, forget, cell, output."""

_NUMBERS = ("quantile_score", "median_score", "line_factor", "nu_ratio")


@dataclass(frozen=True, slots=True)
class OcnnModel:
    """A trained Bi-LSTM one-class network: its weights, its alarm line and the vocabulary of its features.

    Attributes:
        vocabulary: the operation classes of its features.
        sequence_count: number of consecutive windows in one input sequence.
        weights: arrays by name, see ``ARRAYS``.
        quantile_score: r, the nu-quantile of the output y on normal data.
        median_score: median of y over normal sequences.
        line_factor: distance of the alarm line below ``median_score``, in units of ``median_score - quantile_score``.
        nu_ratio: share of normal sequences that may have y below r.
        bounded: True: g is a sigmoid. False: g is linear; such a model is never accepted.
    """

    vocabulary: Vocabulary
    sequence_count: int
    weights: dict[str, Singles]
    quantile_score: float
    median_score: float
    line_factor: float
    nu_ratio: float
    bounded: bool = True

    def encode(self, sequences: Singles) -> Singles:
        """Return the last hidden states of the forward and the backward pass for each sequence.

        Args:
            sequences: features, shape (ranks, ``sequence_count``, features).

        Returns:
            Both states one after the other, shape (ranks, 2 H).
        """
        weights = self.weights
        scaled = (sequences - weights["mean"]) / weights["deviation"]
        scaled = np.clip(scaled, -CLIP_SIGMAS, CLIP_SIGMAS).astype(np.float32)
        ends = [_lstm(scaled, *(weights[f"forward_{part}"] for part in _LSTM))]
        ends.append(_lstm(scaled[:, ::-1], *(weights[f"backward_{part}"] for part in _LSTM)))
        return np.concatenate(ends, axis=1)

    def outputs(self, sequences: Singles) -> Singles:
        """Return y of each sequence, shape (ranks,); the lower, the more anomalous.

        Args:
            sequences: features, shape (ranks, ``sequence_count``, features).
        """
        hidden = self.encode(sequences) @ self.weights["V"].T
        y: Singles = (_sigmoid(hidden) if self.bounded else hidden) @ self.weights["w"]
        return y

    def scores(self, sequences: Singles) -> NDArray[np.float64]:
        """Return the anomaly score of each sequence: at least 0, high is bad, 1.0 is the alarm line.

        Args:
            sequences: features, shape (ranks, ``sequence_count``, features).

        Returns:
            Shape (ranks,).

        Raises:
            FieldError: the shape is not the one that the model takes, or a feature is not finite.
        """
        wanted = (self.sequence_count, feature_count(self.vocabulary.class_count))
        if sequences.ndim != 3 or sequences.shape[1:] != wanted:
            raise FieldError("sequences", sequences.shape, f"(ranks, {wanted[0]}, {wanted[1]})")
        if not np.isfinite(sequences).all():
            raise FieldError("sequences", "not finite", "numbers")
        below = self.median_score - self.outputs(sequences).astype(np.float64)
        line = (self.median_score - self.quantile_score) * self.line_factor
        return np.maximum(0.0, below / line)

    def to_bytes(self) -> bytes:
        """Return the model as a weights file; ``read_model`` reads it."""
        head = {
            "vocabulary": list(self.vocabulary.words),
            "sequence_count": self.sequence_count,
            "quantile_score": self.quantile_score,
            "median_score": self.median_score,
            "line_factor": self.line_factor,
            "nu_ratio": self.nu_ratio,
            "bounded": self.bounded,
        }
        return write_weights(KIND, head, {name: self.weights[name] for name in ARRAYS})


def read_model(payload: bytes) -> OcnnModel:
    """Read a model file of ``OcnnModel.to_bytes`` and check that it can be used.

    Refused are also weights that went to zero or grew without bound (``CollapseLines``): they would give every sequence
    the same score.

    Raises:
        ModelRefusedError: the file is damaged, of another kind, has values out of range or collapsed weights.
    """
    head, arrays = read_weights(KIND, payload)
    words, count = head.get("vocabulary"), head.get("sequence_count")
    if not isinstance(words, list) or not words or not all(isinstance(word, str) for word in words):
        _refuse(ModelRefusal.MODEL_UNDECODABLE, f"vocabulary = {str(words)[:80]}: must be a list of words")
    if not isinstance(count, int) or isinstance(count, bool) or not 1 <= count <= 256:
        _refuse(ModelRefusal.OUT_OF_RANGE, f"sequence_count = {count!r}: must be 1 to 256")
    try:
        vocabulary = Vocabulary(tuple(words))
    except SchemaError as error:
        raise ModelRefusedError(ModelRefusal.MODEL_UNDECODABLE.value, str(error)) from error
    _check_shapes(arrays, feature_count(vocabulary.class_count))
    r, middle, line, nu = (_number(head, name) for name in _NUMBERS)
    if not r < middle or not line > 0:
        _refuse(ModelRefusal.OUT_OF_RANGE, "quantile_score must be below median_score and line_factor above 0")
    if head.get("bounded") is not True:
        _refuse(ModelRefusal.UNBOUNDED_WEIGHTS, "bounded must be true: with a linear g the objective is degenerate")
    found = _weight_collapse_of(arrays, r, CollapseLines())
    if found is not None:
        _refuse(*found)
    return OcnnModel(vocabulary, count, arrays, r, middle, line, nu)


@dataclass(frozen=True, slots=True)
class CollapseLines:
    """Limits beyond which a model counts as collapsed, that is, as having learned nothing.

    Attributes:
        min_weight_norm: least norm of w, of V and of r; below it everything went to zero (``seed-systems-b.md`` 4.2).
            Features move an output by at most |w| |V| sqrt(2 H) / 4; in trained models both norms are above 1. The same
            limit holds for the input weights of both directions together: below it no state depends on the features.
        max_weight_norm: largest norm of w; above it the weights grew without bound.
        min_spread_ratio: least distance from r to the median output of normal data, as a share of r; below it the
            outputs are one constant. 1e-4, because float32 sums agree between libraries to about 1e-6 of the sum.
        min_feature_sigmas: least standard deviation of the encoded states over normal and shuffled data together; below
            it they are one point (hypersphere collapse). States lie in -1 to 1.
        min_shuffled_ratio: least share of sequences with shuffled features that must reach the alarm line. A model that
            passes half of such nonsense ignores its input.
        rate_sigmas: how far the share of held-out normal sequences below r may differ from nu, in standard deviations
            of a binomial share (5.4 D2).
    """

    min_weight_norm: float = 1e-3
    max_weight_norm: float = 1e2
    min_spread_ratio: float = 1e-4
    min_feature_sigmas: float = 1e-4
    min_shuffled_ratio: float = 0.5
    rate_sigmas: float = 3.0


def shuffled(sequences: Singles, seed: int) -> Singles:
    """Return a copy in which each sequence has its features permuted at random.

    The result is no normal data but has normal data's values. All windows of one sequence use the same permutation.

    Args:
        sequences: shape (sequences, windows, features).
        seed: seed of the permutations.
    """
    order = np.random.default_rng(seed).permuted(np.tile(np.arange(sequences.shape[2]), (len(sequences), 1)), axis=1)
    return np.take_along_axis(sequences, order[:, None, :], axis=2)


def collapse_of(
    model: OcnnModel, normal: Singles, independent_count: int, lines: CollapseLines = CollapseLines()
) -> tuple[ModelRefusal, str] | None:
    """Return why a model has learned nothing, as (reason, sentence); None if it passes all checks.

    Args:
        model: a trained model.
        normal: held-out normal sequences, at least some dozens, shape (sequences, windows, features).
        independent_count: number of held-out sequences that share no windows. Overlapping ones are not independent
            samples for the test of the false alarm rate.
        lines: limits of the checks.
    """
    r = model.quantile_score
    collapse = _weight_collapse_of(model.weights, r, lines)
    if collapse is not None:
        return collapse
    out_of_order = shuffled(normal, seed=0)
    states = np.concatenate([model.encode(normal), model.encode(out_of_order)])
    if float(states.std(axis=0).max()) < lines.min_feature_sigmas:
        text = f"encoded states differ by {states.std(axis=0).max():.3g} at most: below {lines.min_feature_sigmas:g}"
        return ModelRefusal.COLLAPSED_FEATURES, text
    y = model.outputs(normal).astype(np.float64)
    gap = min(model.median_score, float(np.median(y))) - r
    if gap < lines.min_spread_ratio * abs(r):
        return ModelRefusal.COLLAPSED_SCORES, f"outputs of normal data lie {gap:.3g} above r = {r:.3g}: a constant"
    seen_ratio = float((model.scores(out_of_order) >= 1).mean())
    if seen_ratio < lines.min_shuffled_ratio:
        text = f"{seen_ratio:.0%} of shuffled sequences are at the line: below {lines.min_shuffled_ratio:.0%}"
        return ModelRefusal.BLIND_TO_SHUFFLED, text
    nu, rate = model.nu_ratio, float((y < r).mean())
    allowed = lines.rate_sigmas * float(np.sqrt(nu * (1 - nu) / max(independent_count, 1)))
    if abs(rate - nu) > allowed:
        return ModelRefusal.FALSE_ALARM_RATE, f"{rate:.3f} of held-out normal data below r: nu = {nu} +- {allowed:.3f}"
    return None


def _weight_collapse_of(
    weights: Mapping[str, Singles], quantile_score: float, lines: CollapseLines
) -> tuple[ModelRefusal, str] | None:
    """Return why the weights alone show a collapse, as (reason, sentence); None if they do not.

    This is the part of ``collapse_of`` that needs no data, so ``read_model`` runs it on every file.
    """
    sizes = {name: _norm(weights[name]) for name in ("w", "V")}
    if not sizes["w"] <= lines.max_weight_norm:
        return ModelRefusal.UNBOUNDED_WEIGHTS, f"|w| = {sizes['w']:.3g}: above {lines.max_weight_norm:g}"
    for name, size in {**sizes, "r": abs(quantile_score)}.items():
        if size < lines.min_weight_norm:
            return ModelRefusal.COLLAPSED_WEIGHTS, f"|{name}| = {size:.3g}: below {lines.min_weight_norm:g}"
    read = float(np.hypot(_norm(weights["forward_input"]), _norm(weights["backward_input"])))
    if read < lines.min_weight_norm:
        text = f"|forward_input, backward_input| = {read:.3g}: below {lines.min_weight_norm:g}"
        return ModelRefusal.COLLAPSED_FEATURES, text
    return None


def _norm(values: Singles) -> float:
    """Return the Euclidean norm of an array, computed in float64 because squares of float32 overflow."""
    return float(np.linalg.norm(values.astype(np.float64)))


def refuse_collapsed(model: OcnnModel, normal: Singles, independent_count: int) -> OcnnModel:
    """Return the model unchanged if it passes ``collapse_of``.

    Raises:
        ModelRefusedError: the model learned nothing; the error carries the reason of ``collapse_of``.
    """
    found = collapse_of(model, normal, independent_count)
    if found is not None:
        _refuse(*found)
    return model


def _lstm(inputs: Singles, weights: Singles, state_weights: Singles, bias: Singles) -> Singles:
    """Run one LSTM direction over its inputs and return the last hidden state, shape (ranks, H).

    Args:
        inputs: shape (ranks, windows, features).
        weights: input weights, shape (4H, features).
        state_weights: recurrent weights, shape (4H, H).
        bias: shape (4H,).
    """
    size = state_weights.shape[1]
    hidden = np.zeros((inputs.shape[0], size), np.float32)
    cell = np.zeros_like(hidden)
    drive = inputs @ weights.T + bias
    for tick in range(inputs.shape[1]):
        gates = drive[:, tick] + hidden @ state_weights.T
        enter, forget = _sigmoid(gates[:, :size]), _sigmoid(gates[:, size : 2 * size])
        cell = forget * cell + enter * np.tanh(gates[:, 2 * size : 3 * size])
        hidden = _sigmoid(gates[:, 3 * size :]) * np.tanh(cell)
    return hidden


def _sigmoid(values: Singles) -> Singles:
    """Return the logistic sigmoid of each value, computed by ``tanh`` so that nothing overflows."""
    half: Singles = np.float32(0.5) * (np.tanh(np.float32(0.5) * values) + np.float32(1.0))
    return half


def _check_shapes(arrays: dict[str, NDArray[Any]], features: int) -> None:
    """Refuse weights whose names, shapes or types are wrong, or whose ``deviation`` is not above 0."""
    if set(arrays) != set(ARRAYS):
        _refuse(ModelRefusal.MODEL_UNDECODABLE, f"arrays {sorted(arrays)}: must be {sorted(ARRAYS)}")
    size, head = arrays["forward_state"].shape[-1] if arrays["forward_state"].ndim == 2 else 0, arrays["w"].size
    lstm = {"input": (4 * size, features), "state": (4 * size, size), "bias": (4 * size,)}
    wanted = {"mean": (features,), "deviation": (features,), "V": (head, 2 * size), "w": (head,)}
    wanted |= {f"{way}_{part}": lstm[part] for way in ("forward", "backward") for part in _LSTM}
    for name, shape in wanted.items():
        if arrays[name].shape != shape or arrays[name].dtype != np.float32:
            found = f"{arrays[name].dtype} {arrays[name].shape}"
            _refuse(ModelRefusal.MODEL_UNDECODABLE, f"{name} is {found}: must be float32 {shape}")
    if not (arrays["deviation"] > 0).all():
        _refuse(ModelRefusal.OUT_OF_RANGE, "deviation: must be above 0")


def _number(head: dict[str, Any], name: str) -> float:
    """Return a finite number of a model's head as a float; refuse anything else."""
    value = head.get(name)
    try:
        number = float(value) if isinstance(value, int | float) and not isinstance(value, bool) else math.nan
    except OverflowError:  # a whole number of hundreds of digits
        number = math.inf
    if not math.isfinite(number):
        _refuse(ModelRefusal.MODEL_UNDECODABLE, f"{name} = {str(value)[:80]}: must be a number")
    return number


def _refuse(reason: ModelRefusal, text: str) -> NoReturn:
    """Raise ``ModelRefusedError`` with this reason and sentence."""
    raise ModelRefusedError(reason.value, text)
