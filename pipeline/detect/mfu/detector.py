"""Detector of a lasting decline of a job's model FLOPs utilization (MFU) against its own past.

It tells of the job and of no machine. What it compares is operations per second of a GPU, so that it needs no peak.
Another batch or model, a re-placement and a job that runs anew begin its past anew.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from statistics import median
from typing import Any, Final

import numpy as np

from tocsin.pipeline.core.operator import pack_state, unpack_state
from tocsin.pipeline.detect.mfu.config import MfuConfig
from tocsin.pipeline.detect.mfu.work import JobWork
from tocsin.pipeline.detect.steps.rows import StepRows
from tocsin.pipeline.job.graph import JobGraph
from tocsin.schemas import events
from tocsin.schemas.records import NS_PER_SECOND, Event, Slice
from tocsin.schemas.verdicts import Anomaly, Component, ComponentKind

DETECTOR: Final = "mfu"
METRIC: Final = "mfu_ratio"


@dataclass(frozen=True, slots=True)
class Utilization:
    """MFU of a job over its newest steps.

    Attributes:
        flops_per_second: operations per second of a GPU.
        mfu_ratio: that by the GPU's peak, 0 to 1; None: the peak is unknown.
        best_ratio: the best level that the job held, like ``mfu_ratio``; None: there is none yet.
        gpu_without_peak: name of a GPU whose peak is unknown, "" = there is none.
    """

    flops_per_second: float
    mfu_ratio: float | None
    best_ratio: float | None
    gpu_without_peak: str


@dataclass(slots=True)
class _Past:
    """Speeds of a job (operations per second of a GPU) since its work began anew.

    Attributes:
        flops: operations of a step that it was begun with.
        steps: speeds of the block that is not full yet.
        begin_ns: begin of that block, 0 = it has no step.
        blocks: [end, speed] of the newest blocks, oldest first.
        level: the best median of successive blocks, 0.0 = there is none.
        lowest: the slowest block of that level.
        since_ns: since when the job has declined, 0 = it has not.
        bottom: lowest speed since, and when it was reached.
        bottom_ns: see ``bottom``.
    """

    flops: float = 0.0
    steps: list[float] = field(default_factory=list)
    begin_ns: int = 0
    blocks: list[list[float]] = field(default_factory=list)
    level: float = 0.0
    lowest: float = 0.0
    since_ns: int = 0
    bottom: float = 0.0
    bottom_ns: int = 0

    def to_state(self) -> list[Any]:
        """Return the state as JSON-serialisable values, for a snapshot."""
        sign = [self.level, self.lowest, self.since_ns, self.bottom, self.bottom_ns]
        return [self.flops, self.steps, self.begin_ns, self.blocks, *sign]


class MfuDetector:
    """Follows the MFU of one job."""

    def __init__(self, config: MfuConfig, graph: JobGraph) -> None:
        """Start without history.

        Args:
            config: settings.
            graph: the job, for its announced phases and its placement.
        """
        self._config = config
        self._graph = graph
        self._work = JobWork()
        self._past = _Past()
        self._judged_count = 0
        self._max_step = -1
        self._moved_ns = 0
        self._speeds: list[float] = []
        """Speeds of the newest steps."""
        self._newest_ns = 0

    def on_steps(self, data: Slice, steps: Sequence[StepRows], judged_count: int) -> list[Anomaly]:
        """Take the newest steps of a job; return the decline that holds at a slice's end.

        Args:
            data: the slice.
            steps: the newest judged steps, newest last.
            judged_count: number of steps judged so far.
        """
        self._take_events([record for record in data.records if isinstance(record, Event)])
        self._begin_anew_where_changed()
        new_count = min(judged_count - self._judged_count, len(steps))
        self._judged_count = judged_count
        if self._work.flops:
            for step in steps[len(steps) - new_count :]:
                self._take(step)
        return self._found(data)

    def _take_events(self, told: Sequence[Event]) -> None:
        """Learn the work of ranks from their events."""
        models = [event for event in told if event.name == events.MODEL]
        world_size = self._graph.world_size if models else 0
        for event in models:
            self._work.take(event, world_size)
        for event in told:
            if event.name == events.LOADER:
                self._work.take_batch(event)

    def _begin_anew_where_changed(self) -> None:
        """Forget the past of another batch or model, of other machines, or of a run that was started again."""
        flops, graph = self._work.flops, self._graph
        moved_ns = graph.placement.moved_ns
        is_other_work = abs(flops - self._past.flops) > self._config.new_work_ratio * self._past.flops
        if is_other_work or moved_ns != self._moved_ns or graph.max_step < self._max_step:
            self._past, self._speeds = _Past(flops), []
        self._moved_ns, self._max_step = moved_ns, graph.max_step

    def _take(self, step: StepRows) -> None:
        """Take one step of the job, unless an announced phase is part of it."""
        seconds = float(np.nanmedian(step.values[:, 0]))
        begin_ns = step.end_ns - int(seconds * NS_PER_SECOND)
        if seconds <= 0.0 or self._graph.in_announced_phase(begin_ns, step.end_ns):
            return
        self._newest_ns = step.end_ns
        speed = self._work.flops / seconds
        self._speeds = [*self._speeds, speed][-self._config.shown_count :]
        past = self._past
        past.begin_ns = past.begin_ns or begin_ns
        past.steps.append(speed)
        if len(past.steps) >= self._config.block_count and step.end_ns - past.begin_ns >= self._config.block_ns:
            past.blocks.append([past.begin_ns, median(past.steps)])
            past.begin_ns, past.steps = 0, []
            self._judge(step.end_ns)

    def _judge(self, now_ns: int) -> None:
        """Learn the best level, and begin or end the decline, at the end of a block."""
        past, config = self._past, self._config
        del past.blocks[: -(config.level_count + config.newest_count)]
        older, newest = past.blocks[: config.level_count], past.blocks[-config.newest_count :]
        if len(past.blocks) == config.level_count + config.newest_count and not past.since_ns:
            speeds = [speed for _, speed in older]
            if median(speeds) > past.level:
                past.level, past.lowest = median(speeds), min(speeds)
        if not past.level:
            return
        now = median(speed for _, speed in newest)
        line = past.level / config.line(is_told=past.since_ns > 0)
        if not past.since_ns:
            if all(speed < min(line, past.lowest) for _, speed in newest):
                past.since_ns, past.bottom, past.bottom_ns = int(newest[0][0]), now, now_ns
        elif now >= line:
            past.since_ns = 0
        elif now < past.bottom / config.decline_ratio:
            past.bottom, past.bottom_ns = now, now_ns

    def _found(self, data: Slice) -> list[Anomaly]:
        """Return the anomaly of a decline; after the time in which it becomes normal, the last one, and begin anew."""
        past, config = self._past, self._config
        if not past.since_ns or data.end_ns - self._newest_ns > config.stale_ns + config.block_ns:
            return []
        now = median(speed for _, speed in past.blocks[-config.newest_count :])
        is_accepted = data.end_ns - past.bottom_ns >= config.accepted_ns
        detail = {
            "level_flops_per_second": past.level,
            "flops_per_second": now,
            "peak_flops_per_second": self._work.peak,
            "costs_ratio": max(0.0, 1.0 - now / past.level),
            "is_accepted": is_accepted,
        }
        found = Anomaly(
            job=data.job,
            slice_end_ns=data.end_ns,
            component=Component(ComponentKind.JOB, data.job.job_id),
            metric=METRIC,
            start_ns=past.since_ns,
            end_ns=self._newest_ns,
            score=(past.level / now - 1.0) / (config.decline_ratio - 1.0),
            detector=DETECTOR,
            detail=detail,
        )
        if is_accepted:
            self._past = _Past(past.flops)
        return [found]

    def utilization(self, now_ns: int) -> Utilization | None:
        """Return the MFU of the newest steps; None: the job's work is unknown, or no step ended of late.

        Args:
            now_ns: the present.
        """
        config, peak, level = self._config, self._work.peak, self._past.level
        if not self._speeds:
            return None
        now = median(self._speeds)
        patience_ns = config.stale_ns + int(3 * NS_PER_SECOND * self._work.flops / now)
        if now_ns - self._newest_ns > patience_ns:
            return None
        best = level / peak if peak and level else None
        return Utilization(now, now / peak if peak else None, best, self._work.gpu_without_peak)

    def snapshot(self) -> dict[str, bytes]:
        """Return the state as one named part."""
        state = {
            "work": self._work.to_state(),
            "past": self._past.to_state(),
            "judged": self._judged_count,
            "max_step": self._max_step,
            "moved_ns": self._moved_ns,
            "speeds": self._speeds,
            "newest_ns": self._newest_ns,
        }
        return {DETECTOR: pack_state(state)}

    def restore(self, parts: Mapping[str, bytes]) -> None:
        """Replace the state by that of a snapshot."""
        state = unpack_state(parts, DETECTOR)
        self._work.load_state(state["work"])
        self._past = _Past(*state["past"])
        self._judged_count, self._max_step = state["judged"], state["max_step"]
        self._moved_ns, self._speeds, self._newest_ns = state["moved_ns"], state["speeds"], state["newest_ns"]
