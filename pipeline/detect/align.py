"""Alignment of metric frames per job: how many samples each host delivered in a slice, and how many are missing.

A silent machine is a gap (NaN), never a zero. Root-cause analysis decides what a silence means.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple

import numpy as np

from tocsin.models.metric_means import MetricMeans
from tocsin.pipeline.core.operator import pack_state, unpack_state
from tocsin.pipeline.core.state_maps import pairs_from, pairs_state
from tocsin.schemas.records import Slice


class AlignedHealth(NamedTuple):
    """Samples of one host in one metric slice.

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
    """Alignment of one job's frames; it remembers which hosts are expected and how many ticks each delivers."""

    def __init__(self) -> None:
        """Start without expected hosts."""
        self._expected_ticks: dict[str, int] = {}
        """Host -> number of samples that it delivers per slice."""

    def on_means(self, data: Slice, reported: Sequence[tuple[int, MetricMeans]]) -> Sequence[AlignedHealth]:
        """Return one entry per host that is expected or present, ordered by name.

        Args:
            data: metric slice, for its time span.
            reported: (table id, means), at most one per table; of a host in several tables the last counts.
        """
        seen: dict[str, AlignedHealth] = {}
        for table_id, means in reported:
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
        """Return the state as a single part."""
        return {"align": pack_state(pairs_state(self._expected_ticks))}

    def restore(self, parts: Mapping[str, bytes]) -> None:
        """Restore the state from the parts that ``snapshot`` returned."""
        self._expected_ticks = pairs_from(unpack_state(parts, "align"))
