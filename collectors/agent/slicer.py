"""Slice boundaries of the wall clock, and the cutting of samples into frames at them."""

from __future__ import annotations

import math
import sys
import zlib
from array import array
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Final

from tocsin.schemas.errors import ConfigError
from tocsin.schemas.metrics import GPU_METRICS, HOST_METRICS
from tocsin.schemas.records import NS_PER_SECOND

METRIC_SLICE_SECONDS: Final = 5
TICKS_A_SLICE: Final = 5
BEFORE_END_NS: Final = 1_000_000
"""Time between a record's stamp and the end of its slice."""
SPREAD_MS: Final = 500
MAX_CATCH_UP_NS: Final = 10 * NS_PER_SECOND
_NAN: Final = math.nan


def spread_ns(host: str) -> int:
    """Return the delay after a boundary at which this host sends; a hash spreads hosts over half a second."""
    return zlib.crc32(host.encode()) % SPREAD_MS * 1_000_000


def metric_slice_ns(period_seconds: float) -> int:
    """Return the length of a metric slice: 5 s or 5 samples, whichever is longer.

    >>> metric_slice_ns(1.0), metric_slice_ns(0.5), metric_slice_ns(30)
    (5000000000, 5000000000, 150000000000)

    Raises:
        ConfigError: slices would not begin on whole seconds or not hold whole ticks.
    """
    tick_ns = round(period_seconds * 1e9) if 0 < period_seconds < 86_400 else 0  # NaN fails it, too
    if tick_ns <= 0:
        raise ConfigError("period-seconds", period_seconds, "positive, less than a day")
    slice_ns = max(METRIC_SLICE_SECONDS * NS_PER_SECOND, TICKS_A_SLICE * tick_ns)
    if slice_ns % tick_ns or slice_ns % NS_PER_SECOND:
        raise ConfigError("period-seconds", period_seconds, "a whole part of 5 s, or a multiple of 0.2 s")
    return slice_ns


class Boundaries:
    """Determines which whole seconds have passed; robust against clock jumps."""

    def __init__(self, delay_ns: int) -> None:
        """Start at the first call of ``due``; a boundary counts as passed ``delay_ns`` after it."""
        self._delay_ns = delay_ns
        self._done_ns = 0

    def due(self, now_ns: int) -> list[int]:
        """Return the boundaries that passed since the last call, oldest first.

        After a jump or a sleep of more than ten seconds, only the latest is returned.
        """
        latest = (now_ns - self._delay_ns) // NS_PER_SECOND * NS_PER_SECOND
        done, self._done_ns = self._done_ns, latest
        if done in {0, latest}:
            return []
        if latest < done:
            return [] if done - latest < MAX_CATCH_UP_NS else [latest]
        if latest - done > MAX_CATCH_UP_NS:
            return [latest]
        return list(range(done + NS_PER_SECOND, latest + 1, NS_PER_SECOND))

    def wait_seconds(self, now_ns: int) -> float:
        """Return the time to the next boundary, seconds."""
        return (NS_PER_SECOND - (now_ns - self._delay_ns) % NS_PER_SECOND) / 1e9


@dataclass(frozen=True, slots=True)
class CutFrame:
    """The metric matrices of one slice, before they are assigned to jobs.

    Attributes:
        first_tick_ns: start of the slice.
        tick_count: samples per series.
        host_matrix: little-endian float32, (host metrics, ticks).
        gpu_matrices: GPU uuid -> little-endian float32, (GPU metrics, ticks).
        is_empty: whether no sample arrived.
    """

    first_tick_ns: int
    tick_count: int
    host_matrix: bytes
    gpu_matrices: Mapping[str, bytes]
    is_empty: bool

    def gpu_matrix(self, uuids: Iterable[str]) -> bytes:
        """Return the matrices of several GPUs one after the other, in the given order."""
        return b"".join(self.gpu_matrices[uuid] for uuid in uuids)


class FrameCutter:
    """Collects samples by tick and returns the matrices of a slice at its end."""

    def __init__(self, tick_ns: int, slice_ns: int) -> None:
        """Create a cutter for ticks of ``tick_ns`` in slices of ``slice_ns``."""
        self._tick_ns = tick_ns
        self._slice_ns = slice_ns
        self._host: dict[int, dict[str, float]] = {}
        self._gpus: dict[int, dict[str, dict[str, float]]] = {}
        self._cut_ns = 0
        self.late_count = 0

    def add(self, tick_ns: int, host: Mapping[str, float], gpus: Mapping[str, Mapping[str, float]]) -> None:
        """Add the samples of one tick; those of a slice that is already cut are counted as late."""
        tick_ns = (tick_ns + self._tick_ns // 2) // self._tick_ns * self._tick_ns
        if tick_ns < self._cut_ns:
            self.late_count += 1
            return
        self._host.setdefault(tick_ns, {}).update(host)
        for uuid, values in gpus.items():
            self._gpus.setdefault(tick_ns, {}).setdefault(uuid, {}).update(values)

    def cut(self, end_ns: int) -> CutFrame:
        """Return the slice that ends at ``end_ns``, and drop older samples."""
        start_ns = end_ns - self._slice_ns
        ticks = range(start_ns, end_ns, self._tick_ns)
        host = [self._host.get(tick, {}) for tick in ticks]
        gpus = [self._gpus.get(tick, {}) for tick in ticks]
        uuids = sorted({uuid for tick in gpus for uuid in tick})
        gpu_names = [metric.name for metric in GPU_METRICS]
        frame = CutFrame(
            first_tick_ns=start_ns,
            tick_count=len(ticks),
            host_matrix=_matrix(host, [metric.name for metric in HOST_METRICS]),
            gpu_matrices={uuid: _matrix([t.get(uuid, {}) for t in gpus], gpu_names) for uuid in uuids},
            is_empty=not (uuids or any(host)),
        )
        self._cut_ns = end_ns
        # after a jump back in time samples from the future would never be cut
        ahead_ns = end_ns + 2 * self._slice_ns
        self._host = {tick: row for tick, row in self._host.items() if end_ns <= tick < ahead_ns}
        self._gpus = {tick: row for tick, row in self._gpus.items() if end_ns <= tick < ahead_ns}
        return frame

    def clock_jumped(self) -> None:
        """Drop all samples, because their ticks belong to the clock before the jump."""
        self._host.clear()
        self._gpus.clear()
        self._cut_ns = 0


def _matrix(ticks: list[dict[str, float]], names: list[str]) -> bytes:
    """Return little-endian float32, shape (names, ticks); NaN where there is no sample."""
    values = array("f", [tick.get(name, _NAN) for name in names for tick in ticks])
    if sys.byteorder == "big":
        values.byteswap()
    return values.tobytes()
