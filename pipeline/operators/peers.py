"""Peer detector: which machine's metrics differ from its peers', and since when.

Keyed by (job, metric group): each metric is judged by itself, so that a large job's metrics
may be spread over workers. Emits one anomaly per machine; ``diagnose`` decides what it means.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tocsin.models.frames import FrameStack, GpuRow, Grid, stack_frames
from tocsin.models.peers import PeerConfig, PeerState, Scale, compare, scale_of, transform
from tocsin.pipeline.operators.arrays import array_from, array_state
from tocsin.pipeline.operators.base import pack_state, unpack_state
from tocsin.pipeline.operators.graph import JobGraph
from tocsin.schemas.metrics import BUILTIN_TABLE, Metric, MetricTable
from tocsin.schemas.reasons import Reason
from tocsin.schemas.records import Frame, Slice, TableAnnouncement
from tocsin.schemas.verdicts import Anomaly, Component, ComponentKind

DETECTOR = "peers"
FloatArray = NDArray[np.float32]

ACTIVITY = (
    "gpu_tensor_active_ratio",
    "gpu_power_watts",
    "gpu_sm_active_ratio",
    "nvlink_bytes_per_second",
    "gpu_util_ratio",
)
"""Metrics that fall when the job does not work."""


@dataclass(frozen=True, slots=True)
class PeersConfig:
    """Settings of the operator.

    Attributes:
        peers: the comparison.
        keep_ratio: an alarm goes on while its sum is above this share of the alarm line.
        max_sum_ratio: the sum stops growing at this multiple of the alarm line, so that a
            fault that ends is seen to end.
        jump_ratio: where the common factor moves by more between two windows, the window shows the
            clocks' offsets, not the machines.
    """

    peers: PeerConfig = field(default_factory=PeerConfig)
    keep_ratio: float = 0.4
    max_sum_ratio: float = 2.0
    jump_ratio: float = 0.35


@dataclass(slots=True)
class _Block:
    """Rows of one kind: hosts by host metrics, hosts by their GPUs' mean, single GPUs."""

    metrics: tuple[Metric, ...]
    names: list[Any] = field(default_factory=list)
    state: PeerState = field(init=False)

    def __post_init__(self) -> None:
        self.state = PeerState.empty(0, len(self.metrics))

    def take_names(self, names: Sequence[Any]) -> None:
        """Make room for rows that are new."""
        if list(names) == self.names:
            return
        place = {name: row for row, name in enumerate(names)}
        rows = np.array([place[name] for name in self.names], np.intp)
        self.state = self.state.grown(rows, len(names))
        self.names = list(names)


