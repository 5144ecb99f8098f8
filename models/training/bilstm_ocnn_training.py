"""Training of the Bi-LSTM one-class network with torch; the trained model runs in numpy (``models.bilstm_ocnn``).

It follows DistAD with OC-NN (Chalapathy et al. 2018). The encoder is first trained as an auto-encoder, then

    min  1/2 |w|^2 + 1/2 |V|^2 + 1/(nu N) sum max(0, r - y) - r

is minimised in turns: weights by gradient with r fixed; then r = the nu-quantile of y, which is exact.

One thing is our own: the auto-encoder's loss stays in the sum (``anchor_weight``). The encoder is trained on, and
nothing else in the objective keeps it from mapping everything to one point, which is what it does without.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, replace

import numpy as np
import torch
from numpy.typing import NDArray
from torch import nn

from tocsin.models.bilstm_ocnn import CLIP_SIGMAS, OcnnModel, refuse_collapsed
from tocsin.models.op_features import Vocabulary, feature_count
from tocsin.schemas.errors import ConfigError

Singles = NDArray[np.float32]


@dataclass(frozen=True, slots=True)
class OcnnTraining:
    """Settings of the training of a Bi-LSTM one-class network.

    Attributes:
        nu_ratio: share of normal sequences that may have y below r. 0.05: the middle of the three values that
            ``seed-systems-b.md`` 4.2 verified.
        hidden_size: hidden features of each direction. 16 and not the 64 of ``seed-systems-b.md`` 4.3: 10,000 ranks are
            judged in a tenth of the time and the file has kilobytes.
        head_size: number of rows of V.
        encoder_steps: batches of auto-encoding before the first turn.
        turn_count: number of turns of the alternation.
        turn_steps: batches in each turn.
        batch_size: sequences in a batch.
        learning_rate_ratio: learning rate of Adam.
        anchor_weight: weight of the auto-encoder's loss during the alternation; 0: the objective as published.
        bounded: True: g is a sigmoid. False: linear as in the original code, to demonstrate the collapse.
        deviation_floor: least scale of a feature (features are shares, 0 to 1). A share that never moved in training
            may move by a twentieth.
        margin_factor: distance of the alarm line, in units of the most anomalous normal sequence.
        seed: seed of the initial weights and of the order of batches.
    """

    nu_ratio: float = 0.05
    hidden_size: int = 16
    head_size: int = 16
    encoder_steps: int = 200
    turn_count: int = 40
    turn_steps: int = 20
    batch_size: int = 256
    learning_rate_ratio: float = 1e-2
    anchor_weight: float = 1.0
    bounded: bool = True
    deviation_floor: float = 0.05
    margin_factor: float = 1.25
    seed: int = 0

    def __post_init__(self) -> None:
        """Check the settings.

        Raises:
            ConfigError: a setting is out of range; the error names it.
        """
        if not 0.0 < self.nu_ratio < 1.0:
            raise ConfigError("nu_ratio", self.nu_ratio, "between 0 and 1")
        for name in ("hidden_size", "head_size", "turn_count", "turn_steps", "batch_size"):
            if getattr(self, name) < 1:
                raise ConfigError(name, getattr(self, name), "at least 1")


@dataclass(frozen=True, slots=True)
class AlternationRound:
    """The state after one turn of the alternation.

    Attributes:
        index: number of the turn, from 0.
        quantile_score: r after the turn.
        below_ratio: share of the training sequences with y < r; equals nu to within 1 / N.
        weight_norm: |w|.
    """

    index: int
    quantile_score: float
    below_ratio: float
    weight_norm: float


@dataclass(frozen=True, slots=True)
class NormalData:
    """Feature sequences of ranks in jobs without a fault.

    Attributes:
        training: sequences to train on, shape (sequences, windows, features).
        held_out: sequences of other jobs, same shape.
        independent_count: number of held-out sequences that share no windows.
    """

    training: Singles
    held_out: Singles
    independent_count: int


def nu_quantile(outputs: NDArray[np.float64], nu_ratio: float) -> float:
    """Return r such that the share of outputs below it is nu to within 1 / N, where all outputs differ."""
    ordered = np.sort(outputs)
    return float(ordered[min(math.floor(nu_ratio * ordered.size), ordered.size - 1)])


def train(
    data: NormalData,
    vocabulary: Vocabulary,
    config: OcnnTraining,
    on_turn: Callable[[AlternationRound], None] | None = None,
    *,
    check: bool = True,
) -> OcnnModel:
    """Train a Bi-LSTM one-class network; the same data, config and seed give the same bytes on one machine.

    Args:
        data: normal sequences.
        vocabulary: operation classes of the features.
        config: settings.
        on_turn: called after each turn (for a progress bar or a test).
        check: True: refuse a model that learned nothing. False: return it for inspection.

    Raises:
        ConfigError: the data has the wrong shape, is too little, or has values that are not finite.
        ModelRefusedError: the model learned nothing; the error carries the reason.
    """
    _check_data(data, vocabulary, config)
    mean = data.training.mean(axis=(0, 1))
    deviation = np.maximum(data.training.std(axis=(0, 1)), config.deviation_floor).astype(np.float32)
    scaled = np.clip((data.training - mean) / deviation, -CLIP_SIGMAS, CLIP_SIGMAS).astype(np.float32)
    inputs = torch.from_numpy(scaled)
    threads = torch.get_num_threads()
    torch.set_num_threads(1)  # the network is tiny: threads cost twenty times what they save where cores are shared
    try:
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(config.seed)
            network = OcnnNetwork(scaled.shape[2], scaled.shape[1], config)
            r = _fit(network, inputs, config, on_turn)
        with torch.no_grad():
            median_score = float(network(inputs).double().median())
    finally:
        torch.set_num_threads(threads)
    model = OcnnModel(
        vocabulary,
        scaled.shape[1],
        {"mean": mean.astype(np.float32), "deviation": deviation, **network.weights()},
        r,
        median_score,
        1.0,
        config.nu_ratio,
        config.bounded,
    )
    return _with_line(model, data, config, check=check)


def _with_line(model: OcnnModel, data: NormalData, config: OcnnTraining, *, check: bool) -> OcnnModel:
    """Return the model with its alarm line beyond the most anomalous normal sequence.

    Raises:
        ModelRefusedError: the model learned nothing, and ``check`` is set.
    """
    if model.quantile_score < model.median_score:
        oddest = max(float(model.scores(part).max()) for part in (data.training, data.held_out))
        model = replace(model, line_factor=max(1.0, oddest) * config.margin_factor)
    return refuse_collapsed(model, data.held_out, data.independent_count) if check else model


class OcnnNetwork(nn.Module):
    """The torch network: Bi-LSTM encoder, linear decoder (training only) and one-class head."""

    def __init__(self, features: int, windows: int, config: OcnnTraining) -> None:
        """Create the layers and draw their weights from torch's current random state."""
        super().__init__()
        self.encoder = nn.LSTM(features, config.hidden_size, batch_first=True, bidirectional=True)
        self.decoder = nn.Linear(2 * config.hidden_size, windows * features)
        self.V = nn.Parameter(torch.randn(config.head_size, 2 * config.hidden_size) * 0.3)
        self.w = nn.Parameter(torch.rand(config.head_size) * 0.5)  # positive: the objective pushes y up
        self.bounded = config.bounded

    def encode(self, inputs: torch.Tensor) -> torch.Tensor:
        """Return the last hidden states of both directions, shape (sequences, 2 H)."""
        _, (hidden, _) = self.encoder(inputs)
        return torch.cat([hidden[0], hidden[1]], dim=1)

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        """Return y of scaled sequences, shape (sequences,)."""
        return self.head(self.encode(inputs))

    def head(self, states: torch.Tensor) -> torch.Tensor:
        """Return y of encoded sequences, shape (sequences,)."""
        hidden = states @ self.V.T
        return (torch.sigmoid(hidden) if self.bounded else hidden) @ self.w

    def anchor(self, states: torch.Tensor, inputs: torch.Tensor) -> torch.Tensor:
        """Return the mean squared reconstruction error of sequences, given their encoded states."""
        return nn.functional.mse_loss(self.decoder(states), inputs.flatten(1))

    def weights(self) -> dict[str, Singles]:
        """Return the weights as arrays by the names of ``bilstm_ocnn.ARRAYS``, with torch's two biases added up."""
        named = {name: value.detach().numpy().astype(np.float32) for name, value in self.encoder.named_parameters()}
        found = {"V": self.V.detach().numpy().astype(np.float32), "w": self.w.detach().numpy().astype(np.float32)}
        for way, suffix in (("forward", "l0"), ("backward", "l0_reverse")):
            found[f"{way}_input"] = named[f"weight_ih_{suffix}"]
            found[f"{way}_state"] = named[f"weight_hh_{suffix}"]
            found[f"{way}_bias"] = named[f"bias_ih_{suffix}"] + named[f"bias_hh_{suffix}"]
        return found


