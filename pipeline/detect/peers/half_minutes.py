"""Comparison of half-minute means, for deviations that windows of five seconds do not reveal.

Where steps are longer than a window, or samples hit different phases of a step, each machine's windows scatter by a
third. Means over half a minute do not, so a link that carries a third less is visible in them. They are compared like
windows, with levels of their own. One mean never alarms: by the second one, short bursts are over.

A metric in which many hosts deviate alike in the windows is ignored here as well. Windows that deviate very far are
limited, so that two stalls a minute do not dominate a mean.
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
"""Ratio of the noise floor of packet rates in a mean to that in a window; six windows scatter by less than half."""
_CROWD_SHARE_RATIO = 0.5
"""Share of a span's windows with too many deviating hosts, from which on a metric is ignored in the span."""


@dataclass(frozen=True, slots=True)
class HalfMinuteConfig:
    """Settings.

    Attributes:
        span_ns: length of one mean; most steps are shorter.
        max_window_ns: longest window that is averaged; longer ones are means already.
        min_group_count: fewest peers for a comparison, as the spread in one span is poorly known with fewer.
        warmup_count: spans that are only used for learning.
        level_count: number of spans that a level remembers (twenty minutes).
        most_sigmas: limit in standard deviations to what one window contributes.
        min_known_ratio: least share of a span's samples for a mean.
        sums: how spans accumulate. A single one is never enough: it adds at most 3.5 of the 5 that alarm.
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
    """Return settings for accumulating spans, made as much stricter as a model makes those for windows.

    A model that relaxes the window settings does not relax these.

    Args:
        own: default settings for spans.
        windows: the model's settings for windows.
        usual: default settings for windows.
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
    """Half-minute means of one job's hosts, and accumulated deviations of them."""

    def __init__(self, config: HalfMinuteConfig, table: MetricTable) -> None:
        """Start without learned levels."""
        self._config, self._table = config, table
        self._blocks = {"host": Block(table.host), "mean": Block(table.gpu)}
        self.set_floors({})
        self.sums = Cusum(config.sums, len(table.host) + len(table.gpu) + 1, 0, shared_columns(table.host))
        """Accumulated deviations with the columns of the windows' sums; the last one (missing samples) stays empty."""
        self._since_ns = 0
        """Start of the current span; 0 if none is open."""
        self._count = 0
        """Number of windows in the current span."""
        self._total: dict[str, FloatArray] = {}
        """Block name -> sum of the span's window values, shape (hosts, metrics)."""
        self._known: dict[str, FloatArray] = {}
        """Block name -> number of windows with a value, shape (hosts, metrics)."""
        self._crowds = np.zeros((2, len(table.host) + len(table.gpu) + 1), np.int64)
        """Number of these windows in which too many hosts deviated alike, shape (2: high, low; columns)."""

    def set_floors(self, floors: Mapping[str, float]) -> None:
        """Set noise floors of metrics, by name; other metrics keep the floor of their unit."""
        for block in self._blocks.values():
            block.set_floors(floors)
            block.scales = [
                replace(scale, floor=_COUNTED_FLOOR_RATIO * scale.floor) if scale.counted else scale
                for scale in block.scales
            ]

    def drop(self) -> None:
        """Discard the current span, as when the job does no work in it."""
        self._since_ns = self._count = 0
        self._total, self._known = {}, {}
        self._crowds[:] = 0

    def tempered(self, values: Mapping[str, FloatArray], windows: Mapping[str, PeerWindow]) -> dict[str, FloatArray]:
        """Return window values limited to ``most_sigmas`` from their expectation, by block, shape (hosts, metrics)."""
        return {name: _limited(values[name], windows[name], self._config.most_sigmas) for name in self._blocks}

    def take(
        self,
        window_ns: tuple[int, int],
        hosts: Sequence[str],
        values: Mapping[str, FloatArray],
        groups: IntArray,
        config: PeerConfig,
        crowded: NDArray[np.bool_],
    ) -> None:
        """Add one window's values to the current span, and judge the span when it is complete.

        Args:
            window_ns: start and end of the window.
            hosts: host names; the rows.
            values: values of the blocks ``host`` and ``mean``, shape (hosts, metrics), NaN = no sample; from
                ``tempered``.
            groups: comparison group of each host; -1: compared with none.
            config: settings of the comparison.
            crowded: metrics in which too many hosts deviate in the window, shape (2: high, low; columns).
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
        """Compare the means of the complete span and add their deviations to the sums."""
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
        """Move host i to row ``rows[i]`` of a table with ``host_count`` rows; discard the current span."""
        self.sums.grow(rows, host_count)
        self.drop()

    def keep(self, rows: Sequence[int], gone: Collection[str]) -> None:
        """Keep only the hosts of these rows, and drop what was learned about the others."""
        self.sums.keep(rows)
        for block in self._blocks.values():
            block.drop(gone)
        self.drop()

    def forget(self, hosts: Sequence[str], rows: Sequence[int]) -> None:
        """Forget what was learned about these hosts, as they do other work from now on."""
        for block in self._blocks.values():
            block.forget(hosts)
        self.sums.forget(rows)

    def to_state(self) -> dict[str, Any]:
        """Return the state as JSON-serialisable values, for a snapshot."""
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
        """Restore the state from values that ``to_state`` returned."""
        self._since_ns, self._count = state["since_ns"], state["count"]
        self._total = named_arrays_from(state["totals"])
        self._known = named_arrays_from(state["known"])
        self._crowds = array_from(state["crowds"])
        self.sums.load_state(state["sums"])
        for name, block in self._blocks.items():
            block.load_state(state[name])


def _limited(values: FloatArray, window: PeerWindow, most_sigmas: float) -> FloatArray:
    """Return the values, each moved to at most ``most_sigmas`` standard deviations from its expectation."""
    with np.errstate(invalid="ignore", divide="ignore"):
        share = most_sigmas / np.abs(window.sigmas)
        nearer = window.expected + share * (values - window.expected)
    return np.where(share < 1, nearer, values).astype(np.float32)
