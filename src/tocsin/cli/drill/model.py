"""A transformer small enough for eight ranks on two cores, split like large ones.

Attention heads and the inner layer of each block are split over the tensor-parallel group. This costs an all_reduce of
activations per half block, forward and backward. The batch is split over the data-parallel group. Most of a step's
time is sleep: it simulates the accelerator, for which the host's process waits.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn import functional


@dataclass(frozen=True, slots=True)
class ModelSize:
    """Sizes of the model; with the defaults a step costs a rank a few milliseconds of CPU time.

    Attributes:
        vocabulary: number of distinct tokens.
        width: width of the embedding.
        heads: number of attention heads, a multiple of the tensor-parallel size.
        blocks: number of transformer blocks.
        sequence: tokens in a sample.
        batch: samples per rank and step.
    """

    vocabulary: int = 64
    width: int = 32
    heads: int = 4
    blocks: int = 2
    sequence: int = 16
    batch: int = 4


class _SumForward(torch.autograd.Function):
    """Sums partial activations over the group in the forward pass; the gradient passes unchanged."""

    @staticmethod
    def forward(_ctx: Any, partial: Tensor, group: dist.ProcessGroup) -> Tensor:
        total = partial.clone()
        dist.all_reduce(total, group=group)
        return total

    @staticmethod
    def backward(_ctx: Any, *grads: Tensor) -> tuple[Tensor, None]:
        return grads[0], None


class _SumBackward(torch.autograd.Function):
    """Passes activations unchanged in the forward pass; sums their gradients over the group in the backward pass."""

    @staticmethod
    def forward(ctx: Any, activation: Tensor, group: dist.ProcessGroup) -> Tensor:
        ctx.group = group
        return activation.view_as(activation)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor, None]:
        total = grads[0].contiguous().clone()
        dist.all_reduce(total, group=ctx.group)
        return total, None


class MlpBlock(nn.Module):
    """One rank's part of a transformer block: its share of the attention heads and of the inner layer."""

    def __init__(self, size: ModelSize, group: dist.ProcessGroup, parts: int) -> None:
        """Create the part of one rank.

        Args:
            size: sizes of the whole model.
            group: the tensor-parallel group.
            parts: number of ranks in the group.
        """
        super().__init__()
        self._group = group
        self._heads = size.heads // parts
        inner = size.width // parts
        self.norm1, self.norm2 = nn.LayerNorm(size.width), nn.LayerNorm(size.width)
        self.qkv = nn.Linear(size.width, 3 * inner)
        self.out = nn.Linear(inner, size.width, bias=False)
        self.up = nn.Linear(size.width, 4 * inner)
        self.down = nn.Linear(4 * inner, size.width, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        """Return the block's output: attention, then the inner layers, each summed over the group."""
        x = x + self._sum(self._attention(self._copy(self.norm1(x))))
        inner = functional.gelu(self.up(self._copy(self.norm2(x))))
        return x + self._sum(self.down(inner))

    def _attention(self, x: Tensor) -> Tensor:
        """Return this rank's part of the attention's output."""
        batch, tokens, _ = x.shape
        parts = self.qkv(x).view(batch, tokens, 3, self._heads, -1).permute(2, 0, 3, 1, 4)
        mixed = functional.scaled_dot_product_attention(parts[0], parts[1], parts[2], is_causal=True)
        joined: Tensor = self.out(mixed.transpose(1, 2).reshape(batch, tokens, -1))
        return joined

    def _sum(self, x: Tensor) -> Tensor:
        """Return the sum over the group; its gradient passes unchanged."""
        total: Tensor = _SumForward.apply(x, self._group)  # type: ignore[no-untyped-call]
        return total

    def _copy(self, x: Tensor) -> Tensor:
        """Return the tensor unchanged; its gradient is summed over the group."""
        same: Tensor = _SumBackward.apply(x, self._group)  # type: ignore[no-untyped-call]
        return same


class TinyTransformer(nn.Module):
    """Embedding, blocks and output layer of one rank; calling it returns the loss."""

    def __init__(self, size: ModelSize, group: dist.ProcessGroup, parts: int) -> None:
        """Create the part of one rank.

        Args:
            size: sizes of the whole model.
            group: the tensor-parallel group.
            parts: number of ranks in the group.
        """
        super().__init__()
        self.embed = nn.Embedding(size.vocabulary, size.width)
        self.blocks = nn.ModuleList(MlpBlock(size, group, parts) for _ in range(size.blocks))
        self.head = nn.Linear(size.width, size.vocabulary)

    def forward(self, tokens: Tensor) -> Tensor:
        """Return the cross-entropy loss of predicting each next token."""
        x = self.embed(tokens[:, :-1])
        for block in self.blocks:
            x = block(x)
        return functional.cross_entropy(self.head(x).flatten(0, 1), tokens[:, 1:].flatten())


class TokenLoader:
    """Batches of artificial text, produced on demand like a DataLoader without workers.

    All ranks of a tensor-parallel group get the same batches, as they must.
    """

    def __init__(self, size: ModelSize, seed: int, read_seconds: Callable[[], float]) -> None:
        """Seed the generator.

        Args:
            size: sizes of the model.
            seed: seed of the data.
            read_seconds: function that returns how long reading the next batch takes.
        """
        self._size = size
        self._random = torch.Generator().manual_seed(seed)
        self._read_seconds = read_seconds

    def place(self) -> Tensor:
        """Return the generator's state: the place in the data after the last batch that was yielded."""
        return self._random.get_state()

    def go_to(self, place: Tensor) -> None:
        """Go on after the batch at which ``place`` was taken."""
        self._random.set_state(place)

    def __iter__(self) -> Iterator[Tensor]:
        """Yield batches endlessly, each of shape (batch, sequence + 1)."""
        size = self._size
        while True:
            time.sleep(self._read_seconds())
            starts = torch.randint(size.vocabulary, (size.batch, 1), generator=self._random)
            strides = torch.randint(1, 4, (size.batch, 1), generator=self._random)
            yield (starts + strides * torch.arange(size.sequence + 1)) % size.vocabulary
