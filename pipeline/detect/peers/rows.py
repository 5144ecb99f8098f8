"""Rows that the peer detector compares: hosts by host metrics, hosts by the mean of their GPUs, and single GPUs."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from tocsin.models.frames import GpuRow
from tocsin.models.metric_means import MetricMeans
from tocsin.models.peer_scales import Scale, scale_of, transform
from tocsin.models.peers import PeerConfig, PeerState, PeerWindow, compare
from tocsin.pipeline.core.arrays import array_from, arrays_state
from tocsin.schemas.metrics import Metric, MetricTable

FloatArray = NDArray[np.float32]
IntArray = NDArray[np.intp]

GPU_SAMPLES = Metric("gpu_samples_ratio", "host", 0.0, 1.0, "low")
"""Share of a host's GPUs that give samples; a GPU that fell off the bus gives none."""


@dataclass(slots=True)
class Block:
    """Rows of one kind with their learned levels.

    Attributes:
        metrics: columns.
        names: host names, or (host, GPU) pairs; the rows.
        scales: noise floor and transformation of each metric.
        state: learned levels and spreads.
    """

    metrics: tuple[Metric, ...]
    names: list[Any] = field(default_factory=list)
    scales: list[Scale] = field(init=False)
    state: PeerState = field(init=False)

    def __post_init__(self) -> None:
        self.set_floors({})
        self.state = PeerState.empty(0, len(self.metrics))

    def set_floors(self, floors: Mapping[str, float]) -> None:
        """Set noise floors of metrics, by name; other metrics keep the floor of their unit."""
        scales = [scale_of(metric) for metric in self.metrics]
        self.scales = [
            replace(scale, floor=floors.get(metric.name, scale.floor))
            for metric, scale in zip(self.metrics, scales, strict=True)
        ]

    def compare(
        self,
        names: Sequence[Any],
        values: FloatArray,
        groups: IntArray,
        config: PeerConfig,
        doubted: NDArray[np.bool_] | None = None,
    ) -> PeerWindow:
        """Compare one window's means with the peers' and learn from them.

        Args:
            names: row names.
            values: window means, shape (rows, metrics), NaN = no sample.
            groups: comparison group of each row; -1: compared with none.
            config: settings.
            doubted: rows from which hardly anything is learned, shape (rows,).
        """
        if list(names) != self.names:
            place = {name: row for row, name in enumerate(names)}
            self.state = self.state.grown(np.array([place[name] for name in self.names], np.intp), len(names))
            self.names = list(names)
        return compare(transform(values, self.scales), groups, self.state, self.scales, config, doubted)

    def drop(self, hosts: Collection[str]) -> None:
        """Remove the rows of these hosts, as they left the job."""
        rows = [
            row for row, name in enumerate(self.names) if (name[0] if isinstance(name, tuple) else name) not in hosts
        ]
        self.state = self.state.kept(np.array(rows, np.intp))
        self.names = [self.names[row] for row in rows]

    def forget(self, hosts: Collection[str]) -> None:
        """Forget the learned levels of these hosts (or of their GPUs), as they do other work from now on."""
        rows = [row for row, name in enumerate(self.names) if (name[0] if isinstance(name, tuple) else name) in hosts]
        self.state.forget(np.array(rows, np.intp))

    def forget_young(self, names: Collection[str], young_count: float) -> None:
        """Forget the levels of these metrics in rows that were seen in fewer than ``young_count`` windows.

        They were learned from another kind of work.
        """
        columns = np.array([metric.name in names for metric in self.metrics], bool)
        young = columns & (self.state.seen_count < young_count)
        self.state.level[young], self.state.own_spread[young], self.state.seen_count[young] = np.nan, 0, 0
        self.state.spread[young.any(axis=0)] = np.nan

    def to_state(self) -> dict[str, Any]:
        """Return the state as JSON-serialisable values, for a snapshot."""
        return {"names": self.names, **arrays_state(self.state, _ARRAYS)}

    def load_state(self, state: Mapping[str, Any]) -> None:
        """Restore the state from values that ``to_state`` returned."""
        self.names = [tuple(name) if isinstance(name, list) else name for name in state["names"]]
        self.state = PeerState(*(array_from(state[name]) for name in _ARRAYS))