class PeerDetector:
    """Finds the machine that differs, among all machines of one job."""

    def __init__(self, config: PeersConfig, graph: JobGraph) -> None:
        """Start without history."""
        self._config = config
        self._graph = graph
        self._table: MetricTable = BUILTIN_TABLE
        self._hosts: list[str] = []
        self._gpus: set[GpuRow] = set()
        self._make_blocks()
        self._sum: FloatArray = np.zeros((2, 0, self._metric_count), np.float32)
        self._since_ns: NDArray[np.int64] = np.zeros((2, 0, self._metric_count), np.int64)
        self._alarmed: dict[str, bool] = {}
        self._factor: list[float] = []
        self.abstained: dict[str, int] = {}
        self.activity_ratio = 1.0
        """The job's activity in the last window over its usual one."""
        self.usual_ratio = 1.0

    def _make_blocks(self) -> None:
        table = self._table
        self._blocks = {"host": _Block(table.host), "mean": _Block(table.gpu), "gpu": _Block(table.gpu)}
        self._metrics = (*table.host, *table.gpu)
        self._scales: dict[str, list[Scale]] = {
            name: [scale_of(metric) for metric in block.metrics] for name, block in self._blocks.items()
        }

    @property
    def _metric_count(self) -> int:
        return len(self._metrics)

    def on_slice(self, data: Slice) -> Sequence[Anomaly]:
        """Take the frames of one metric slice and return which machines differ at its end."""
        frames = [record for record in data.records if isinstance(record, Frame)]
        for record in data.records:
            if isinstance(record, TableAnnouncement):
                self.take_table(record.table)
        frames = [frame for frame in frames if frame.table_id == self._table.table_id]
        if not frames:
            return []
        self._know(frames)
        tick_ns = frames[0].tick_ns
        grid = Grid(data.start_ns, tick_ns, max(1, (data.end_ns - data.start_ns) // tick_ns))
        stack = stack_frames(frames, self._table, grid, hosts=self._hosts, gpu_rows=sorted(self._gpus))
        return self._judge(data, stack)

    def take_table(self, table: MetricTable) -> None:
        """The job has metrics of its own: start with them (a table is announced before its frames)."""
        if table == self._table:
            return
        self._table = table
        self._make_blocks()
        self._sum = np.zeros((2, len(self._hosts), self._metric_count), np.float32)
        self._since_ns = np.zeros((2, len(self._hosts), self._metric_count), np.int64)

    def _know(self, frames: Sequence[Frame]) -> None:
        known = set(self._hosts)
        new = {frame.host for frame in frames} - known
        for frame in frames:
            self._gpus.update((frame.host, uuid) for uuid in frame.gpu_uuids)
        if not new:
            return
        hosts = sorted(known | new)
        rows = [hosts.index(host) for host in self._hosts] if self._hosts else []
        grown = np.zeros((2, len(hosts), self._metric_count), np.float32)
        since = np.zeros((2, len(hosts), self._metric_count), np.int64)
        grown[:, rows], since[:, rows] = self._sum, self._since_ns
        self._hosts, self._sum, self._since_ns = hosts, grown, since

    def _judge(self, data: Slice, stack: FrameStack) -> list[Anomaly]:
        rows: dict[str, list[Any]] = {"host": list(stack.hosts), "mean": list(stack.hosts), "gpu": list(stack.gpu_rows)}
        host_means, gpu_means = _mean(stack.host_values), _mean(stack.gpu_values)
        of_host = _host_rows(stack)
        values = {"host": host_means, "mean": _mean_by(gpu_means, of_host, len(stack.hosts)), "gpu": gpu_means}
        groups = self._groups(stack)
        windows = {}
        for name, block in self._blocks.items():
            block.take_names(rows[name])
            shaped = transform(values[name], self._scales[name])
            group = groups if name != "gpu" else groups[of_host]
            windows[name] = compare(shaped, group, block.state, self._scales[name], self._config.peers)
        if (groups < 0).all():
            self._abstain(Reason.TOO_FEW_PEERS)
            return []
        jumped = self._jumped(windows["mean"].factor)
        if self._graph.in_announced_phase(data.start_ns, data.end_ns):
            self._abstain(Reason.ANNOUNCED_PHASE)
            return self._alarms(data, None)
        if jumped or self.activity_ratio < self._config.peers.idle_ratio:
            return self._alarms(data, None)
        sigmas = self._host_sigmas(windows["host"].sigmas, windows["mean"].sigmas, windows["gpu"].sigmas, of_host)
        self._add(sigmas, data.start_ns)
        return self._alarms(data, (sigmas, values, {name: w.expected for name, w in windows.items()}))

    def _groups(self, stack: FrameStack) -> NDArray[np.intp]:
        """Which hosts are compared with each other: those of the same pipeline stages, where they are enough."""
        least = self._config.peers.min_peer_count
        count = len(stack.hosts)
        if count < least:
            return np.full(count, -1, np.intp)
        roles = self._graph.roles_of_hosts()
        keys = [roles.get(host, ()) for host in stack.hosts]
        different = sorted(set(keys))
        if min(keys.count(key) for key in different) < least:
            return np.zeros(count, np.intp)
        index = {key: number for number, key in enumerate(different)}
        return np.array([index[key] for key in keys], np.intp)

    def _jumped(self, factor: FloatArray) -> bool:
        """Follow the job's activity; whether it moved between the last window and this one."""
        names = [metric.name for metric in self._blocks["mean"].metrics]
        columns = [names.index(name) for name in ACTIVITY if name in names]
        seen = factor[:, columns]
        seen = seen[np.isfinite(seen)]
        if not seen.size:
            return False
        before, self.activity_ratio = self.activity_ratio, float(np.median(seen))
        return abs(self.activity_ratio - before) > self._config.jump_ratio

    def _host_sigmas(
        self, host: FloatArray, mean: FloatArray, gpu: FloatArray, of_host: NDArray[np.intp]
    ) -> FloatArray:
        """Signed distances of hosts, shape (2: high and low, hosts, metrics), >= 0; NaN = no sample."""
        means = _directed(mean, self._table.gpu)
        lone = self._config.peers.lone_gpu_ratio * _directed(gpu, self._table.gpu)
        for side in (0, 1):
            filled = np.nan_to_num(lone[side], nan=-1.0)
            top = np.full_like(means[side], -1.0)
            np.maximum.at(top, of_host, filled)
            means[side] = np.fmax(means[side], np.where(top >= 0, top, np.nan))
        return np.concatenate([_directed(host, self._table.host), means], axis=2)

    def _add(self, sigmas: FloatArray, start_ns: int) -> None:
        config = self._config.peers
        gain = np.minimum(sigmas, config.max_sigmas) - config.drift_sigmas
        gain = np.where(np.isfinite(gain), gain, -1.0)
        risen = (self._sum <= 0) & (gain > 0)
        self._since_ns[risen] = start_ns
        limit = self._config.max_sum_ratio * config.alarm_sum
        self._sum = np.clip(self._sum + gain, 0, limit).astype(np.float32)

    def _alarms(self, data: Slice, seen: Any) -> list[Anomaly]:
        line = self._config.peers.alarm_sum
        best = self._sum.max(axis=(0, 2)) / line
        found = []
        for row, host in enumerate(self._hosts):
            keep = self._config.keep_ratio if self._alarmed.get(host) else 1.0
            self._alarmed[host] = bool(best[row] >= keep)
            if self._alarmed[host]:
                found.append(self._anomaly(data, row, seen))
        return found

    def _anomaly(self, data: Slice, row: int, seen: Any) -> Anomaly:
        line = self._config.peers.alarm_sum
        sums = self._sum[:, row]
        hot = np.argwhere(sums >= 0.5 * line)
        if not hot.size:
            hot = np.argwhere(sums == sums.max())
        order = sorted(map(tuple, hot.tolist()), key=lambda entry: (-float(sums[entry]), entry))
        metrics = [
            {
                "metric": self._metrics[column].name,
                "direction": "low" if side else "high",
                "score": round(float(sums[side, column]) / line, 4),
                "since_ns": int(self._since_ns[side, row, column]),
                **self._numbers(seen, row, side, column),
            }
            for side, column in order
        ]
        alarmed = [m for m in metrics if m["score"] >= 1.0] or metrics[:1]
        return Anomaly(
            job=data.job,
            slice_end_ns=data.end_ns,
            component=Component(ComponentKind.HOST, self._hosts[row]),
            metric=str(metrics[0]["metric"]),
            start_ns=min(int(m["since_ns"]) for m in alarmed),
            end_ns=data.end_ns,
            score=float(metrics[0]["score"]),
            detector=DETECTOR,
            detail={"metrics": metrics},
        )

    def _numbers(self, seen: Any, row: int, side: int, column: int) -> dict[str, float]:
        """What the window showed: sigmas, value and expected value, where there is a window."""
        if seen is None:
            return {}
        sigmas, values, expected = seen
        name, index = ("host", column) if column < len(self._table.host) else ("mean", column - len(self._table.host))
        found = {
            "sigmas": float(sigmas[side, row, column]),
            "value": float(values[name][row, index]),
            "expected": float(expected[name][row, index]),
        }
        return {key: round(value, 4) for key, value in found.items() if np.isfinite(value)}

    def _abstain(self, reason: Reason) -> None:
        self.abstained[reason.value] = self.abstained.get(reason.value, 0) + 1

    def snapshot(self) -> dict[str, bytes]:
        """State in one part per block, and one for the sums."""
        parts = {
            f"peers_{name}": pack_state(
                {
                    "names": [list(n) if isinstance(n, tuple) else n for n in block.names],
                    "level": array_state(block.state.level),
                    "own_spread": array_state(block.state.own_spread),
                    "seen_count": array_state(block.state.seen_count),
                    "spread": array_state(block.state.spread),
                }
            )
            for name, block in self._blocks.items()
        }
        parts["peers"] = pack_state(
            {
                "table": _table_state(self._table),
                "hosts": self._hosts,
                "gpus": sorted(map(list, self._gpus)),
                "sum": array_state(self._sum),
                "since_ns": array_state(self._since_ns),
                "alarmed": sorted(self._alarmed.items()),
                "activity_ratio": self.activity_ratio,
                "abstained": self.abstained,
            }
        )
        return parts

    def restore(self, parts: Mapping[str, bytes]) -> None:
        """Take back what ``snapshot`` gave."""
        state = unpack_state(parts, "peers")
        self._table = _table_from(state["table"])
        self._make_blocks()
        self._hosts = state["hosts"]
        self._gpus = {(host, uuid) for host, uuid in state["gpus"]}
        self._sum, self._since_ns = array_from(state["sum"]), array_from(state["since_ns"])
        self._alarmed = dict(map(tuple, state["alarmed"]))
        self.activity_ratio = state["activity_ratio"]
        self.abstained = state["abstained"]
        for name, block in self._blocks.items():
            own = unpack_state(parts, f"peers_{name}")
            block.names = [tuple(n) if isinstance(n, list) else n for n in own["names"]]
            arrays = (array_from(own[key]) for key in ("level", "own_spread", "seen_count", "spread"))
            block.state = PeerState(*arrays)


def _table_state(table: MetricTable) -> dict[str, Any]:
    def lists(metrics: Sequence[Metric]) -> list[list[Any]]:
        return [[m.name, m.scope, m.low, m.high, m.bad] for m in metrics]

    return {"table_id": table.table_id, "gpu": lists(table.gpu), "host": lists(table.host)}


def _table_from(state: Mapping[str, Any]) -> MetricTable:
    return MetricTable(
        state["table_id"], tuple(Metric(*m) for m in state["gpu"]), tuple(Metric(*m) for m in state["host"])
    )


def _mean(values: FloatArray) -> FloatArray:
    """Mean over ticks without the missing ones, shape (rows, metrics)."""
    known = np.isfinite(values)
    count = known.sum(axis=2)
    total = np.where(known, values, 0).sum(axis=2)
    return np.where(count > 0, total / np.maximum(count, 1), np.nan).astype(np.float32)


def _host_rows(stack: FrameStack) -> NDArray[np.intp]:
    """For each GPU row the row of its host."""
    place = {host: row for row, host in enumerate(stack.hosts)}
    return np.array([place[host] for host, _ in stack.gpu_rows], np.intp)


def _mean_by(values: FloatArray, of_host: NDArray[np.intp], host_count: int) -> FloatArray:
    """Mean over the GPUs of each host."""
    known = np.isfinite(values)
    total = np.zeros((host_count, values.shape[1]), np.float64)
    count = np.zeros((host_count, values.shape[1]), np.float64)
    np.add.at(total, of_host, np.where(known, values, 0))
    np.add.at(count, of_host, known)
    return np.where(count > 0, total / np.maximum(count, 1), np.nan).astype(np.float32)


def _directed(sigmas: FloatArray, metrics: Sequence[Metric]) -> FloatArray:
    """Split into (high, low), each >= 0, zero where that side is not bad; shape (2, rows, metrics)."""
    high = np.array([metric.bad != "low" for metric in metrics], np.float32)
    low = np.array([metric.bad != "high" for metric in metrics], np.float32)
    found: FloatArray = np.stack([np.maximum(sigmas, 0) * high, np.maximum(-sigmas, 0) * low]).astype(np.float32)
    return found
