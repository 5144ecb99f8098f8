"""Align frames on one grid per job, and count what is missing.

A silent machine is a gap (NaN), never a zero. What a silence means is ``diagnose``'s to say.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from tocsin.models.metric_means import MetricMeans
from tocsin.pipeline.core.operator import pack_state, unpack_state
from tocsin.pipeline.core.state_maps import pairs_from, pairs_state
from tocsin.schemas.records import Slice


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

    def on_means(self, data: Slice, told: Sequence[tuple[int, MetricMeans]]) -> Sequence[AlignedHealth]:
        """One entry per host that is expected or present, by name.

        Args:
            data: the metric slice: its span.
            told: (table id, means), at most one a table; a host in several: the last counts.
        """
        seen: dict[str, AlignedHealth] = {}
        for table_id, means in told:
            ticks = np.maximum(1, np.rint((data.end_ns - data.start_ns) / means.tick_ns)).astype(np.int64)
            self._expected_ticks.update(zip(means.hosts, ticks.tolist(), strict=True))
            gaps = np.maximum(0, ticks - means.sample_counts).tolist()
            columns = (means.sample_counts.tolist(), gaps, means.host_values.tolist())
            for host, count, gap, values in zip(means.hosts, *columns, strict=True):
                seen[host] = AlignedHealth(host, data.end_ns, count, gap, tuple(values), table_id)
        for host, expected in self._expected_ticks.items():
            if host not in seen:
                seen[host] = AlignedHealth(host, data.end_ns, 0, expected, (), 0)
        return [seen[host] for host in sorted(seen)]

    def snapshot(self) -> dict[str, bytes]:
        """State in one part."""
        return {"align": pack_state(pairs_state(self._expected_ticks))}

    def restore(self, parts: Mapping[str, bytes]) -> None:
        """Take back what ``snapshot`` gave."""
        self._expected_ticks = pairs_from(unpack_state(parts, "align"))
