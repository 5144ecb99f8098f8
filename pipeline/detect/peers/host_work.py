"""Which machines of a job do less work than usual, each by its own metrics: they wait for another one.

What a machine's metrics say is its own agent's word; that the others do less since a moment is the others' own.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tocsin.models.peer_scales import transform
from tocsin.pipeline.core.arrays import array_from, array_state
from tocsin.pipeline.detect.peers.activity import FALLBACK_WORK, TRAFFIC_WORK, WORK
from tocsin.pipeline.detect.peers.rows import Block

FloatArray = NDArray[np.float32]

_NEW_SHARE = 1 / 3
"""Of the last window in the mean: windows hold parts of steps."""
_POWER = "gpu_power_watts"


@dataclass(slots=True)
class HostWork:
    """What each machine of one job lately did, over its own usual level.

    Attributes:
        hosts: row keys.
        shares: shape (hosts,), NaN = not known.
    """

    hosts: list[str] = field(default_factory=list)
    shares: FloatArray = field(default_factory=lambda: np.empty(0, np.float32))

    def take(self, hosts: Sequence[str], now: FloatArray) -> None:
        """Take one window.

        Args:
            hosts: row keys.
            now: as ``work_shares`` gives them.
        """
        if list(hosts) != self.hosts:
            known = dict(zip(self.hosts, self.shares.tolist(), strict=True))
            self.shares = np.array([known.get(host, np.nan) for host in hosts], np.float32)
            self.hosts = list(hosts)
        moved = self.shares + np.float32(_NEW_SHARE) * (now - self.shares)
        self.shares = np.where(np.isfinite(self.shares) & np.isfinite(now), moved, now).astype(np.float32)

    def below(self, line: float, without: Collection[str] = ()) -> list[str]:
        """Who does less than this share, by name."""
        rows = np.flatnonzero(np.isfinite(self.shares) & (self.shares <= np.float32(line)))
        return [self.hosts[row] for row in rows if self.hosts[row] not in without]

    def clear(self) -> None:
        """The job does something else: what it usually does is learned anew."""
        self.shares = np.full(len(self.hosts), np.nan, np.float32)

    def to_state(self) -> dict[str, Any]:
        """JSON-able state."""
        return {"hosts": self.hosts, "shares": array_state(self.shares)}

    def load_state(self, state: Mapping[str, Any]) -> None:
        """Take back what ``to_state`` gave."""
        self.hosts, self.shares = list(state["hosts"]), array_from(state["shares"])


def work_shares(values: Mapping[str, FloatArray], blocks: Mapping[str, Block], warmup_count: float) -> FloatArray:
    """Each machine's work over its learned level, shape (hosts,), NaN = not known: as the job's is told, but its own.

    Args:
        values: window means of the rows ``host`` and ``mean``, shape (hosts, metrics).
        blocks: what was learned of them.
        warmup_count: a level that fewer windows taught says nothing.
    """
    shares = {
        name: share for kind in ("host", "mean") for name, share in _of_block(values[kind], blocks[kind], warmup_count)
    }
    work = _middle([shares[name] for name in WORK if name in shares], len(values["host"]))
    for names in ((TRAFFIC_WORK,), (_POWER,), FALLBACK_WORK):
        other = _middle([shares[name] for name in names if name in shares], len(values["host"]))
        work = np.where(np.isfinite(work), work, other)
    return work.astype(np.float32)


def _of_block(values: FloatArray, block: Block, warmup_count: float) -> list[tuple[str, FloatArray]]:
    told = transform(values, block.scales)
    found = []
    for column, metric in enumerate(block.metrics):
        if metric.name not in (*WORK, TRAFFIC_WORK, *FALLBACK_WORK):
            continue
        level = block.state.level[:, column]
        is_known = (level > block.scales[column].floor) & (block.state.seen_count[:, column] >= warmup_count)
        share = np.where(is_known, told[:, column] / np.where(is_known, level, 1.0), np.nan)
        found.append((metric.name, share.astype(np.float32)))
    return found


def _middle(shares: Sequence[FloatArray], count: int) -> FloatArray:
    """Row by row the median of those that are known."""
    if not shares:
        return np.full(count, np.nan, np.float32)
    table = np.stack(shares)
    known = np.isfinite(table).any(axis=0)
    found = np.full(count, np.nan, np.float32)
    if known.any():
        found[known] = np.nanmedian(table[:, known], axis=0)
    return found
