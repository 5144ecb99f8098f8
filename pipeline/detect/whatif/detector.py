"""Detector of why a job is slow, by windows of its steps: which cause costs which share of its time.

It tells of the job and of no machine: a long pipeline stage, uneven data, pauses of changing ranks, transfers that are
longer than usual, and waiting for data. What slow machines cost is computed beside them, so that they are not taken
for these.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, astuple, dataclass
from typing import Any

import numpy as np

from tocsin.models.known_steps import LEAST_STEP_COUNT
from tocsin.models.robust import quantile
from tocsin.models.step_causes import (
    COMMUNICATION,
    DATA,
    JITTER,
    LOADER,
    SERVICE,
    STAGE,
    StepCauses,
    find_step_causes,
)
from tocsin.models.step_waits import UsualWaits
from tocsin.models.steps import StepWindow
from tocsin.pipeline.core.operator import pack_state, unpack_state
from tocsin.pipeline.detect.steps.rows import StepRows, table_of
from tocsin.pipeline.detect.whatif.config import WhatIfConfig
from tocsin.pipeline.detect.whatif.window import CauseWindow
from tocsin.pipeline.job.graph import JobGraph
from tocsin.schemas.records import NS_PER_SECOND, Slice
from tocsin.schemas.verdicts import Anomaly, Component, ComponentKind

DETECTOR = "whatif"
_USUAL_COUNT = 64
"""Windows of the past whose waits tell what is usual."""
_USUAL_QUANTILE = 0.4
"""Their quantile that is usual, as in ``usual_row``: a slow spell shorter than half of the past does not become it."""
CAUSES = (STAGE, DATA, JITTER, COMMUNICATION, SERVICE, LOADER)
"""Causes that are told, words of ``tocsin.schemas.causes``."""


@dataclass(slots=True)
class CauseSpan:
    """One cause that costs the job time.

    Attributes:
        since_ns: begin of the first window that shows it.
        first_end_ns: end of the first window that shows it.
        last_ns: end of the last window that shows it.
        is_told: whether it has lasted long enough to be told.
        detail: the newest window's figures, for the anomaly.
    """

    since_ns: int
    first_end_ns: int
    last_ns: int
    is_told: bool
    detail: dict[str, Any]


class WhatIfDetector:
    """Finds the causes of one job's slowness that are no machine's."""

    def __init__(self, config: WhatIfConfig, graph: JobGraph) -> None:
        """Start without history.

        Args:
            config: settings.
            graph: the job, for the stages of its ranks.
        """
        self._config = config
        self._graph = graph
        self._judged_count = 0
        """Number of the job's judged steps at the end of the newest window."""
        self._newest_ns = 0
        """End of the newest window."""
        self._spans: dict[str, CauseSpan] = {}
        self._rank_count = 0
        """Ranks of the newest window; another number begins a new past."""
        self._waits: list[list[float | None]] = []
        """Usual waits of the windows of step records, oldest first, None = not told; [] for the newest one, if slow."""

    def on_steps(self, data: Slice, steps: Sequence[StepRows], judged_count: int) -> list[Anomaly]:
        """Take the newest steps of a job, and return the causes that hold at a slice's end.

        Args:
            data: the slice.
            steps: the newest judged steps, newest last.
            judged_count: number of steps judged so far.
        """
        for window in self._config.traced:
            if data.start_ns < window.end_ns <= data.end_ns:
                self._follow(window)
        if judged_count - self._judged_count >= self._config.every_count and len(steps) >= LEAST_STEP_COUNT:
            self._judged_count = judged_count
            if not self._is_traced(data.end_ns):
                self._take_window(steps)
        if data.end_ns - self._newest_ns > self._config.stale_ns + self._window_ns(steps):
            return []
        return [self._anomaly(data, cause, span) for cause, span in sorted(self._spans.items()) if span.is_told]

    def _is_traced(self, now_ns: int) -> bool:
        """Return whether the newest traced operations are newer than what step records could tell."""
        stale_ns = self._config.stale_ns
        return any(one.end_ns <= now_ns <= 2 * one.end_ns - one.start_ns + stale_ns for one in self._config.traced)

    def _window_ns(self, steps: Sequence[StepRows]) -> int:
        """Return the time between two windows: of some steps, or of those that a cause was seen in."""
        seen = max((float(span.detail["window_seconds"]) for span in self._spans.values()), default=0.0)
        return max(steps[-1].end_ns - steps[0].end_ns if steps else 0, int(seen * NS_PER_SECOND))

    def _take_window(self, steps: Sequence[StepRows]) -> None:
        """Follow which causes a window of step records shows."""
        ranks, table = table_of(steps)
        placement = self._graph.placement
        roles, replicas = (np.array(of(ranks), dtype=np.int64) for of in (placement.stages_of, placement.replicas_of))
        found = find_step_causes(StepWindow(table[0], table[1], table[2:], roles), replicas, self._usual(len(ranks)))
        first_ns = steps[0].end_ns - int(float(np.nanmax(steps[0].values[:, 0])) * NS_PER_SECOND)
        if found is None:
            self._newest_ns = steps[-1].end_ns
            self._spans.clear()
        else:
            self._follow(CauseWindow(first_ns, steps[0].end_ns, steps[-1].end_ns, found), ranks)
            self._learn(found.usual)

    def _usual(self, rank_count: int) -> UsualWaits | None:
        """Return what was usual before a window of so many ranks, without the newest one, which shares its steps."""
        if rank_count != self._rank_count:
            self._rank_count, self._waits = rank_count, []
        past = np.array([waits for waits in self._waits[:-1] if waits], np.float64)
        if not past.size:
            return None
        compute, idle, spread, data = quantile(past, _USUAL_QUANTILE, 0).tolist()
        is_told = not math.isnan(idle)  # NaN: none of these windows tells transfers
        return UsualWaits(compute, idle if is_told else None, spread if is_told else None, data)

    def _learn(self, usual: UsualWaits | None) -> None:
        """Learn what is usual of the newest window, but not while it is longer than usual.

        What has lasted as long as a slowdown that becomes the job's normal pace is usual from then on.
        """
        slow = [span for cause, span in self._spans.items() if cause in (COMMUNICATION, SERVICE)]
        if any(self._newest_ns - span.since_ns >= self._config.accepted_ns for span in slow):
            self._waits, slow = [], []
        newest = [] if usual is None or slow else list(astuple(usual))
        self._waits = [*(waits for waits in self._waits if waits), newest][-_USUAL_COUNT:]

    def _follow(self, window: CauseWindow, ranks: Sequence[int] = ()) -> None:
        """Follow which causes a window shows.

        Args:
            window: the window.
            ranks: rank of each of its columns, where it is of step records.
        """
        self._newest_ns, found = window.end_ns, window.found
        for cause in CAUSES:
            known = self._spans.get(cause)
            is_told = known is not None and known.is_told
            if not self._config.is_over_line(found.costs.get(cause, 0.0), is_told=is_told):
                self._spans.pop(cause, None)
                continue
            span = known or CauseSpan(window.start_ns, window.end_ns, window.end_ns, is_told=False, detail={})
            span.last_ns = window.end_ns
            window_seconds = (window.end_ns - window.first_end_ns) / NS_PER_SECOND
            late_rank = ranks[found.late_column] if ranks and found.late_column >= 0 else -1
            span.detail = {**_detail_of(found), "late_rank": late_rank, "window_seconds": window_seconds}
            is_apart = window.first_end_ns > span.first_end_ns
            span.is_told |= is_apart and span.last_ns - span.since_ns >= self._config.lasting_ns
            self._spans[cause] = span

    def _anomaly(self, data: Slice, cause: str, span: CauseSpan) -> Anomaly:
        """Return the anomaly of a cause."""
        line = self._config.least_slowdown_ratio - 1.0
        costs_ratio = float(span.detail["costs"][cause])
        return Anomaly(
            job=data.job,
            slice_end_ns=data.end_ns,
            component=Component(ComponentKind.JOB, data.job.job_id),
            metric=cause,
            start_ns=span.since_ns,
            end_ns=span.last_ns,
            score=costs_ratio * (1.0 + line) / line,
            detector=DETECTOR,
            detail={**span.detail, "costs_ratio": costs_ratio, "first_end_ns": span.first_end_ns},
        )

    def snapshot(self) -> dict[str, bytes]:
        """Return the state as one named part."""
        spans = {cause: asdict(span) for cause, span in self._spans.items()}
        state = {
            "judged": self._judged_count,
            "newest_ns": self._newest_ns,
            "spans": sorted(spans.items()),
            "rank_count": self._rank_count,
            "waits": self._waits,
        }
        return {DETECTOR: pack_state(state)}

    def restore(self, parts: Mapping[str, bytes]) -> None:
        """Replace the state by that of a snapshot."""
        state = unpack_state(parts, DETECTOR)
        self._judged_count, self._newest_ns = state["judged"], state["newest_ns"]
        self._spans = {cause: CauseSpan(**fields) for cause, fields in state["spans"]}
        self._rank_count, self._waits = state["rank_count"], state["waits"]


def _detail_of(found: StepCauses) -> dict[str, Any]:
    """Return the figures of a window as JSON values."""
    fields = {name: value for name, value in asdict(found).items() if name not in ("usual", "late_column")}
    return {**fields, "costs": {name: round(float(value), 6) for name, value in found.costs.items()}}
