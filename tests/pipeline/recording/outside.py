"""A training job as an outside program would record it, made from the format's text alone.

Nothing of ``tocsin.pipeline.recording`` or of its simulation is used: tables are dicts of numpy arrays and lists.
"""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pyarrow as pa

from tests.pipeline.recording.kit import START_NS

S = 1_000_000_000
Table = dict[str, Any]
Tables = dict[str, Table]
GPU_COLUMNS = ("gpu_util_ratio", "gpu_power_watts", "gpu_sm_clock_hertz")
HOST_COLUMNS = ("cpu_util_ratio", "rdma_bytes_per_second")
EVENT_COLUMNS = ("ts_ns", "host", "rank", "source", "name", "severity", "payload")
STEP_SECONDS = 1.0


@dataclass
class Job:
    """What is drawn.

    Attributes:
        fault: ``slow``, ``stop``, ``unreachable`` or ``none``.
        bad: the host that it strikes.
        hosts: names, in order of ranks.
        gpus: ranks a host.
        seconds: length.
        onset: when the fault begins, seconds.
        tick: sampling period.
        begin: when the first second lies, seconds after ``START_NS``.
    """

    fault: str = "none"
    bad: str = "h4"
    hosts: tuple[str, ...] = tuple(f"h{index}" for index in range(6))
    gpus: int = 2
    seconds: int = 240
    onset: int = 150
    tick: float = 1.0
    begin: int = 0
    seed: int = 0
    rng: np.random.Generator = field(init=False)

    def __post_init__(self) -> None:
        self.rng = np.random.default_rng(self.seed)

    def ns(self, second: float) -> int:
        return START_NS + round((self.begin + second) * S)

    @property
    def ranks(self) -> list[int]:
        return list(range(len(self.hosts) * self.gpus))

    def host_of(self, rank: int) -> str:
        return self.hosts[rank // self.gpus]

    def bad_ranks(self) -> list[int]:
        return [rank for rank in self.ranks if self.host_of(rank) == self.bad]

    def tables(self) -> Tables:
        """All of them; ``events`` where there is one."""
        found = {"topology": self.topology(), "groups": self.groups(), "host_metrics": self.metrics()}
        found["steps"] = self.steps()
        if self.fault == "stop":
            found["events"] = self.crash(self.onset)
        return found

    def topology(self) -> Table:
        ranks = self.ranks
        return {
            "rank": np.array(ranks, np.int32),
            "host": [self.host_of(rank) for rank in ranks],
            "gpu": np.array([rank % self.gpus for rank in ranks], np.int8),
            "gpu_uuid": [f"GPU-{self.host_of(rank)}-{rank % self.gpus}" for rank in ranks],
            "dp": np.array([rank // self.gpus for rank in ranks], np.int16),
            "pp": np.zeros(len(ranks), np.int16),
            "tp": np.array([rank % self.gpus for rank in ranks], np.int16),
            "leaf": ["leaf0"] * len(ranks),
            "minipod": ["m0"] * len(ranks),
        }

    def groups(self) -> Table:
        rows = [("world", "world", rank) for rank in self.ranks]
        rows += [(f"tp{rank // self.gpus}", "tp", rank) for rank in self.ranks]
        comm, kind, rank = zip(*rows, strict=True)
        return {"comm_id": list(comm), "kind": list(kind), "rank": np.array(rank, np.int32)}

    def steps(self) -> Table:
        rows: list[tuple[Any, ...]] = []
        now, number, bad = 0.0, 0, self.bad_ranks()
        while True:
            if self.fault in ("stop", "unreachable") and now >= self.onset:
                break
            own = 0.9 * STEP_SECONDS * (1 + 0.02 * self.rng.standard_normal(len(self.ranks)))
            if self.fault == "slow" and now >= self.onset:
                own[bad] *= 1.6
            duration = float(own.max()) + 0.1 * STEP_SECONDS
            now += duration
            number += 1
            if now >= self.seconds:
                break
            for rank in self.ranks:
                shares = (0.05 * own[rank], 0.35 * own[rank], 0.5 * own[rank], 0.1 * own[rank])
                late = self.rng.uniform(0, 0.004)
                rows.append((self.ns(now + late), rank, number, duration, *shares, duration - own[rank], 2.5, 1.0))
        names = ("duration", "data", "forward", "backward", "optimizer", "communication")
        columns = list(zip(*sorted(rows), strict=True))
        found: Table = {"ts_ns": np.array(columns[0], np.int64), "rank": np.array(columns[1], np.int32)}
        found["step"] = np.array(columns[2], np.int64)
        found |= {f"{name}_seconds": np.array(column) for name, column in zip(names, columns[3:9], strict=True)}
        return found | {"loss": np.array(columns[9]), "grad_norm": np.array(columns[10])}

    def metrics(self) -> Table:
        rows: list[tuple[Any, ...]] = []
        for host in self.hosts:
            for gpu in range(-1, self.gpus):
                phase = self.rng.uniform(0, 0.2 * self.tick)
                own = 1 + 0.01 * self.rng.standard_normal(5)
                for second in np.arange(0, self.seconds, self.tick):
                    if self.fault == "unreachable" and second >= self.onset and host == self.bad:
                        break
                    levels = np.array(self.levels(host, float(second))) * own
                    levels *= 1 + 0.02 * self.rng.standard_normal(5)
                    levels[0], levels[3] = min(1.0, levels[0]), min(1.0, levels[3])
                    levels[slice(0, 3) if gpu < 0 else slice(3, 5)] = np.nan
                    rows.append((self.ns(second + phase), host, gpu, *levels))
        return metric_table(rows)

    def levels(self, host: str, second: float) -> tuple[float, ...]:
        """Utilisation, power, clock, CPU, RDMA."""
        if self.fault != "none" and second >= self.onset:
            if self.fault != "slow":
                return 0.03, 100.0, 1.98e9, 0.05, 1e3
            if host == self.bad:
                return 0.95, 350.0, 1.2e9, 0.3, 1.3e10
            return 0.62, 440.0, 1.98e9, 0.3, 1.3e10
        return 0.95, 620.0, 1.98e9, 0.3, 2e10

    def crash(self, second: float, *, victims: bool = False) -> Table:
        """A GPU falls off the bus, its process ends; with ``victims`` so do all others."""
        first = self.bad_ranks()[0]
        xid = json.dumps({"code": 79, "pci": "0000:c1:00.0"})
        last = json.dumps(
            {"code": 1, "signal": 0, "stderr_tail": "RuntimeError: CUDA error: unspecified launch failure"}
        )
        lost = json.dumps({"code": 1, "signal": 0, "stderr_tail": "RuntimeError: NCCL: connection closed by peer"})
        rows = [(self.ns(second), self.bad, first, "kernel", "xid", "fatal", xid)]
        rows.append((self.ns(second + 0.5), self.bad, first, "process", "exit", "error", last))
        others = [rank for rank in self.ranks if rank != first and victims]
        rows += [(self.ns(second + 0.9), self.host_of(rank), rank, "process", "exit", "error", lost) for rank in others]
        return event_table(rows)


def metric_table(rows: list[tuple[Any, ...]]) -> Table:
    columns = list(zip(*sorted(rows, key=lambda row: row[:3]), strict=True))
    found: Table = {"ts_ns": np.array(columns[0], np.int64), "host": list(columns[1])}
    found["gpu"] = np.array(columns[2], np.int8)
    names = (*GPU_COLUMNS, *HOST_COLUMNS)
    return found | {name: np.array(column, np.float32) for name, column in zip(names, columns[3:], strict=True)}


def event_table(rows: list[tuple[Any, ...]]) -> Table:
    columns = [list(column) for column in zip(*sorted(rows, key=lambda row: row[0]), strict=True)]
    found: Table = dict(zip(EVENT_COLUMNS, columns, strict=True))
    found["rank"] = np.array(found["rank"], np.int32)
    return found


def idle_host(host: str, from_second: int, to_second: int, gpus: int = 2) -> list[tuple[Any, ...]]:
    """Rows of ``host_metrics`` of a machine that nobody uses."""
    rng = np.random.default_rng(9)
    rows = []
    for gpu in range(-1, gpus):
        for second in range(from_second, to_second):
            levels = np.array([0.001, 90.0, 3.5e8, 0.01, 100.0]) * (1 + 0.02 * rng.standard_normal(5))
            levels[slice(0, 3) if gpu < 0 else slice(3, 5)] = np.nan
            rows.append((START_NS + second * S + 50_000_000, host, gpu, *levels))
    return rows


def rows_of(metrics: Table) -> list[tuple[Any, ...]]:
    return list(zip(*(metrics[name] for name in ("ts_ns", "host", "gpu", *GPU_COLUMNS, *HOST_COLUMNS)), strict=True))


def joined(one: Table, other: Table) -> Table:
    """Rows of one table behind those of another."""
    return {
        name: np.concatenate([column, other[name]]) if isinstance(column, np.ndarray) else [*column, *other[name]]
        for name, column in one.items()
    }


def picked(table: Table, rows: Any) -> Table:
    """These rows (numbers or a mask)."""
    numbers = np.arange(len(table[next(iter(table))]))[rows]
    return {
        name: column[numbers] if isinstance(column, np.ndarray) else [column[row] for row in numbers]
        for name, column in table.items()
    }


def arrow(tables: Tables) -> dict[str, dict[str, pa.Array]]:
    """For ``kit.write_folder``."""
    return {name: {key: pa.array(column) for key, column in table.items()} for name, table in tables.items()}


MOVE_SECONDS = 110
"""When the second part begins; the first ends 15 s earlier."""


def moved(fault: str, *, attempt: bool = False, crash: bool = False, spare: str = "h9", bad: str = "h9") -> Tables:
    """A job that is started again, with ``spare`` in the place of h4; then ``bad`` is struck 150 s later.

    Args:
        fault: of the second part.
        attempt: whether the recording counts attempts.
        crash: the first part ends because h4 broke; otherwise it just ends.
        spare: takes h4's ranks.
        bad: whom the fault strikes.
    """
    first = Job(seconds=MOVE_SECONDS - 15, seed=1)
    hosts = tuple(spare if host == "h4" else host for host in first.hosts)
    second = Job(fault, bad, hosts, begin=MOVE_SECONDS, seed=2)
    one, two = first.tables(), second.tables()
    tables = {name: joined(one[name], two[name]) for name in ("topology", "host_metrics", "steps")}
    count = len(first.ranks)
    tables["groups"] = one["groups"]
    tables["topology"]["from_ns"] = np.repeat(np.array([START_NS, second.ns(-5)], np.int64), count)
    if attempt:
        tables["topology"]["attempt"] = np.repeat(np.array([0, 1], np.int32), count)
        steps = [len(part["steps"]["rank"]) for part in (one, two)]
        tables["steps"]["attempt"] = np.repeat(np.array([0, 1], np.int32), steps)
        tables["groups"] = joined(one["groups"], two["groups"])
        groups = len(one["groups"]["rank"])
        tables["groups"]["attempt"] = np.repeat(np.array([0, 1], np.int32), groups)
        tables["groups"]["from_ns"] = np.repeat(np.array([START_NS, second.ns(-5)], np.int64), groups)
    if crash:
        tables["events"] = first.crash(MOVE_SECONDS - 16, victims=True)
    if "events" in two:
        tables["events"] = joined(tables["events"], two["events"]) if crash else two["events"]
    return tables
