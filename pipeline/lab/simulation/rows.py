"""Builders of a recording's tables from simulated values."""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence

import numpy as np
from numpy.typing import NDArray

from tocsin.pipeline.lab.simulation.levels import HOST_METRICS
from tocsin.pipeline.lab.simulation.physics import SimulatedSteps
from tocsin.pipeline.lab.simulation.plan import Happening
from tocsin.pipeline.lab.simulation.shape import SimulatedShape
from tocsin.pipeline.lab.simulation.telemetry import Matrices
from tocsin.pipeline.recording.tables import STEP_VALUES, Columns, Text
from tocsin.schemas.metrics import GPU_METRICS
from tocsin.schemas.records import NS_PER_SECOND

_WANTED = {
    "duration": ("duration_seconds", "loss", "grad_norm"),
    "waits": ("duration_seconds", "data_seconds", "communication_seconds", "loss", "grad_norm"),
    "full": STEP_VALUES,
}


def topology(shape: SimulatedShape) -> Columns:
    """Return the table of each rank's place."""
    ranks = np.arange(shape.rank_count)
    host = ranks // shape.gpus_per_host_count
    gpu = ranks % shape.gpus_per_host_count
    names = shape.host_names
    return {
        "rank": ranks.astype(np.int32),
        "host": Text(host.astype(np.int32), names),
        "gpu": gpu.astype(np.int8),
        "gpu_uuid": Text.of([f"GPU-{names[h]}-{g}" for h, g in zip(host.tolist(), gpu.tolist(), strict=True)]),
        "dp": ((ranks // shape.tp) % shape.dp).astype(np.int16),
        "pp": shape.stage_of_rank.astype(np.int16),
        "tp": (ranks % shape.tp).astype(np.int16),
        "leaf": Text.of([f"leaf{index}" for index in shape.leaf_of_host[host].tolist()]),
        "minipod": Text.of([f"minipod{index}" for index in shape.minipod_of_host[host].tolist()]),
    }


def groups(shape: SimulatedShape) -> Columns:
    """Return the table of communication groups."""
    grid = np.arange(shape.rank_count).reshape(shape.pp, shape.dp, shape.tp)
    tables = {
        "world": grid.reshape(1, -1),
        "dp": grid.transpose(0, 2, 1).reshape(-1, shape.dp),
        "pp": grid.transpose(1, 2, 0).reshape(-1, shape.pp),
        "tp": grid.reshape(-1, shape.tp),
    }
    comm, kind, rank = [], [], []
    for name, members in tables.items():
        if members.shape[1] < 2:
            continue
        for index, row in enumerate(members.tolist()):
            comm += [f"{name}:{index}"] * len(row)
            kind += [name] * len(row)
            rank += row
    return {"comm_id": Text.of(comm), "kind": Text.of(kind), "rank": np.array(rank, np.int32)}


class MetricRows:
    """Builds ``host_metrics`` rows, with hosts in the order of their stamps, which no clock offset changes.

    Args:
        shape: the job.
    """

    def __init__(self, shape: SimulatedShape) -> None:
        self._shape = shape
        self._order = np.argsort(shape.sample_phase_seconds, kind="stable")
        phase_ns = np.round(shape.sample_phase_seconds[self._order] * 1e9).astype(np.int64)
        rows = 1 + shape.gpus_per_host_count
        self._phase_ns = np.repeat(phase_ns, rows)
        self._host = np.repeat(self._order.astype(np.int32), rows)
        self._gpu = np.tile(np.arange(-1, rows - 1, dtype=np.int8), shape.host_count)

    def table(self, matrices: Matrices, first: int, count: int) -> Columns:
        """Return the rows of ``count`` ticks, from index ``first`` of the matrices on."""
        shape = self._shape
        tick_ns = round(shape.tick_seconds * NS_PER_SECOND)
        ticks = slice(first, first + count)
        kept = matrices.kept[ticks][:, self._order].reshape(-1)
        numbers = matrices.first_tick_index + first + np.arange(count, dtype=np.int64)
        ts = (shape.start_ns + numbers * tick_ns)[:, None] + self._phase_ns[None, :]
        columns: dict[str, NDArray[np.generic] | Text] = {
            "ts_ns": ts.reshape(-1)[kept],
            "host": Text(np.tile(self._host, count)[kept], shape.host_names),
            "gpu": np.tile(self._gpu, count)[kept],
        }
        cells = np.empty((count, shape.host_count, 1 + shape.gpus_per_host_count), np.float32)
        for index, metric in enumerate(GPU_METRICS):
            if metric.name in shape.metrics:
                cells[:, :, 0] = np.nan
                cells[:, :, 1:] = matrices.gpu[index, ticks][:, self._order]
                columns[metric.name] = cells.reshape(-1)[kept]
        for index, metric in enumerate(HOST_METRICS):
            if metric.name in shape.metrics:
                cells[:, :, 1:] = np.nan
                cells[:, :, 0] = matrices.host[index, ticks][:, self._order]
                columns[metric.name] = cells.reshape(-1)[kept]
        return columns


class StepTable:
    """Collects finished steps and returns them by time stamp.

    Args:
        shape: the job.
    """

    def __init__(self, shape: SimulatedShape) -> None:
        self._shape = shape
        every = shape.gpus_per_host_count // shape.step_ranks_count
        self._ranks = np.arange(0, shape.rank_count, every)
        offset = shape.clock_offset_seconds[self._ranks // shape.gpus_per_host_count]
        self._offset_ns = np.round(offset * 1e9).astype(np.int64)
        self._waiting: list[tuple[NDArray[np.int64], SimulatedSteps]] = []

    def add(self, steps: Iterable[SimulatedSteps]) -> None:
        """Add finished steps."""
        if self._shape.step_detail == "none":
            return
        for row in steps:
            stamp = self._shape.start_ns + round(row.end_seconds * 1e9)
            lag = (self._ranks * 7919 + row.step * 104729) % 1_500_000  # ranks write one after the other
            self._waiting.append((stamp + lag + self._offset_ns, row))

    def take(self, from_ns: int, until_ns: int) -> Columns:
        """Remove and return the rows stamped in the span; earlier ones are dropped."""
        parts: list[tuple[NDArray[np.int64], NDArray[np.bool_], SimulatedSteps]] = []
        remain = []
        for stamps, row in self._waiting:
            due = (stamps < until_ns) & (stamps >= from_ns)
            if due.any():
                parts.append((stamps, due, row))
            if bool((stamps >= until_ns).any()):
                remain.append((stamps, row))
        self._waiting = remain
        return self._columns(parts)

    def _columns(self, parts: Sequence[tuple[NDArray[np.int64], NDArray[np.bool_], SimulatedSteps]]) -> Columns:
        """Return the wanted columns of these steps, ordered by time and rank."""
        wanted = _WANTED[self._shape.step_detail]
        ts = np.concatenate([np.empty(0, np.int64), *(stamps[due] for stamps, due, _ in parts)])
        rank = np.concatenate([np.empty(0, np.int32), *(self._ranks[due].astype(np.int32) for _, due, _ in parts)])
        step = np.concatenate([np.empty(0, np.int64), *(np.full(int(due.sum()), row.step) for _, due, row in parts)])
        order = np.lexsort((rank, ts))
        columns: dict[str, NDArray[np.generic] | Text] = {
            "ts_ns": ts[order],
            "rank": rank[order],
            "step": step.astype(np.int64)[order],
        }
        for name in wanted:
            values = [self._values(row, name)[due] for _, due, row in parts]
            columns[name] = np.concatenate([np.empty(0, np.float64), *values])[order]
        return columns

    def _values(self, row: SimulatedSteps, name: str) -> NDArray[np.float64]:
        """Return one column of a step, by recorded rank."""
        if name == "duration_seconds":
            return np.full(len(self._ranks), row.duration_seconds)
        if name == "loss":
            return np.asarray(row.loss[self._ranks])
        if name == "grad_norm":
            return np.asarray(row.grad_norm[self._ranks])
        return np.asarray(row.phase_seconds[STEP_VALUES.index(name) - 1][self._ranks])


class EventTable:
    """Collects events and returns them by time stamp.

    Args:
        shape: the job.
        happenings: known from the beginning.

    Attributes:
        happenings: events that are planned from the beginning.
    """

    def __init__(self, shape: SimulatedShape, happenings: Iterable[Happening]) -> None:
        self._shape = shape
        self._waiting: list[tuple[int, Happening]] = []
        self.add(happenings)

    def add(self, happenings: Iterable[Happening]) -> None:
        """Add events."""
        for part in happenings:
            offset = float(self._shape.clock_offset_seconds[part.host_index])
            self._waiting.append((self._shape.start_ns + round((part.at_seconds + offset) * 1e9), part))

    def take(self, from_ns: int, until_ns: int) -> Columns:
        """Remove and return the rows stamped in the span; earlier ones are dropped."""
        due = [pair for pair in self._waiting if from_ns <= pair[0] < until_ns]
        self._waiting = [pair for pair in self._waiting if pair[0] >= until_ns]
        due.sort(key=lambda pair: (pair[0], pair[1].host_index, pair[1].rank, pair[1].name))
        parts = [part for _, part in due]
        return {
            "ts_ns": np.array([stamp for stamp, _ in due], np.int64),
            "host": Text(np.array([part.host_index for part in parts], np.int32), self._shape.host_names),
            "rank": np.array([part.rank for part in parts], np.int32),
            "source": Text.of([part.source for part in parts]),
            "name": Text.of([part.name for part in parts]),
            "severity": Text.of([part.severity for part in parts]),
            "payload": Text.of([json.dumps(dict(part.payload)) for part in parts]),
        }


def concatenated(tables: Sequence[Columns]) -> Columns:
    """Return the rows of all tables one after the other; all have the same columns."""
    joined: dict[str, NDArray[np.generic] | Text | list[bytes]] = {}
    for name, column in tables[0].items():
        parts = [table[name] for table in tables]
        joined[name] = _joined_text(parts) if isinstance(column, Text) else np.concatenate(parts)  # type: ignore[arg-type]  # all parts are arrays
    return joined


def _joined_text(parts: Sequence[object]) -> Text:
    """Return text columns joined into one, with a common list of words."""
    texts = [part for part in parts if isinstance(part, Text)]
    if all(text.words is texts[0].words for text in texts):
        return Text(np.concatenate([text.codes for text in texts]), texts[0].words)
    index: dict[str, int] = {}
    codes = []
    for text in texts:
        own = np.array([index.setdefault(word, len(index)) for word in text.words], np.int32)
        codes.append(own[text.codes] if len(own) else text.codes)
    return Text(np.concatenate(codes).astype(np.int32), tuple(index))
