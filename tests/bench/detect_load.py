"""Machines for ``make bench-detect``: seven metrics once a second, as arrays and as the frames that agents send."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from tocsin.models.metric_means import MetricMeans, mean_over_ticks
from tocsin.schemas.metrics import BUILTIN_TABLE, Metric
from tocsin.schemas.records import NS_PER_SECOND, Frame, JobKey, Slice
from tocsin.schemas.wire.codec import encode

JOB = JobKey("bench", "detect", 0)
SLICE_SECONDS = 5
SLICE_NS = SLICE_SECONDS * NS_PER_SECOND
START_NS = 1_700_000_000 * NS_PER_SECOND
LEVELS: dict[str, float] = {
    "pfc_tx_packets_per_second": 0.0,
    "cpu_util_ratio": 0.35,
    "gpu_util_ratio": 0.9,
    "gpu_power_watts": 520.0,
    "gpu_graphics_active_ratio": 0.85,
    "gpu_tensor_active_ratio": 0.45,
    "nvlink_bytes_per_second": 1.2e11,
}
"""The seven metrics that Minder uses, and a busy machine's level of each."""
_OWN_RATIO, _NOISE_RATIO, _COMMON_RATIO = 0.03, 0.02, 0.05
_PACKETS = "pfc_tx_packets_per_second"
Cube = NDArray[np.float32]


@dataclass(frozen=True, slots=True)
class Planted:
    """One machine is different in one slice.

    Attributes:
        host: its row.
        metric: in which metric.
        factor: so many times what it would be (packets: thousands a second).
    """

    host: int
    metric: str
    factor: float


class Fleet:
    """Machines of one job, each a little different from the others, all of them rising and falling together."""

    def __init__(self, host_count: int, gpu_count: int, seed: int = 0) -> None:
        self.host_count, self.gpu_count, self._seed = host_count, gpu_count, seed
        self.hosts = tuple(f"host-{number:05d}" for number in range(host_count))
        self.gpus = tuple((host, f"GPU-{host}-{gpu}") for host in self.hosts for gpu in range(gpu_count))
        draw = np.random.default_rng([seed, host_count])
        self._own_host = self._own(draw, BUILTIN_TABLE.host, host_count)
        self._own_gpu = self._own(draw, BUILTIN_TABLE.gpu, host_count * gpu_count)

    @staticmethod
    def _own(draw: np.random.Generator, metrics: tuple[Metric, ...], count: int) -> Cube:
        """Own levels, NaN: a metric that nobody collects; shape (rows, metrics)."""
        levels = np.array([LEVELS.get(metric.name, np.nan) for metric in metrics])
        own: Cube = (levels * (1 + _OWN_RATIO * draw.standard_normal((count, len(metrics))))).astype(np.float32)
        return own

    def cubes(self, index: int, planted: Planted | None = None) -> tuple[Cube, Cube]:
        """The samples of one slice: (hosts, host metrics, ticks), (GPUs, GPU metrics, ticks)."""
        draw = np.random.default_rng([self._seed, self.host_count, index])
        common = 1 + _COMMON_RATIO * float(draw.standard_normal())
        host, gpu = (self._cube(draw, own, common) for own in (self._own_host, self._own_gpu))
        column = [metric.name for metric in BUILTIN_TABLE.host].index(_PACKETS)
        host[:, column] = draw.poisson(2.0, host[:, column].shape)
        if planted is not None:
            self._plant(planted, host, gpu)
        return host, gpu

    @staticmethod
    def _cube(draw: np.random.Generator, own: Cube, common: float) -> Cube:
        noise = draw.standard_normal((*own.shape, SLICE_SECONDS), dtype=np.float32)
        noise *= np.float32(_NOISE_RATIO)
        noise += 1
        noise *= own[:, :, None] * np.float32(common)
        return noise

    def _plant(self, planted: Planted, host: Cube, gpu: Cube) -> None:
        names = [metric.name for metric in BUILTIN_TABLE.host]
        if planted.metric == _PACKETS:
            host[planted.host, names.index(_PACKETS)] += np.float32(1000 * planted.factor)
        elif planted.metric in names:
            host[planted.host, names.index(planted.metric)] *= np.float32(planted.factor)
        else:
            column = [metric.name for metric in BUILTIN_TABLE.gpu].index(planted.metric)
            own = slice(planted.host * self.gpu_count, (planted.host + 1) * self.gpu_count)
            gpu[own, column] *= np.float32(planted.factor)

    def span(self, index: int) -> Slice:
        """The slice's time, without records."""
        start_ns = START_NS + index * SLICE_NS
        return Slice(JOB, start_ns, start_ns + SLICE_NS, ())

    def means(self, index: int, planted: Planted | None = None) -> MetricMeans:
        """One slice as arrays: what the detector is given after frames were decoded and reduced."""
        host, gpu = self.cubes(index, planted)
        stamps = np.full(self.host_count, START_NS + (index + 1) * SLICE_NS - 1_000_000, np.int64)
        ticks = np.full(self.host_count, NS_PER_SECOND, np.int64)
        samples = np.full(self.host_count, SLICE_SECONDS, np.int64)
        return MetricMeans(self.hosts, stamps, ticks, samples, self.gpus, *mean_over_ticks(host), *mean_over_ticks(gpu))

    def frames(self, index: int, planted: Planted | None = None) -> list[bytes]:
        """The same as the bytes that the agents send at the slice's end."""
        host, gpu = (cube.astype("<f4") for cube in self.cubes(index, planted))
        first_ns = START_NS + index * SLICE_NS
        found = []
        for number, name in enumerate(self.hosts):
            own = slice(number * self.gpu_count, (number + 1) * self.gpu_count)
            frame = Frame(
                JOB,
                name,
                first_ns + SLICE_NS - 1_000_000,
                BUILTIN_TABLE.table_id,
                first_ns,
                NS_PER_SECOND,
                SLICE_SECONDS,
                tuple(uuid for _, uuid in self.gpus[own]),
                gpu[own].tobytes(),
                host[number].tobytes(),
            )
            found.append(encode(frame))
        return found

    def matrix(self, index: int, planted: Planted | None = None) -> NDArray[np.float32]:
        """One slice as (machines, seven metrics): each machine's GPUs as their mean."""
        means = self.means(index, planted)
        columns = []
        for name in LEVELS:
            names = [metric.name for metric in BUILTIN_TABLE.host]
            if name in names:
                columns.append(means.host_values[:, names.index(name)])
            else:
                column = [metric.name for metric in BUILTIN_TABLE.gpu].index(name)
                columns.append(means.gpu_values[:, column].reshape(self.host_count, -1).mean(axis=1))
        return np.stack(columns, axis=1)
