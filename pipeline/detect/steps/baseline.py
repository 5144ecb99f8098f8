"""What each host's own time was like among its peers, for the last hundreds of steps."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from tocsin.models.excess import FloatArray, growth_beyond_noise
from tocsin.models.steps import StepWindow, median_excess
from tocsin.pipeline.core.arrays import array_from, array_state

BLOCK_COUNT = 12
"""Steps a block: a median of so many is even, and a fault lasts for longer."""
_KEPT_COUNT, _BEFORE_COUNT = 64, 8
"""An hour of steps of 5 s; the newest ones before an onset tell what was usual."""


@dataclass(slots=True)
class ExcessPast:
    """Excess of each host's slowest rank over its peers' own time, block by block.

    Attributes:
        blocks: [end, hosts, excess in seconds of each], oldest first.
        taken_count: judged steps when the newest block was taken.
    """

    blocks: list[tuple[int, tuple[str, ...], FloatArray]] = field(default_factory=list)
    taken_count: int = 0

    def is_due(self, judged_count: int) -> bool:
        """Whether a block of judged steps is full."""
        return judged_count - self.taken_count >= BLOCK_COUNT

    def take(
        self, window: StepWindow, ranks: Sequence[int], host_of: Callable[[int], str], end_ns: int, judged_count: int
    ) -> None:
        """Remember the newest steps as a block."""
        hosts, excess = _of_hosts(window, ranks, host_of)
        if self.blocks and self.blocks[-1][1] == hosts:
            hosts = self.blocks[-1][1]
        self.blocks.append((end_ns, hosts, excess))
        self.taken_count = judged_count
        del self.blocks[:-_KEPT_COUNT]

    def grown_seconds(
        self, window: StepWindow, ranks: Sequence[int], host_of: Callable[[int], str], onset_ns: int
    ) -> dict[str, float]:
        """Who computes longer than before an onset, and by how much, as the newest steps show it: one at most."""
        earlier = [block for block in self.blocks if block[0] <= onset_ns][-_BEFORE_COUNT:]
        if not earlier:
            return {}
        hosts, now = _of_hosts(window, ranks, host_of)
        before = np.full((len(earlier), len(hosts)), np.nan)
        place = {host: column for column, host in enumerate(hosts)}
        for row, (_, known, excess) in enumerate(earlier):
            if known == hosts:
                before[row] = excess
                continue
            for host, value in zip(known, excess, strict=True):
                if host in place:
                    before[row, place[host]] = value
        growth = growth_beyond_noise(before, now)
        return {hosts[column]: float(growth[column]) for column in np.flatnonzero(growth > 0.0)}

    def to_state(self) -> list[Any]:
        """JSON-able state."""
        return [
            self.taken_count,
            [[end_ns, list(hosts), array_state(excess)] for end_ns, hosts, excess in self.blocks],
        ]

    def load_state(self, state: Sequence[Any]) -> None:
        """Take back what ``to_state`` gave."""
        self.taken_count, blocks = state
        self.blocks = [(end_ns, tuple(hosts), array_from(excess)) for end_ns, hosts, excess in blocks]


def _of_hosts(
    window: StepWindow, ranks: Sequence[int], host_of: Callable[[int], str]
) -> tuple[tuple[str, ...], FloatArray]:
    """Hosts in ascending order, and the excess of the slowest rank of each in the newest block of steps."""
    of_rank = [host_of(rank) for rank in ranks]
    hosts = tuple(sorted(set(of_rank)))
    place = {host: column for column, host in enumerate(hosts)}
    excess = np.full(len(hosts), -np.inf)
    np.maximum.at(excess, [place[host] for host in of_rank], median_excess(window.last(BLOCK_COUNT)))
    return hosts, excess
