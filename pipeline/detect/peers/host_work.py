"""Work of each machine relative to its own usual level: machines below it wait for another one.

Each machine's metrics come from its own agent, so these hosts are independent witnesses.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tocsin.models.peer_scales import transform
from tocsin.models.robust import nan_median
from tocsin.pipeline.core.arrays import array_from, array_state
from tocsin.pipeline.detect.peers.activity import FALLBACK_WORK, TRAFFIC_WORK, WORK
from tocsin.pipeline.detect.peers.rows import Block

FloatArray = NDArray[np.float32]

_NEW_SHARE = 1 / 3
"""Weight of the newest window in the moving mean, as windows contain parts of steps."""
_POWER = "gpu_power_watts"


@dataclass(slots=True)
class HostWork:
    """Recent work of each machine of one job, relative to its usual level.

    Attributes:
        hosts: host names.
        shares: work divided by the usual work, shape (hosts,), NaN = unknown.
    """

    hosts: list[str] = field(default_factory=list)
    shares: FloatArray = field(default_factory=lambda: np.empty(0, np.float32))

    def take(self, hosts: Sequence[str], now: FloatArray) -> None:
        """Take one window into the moving means.

        Args:
            hosts: host names.
            now: result of ``work_shares`` for the window.
        """
        if list(hosts) != self.hosts:
            known = dict(zip(self.hosts, self.shares.tolist(), strict=True))
            self.shares = np.array([known.get(host, np.nan) for host in hosts], np.float32)
            self.hosts = list(hosts)
        moved = self.shares + np.float32(_NEW_SHARE) * (now - self.shares)
        self.shares = np.where(np.isfinite(self.shares) & np.isfinite(now), moved, now).astype(np.float32)

    def below(self, line: float, without: Collection[str] = ()) -> list[str]:
        """Return the hosts whose work is at or below this share of the usual, except those in ``without``."""
        rows = np.flatnonzero(np.isfinite(self.shares) & (self.shares <= np.float32(line)))
        return [self.hosts[row] for row in rows if self.hosts[row] not in without]

    def clear(self) -> None:
        """Reset all shares, as the job changed to other work and levels are learned anew."""
        self.shares = np.full(len(self.hosts), np.nan, np.float32)

    def to_state(self) -> dict[str, Any]:
        """Return the state as JSON-serialisable values, for a snapshot."""
        return {"hosts": self.hosts, "shares": array_state(self.shares)}

    def load_state(self, state: Mapping[str, Any]) -> None:
        """Restore the state from values that ``to_state`` returned."""
        self.hosts, self.shares = list(state["hosts"]), array_from(state["shares"])


def work_shares(values: Mapping[str, FloatArray], blocks: Mapping[str, Block], warmup_count: float) -> FloatArray:
    """Return each machine's work divided by its learned level, shape (hosts,), NaN = unknown.

    It is the median of the work metrics; where there are none, of traffic, power or the fallback metrics.

    Args:
        values: window means of the rows ``host`` and ``mean``, shape (hosts, metrics).
        blocks: learned levels by kind of row.
        warmup_count: windows after which a level is known.
    """
    shares = {
        name: share for kind in ("host", "mean") for name, share in _of_block(values[kind], blocks[kind], warmup_count)
    }
    work = _known_median([shares[name] for name in WORK if name in shares], len(values["host"]))
    for names in ((TRAFFIC_WORK,), (_POWER,), FALLBACK_WORK):
        other = _known_median([shares[name] for name in names if name in shares], len(values["host"]))
        work = np.where(np.isfinite(work), work, other)
    return work.astype(np.float32)


def _of_block(values: FloatArray, block: Block, warmup_count: float) -> list[tuple[str, FloatArray]]:
    """Return (metric name, ratio to the learned level of shape (hosts,)) for the work metrics of one block."""
    transformed = transform(values, block.scales)
    found = []
    for column, metric in enumerate(block.metrics):
        if metric.name not in (*WORK, TRAFFIC_WORK, *FALLBACK_WORK):
            continue
        level = block.state.level[:, column]
        is_known = (level > block.scales[column].floor) & (block.state.seen_count[:, column] >= warmup_count)
        share = np.where(is_known, transformed[:, column] / np.where(is_known, level, 1.0), np.nan)
        found.append((metric.name, share.astype(np.float32)))
    return found


def _known_median(shares: Sequence[FloatArray], count: int) -> FloatArray:
    """Return row by row the median of the known values, shape (count,); NaN where none is known."""
    if not shares:
        return np.full(count, np.nan, np.float32)
    table = np.stack(shares)
    known = np.isfinite(table).any(axis=0)
    found = np.full(count, np.nan, np.float32)
    if known.any():
        found[known] = nan_median(table[:, known], 0)
    return found