def _fit(
    network: OcnnNetwork, inputs: torch.Tensor, config: OcnnTraining, on_turn: Callable[[AlternationRound], None] | None
) -> float:
    """Train the network in place: auto-encoding first, then the alternation; return the final r."""
    optimizer = torch.optim.Adam(network.parameters(), lr=config.learning_rate_ratio)

    def descend(loss_of: Callable[[torch.Tensor], torch.Tensor], steps: int) -> None:
        for _ in range(steps):
            batch = inputs[torch.randint(len(inputs), (min(config.batch_size, len(inputs)),))]
            optimizer.zero_grad()
            loss_of(batch).backward()  # type: ignore[no-untyped-call]  # torch's own gap
            optimizer.step()

    descend(lambda batch: network.anchor(network.encode(batch), batch), config.encoder_steps)
    r = nu_quantile(_outputs(network, inputs), config.nu_ratio)
    for index in range(config.turn_count):

        def objective(batch: torch.Tensor, r: float = r) -> torch.Tensor:
            states = network.encode(batch)
            hinge = torch.relu(r - network.head(states)).mean() / config.nu_ratio
            size = 0.5 * (network.w**2).sum() + 0.5 * (network.V**2).sum()
            return size + hinge - r + config.anchor_weight * network.anchor(states, batch)

        descend(objective, config.turn_steps)
        outputs = _outputs(network, inputs)
        r = nu_quantile(outputs, config.nu_ratio)
        if on_turn is not None:
            on_turn(AlternationRound(index, r, float((outputs < r).mean()), float(network.w.detach().norm())))
    return r


def _outputs(network: OcnnNetwork, inputs: torch.Tensor) -> NDArray[np.float64]:
    """Return y of all sequences in float64, computed in blocks."""
    with torch.no_grad():
        parts = [network(inputs[first : first + 4096]) for first in range(0, len(inputs), 4096)]
    return np.concatenate([part.double().numpy() for part in parts])


def _check_data(data: NormalData, vocabulary: Vocabulary, config: OcnnTraining) -> None:
    """Raise ``ConfigError`` if sequences have the wrong shape, are too few for nu, or are not finite."""
    features = feature_count(vocabulary.class_count)
    for name, part in (("training", data.training), ("held_out", data.held_out)):
        if part.ndim != 3 or part.shape[2] != features or part.shape[1] != data.training.shape[1]:
            raise ConfigError(f"data.{name}", part.shape, f"(sequences, windows, {features})")
        if len(part) < 1 / config.nu_ratio:
            wanted = f"at least {math.ceil(1 / config.nu_ratio)} sequences: with fewer nu = {config.nu_ratio} is none"
            raise ConfigError(f"data.{name}", len(part), wanted)
        if not np.isfinite(part).all():
            raise ConfigError(f"data.{name}", "NaN or infinite", "numbers")
