"""Align frames on one grid per job, and count what is missing.

A silent machine is a gap (NaN), never a zero. What a silence means is ``diagnose``'s to say.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from tocsin.pipeline.operators.base import pack_state, unpack_state
from tocsin.schemas.records import Frame, Slice


@dataclass(frozen=True, slots=True)
class AlignedHealth:
    """What one host's metric slice held.

    Attributes:
        host: machine name.
        end_ns: end of the slice.
        sample_count: ticks with at least one host metric.
        gap_count: ticks without any.
        host_metrics: mean of each host metric over the slice, NaN = no sample.
        table_id: metric table of ``host_metrics``.
    """

    host: str
    end_ns: int
    sample_count: int
    gap_count: int
    host_metrics: tuple[float, ...]
    table_id: int


class Align:
    """Frames of one job -> what each host delivered; remembers the hosts it expects."""

    def __init__(self) -> None:
        """Expect nobody yet."""
        self._expected_ticks: dict[str, int] = {}

    def on_slice(self, data: Slice) -> Sequence[AlignedHealth]:
        """One entry per host that is expected or present, by name."""
        seen: dict[str, AlignedHealth] = {}
        for record in data.records:
            if not isinstance(record, Frame):
                continue
            ticks = max(1, round((data.end_ns - data.start_ns) / record.tick_ns))
            self._expected_ticks[record.host] = ticks
            seen[record.host] = _health(record, data.end_ns, ticks)
        for host, ticks in self._expected_ticks.items():
            if host not in seen:
                seen[host] = AlignedHealth(host, data.end_ns, 0, ticks, (), 0)
        return [seen[host] for host in sorted(seen)]

    def snapshot(self) -> dict[str, bytes]:
        """State in one part."""
        return {"align": pack_state(sorted(self._expected_ticks.items()))}

    def restore(self, parts: Mapping[str, bytes]) -> None:
        """Take back what ``snapshot`` gave."""
        self._expected_ticks = dict(map(tuple, unpack_state(parts, "align")))


def _health(frame: Frame, end_ns: int, ticks: int) -> AlignedHealth:
    matrix = np.frombuffer(frame.host_matrix, dtype="<f4").reshape(-1, max(1, frame.tick_count))
    finite = np.isfinite(matrix)
    present = int(finite.any(axis=0).sum()) if matrix.size else 0
    counts = finite.sum(axis=1)
    totals = np.where(finite, matrix, 0).sum(axis=1, dtype=np.float64)
    means = np.where(counts > 0, totals / np.maximum(counts, 1), np.nan)
    return AlignedHealth(frame.host, end_ns, present, max(0, ticks - present), tuple(means.tolist()), frame.table_id)
