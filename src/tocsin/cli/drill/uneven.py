"""The training job of a drill whose sequences differ in length: each rank draws lengths of its own in each step.

A rank's time follows its batch: in equal parts the tokens, and the squared lengths that attention takes.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from typing import TypedDict

import torch
from torch import Tensor

from tocsin.cli.drill.model import ModelSize
from tocsin.cli.drill.trainer import Trainer
from tocsin.collectors import hook

_SHORTEST = 2
_LONGEST_RATIO = 6
"""Length of the longest sequence, in usual lengths: what is longer is cut, as by a context window."""


class UnevenBatch(TypedDict):
    """A batch of sequences, padded to the longest of them."""

    input_ids: Tensor
    lengths: list[int]


class UnevenLoader:
    """Batches of artificial text, of equal sequences until it is told to vary them."""

    source = "drill-text"

    def __init__(
        self,
        size: ModelSize,
        seed: int,
        read_seconds: Callable[[], float],
        spread_ratio: Callable[[], float],
    ) -> None:
        """Seed the generator.

        Args:
            size: sizes of the model.
            seed: seed of the data.
            read_seconds: function that returns how long reading the next batch takes.
            spread_ratio: function that returns the standard deviation of the logarithm of lengths; 0: all are equal.
        """
        self._size = size
        self._random = torch.Generator().manual_seed(seed)
        self._read_seconds = read_seconds
        self._spread_ratio = spread_ratio

    def __iter__(self) -> Iterator[UnevenBatch]:
        """Yield batches endlessly, each with tokens of shape (batch, longest + 1)."""
        size = self._size
        while True:
            time.sleep(self._read_seconds())
            lengths = self._draw_lengths()
            starts = torch.randint(size.vocabulary, (size.batch, 1), generator=self._random)
            strides = torch.randint(1, 4, (size.batch, 1), generator=self._random)
            tokens = (starts + strides * torch.arange(max(lengths) + 1)) % size.vocabulary
            yield {"input_ids": tokens, "lengths": lengths}

    def _draw_lengths(self) -> list[int]:
        """Draw the lengths of a batch; their mean is the usual length, but for what is cut."""
        usual, spread_ratio = self._size.sequence, self._spread_ratio()
        if spread_ratio <= 0.0:
            return [usual] * self._size.batch
        drawn = torch.randn(self._size.batch, generator=self._random) * spread_ratio - spread_ratio**2 / 2
        lengths = (usual * drawn.exp()).round().clamp(_SHORTEST, _LONGEST_RATIO * usual)
        return [int(length) for length in lengths]


def work_ratio(lengths: Sequence[int], usual: int) -> float:
    """Return the work of a batch as a multiple of one with as many usual sequences.

    Args:
        lengths: tokens of each sequence.
        usual: tokens of a usual sequence.
    """
    return sum(length / usual + (length / usual) ** 2 for length in lengths) / (2 * len(lengths))


class UnevenTrainer(Trainer):
    """A rank whose loader is attached to the hook, and whose passes take as long as their batch needs."""

    def batches(self) -> Iterator[Tensor]:
        """Attach the hook to the loader as well; yield the tokens of each batch."""
        config, struck, size = self.config, self.struck, ModelSize()
        seed = config.seed * 1000 + self.grid.data_index
        loader = UnevenLoader(size, seed, lambda: config.pace.read_seconds, struck.length_spread_ratio)
        for batch in hook.attach(self.model, self.optimizer, loader, collectives=True):
            struck.work_ratio = work_ratio(batch["lengths"], size.sequence)
            yield batch["input_ids"]
