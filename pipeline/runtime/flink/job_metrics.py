"""Expose the operators' counters as Flink metrics (names and units: docs/cluster.md).

Flink metrics are integers, so times are in microseconds. A label becomes part of the name as well:
``tocsin_reason_verdict_lines{reason="..."}`` in Prometheus.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from tocsin.pipeline.runtime.flink.driver import COUNTERS, JobDriver


class JobMetrics:
    """Flink counters for all jobs of one slot."""

    def __init__(self, group: Any, job_count: Callable[[], int]) -> None:
        """Register the metrics that always have a value.

        Args:
            group: Flink's metric group of the operator.
            job_count: returns the current number of jobs.
        """
        self._group = group.add_group("tocsin")
        self._counters = {name: self._group.counter(name) for name in COUNTERS}
        self._labelled: dict[tuple[str, str, str], Any] = {}
        self._group.gauge("jobs", job_count)

    def count(self, name: str) -> None:
        """Add one to a counter of ``COUNTERS``."""
        self._counters[name].inc()

    def take(self, driver: JobDriver) -> None:
        """Add a driver's counts to the metrics and reset them."""
        for name, counter in self._counters.items():
            counter.inc(driver.counters[name])  # 0, too: Flink shows a counter once it was counted up
        for key, count in driver.labelled.items():
            self.add(key, count)
        driver.counters.clear()
        driver.labelled.clear()

    def add(self, key: tuple[str, str, str], count: int) -> None:
        """Add to a counter with a label, given as (name, label, label value)."""
        if key not in self._labelled:
            name, label, value = key
            self._labelled[key] = self._group.add_group(label, value).counter(name)
        self._labelled[key].inc(count)