_ARRAYS: Final = ("level", "own_spread", "seen_count", "spread")
"""The arrays of a ``PeerState``, in the order of its fields."""


@dataclass(frozen=True, slots=True)
class SliceMeans:
    """Means of one slice, with a row for each known host and GPU.

    Attributes:
        hosts: host names, ascending.
        gpus: GPU rows, ascending.
        of_host: row of the host of each GPU.
        host_values: float32, shape (hosts, metrics), NaN = no sample.
        gpu_values: float32, shape (GPUs, metrics), NaN = no sample.
    """

    hosts: list[str]
    gpus: list[GpuRow]
    of_host: IntArray
    host_values: FloatArray
    gpu_values: FloatArray


@dataclass(frozen=True, slots=True)
class MeanRows:
    """Mapping from the rows of a slice's means to the rows of all known hosts and GPUs; reused from slice to slice.

    Attributes:
        means_hosts: hosts of the means.
        means_gpus: GPUs of the means.
        hosts: all known hosts, ascending.
        gpus: all known GPUs, ascending.
        host_rows: row among all hosts of each host of the means.
        gpu_rows: row among all GPUs of each GPU of the means.
        of_host: row of the host of each known GPU.
    """

    means_hosts: tuple[str, ...]
    means_gpus: tuple[GpuRow, ...]
    hosts: list[str]
    gpus: list[GpuRow]
    host_rows: IntArray
    gpu_rows: IntArray
    of_host: IntArray

    @classmethod
    def of(cls, means: MetricMeans, hosts: Sequence[str], gpus: Sequence[GpuRow]) -> MeanRows:
        """Return the mapping for means whose hosts and GPUs are all known."""
        host_row = {host: row for row, host in enumerate(hosts)}
        gpu_row = {name: row for row, name in enumerate(gpus)}
        return cls(
            means.hosts,
            means.gpu_rows,
            list(hosts),
            list(gpus),
            np.array([host_row[host] for host in means.hosts], np.intp),
            np.array([gpu_row[name] for name in means.gpu_rows], np.intp),
            np.array([host_row[host] for host, _ in gpus], np.intp),
        )

    def are_of(self, means: MetricMeans) -> bool:
        """Return whether these means have the rows of this mapping."""
        return means.hosts == self.means_hosts and means.gpu_rows == self.means_gpus

    def slice_means(self, means: MetricMeans) -> SliceMeans:
        """Return the means spread over all known rows, with NaN where a host or GPU sent nothing."""
        host_values = np.full((len(self.hosts), means.host_values.shape[1]), np.nan, np.float32)
        gpu_values = np.full((len(self.gpus), means.gpu_values.shape[1]), np.nan, np.float32)
        host_values[self.host_rows], gpu_values[self.gpu_rows] = means.host_values, means.gpu_values
        return SliceMeans(self.hosts, self.gpus, self.of_host, host_values, gpu_values)


def bare_host_count(means: MetricMeans) -> int:
    """Return how many machines sent frames without a single number."""
    bare = ~np.isfinite(means.host_values).any(axis=1)
    if not bare.any():
        return 0
    known = np.isfinite(means.gpu_values).any(axis=1)
    reporting = {host for (host, _), is_known in zip(means.gpu_rows, known, strict=True) if is_known}
    return len({means.hosts[row] for row in np.flatnonzero(bare)} - reporting)


def mean_by_host(values: FloatArray, of_host: IntArray, host_count: int) -> FloatArray:
    """Return the mean over the GPUs of each host, shape (hosts, metrics), NaN = no sample; ``of_host`` must ascend."""
    known = np.isfinite(values)
    total = _by_host(np.add, np.where(known, values, 0).astype(np.float64), of_host, host_count, 0.0)
    count = _by_host(np.add, known.astype(np.float64), of_host, host_count, 0.0)
    return np.where(count > 0, total / np.maximum(count, 1), np.nan).astype(np.float32)


