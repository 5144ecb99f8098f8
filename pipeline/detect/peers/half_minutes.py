"""What half a minute shows and no window of five seconds does.

Where steps are longer than a window, or samples fall into phases of a step, windows of one machine scatter by a
third, and those of its peers as well. Means over half a minute do not: a link that carries a third less in every
step stands out in them. They are compared as the windows are, with levels of their own, and believed from the
second one on: a burst of packets, a daemon, a pause is over by then. Who is one of many that differ alike in
the windows (the hosts of a congested switch) is one of them here, too, where the others may stay below the line.
A window that deviates by far is judged as a window, and counts for little here: two stalls a minute are no less a stall
each.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tocsin.models.peers import PeerConfig, PeerWindow
from tocsin.pipeline.core.arrays import array_from, array_state, named_arrays_from, named_arrays_state
from tocsin.pipeline.detect.peers.cusum import Cusum, SumConfig, shared_columns
from tocsin.pipeline.detect.peers.rows import Block, directed
from tocsin.schemas.metrics import MetricTable
from tocsin.schemas.records import NS_PER_SECOND

FloatArray = NDArray[np.float32]
IntArray = NDArray[np.intp]

_COUNTED_FLOOR_RATIO = 0.5
"""Chance packets of six windows scatter by less than half of what those of one do (one over the root of six)."""
_CROWD_SHARE_RATIO = 0.5
"""Of a span's windows: where many differ alike in most of them, its means tell nobody apart."""


@dataclass(frozen=True, slots=True)
class HalfMinuteConfig:
    """Settings.

    Attributes:
        span_ns: a mean is over so long: most steps take no longer.
        max_window_ns: longer windows are means themselves.
        min_group_count: of fewer peers the spread within one span is known too badly.
        warmup_count: spans that only teach.
        level_count: spans over which a level is remembered (twenty minutes).
        most_sigmas: a window that deviates by more counts as one that deviates by so much.
        min_known_ratio: a mean of fewer of the span's samples is none.
        sums: how spans add up. No single one is enough: at most 3.5 of the 5 that alarm.
    """

    span_ns: int = 30 * NS_PER_SECOND
    max_window_ns: int = 10 * NS_PER_SECOND
    min_group_count: int = 8
    warmup_count: int = 5
    level_count: int = 40
    most_sigmas: float = 8.0
    min_known_ratio: float = 0.5
    sums: SumConfig = field(
        default_factory=lambda: SumConfig(max_sigmas=7.5, drift_sigmas=4.0, alarm_sum=5.0, window_seconds=30.0)
    )


def as_asked(own: SumConfig, windows: SumConfig, usual: SumConfig) -> SumConfig:
    """How spans add up where a model asks for more than usual of windows; one that asks for less is about windows.

    Args:
        own: how they add up by themselves.
        windows: how the model lets windows add up.
        usual: how these add up without a model.
    """
    drift_sigmas = own.drift_sigmas * max(1.0, windows.drift_sigmas / usual.drift_sigmas)
    counted = (windows.max_sigmas - windows.drift_sigmas) / (usual.max_sigmas - usual.drift_sigmas)
    return replace(
        own,
        drift_sigmas=drift_sigmas,
        max_sigmas=drift_sigmas + min(1.0, counted) * (own.max_sigmas - own.drift_sigmas),
        alarm_sum=own.alarm_sum * max(1.0, windows.alarm_sum / usual.alarm_sum),
    )


