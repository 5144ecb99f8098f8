"""A tiny LSTM-VAE in numpy: a window in, the same window without its noise out.

Minder (NSDI'25) trains one for each metric, shared by all machines: window 8, hidden 4, latent 8, one
layer (``seed-systems-a.md`` 1.5). Its output, the reconstructed window, is the embedding that machines
are compared by. Here the answer is deterministic: the mean of the latent distribution is decoded,
nothing is drawn. Training needs torch and lives in ``training/``; an engine needs numpy only, and is
faster with it at this size (``stack.md`` 6).

Gates stand in torch's order (input, forget, cell, output), one below the other. States are
feature-major, shape (features, rows), so that a step is two matrix products and one ``tanh``.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

FloatArray = NDArray[np.float32]

WINDOW_TICKS = 8
"""Samples of a window (1.4)."""
HIDDEN_SIZE, LATENT_SIZE = 4, 8
"""Of each LSTM, and of the distribution between them (1.5)."""
_CHUNK_COUNT = 4096
"""Rows at a time: their states stay in the processor's cache (``stack.md`` 6: a third faster than all at once)."""
_FAR_VALUE = 1e6
"""A normalised value beyond it counts as this: gates are saturated long before, and float32 must not overflow."""


@dataclass(frozen=True, slots=True)
class Limits:
    """What a metric may be: the ends of min-max normalisation. They belong to the metric, not to a window.

    Attributes:
        low: becomes 0.
        high: becomes 1.
    """

    low: float
    high: float

    def normalise(self, values: FloatArray) -> FloatArray:
        """(x - low) / (high - low); beyond the limits it goes beyond 0 and 1, infinity is no sample."""
        with np.errstate(invalid="ignore", over="ignore"):
            scaled = (values.astype(np.float64) - self.low) / (self.high - self.low)
            scaled = np.clip(scaled, -_FAR_VALUE, _FAR_VALUE)
        return np.where(np.isfinite(values), scaled, np.nan).astype(np.float32)


@dataclass(frozen=True, slots=True, eq=False)
class Lstm:
    """One LSTM layer.

    Attributes:
        input_weight: float32, shape (4 * hidden, inputs).
        hidden_weight: float32, shape (4 * hidden, hidden).
        bias: float32, shape (4 * hidden,); torch keeps two that are added.
    """

    input_weight: FloatArray
    hidden_weight: FloatArray
    bias: FloatArray

    @property
    def hidden_size(self) -> int:
        """Features of its state."""
        return int(self.hidden_weight.shape[1])

    def halved(self) -> Lstm:
        """The same with the sigmoid gates' rows halved: sigmoid(x) = (1 + tanh(x / 2)) / 2, one tanh does for all."""
        size = self.hidden_size
        factor = np.full(4 * size, 0.5, np.float32)
        factor[2 * size : 3 * size] = 1.0
        return Lstm(self.input_weight * factor[:, None], self.hidden_weight * factor[:, None], self.bias * factor)


@dataclass(frozen=True, slots=True, eq=False)
class LstmVae:
    """The weights of one model, of one metric (or of several at once: the "integrated" ablation).

    Attributes:
        metrics: what it was trained for, in the order of its inputs.
        limits: one each.
        window_ticks: samples of a window.
        encoder: reads the window; its last state gives the latent mean.
        latent_weight: float32, shape (latent, hidden).
        latent_bias: float32, shape (latent,).
        decoder: is fed with the latent mean at every step.
        output_weight: float32, shape (metrics, hidden).
        output_bias: float32, shape (metrics,).
    """

    metrics: tuple[str, ...]
    limits: tuple[Limits, ...]
    window_ticks: int
    encoder: Lstm
    latent_weight: FloatArray
    latent_bias: FloatArray
    decoder: Lstm
    output_weight: FloatArray
    output_bias: FloatArray

    def reconstruct(self, windows: FloatArray) -> FloatArray:
        """Return the windows without their noise.

        Args:
            windows: normalised, shape (rows, ticks, metrics); a row with a NaN or an infinity has no answer: NaN.
        """
        rows, ticks, width = windows.shape
        if (ticks, width) != (self.window_ticks, len(self.metrics)):
            wanted = f"(rows, {self.window_ticks}, {len(self.metrics)})"
            raise ValueError(f"windows have the shape {windows.shape}: must be {wanted} for {', '.join(self.metrics)}")
        out = np.empty(windows.shape, np.float32)
        encoder, decoder = self.encoder.halved(), self.decoder.halved()
        for begin in range(0, rows, _CHUNK_COUNT):
            part = windows[begin : begin + _CHUNK_COUNT]
            known = np.isfinite(part).all(axis=(1, 2))
            clean = np.where(known[:, None, None], np.clip(part, -_FAR_VALUE, _FAR_VALUE), 0.0).astype(np.float32)
            found = self._decoded(decoder, self._latent(encoder, clean.transpose(1, 2, 0)))
            out[begin : begin + _CHUNK_COUNT] = np.where(known[:, None, None], found, np.nan)
        return out

    def _latent(self, encoder: Lstm, steps: FloatArray) -> FloatArray:
        """The latent means of windows of shape (ticks, metrics, rows): (latent, rows)."""
        state = _State.zeros(encoder.hidden_size, steps.shape[2])
        for values in steps:
            state.advance(encoder, encoder.input_weight @ np.ascontiguousarray(values) + encoder.bias[:, None])
        mean: FloatArray = self.latent_weight @ state.hidden + self.latent_bias[:, None]
        return mean

    def _decoded(self, decoder: Lstm, latent: FloatArray) -> FloatArray:
        """The windows of latent means, shape (rows, ticks, metrics)."""
        state = _State.zeros(decoder.hidden_size, latent.shape[1])
        fed = decoder.input_weight @ latent + decoder.bias[:, None]  # the same at every step
        out = np.empty((latent.shape[1], self.window_ticks, len(self.metrics)), np.float32)
        for tick in range(self.window_ticks):
            state.advance(decoder, fed)
            out[:, tick] = (self.output_weight @ state.hidden + self.output_bias[:, None]).T
        return out


@dataclass(slots=True)
class _State:
    """Hidden and cell state, shape (hidden, rows) each."""

    hidden: FloatArray
    cell: FloatArray

    @classmethod
    def zeros(cls, size: int, rows: int) -> _State:
        return cls(np.zeros((size, rows), np.float32), np.zeros((size, rows), np.float32))

    def advance(self, layer: Lstm, fed: FloatArray) -> None:
        """One step of a ``halved`` layer; ``fed``: what its inputs and bias add to the gates."""
        size = layer.hidden_size
        gates = np.tanh(fed + layer.hidden_weight @ self.hidden)
        take, keep, show = (0.5 + 0.5 * gates[place : place + size] for place in (0, size, 3 * size))
        self.cell = keep * self.cell + take * gates[2 * size : 3 * size]
        self.hidden = show * np.tanh(self.cell)
