"""History of each host's excess self time over its peers, over hundreds of steps."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from tocsin.models.excess import FloatArray, growth_beyond_noise
from tocsin.models.steps import StepWindow, median_excess
from tocsin.pipeline.core.arrays import array_from, array_state

BLOCK_COUNT = 12
"""Number of steps in a block; their median is stable, and faults last longer."""
_KEPT_COUNT, _BEFORE_COUNT = 64, 8
"""Number of blocks that are kept (an hour of steps of 5 s), and of those before an onset that give the usual excess."""


@dataclass(slots=True)
class ExcessPast:
    """Excess self time of each host's slowest rank over its peers, block by block.

    Attributes:
        blocks: (end_ns, hosts, excess in seconds per host), oldest first.
        taken_count: number of judged steps when the newest block was taken.
    """

    blocks: list[tuple[int, tuple[str, ...], FloatArray]] = field(default_factory=list)
    taken_count: int = 0

    def is_due(self, judged_count: int) -> bool:
        """Return whether enough steps were judged since the last block for a new one."""
        return judged_count - self.taken_count >= BLOCK_COUNT

    def take(
        self, window: StepWindow, ranks: Sequence[int], host_of: Callable[[int], str], end_ns: int, judged_count: int
    ) -> None:
        """Add the newest steps as one block.

        Args:
            window: recent steps.
            ranks: ranks of the window.
            host_of: rank -> host.
            end_ns: end of the newest step.
            judged_count: number of judged steps so far.
        """
        hosts, excess = _of_hosts(window, ranks, host_of)
        if self.blocks and self.blocks[-1][1] == hosts:
            hosts = self.blocks[-1][1]
        self.blocks.append((end_ns, hosts, excess))
        self.taken_count = judged_count
        del self.blocks[:-_KEPT_COUNT]

    def grown_seconds(
        self, window: StepWindow, ranks: Sequence[int], host_of: Callable[[int], str], onset_ns: int
    ) -> dict[str, float]:
        """Return host -> growth in seconds of its excess self time since ``onset_ns``; at most one host, or {}.

        Only growth beyond the noise of all hosts counts.

        Args:
            window: recent steps.
            ranks: ranks of the window.
            host_of: rank -> host.
            onset_ns: blocks that end by then are the reference.
        """
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
        """Return the state as JSON-serialisable values, for a snapshot."""
        return [
            self.taken_count,
            [[end_ns, list(hosts), array_state(excess)] for end_ns, hosts, excess in self.blocks],
        ]

    def load_state(self, state: Sequence[Any]) -> None:
        """Restore the state from values that ``to_state`` returned."""
        self.taken_count, blocks = state
        self.blocks = [(end_ns, tuple(hosts), array_from(excess)) for end_ns, hosts, excess in blocks]


def _of_hosts(
    window: StepWindow, ranks: Sequence[int], host_of: Callable[[int], str]
) -> tuple[tuple[str, ...], FloatArray]:
    """Return the hosts, ascending, and the excess in seconds of each one's slowest rank in the newest block."""
    of_rank = [host_of(rank) for rank in ranks]
    hosts = tuple(sorted(set(of_rank)))
    place = {host: column for column, host in enumerate(hosts)}
    excess = np.full(len(hosts), -np.inf)
    np.maximum.at(excess, [place[host] for host in of_rank], median_excess(window.last(BLOCK_COUNT)))
    return hosts, excess
