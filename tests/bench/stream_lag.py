"""What waits while a stream is played, and what of the machine is used up."""

from __future__ import annotations

import os
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

from tocsin.pipeline.runtime.flink.rest import FlinkRest, TaskTimes
from tocsin.schemas.errors import EngineError

FETCH_SETTINGS = {"metrics.fetcher.update-interval": "5000"}
"""Once a slice; each second costs a fifth of a core in Java, which the measured ones then lack."""
SAMPLE_SECONDS = 7
"""No multiple of a slice's five seconds: what waits rises and falls with them, and samples that meet it at one height
only drift from the ebb to the flood."""
_EBB_SAMPLES, _MIN_SAMPLES = 5, 4
"""So many meet a slice at each of its seconds."""
_GROWTH_RECORDS, _GROWTH_SECONDS = 1000.0, 1.0
_BUSY_SHARE, _THREAD_SHARE = 0.85, 0.85
_NAME_COUNT = 100


@dataclass
class LagMeter:
    """Samples the source's waiting records and how far event time is behind.

    Attributes:
        rest: the cluster.
        job_id: the job.
        rows: (seconds on the wall clock, waiting records, seconds that event time is behind).
        tasks: how each part of the job spent its time, a sample each.
    """

    rest: FlinkRest
    job_id: str
    rows: list[tuple[float, float, float]] = field(default_factory=list)
    tasks: dict[str, list[TaskTimes]] = field(default_factory=dict)

    def sample(self) -> None:
        """Look once; a cluster that does not answer in time gives no sample."""
        try:
            waiting = self.rest.metrics_ending(self.job_id, "pendingRecords")
            mark_ms = self.rest.metric(self.job_id, "operators.currentOutputWatermark", "min")
            for name, times in self.rest.task_times(self.job_id).items():
                self.tasks.setdefault(name, []).append(times)
        except EngineError:
            return
        if waiting is not None and mark_ms is not None and mark_ms > 0:
            now = time.time()
            self.rows.append((now, waiting, now - mark_ms / 1000))

    def lines(self) -> list[str]:
        """What stays where a slice is worked off, in the first half and the second."""
        if len(self.rows) < _MIN_SAMPLES:
            return [f"consumer lag: {len(self.rows)} samples, too few"]
        records, behind = self._ebbs()
        half = len(records) // 2
        first, second = np.median(records[:half]), np.median(records[half:])
        early, later = np.median(behind[:half]), np.median(behind[half:])
        most = max(row[1] for row in self.rows)
        first_line = f"{first:.0f} records, then {second:.0f} (most at any time: {most:.0f})"
        second_line = f"{early:.1f} s, then {later:.1f} s; the lag {'grows' if self.grows() else 'does not grow'}"
        return [
            f"consumer lag, where it is least in each slice's time: {first_line}",
            f"event time behind, the same: {second_line}",
        ]

    def task_lines(self) -> list[str]:
        """How the job's parts spent their time: the first one that is busy holds up all before it."""
        reported = []
        for name, times in self.tasks.items():
            busy = np.mean([one.busy_ratio for one in times])
            held_up = np.mean([one.held_up_ratio for one in times])
            reported.append(f"{busy:7.0%} busy {held_up:7.0%} held up  {name[:_NAME_COUNT]}")
        return reported

    def grows(self) -> bool:
        """Whether more waits in the second half than in the first, by more than noise."""
        records, behind = self._ebbs()
        half = len(records) // 2
        if not half:
            return True
        more = float(np.median(records[half:]) - np.median(records[:half]))
        return more > _GROWTH_RECORDS or float(np.median(behind[half:]) - np.median(behind[:half])) > _GROWTH_SECONDS

    def _ebbs(self) -> tuple[list[float], list[float]]:
        """The least of samples that meet a slice at each of its seconds, one after the other: records, seconds."""
        count = max(2, len(self.rows) // _EBB_SAMPLES)
        spans = [span for span in np.array_split(np.array(self.rows).reshape(-1, 3), count) if span.size]
        return [float(span[:, 1].min()) for span in spans], [float(span[:, 2].min()) for span in spans]


def busy_seconds() -> float:
    """Core seconds that this machine worked since its start, all programs together."""
    parts = [int(text) for text in Path("/proc/stat").read_text().split("\n", 1)[0].split()[1:9]]
    idle = parts[3] + parts[4]
    return (sum(parts) - idle) / os.sysconf("SC_CLK_TCK")


def what_bounds(busy_share: float, threads: Mapping[str, float]) -> str:
    """Name what is used up.

    Args:
        busy_share: of all cores, over the measured time.
        threads: name -> share of one core.
    """
    name, share = max(threads.items(), key=lambda item: item[1], default=("", 0.0))
    if share >= _THREAD_SHARE:
        return f"one thread: {name} uses {share:.2f} of a core"
    if busy_share >= _BUSY_SHARE:
        return f"the processor: {busy_share:.0%} of all cores are busy; the most goes to {name} ({share:.2f} cores)"
    return f"nothing is used up: {busy_share:.0%} of all cores are busy; the busiest thread, {name}, uses {share:.2f}"
