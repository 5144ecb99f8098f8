"""Small recordings in memory, and detector sets that say what a test wants."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tocsin.pipeline.lab.backtest.runner import Opinion
from tocsin.pipeline.recording.tables import Columns, Manifest, Recording, Text
from tocsin.schemas.reasons import Reason
from tocsin.schemas.records import NS_PER_SECOND

T0 = 1_700_000_000 * NS_PER_SECOND


def at(seconds: float) -> int:
    """A time of the recordings here."""
    return T0 + round(seconds * NS_PER_SECOND)


def manifest(seconds: int, tick_seconds: float = 1.0) -> Manifest:
    return Manifest("job", 0, T0, at(seconds), tick_seconds)


def metric_table(
    hosts: Sequence[str], columns: Mapping[str, NDArray[Any]], gpus: int = 0, tick_seconds: float = 1.0
) -> Columns:
    """``host_metrics`` of every tick: columns of shape (ticks, hosts), or with a third axis of GPUs."""
    ticks = len(next(iter(columns.values())))
    rows = 1 + gpus
    order = np.repeat(np.arange(ticks), len(hosts) * rows)
    found: dict[str, Any] = {
        "ts_ns": T0 + (order * round(tick_seconds * NS_PER_SECOND)).astype(np.int64),
        "host": Text(np.tile(np.repeat(np.arange(len(hosts), dtype=np.int32), rows), ticks), tuple(hosts)),
        "gpu": np.tile(np.arange(-1, gpus, dtype=np.int8), ticks * len(hosts)),
    }
    for name, values in columns.items():
        cells = np.full((ticks, len(hosts), rows), np.nan, np.float32)
        if values.ndim == 3:
            cells[:, :, 1:] = values
        else:
            cells[:, :, 0] = values
        found[name] = cells.reshape(-1)
    return found


def fault(host: str, onset_seconds: float, end_seconds: float, cause: str = "power_cap") -> dict[str, Any]:
    suspects = [{"kind": "host", "name": host}]
    return {
        "kind": "fail_slow",
        "cause": cause,
        "suspects": suspects,
        "onset_ns": at(onset_seconds),
        "end_ns": at(end_seconds),
    }


def cpu_recording(
    host_count: int = 6, seconds: int = 600, faults: Sequence[Mapping[str, Any]] | None = (), seed: int = 0
) -> Recording:
    """CPU at one half, with a little noise; machines n0 to n5."""
    values = 0.5 + 0.01 * np.random.default_rng(seed).standard_normal((seconds, host_count))
    table = metric_table([f"n{index}" for index in range(host_count)], {"cpu_util_ratio": values})
    truth = None if faults is None else {"faults": list(faults)}
    return Recording(manifest(seconds), {"host_metrics": table}, {}, truth)


@dataclass(frozen=True)
class Says:
    """A detector set with a fixed opinion: (host, seconds), in order."""

    name: str
    said: tuple[tuple[str, float], ...] = ()
    reason: Reason | None = None
    cause: str = "power_cap"
    metric: str = "cpu_util_ratio"

    def judge(self, recording: Recording) -> Opinion:
        lines = tuple(
            {
                "id": str(number),
                "suspects": [{"kind": "host", "name": host}],
                "detected_ns": at(seconds),
                "onset_ns": at(seconds - 5),
                "state": "confirmed",
                "fault": "fail_slow",
                "cause": self.cause,
                "reason": "metrics_differ_for_long",
                "evidence": [{"metric": self.metric}],
            }
            for number, (host, seconds) in enumerate(self.said)
        )
        return Opinion(lines, self.reason)
