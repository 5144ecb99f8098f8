"""Whose processes ended first, where nobody reports it: their GPU memory is free while all others hold theirs."""

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
"""The detector's name in its anomalies."""
MEMORY = "gpu_memory_used_bytes"
FloatArray = NDArray[np.float32]


@dataclass(frozen=True, slots=True)
class ExitsConfig:
    """Settings.

    Attributes:
        held_ratio: below this share of its usual level memory was given back in this window, or before.
        freed_ratio: below this share the processes are gone (drivers keep a few hundred megabytes).
        known_ratio: of so many of the hosts the memory must be known, or nobody can be said to be the first.
        lead_ratio: who is first was so before all others by this share of a window (samples fall anywhere in it) ...
        lead_ns: ... and by this.
        together_ns: processes that all ended within this were ended by whoever runs the job.
    """

    held_ratio: float = 0.9
    freed_ratio: float = 0.15
    known_ratio: float = 0.9
    lead_ratio: float = 0.3
    lead_ns: int = 3 * NS_PER_SECOND // 2
    together_ns: int = 10 * NS_PER_SECOND


class ExitTracker:
    """Follows when each machine of one job gave its GPU memory back."""

    def __init__(self, config: ExitsConfig) -> None:
        """All hold theirs."""
        self._config = config
        self._freed: dict[str, list[int]] = {}
        """host -> [about when it gave its memory back, whether all of it]"""

    @property
    def anybody_left(self) -> bool:
        """Whether any machine gave memory back, and did not take it again."""
        return bool(self._freed)

    def ended_at_once(self, host_count: int) -> dict[str, int]:
        """Each machine that gave all its memory back, and about when; empty where some hold theirs, or did for longer.

        Args:
            host_count: machines that worked in the job.
        """
        gone = {host: at_ns for host, (at_ns, is_all) in self._freed.items() if is_all}
        if not gone or len(gone) < self._config.known_ratio * host_count:
            return {}
        return gone if max(gone.values()) - min(gone.values()) <= self._config.together_ns else {}

    def take(self, data: Slice, hosts: Sequence[str], shares: FloatArray) -> list[Anomaly]:
        """Take one window; return who was the first, alone, as long as it is gone.

        Args:
            data: the window's slice: its span.
            hosts: names.
            shares: GPU memory in use over its usual level, shape (hosts,), NaN = not known.
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
        told = {hosts[row] for row in np.flatnonzero(known)}.union(self._freed)
        if len(told) < config.known_ratio * len(hosts):
            return []
        return self._first(data, max(config.lead_ns, int(config.lead_ratio * span_ns)))

    def _first(self, data: Slice, lead_ns: int) -> list[Anomaly]:
        ordered = sorted((at_ns, host, is_all) for host, (at_ns, is_all) in self._freed.items())
        if not ordered or not ordered[0][2] or (len(ordered) > 1 and ordered[1][0] - ordered[0][0] < lead_ns):
            return []
        at_ns, host, _ = ordered[0]
        component = Component(ComponentKind.HOST, host)
        return [Anomaly(data.job, data.end_ns, component, MEMORY, at_ns, data.end_ns, 1.0, EXITS, "", {})]

    def to_state(self) -> list[Any]:
        """JSON-able state."""
        return rows_state(self._freed)

    def load_state(self, state: Sequence[Sequence[Any]]) -> None:
        """Take back what ``to_state`` gave."""
        self._freed = rows_from(state)


def memory_shares(values: FloatArray, state: PeerState, names: Sequence[str], warmup_count: int) -> FloatArray:
    """GPU memory in use over its usual level, shape (hosts,), from means over each host's GPUs; NaN: not known."""
    known = knows_memory(state, names, warmup_count)
    if not known.any():
        return np.full(len(values), np.nan, np.float32)
    column = list(names).index(MEMORY)
    with np.errstate(divide="ignore", invalid="ignore"):
        return np.where(known, values[:, column] / state.level[:, column], np.nan).astype(np.float32)


def knows_memory(state: PeerState, names: Sequence[str], warmup_count: int) -> NDArray[np.bool_]:
    """Of which hosts it is known how much GPU memory they usually use, shape (hosts,)."""
    if MEMORY not in names:
        return np.zeros(len(state.level), np.bool_)
    column = list(names).index(MEMORY)
    known: NDArray[np.bool_] = (state.level[:, column] > 0) & (state.seen_count[:, column] >= warmup_count)
    return known