def _by_host(
    combine: np.ufunc, values: NDArray[Any], of_host: IntArray, host_count: int, nothing: float
) -> NDArray[Any]:
    """Return each host's GPU rows combined by a ufunc, shape (hosts, metrics).

    Args:
        combine: ufunc such as ``np.add``.
        values: shape (GPUs, metrics).
        of_host: row of the host of each GPU, ascending.
        host_count: number of hosts.
        nothing: value for hosts without GPUs.
    """
    found = np.full((host_count, values.shape[1]), nothing, values.dtype)
    if of_host.size:
        first = np.flatnonzero(np.diff(of_host, prepend=-1))
        found[of_host[first]] = combine.reduceat(values, first, axis=0)
    return found


def directed(sigmas: FloatArray, metrics: Sequence[Metric]) -> FloatArray:
    """Return deviations split into (high, low), each >= 0, shape (2, rows, metrics).

    A side is zero where it is harmless for the metric.
    """
    high = np.array([metric.bad != "low" for metric in metrics], np.float32)
    low = np.array([metric.bad != "high" for metric in metrics], np.float32)
    found: FloatArray = np.stack([np.maximum(sigmas, 0) * high, np.maximum(-sigmas, 0) * low]).astype(np.float32)
    return found


def largest_by_host(values: FloatArray, of_host: IntArray, host_count: int) -> FloatArray:
    """Return the largest value among each host's GPUs, shape (2, hosts, metrics), NaN = no sample.

    ``of_host`` must ascend.
    """
    plain = np.nan_to_num(values, nan=-1.0)
    top = np.stack([_by_host(np.maximum, side, of_host, host_count, -1.0) for side in plain])
    return np.where(top >= 0, top, np.nan).astype(np.float32)


def groups_of(roles: Sequence[tuple[int, ...] | None], least_count: int) -> IntArray:
    """Return the comparison group of each row, shape (rows,): one group per role.

    All roles share one group if any is too small. -1 marks rows without role, and all rows if there are too few.

    Args:
        roles: role of each row; None: compared with none.
        least_count: fewest rows of a group.
    """
    carrying = [role for role in roles if role is not None]
    different = sorted(set(carrying))
    if len(carrying) < least_count:
        return np.full(len(roles), -1, np.intp)
    few = min(carrying.count(role) for role in different) < least_count
    index = {role: 0 if few else number for number, role in enumerate(different)}
    return np.array([-1 if role is None else index[role] for role in roles], np.intp)


def sample_shares(
    values: FloatArray, known: NDArray[np.bool_], of_host: IntArray, host_count: int
) -> NDArray[np.float32]:
    """Return the share of each host's known GPUs that gave samples, shape (hosts,); NaN where none did."""
    there = np.isfinite(values).any(axis=1) & known
    known_count = np.bincount(of_host, weights=known, minlength=host_count)
    there_count = np.bincount(of_host, weights=there, minlength=host_count)
    return np.where(there_count > 0, there_count / np.maximum(known_count, 1), np.nan).astype(np.float32)


def table_state(table: MetricTable) -> dict[str, Any]:
    """Return a metric table as JSON-serialisable values."""

    def lists(metrics: Sequence[Metric]) -> list[list[Any]]:
        """Return metrics as lists of their fields."""
        return [[m.name, m.scope, m.low, m.high, m.bad] for m in metrics]

    return {"table_id": table.table_id, "gpu": lists(table.gpu), "host": lists(table.host)}


def table_from(state: Mapping[str, Any]) -> MetricTable:
    """Return the metric table from values that ``table_state`` returned."""
    gpu, host = (tuple(Metric(*metric) for metric in state[scope]) for scope in ("gpu", "host"))
    return MetricTable(state["table_id"], gpu, host)
