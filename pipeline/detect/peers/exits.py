"""Detection of the first host whose processes ended, from GPU memory that is released while others hold theirs.

It serves jobs in which no process reports its exit.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tocsin.models.peers import PeerState
from tocsin.pipeline.core.state_maps import rows_from, rows_state
from tocsin.schemas.records import NS_PER_SECOND, Slice
from tocsin.schemas.verdicts import Anomaly, Component, ComponentKind

EXITS = "exits"
"""Detector name in the anomalies."""
MEMORY = "gpu_memory_used_bytes"
"""Metric of used GPU memory."""
FloatArray = NDArray[np.float32]


@dataclass(frozen=True, slots=True)
class ExitsConfig:
    """Settings.

    Attributes:
        held_ratio: share of its usual level below which memory was released in this window or before.
        freed_ratio: share below which the processes are gone; drivers keep a few hundred megabytes.
        known_ratio: least share of hosts with known memory; otherwise the first is unknown.
        lead_ratio: least lead of the first host over all others, as a share of a window ...
        lead_ns: ... and in nanoseconds.
        together_ns: processes that all ended within this time were ended by an operator or scheduler.
    """

    held_ratio: float = 0.9
    freed_ratio: float = 0.15
    known_ratio: float = 0.9
    lead_ratio: float = 0.3
    lead_ns: int = 3 * NS_PER_SECOND // 2
    together_ns: int = 10 * NS_PER_SECOND


class ExitTracker:
    """Times at which the machines of one job released their GPU memory."""

    def __init__(self, config: ExitsConfig) -> None:
        """Start with all memory held."""
        self._config = config
        self._freed: dict[str, list[int]] = {}
        """Host -> [approximate time in nanoseconds of the release, whether all memory was released]."""

    @property
    def anybody_left(self) -> bool:
        """Whether any machine has released memory and not taken it again."""
        return bool(self._freed)

    def ended_at_once(self, host_count: int) -> dict[str, int]:
        """Return host -> approximate time in nanoseconds of its release, if nearly all hosts released memory together.

        Empty if some still hold it, or if the releases are spread over more than ``together_ns``.

        Args:
            host_count: number of machines that worked in the job.
        """
        gone = {host: at_ns for host, (at_ns, is_all) in self._freed.items() if is_all}
        if not gone or len(gone) < self._config.known_ratio * host_count:
            return {}
        return gone if max(gone.values()) - min(gone.values()) <= self._config.together_ns else {}

    def take(self, data: Slice, hosts: Sequence[str], shares: FloatArray) -> list[Anomaly]:
        """Take one window; return an anomaly about the host that released its memory first, as long as it stays so.

        Args:
            data: slice of the window, for its time span.
            hosts: host names.
            shares: used GPU memory divided by its usual level, shape (hosts,), NaN = unknown.
        """
        config, span_ns = self._config, data.end_ns - data.start_ns
        known = np.isfinite(shares)
        for row in np.flatnonzero(known & (shares < config.held_ratio)):
            # A mean over the window: so much of it had passed.
            at_ns = data.start_ns + int(max(0.0, float(shares[row])) * span_ns)
            freed = self._freed.setdefault(hosts[row], [at_ns, 0])
            freed[1] = max(freed[1], int(shares[row] < config.freed_ratio))
        if not self._freed:
            return []
        held = {hosts[row] for row in np.flatnonzero(known & (shares >= config.held_ratio))}
        self._freed = {host: freed for host, freed in self._freed.items() if host not in held}
        known_hosts = {hosts[row] for row in np.flatnonzero(known)}.union(self._freed)
        if len(known_hosts) < config.known_ratio * len(hosts):
            return []
        return self._first(data, max(config.lead_ns, int(config.lead_ratio * span_ns)))

    def _first(self, data: Slice, lead_ns: int) -> list[Anomaly]:
        """Return an anomaly about the first host if it released all memory with a lead of ``lead_ns``; else []."""
        ordered = sorted((at_ns, host, is_all) for host, (at_ns, is_all) in self._freed.items())
        if not ordered or not ordered[0][2] or (len(ordered) > 1 and ordered[1][0] - ordered[0][0] < lead_ns):
            return []
        at_ns, host, _ = ordered[0]
        component = Component(ComponentKind.HOST, host)
        return [Anomaly(data.job, data.end_ns, component, MEMORY, at_ns, data.end_ns, 1.0, EXITS, "", {})]

    def to_state(self) -> list[Any]:
        """Return the state as JSON-serialisable values, for a snapshot."""
        return rows_state(self._freed)

    def load_state(self, state: Sequence[Sequence[Any]]) -> None:
        """Restore the state from values that ``to_state`` returned."""
        self._freed = rows_from(state)


def memory_shares(values: FloatArray, state: PeerState, names: Sequence[str], warmup_count: int) -> FloatArray:
    """Return used GPU memory divided by its usual level, shape (hosts,), NaN = unknown.

    Args:
        values: means over each host's GPUs, shape (hosts, metrics).
        state: learned levels of the same rows.
        names: metric names; the columns.
        warmup_count: windows after which a level is known.
    """
    known = knows_memory(state, names, warmup_count)
    if not known.any():
        return np.full(len(values), np.nan, np.float32)
    column = list(names).index(MEMORY)
    with np.errstate(divide="ignore", invalid="ignore"):
        return np.where(known, values[:, column] / state.level[:, column], np.nan).astype(np.float32)


def knows_memory(state: PeerState, names: Sequence[str], warmup_count: int) -> NDArray[np.bool_]:
    """Return for which hosts the usual GPU memory is known, shape (hosts,)."""
    if MEMORY not in names:
        return np.zeros(len(state.level), np.bool_)
    column = list(names).index(MEMORY)
    known: NDArray[np.bool_] = (state.level[:, column] > 0) & (state.seen_count[:, column] >= warmup_count)
    return known
