"""A transformer small enough for eight ranks on two cores, split as large ones are.

Attention heads and the inner layer of each block are split over the tensor-parallel
group (an all_reduce of activations per half block, forward and backward), the batch
over the data-parallel group. Most of a step's time is sleep: it stands for the
accelerator, for which the host's process waits.
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
    """Numbers of the model; the defaults cost a rank a few milliseconds of CPU a step.

    Attributes:
        vocabulary: distinct tokens.
        width: embedding width.
        heads: attention heads, a multiple of the tensor-parallel size.
        blocks: transformer blocks.
        sequence: tokens in a sample.
        batch: samples of a rank in a step.
    """

    vocabulary: int = 64
    width: int = 32
    heads: int = 4
    blocks: int = 2
    sequence: int = 16
    batch: int = 4


class _SumForward(torch.autograd.Function):
    """Sum partial activations over the group; the gradient passes as it is."""

    @staticmethod
    def forward(_ctx: Any, partial: Tensor, group: dist.ProcessGroup) -> Tensor:
        total = partial.clone()
        dist.all_reduce(total, group=group)
        return total

    @staticmethod
    def backward(_ctx: Any, *grads: Tensor) -> tuple[Tensor, None]:
        return grads[0], None


class _SumBackward(torch.autograd.Function):
    """Pass activations as they are; sum their gradients over the group."""

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
    """Half of the heads, half of the inner layer (for a tensor-parallel pair)."""

    def __init__(self, size: ModelSize, group: dist.ProcessGroup, parts: int) -> None:
        """Make the part of one rank.

        Args:
            size: numbers of the whole model.
            group: the tensor-parallel group.
            parts: its size.
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
        """Attention, then the inner layers, each summed over the group."""
        x = x + self._sum(self._attention(self._copy(self.norm1(x))))
        inner = functional.gelu(self.up(self._copy(self.norm2(x))))
        return x + self._sum(self.down(inner))

    def _attention(self, x: Tensor) -> Tensor:
        batch, tokens, _ = x.shape
        parts = self.qkv(x).view(batch, tokens, 3, self._heads, -1).permute(2, 0, 3, 1, 4)
        mixed = functional.scaled_dot_product_attention(parts[0], parts[1], parts[2], is_causal=True)
        joined: Tensor = self.out(mixed.transpose(1, 2).reshape(batch, tokens, -1))
        return joined

    def _sum(self, x: Tensor) -> Tensor:
        total: Tensor = _SumForward.apply(x, self._group)  # type: ignore[no-untyped-call]
        return total

    def _copy(self, x: Tensor) -> Tensor:
        same: Tensor = _SumBackward.apply(x, self._group)  # type: ignore[no-untyped-call]
        return same


class TinyTransformer(nn.Module):
    """Embedding, blocks, head; returns the loss."""

    def __init__(self, size: ModelSize, group: dist.ProcessGroup, parts: int) -> None:
        """Make the part of one rank.

        Args:
            size: numbers of the whole model.
            group: the tensor-parallel group.
            parts: its size.
        """
        super().__init__()
        self.embed = nn.Embedding(size.vocabulary, size.width)
        self.blocks = nn.ModuleList(MlpBlock(size, group, parts) for _ in range(size.blocks))
        self.head = nn.Linear(size.width, size.vocabulary)

    def forward(self, tokens: Tensor) -> Tensor:
        """Loss of predicting each next token."""
        x = self.embed(tokens[:, :-1])
        for block in self.blocks:
            x = block(x)
        return functional.cross_entropy(self.head(x).flatten(0, 1), tokens[:, 1:].flatten())


class TokenLoader:
    """Batches of made-up text, read when asked for, like a DataLoader without workers.

    A batch is the same on all ranks of a tensor-parallel group, as it must be.
    """

    def __init__(self, size: ModelSize, seed: int, read_seconds: Callable[[], float]) -> None:
        """Seed it.

        Args:
            size: numbers of the model.
            seed: which data.
            read_seconds: how long the storage takes for the next batch.
        """
        self._size = size
        self._random = torch.Generator().manual_seed(seed)
        self._read_seconds = read_seconds

    def __iter__(self) -> Iterator[Tensor]:
        """Read on for ever."""
        size = self._size
        while True:
            time.sleep(self._read_seconds())
            starts = torch.randint(size.vocabulary, (size.batch, 1), generator=self._random)
            strides = torch.randint(1, 4, (size.batch, 1), generator=self._random)
            yield (starts + strides * torch.arange(size.sequence + 1)) % size.vocabulary