class HalfMinuteMeans:
    """Means of one job's hosts over half a minute, and what of them deviates."""

    def __init__(self, config: HalfMinuteConfig, table: MetricTable) -> None:
        """Know nothing."""
        self._config, self._table = config, table
        self._blocks = {"host": Block(table.host), "mean": Block(table.gpu)}
        self.set_floors({})
        self.sums = Cusum(config.sums, len(table.host) + len(table.gpu) + 1, 0, shared_columns(table.host))
        """Columns as of the windows' sums; the last one, samples that are missing, needs no patience."""
        self._since_ns = 0
        self._count = 0
        """Windows in the span that is under way."""
        self._total: dict[str, FloatArray] = {}
        self._known: dict[str, FloatArray] = {}
        self._crowds = np.zeros((2, len(table.host) + len(table.gpu) + 1), np.int64)
        """In how many of these windows too many hosts differed alike, shape (2: high, low; columns)."""

    def set_floors(self, floors: Mapping[str, float]) -> None:
        """Measure these metrics with other floors than their units' own."""
        for block in self._blocks.values():
            block.set_floors(floors)
            block.scales = [
                replace(scale, floor=_COUNTED_FLOOR_RATIO * scale.floor) if scale.counted else scale
                for scale in block.scales
            ]

    def drop(self) -> None:
        """The span that is under way shows no work."""
        self._since_ns = self._count = 0
        self._total, self._known = {}, {}
        self._crowds[:] = 0

    def tempered(self, values: Mapping[str, FloatArray], windows: Mapping[str, PeerWindow]) -> dict[str, FloatArray]:
        """Values of blocks, shape (hosts, metrics), none further from what is expected than a window may count for."""
        return {name: _tempered(values[name], windows[name], self._config.most_sigmas) for name in self._blocks}

    def take(
        self,
        window_ns: tuple[int, int],
        hosts: Sequence[str],
        values: Mapping[str, FloatArray],
        groups: IntArray,
        config: PeerConfig,
        crowded: NDArray[np.bool_],
    ) -> None:
        """Add one window's means.

        Args:
            window_ns: its begin and end.
            hosts: row keys.
            values: of the blocks ``host`` and ``mean``, shape (hosts, metrics), NaN = no sample; ``tempered``.
            groups: which group each host belongs to, -1: compared with nobody.
            config: how windows are compared.
            crowded: which metrics tell nobody apart in the window, shape (2: high, low; columns).
        """
        begin_ns, end_ns = window_ns
        if end_ns - begin_ns > self._config.max_window_ns:
            return
        if self._total and self._total["host"].shape[0] != len(hosts):
            self.drop()
        self._since_ns = self._since_ns or begin_ns
        self._count += 1
        self._crowds += crowded
        for name in self._blocks:
            known = np.isfinite(values[name])
            plain = np.where(known, values[name], 0).astype(np.float32)
            self._total[name] = self._total.get(name, np.zeros_like(plain)) + plain
            self._known[name] = self._known.get(name, np.zeros_like(plain)) + known.astype(np.float32)
        if end_ns - self._since_ns >= self._config.span_ns:
            self._judge(end_ns, hosts, groups, config)
            self.drop()

    def _judge(self, end_ns: int, hosts: Sequence[str], groups: IntArray, config: PeerConfig) -> None:
        config = replace(config, warmup_count=self._config.warmup_count, level_count=self._config.level_count)
        numbers, counts = np.unique(groups[groups >= 0], return_counts=True)
        large = np.isin(groups, numbers[counts >= self._config.min_group_count])
        found = []
        for name, metrics in (("host", self._table.host), ("mean", self._table.gpu)):
            enough = self._known[name] >= self._config.min_known_ratio * self._count
            means = np.where(enough, self._total[name] / np.maximum(self._known[name], 1), np.nan).astype(np.float32)
            window = self._blocks[name].compare(hosts, means, np.where(large, groups, -1), config)
            found.append(directed(window.sigmas, metrics))
        none = np.full((2, len(hosts), 1), np.nan, np.float32)
        sigmas = np.concatenate([*found, none], axis=2)
        shared = self._crowds > _CROWD_SHARE_RATIO * self._count
        self.sums.add(np.where(shared[:, None], np.nan, sigmas).astype(np.float32), self._since_ns, end_ns)

    def grow(self, rows: Sequence[int], host_count: int) -> None:
        """Host i has moved to ``rows[i]`` of ``host_count``."""
        self.sums.grow(rows, host_count)
        self.drop()

    def keep(self, rows: Sequence[int], gone: Collection[str]) -> None:
        """Only the hosts of these rows are left; the others are gone."""
        self.sums.keep(rows)
        for block in self._blocks.values():
            block.drop(gone)
        self.drop()

    def forget(self, hosts: Sequence[str], rows: Sequence[int]) -> None:
        """These hosts do other work from now on."""
        for block in self._blocks.values():
            block.forget(hosts)
        self.sums.forget(rows)

    def to_state(self) -> dict[str, Any]:
        """JSON-able state."""
        return {
            "since_ns": self._since_ns,
            "count": self._count,
            "totals": named_arrays_state(self._total),
            "known": named_arrays_state(self._known),
            "crowds": array_state(self._crowds),
            "sums": self.sums.to_state(),
            "host": self._blocks["host"].to_state(),
            "mean": self._blocks["mean"].to_state(),
        }

    def load_state(self, state: Mapping[str, Any]) -> None:
        """Take back what ``to_state`` gave."""
        self._since_ns, self._count = state["since_ns"], state["count"]
        self._total = named_arrays_from(state["totals"])
        self._known = named_arrays_from(state["known"])
        self._crowds = array_from(state["crowds"])
        self.sums.load_state(state["sums"])
        for name, block in self._blocks.items():
            block.load_state(state[name])


def _tempered(values: FloatArray, window: PeerWindow, most_sigmas: float) -> FloatArray:
    with np.errstate(invalid="ignore", divide="ignore"):
        share = most_sigmas / np.abs(window.sigmas)
        nearer = window.expected + share * (values - window.expected)
    return np.where(share < 1, nearer, values).astype(np.float32)
