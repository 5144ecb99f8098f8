"""A small LSTM-VAE in numpy: it reconstructs a window of samples without its noise.

Minder (NSDI'25) trains one for each metric, shared by all machines: window 8, hidden 4, latent 8, one
layer (``seed-systems-a.md`` 1.5). Its output, the reconstructed window, is the embedding by which machines
are compared. Here inference is deterministic: the mean of the latent distribution is decoded and
nothing is sampled. Training needs torch and is in ``training/``. An engine needs numpy only, and is
faster with it at this size (``stack.md`` 6).

Gates are in torch's order (input, forget, cell, output), one below the other. States are
feature-major, shape (features, rows), so that a step is two matrix products and one ``tanh``.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

FloatArray = NDArray[np.float32]

WINDOW_TICKS = 8
"""Samples in a window (paper, 1.4)."""
HIDDEN_SIZE, LATENT_SIZE = 4, 8
"""Hidden size of each LSTM, and size of the latent distribution (paper, 1.5)."""
_CHUNK_COUNT = 4096
"""Windows processed at a time, so that their states stay in the processor's cache (``stack.md`` 6: a third faster than
all at once)."""
_FAR_VALUE = 1e6
"""Normalised values are clipped to plus or minus this. Gates saturate long before, and float32 must not overflow."""


@dataclass(frozen=True, slots=True)
class Limits:
    """The value range of a metric for min-max normalisation; it belongs to the metric, not to a window.

    Attributes:
        low: value that becomes 0.
        high: value that becomes 1.
    """

    low: float
    high: float

    def normalise(self, values: FloatArray) -> FloatArray:
        """Return (x - low) / (high - low) as float32; values may go beyond 0 and 1, infinity becomes NaN."""
        with np.errstate(invalid="ignore", over="ignore"):
            scaled = (values.astype(np.float64) - self.low) / (self.high - self.low)
            scaled = np.clip(scaled, -_FAR_VALUE, _FAR_VALUE)
        return np.where(np.isfinite(values), scaled, np.nan).astype(np.float32)


@dataclass(frozen=True, slots=True, eq=False)
class Lstm:
    """The weights of one LSTM layer.

    Attributes:
        input_weight: float32, shape (4 * hidden, inputs).
        hidden_weight: float32, shape (4 * hidden, hidden).
        bias: float32, shape (4 * hidden,); the sum of torch's two biases.
    """

    input_weight: FloatArray
    hidden_weight: FloatArray
    bias: FloatArray

    @property
    def hidden_size(self) -> int:
        """Number of features of the hidden state."""
        return int(self.hidden_weight.shape[1])

    def halved(self) -> Lstm:
        """Return the layer with the sigmoid gates' rows halved, as ``_State.advance`` needs it.

        sigmoid(x) = (1 + tanh(x / 2)) / 2, so one ``tanh`` serves all four gates.
        """
        size = self.hidden_size
        factor = np.full(4 * size, 0.5, np.float32)
        factor[2 * size : 3 * size] = 1.0
        return Lstm(self.input_weight * factor[:, None], self.hidden_weight * factor[:, None], self.bias * factor)


@dataclass(frozen=True, slots=True, eq=False)
class LstmVae:
    """The weights of one LSTM-VAE, of one metric or of several at once (the "integrated" ablation).

    Attributes:
        metrics: metrics that it was trained on, in the order of its inputs.
        limits: normalisation range of each metric.
        window_ticks: samples in a window.
        encoder: LSTM that reads the window; its last state gives the latent mean.
        latent_weight: float32, shape (latent, hidden).
        latent_bias: float32, shape (latent,).
        decoder: LSTM that receives the latent mean at every step.
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
        """Return the reconstruction of each window, same shape: the window without its noise.

        Args:
            windows: normalised, shape (rows, ticks, metrics); a row with a NaN or an infinity gives NaN.

        Raises:
            ValueError: the shape does not fit the model.
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
        """Return the latent means of windows of shape (ticks, metrics, rows), shape (latent, rows)."""
        state = _State.zeros(encoder.hidden_size, steps.shape[2])
        for values in steps:
            state.advance(encoder, encoder.input_weight @ np.ascontiguousarray(values) + encoder.bias[:, None])
        mean: FloatArray = self.latent_weight @ state.hidden + self.latent_bias[:, None]
        return mean

    def _decoded(self, decoder: Lstm, latent: FloatArray) -> FloatArray:
        """Return the decoded windows of latent means of shape (latent, rows), shape (rows, ticks, metrics)."""
        state = _State.zeros(decoder.hidden_size, latent.shape[1])
        fed = decoder.input_weight @ latent + decoder.bias[:, None]  # the same at every step
        out = np.empty((latent.shape[1], self.window_ticks, len(self.metrics)), np.float32)
        for tick in range(self.window_ticks):
            state.advance(decoder, fed)
            out[:, tick] = (self.output_weight @ state.hidden + self.output_bias[:, None]).T
        return out


@dataclass(slots=True)
class _State:
    """The hidden and cell state of an LSTM for many rows, shape (hidden, rows) each."""

    hidden: FloatArray
    cell: FloatArray

    @classmethod
    def zeros(cls, size: int, rows: int) -> _State:
        """Return a state of zeros."""
        return cls(np.zeros((size, rows), np.float32), np.zeros((size, rows), np.float32))

    def advance(self, layer: Lstm, fed: FloatArray) -> None:
        """Advance the state by one time step, in place.

        Args:
            layer: a ``halved`` layer.
            fed: contribution of the inputs and the bias to the gates, shape (4 * hidden, rows).
        """
        size = layer.hidden_size
        gates = np.tanh(fed + layer.hidden_weight @ self.hidden)
        take, keep, show = (0.5 + 0.5 * gates[place : place + size] for place in (0, size, 3 * size))
        self.cell = keep * self.cell + take * gates[2 * size : 3 * size]
        self.hidden = show * np.tanh(self.cell)
