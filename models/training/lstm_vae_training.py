"""Training of the LSTM-VAEs with torch; the trained models run in numpy.

From the paper: one model a metric, window 8, hidden 4, latent 8, one layer, unsupervised on data that
is mostly normal, reconstruction MSE below 1e-4 (``seed-systems-a.md`` 1.5). Optimiser, epochs and the
weight of the KL term were not found; those here are ours, each with its reason.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from tocsin.models.lstm_vae import HIDDEN_SIZE, LATENT_SIZE, WINDOW_TICKS, FloatArray, Limits, Lstm, LstmVae
from tocsin.schemas.errors import ConfigError
from tocsin.schemas.metrics import Metric

Progress = Callable[[int, int], None]
"""Callback for progress: called with (steps done, steps in all)."""


@dataclass(frozen=True, slots=True)
class VaeTrainingConfig:
    """Settings of the training of one LSTM-VAE.

    Attributes:
        seed: the same seed, data and torch version give the same weights.
        window_ticks: samples in a window (paper).
        hidden_size: hidden features of both LSTMs (paper).
        latent_size: size of the latent distribution (paper).
        window_count: windows sampled from the data; more would not improve 400 weights.
        batch_size: windows in a batch.
        epoch_count: passes over the windows; 20 reach an MSE of 7e-5 on unseen machines (the paper asks for 1e-4), in 8
            s.
        learning_rate_factor: initial learning rate of Adam; it falls to zero along a cosine.
        kl_weight: weight of the KL term against the MSE. Small, because an MSE of 1e-4 is the target and the KL term of
            8 latents is of order 1.
    """

    seed: int = 0
    window_ticks: int = WINDOW_TICKS
    hidden_size: int = HIDDEN_SIZE
    latent_size: int = LATENT_SIZE
    window_count: int = 20_000
    batch_size: int = 256
    epoch_count: int = 20
    learning_rate_factor: float = 0.02
    kl_weight: float = 1e-6


def learned_limits(metric: Metric, values: Sequence[FloatArray]) -> Limits:
    """Return a metric's normalisation limits; an end that its table leaves open is the extreme value seen.

    Args:
        metric: the metric with its limits, if any.
        values: training samples, any shapes, NaN = no sample.

    Raises:
        ConfigError: no value was seen, or a metric's own limits do not ascend.
    """
    known = [part[np.isfinite(part)] for part in values]
    known = [part for part in known if part.size]
    if not known:
        raise ConfigError(f"training data of {metric.name}", "no sample", "at least one number")
    low = float(min(part.min() for part in known)) if metric.low is None else metric.low
    high = float(max(part.max() for part in known)) if metric.high is None else metric.high
    if not high > low:
        if metric.low is None or metric.high is None:
            return Limits(low, low + 1.0)  # a counter that never moved: anything else is far from it
        raise ConfigError(f"limits of {metric.name}", (low, high), "ascending")
    return Limits(low, high)


def draw_windows(values: Sequence[FloatArray], config: VaeTrainingConfig) -> FloatArray:
    """Draw windows without a missing sample, uniformly from all machines and times.

    Args:
        values: normalised, shape (machines, metrics, ticks) each; machine and tick counts may differ.
        config: number and length of windows, and the seed.

    Returns:
        Shape (windows, ticks, metrics); fewer windows than asked where some have a missing sample.
    """
    rng = np.random.default_rng(config.seed)
    counts = [part.shape[0] * max(0, part.shape[2] - config.window_ticks + 1) for part in values]
    total = sum(counts)
    chosen = np.sort(rng.choice(total, min(total, config.window_count), replace=False)) if total else np.zeros(0, int)
    found, begin = [], 0
    for part, count in zip(values, counts, strict=True):
        own = chosen[(chosen >= begin) & (chosen < begin + count)] - begin
        begin += count
        if own.size:
            views = np.lib.stride_tricks.sliding_window_view(part, config.window_ticks, axis=2)
            machine, place = np.divmod(own, views.shape[2])
            found.append(views[machine, :, place].transpose(0, 2, 1))
    windows = np.concatenate(found) if found else np.zeros((0, config.window_ticks, 1), np.float32)
    whole: FloatArray = windows[np.isfinite(windows).all(axis=(1, 2))].astype(np.float32)
    return whole


class TorchVae(nn.Module):
    """The LSTM-VAE as a torch module."""

    def __init__(self, width: int, config: VaeTrainingConfig) -> None:
        """Create the layers with torch's default initial weights.

        Args:
            width: number of metrics.
            config: sizes.
        """
        super().__init__()
        hidden, latent = config.hidden_size, config.latent_size
        self.encoder = nn.LSTM(width, hidden, batch_first=True)
        self.mean = nn.Linear(hidden, latent)
        self.log_variance = nn.Linear(hidden, latent)
        self.decoder = nn.LSTM(latent, hidden, batch_first=True)
        self.output = nn.Linear(hidden, width)

    def encode(self, windows: Tensor) -> tuple[Tensor, Tensor]:
        """Return mean and log variance of the latent distribution of windows, shape (rows, latent) each."""
        last = self.encoder(windows)[1][0][0]
        return self.mean(last), self.log_variance(last)

    def decode(self, latent: Tensor, ticks: int) -> Tensor:
        """Return the windows of latent vectors, shape (rows, ticks, metrics)."""
        fed = latent[:, None, :].expand(-1, ticks, -1)
        windows: Tensor = self.output(self.decoder(fed)[0])
        return windows

    def reconstruct(self, windows: Tensor) -> Tensor:
        """Return the deterministic reconstruction of windows: the decoded latent mean."""
        return self.decode(self.encode(windows)[0], windows.shape[1])

    def loss(self, windows: Tensor, kl_weight: float, noise: Tensor) -> Tensor:
        """Return the reconstruction error plus the weighted KL divergence from the standard normal distribution.

        Args:
            windows: a batch, shape (rows, ticks, metrics).
            kl_weight: weight of the KL divergence.
            noise: standard normal, shape (rows, latent).
        """
        mean, log_variance = self.encode(windows)
        latent = mean + noise * torch.exp(0.5 * log_variance)
        error = (self.decode(latent, windows.shape[1]) - windows).square().mean()
        kl = -0.5 * (1 + log_variance - mean.square() - log_variance.exp()).sum(dim=1).mean()
        return error + kl_weight * kl


def weight_count(config: VaeTrainingConfig, width: int = 1) -> int:
    """Return the number of weights that are trained for one LSTM-VAE of ``width`` metrics."""
    with torch.device("meta"):
        return sum(one.numel() for one in TorchVae(width, config).parameters())


def train_vae(
    values: Sequence[FloatArray],
    metrics: Sequence[str],
    limits: Sequence[Limits],
    config: VaeTrainingConfig | None = None,
    progress: Progress | None = None,
) -> LstmVae:
    """Train the LSTM-VAE of one metric, or of several at once.

    Args:
        values: in the metrics' own units, shape (machines, metrics, ticks) each, NaN = no sample.
        metrics: names of the model's inputs.
        limits: normalisation limits of each metric.
        config: settings.
        progress: called after each step.

    Raises:
        ConfigError: there is no window without a missing sample.
    """
    config = config or VaeTrainingConfig()
    scaled = [np.stack([limit.normalise(part[:, row]) for row, limit in enumerate(limits)], axis=1) for part in values]
    windows = draw_windows(scaled, config)
    if not len(windows):
        wanted = f"{config.window_ticks} samples in a row of one machine at least once"
        raise ConfigError(f"training data of {', '.join(metrics)}", "no whole window", wanted)
    with torch.random.fork_rng(devices=[]), _one_thread():
        torch.manual_seed(config.seed)
        model = TorchVae(len(metrics), config)
        with torch.no_grad():  # begin at the data's own level: a step less to learn
            model.output.bias.copy_(torch.from_numpy(windows.mean(axis=(0, 1))))
        _fit(model, torch.from_numpy(windows), config, progress)
    return to_numpy(model, metrics, limits, config.window_ticks)


@contextmanager
def _one_thread() -> Iterator[None]:
    """Limit torch to one thread inside the block.

    Layers of four features are too small to share out, and a second thread would sum in another order.
    """
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(threads)


def _fit(model: TorchVae, windows: Tensor, config: VaeTrainingConfig, progress: Progress | None) -> None:
    """Train a model in place on windows, shape (windows, ticks, metrics)."""
    batches = -(-len(windows) // config.batch_size)
    steps = batches * config.epoch_count
    optimiser = torch.optim.Adam(model.parameters(), lr=config.learning_rate_factor)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimiser, steps)
    done = 0
    for _ in range(config.epoch_count):
        order = torch.randperm(len(windows))
        for batch in range(batches):
            rows = order[batch * config.batch_size : (batch + 1) * config.batch_size]
            noise = torch.randn(len(rows), config.latent_size)
            optimiser.zero_grad()
            model.loss(windows[rows], config.kl_weight, noise).backward()  # type: ignore[no-untyped-call]
            nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            optimiser.step()
            schedule.step()
            done += 1
            if progress is not None:
                progress(done, steps)


def to_numpy(model: TorchVae, metrics: Sequence[str], limits: Sequence[Limits], window_ticks: int) -> LstmVae:
    """Return the trained weights as a numpy LSTM-VAE."""
    return LstmVae(
        tuple(metrics),
        tuple(limits),
        window_ticks,
        _layer(model.encoder),
        _array(model.mean.weight),
        _array(model.mean.bias),
        _layer(model.decoder),
        _array(model.output.weight),
        _array(model.output.bias),
    )


def _layer(layer: nn.LSTM) -> Lstm:
    """Return the weights of a torch LSTM layer, with its two biases added up."""
    weights = dict(layer.named_parameters())
    bias = weights["bias_ih_l0"].detach() + weights["bias_hh_l0"].detach()
    return Lstm(_array(weights["weight_ih_l0"]), _array(weights["weight_hh_l0"]), _array(bias))


def _array(values: Tensor) -> NDArray[np.float32]:
    """Return a tensor as a float32 array."""
    return np.array(values.detach().numpy(), np.float32)
