"""Past of one job's steps: a row of the job's own times for each judged step."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tocsin.models.job_change import JobChange, find_job_change, usual_row
from tocsin.models.pace import PaceChange, Slowdown, find_pace_change, grew_in_self_time, most_growth_seconds
from tocsin.models.robust import median_of, quantile_of
from tocsin.pipeline.detect.steps.config import StepsConfig
from tocsin.pipeline.detect.steps.job_baseline import JobBaseline
from tocsin.pipeline.detect.steps.rows import FloatArray, StepRows
from tocsin.schemas.records import NS_PER_SECOND

_MOST_CHANGES = 256
"""Changes of speed that are kept until the next step."""
_COLUMNS = 4
"""Columns of a row: step time, data time, own time without data, and communication; all in seconds."""


class StepHistory:
    """The newest judged steps of one job, in order of time."""

    def __init__(self, is_pause: Callable[[int, int], bool]) -> None:
        """Start without steps.

        Args:
            is_pause: returns whether the job announced a pause within [from, to], Unix nanoseconds.
        """
        self._is_pause = is_pause
        self._rows: list[list[float]] = []
        self._ends_ns: list[int] = []
        self._median_step_ns: int | None = None  # asked for many times between two steps, as are the next two
        self._arrays: tuple[FloatArray, NDArray[np.int64]] | None = None
        self._changes: dict[tuple[int, int], tuple[PaceChange, bool] | None] = {}
        """(onset, number of steps) -> the change of speed and whether self time grew, None where steps cannot tell."""
        self.baseline = JobBaseline()
        """Usual step times of the job while it is slower, and until enough steps followed."""
        self.longest_pause_ns = 0
        """Longest time between the ends of two steps beyond a usual step, announced pauses excluded."""

    def add(self, step_rows: StepRows, most_count: int) -> None:
        """Add a step, unless a later one is there already, and keep the newest ``most_count`` steps."""
        if step_rows.end_ns < self.newest_ns:
            return  # late rows of a step that was judged without them: the history is in order of time
        table = step_rows.values
        own = table[:, 0] - table[:, 1]
        data = np.nan_to_num(table[:, 2])
        self._rows.append(
            [
                median_of(table[:, 0]),
                quantile_of(data, 0.2),
                median_of(own - data),
                median_of(table[:, 1]),
            ]
        )
        self._forget()
        if self._ends_ns and not self._is_pause(self._ends_ns[-1], step_rows.end_ns):
            pause_ns = step_rows.end_ns - self._ends_ns[-1] - self.median_step_ns
            self.longest_pause_ns = max(self.longest_pause_ns, pause_ns)
        self._ends_ns.append(step_rows.end_ns)
        del self._rows[:-most_count]
        del self._ends_ns[:-most_count]
        self._forget()

    def begin_anew(self, since_ns: int) -> None:
        """Forget the steps that ended by a time, and what was usual by then."""
        gone = bisect_right(self._ends_ns, since_ns)
        del self._rows[:gone], self._ends_ns[:gone]
        self.baseline = JobBaseline()
        self._forget()

    def _forget(self) -> None:
        """Forget what was computed from the steps, because they have changed."""
        self._median_step_ns, self._arrays = None, None
        self._changes.clear()

    def _until(self, now_ns: int) -> tuple[FloatArray, NDArray[np.int64]]:
        """Return the rows and the ends of the steps that had ended by a time, shapes (steps, columns) and (steps,)."""
        if self._arrays is None:
            self._arrays = np.array(self._rows, float).reshape(-1, _COLUMNS), np.array(self._ends_ns, np.int64)
        count = bisect_right(self._ends_ns, now_ns)
        return self._arrays[0][:count], self._arrays[1][:count]

    @property
    def median_step_ns(self) -> int:
        """The job's median step time, 0 = unknown yet."""
        if self._median_step_ns is None:
            seconds = np.array([row[0] for row in self._rows], float)
            self._median_step_ns = int(median_of(seconds) * NS_PER_SECOND) if seconds.size else 0
        return self._median_step_ns

    @property
    def oldest_ns(self) -> int:
        """End of the oldest known step, 0 = none."""
        return self._ends_ns[0] if self._ends_ns else 0

    @property
    def newest_ns(self) -> int:
        """End of the newest judged step, 0 = none."""
        return self._ends_ns[-1] if self._ends_ns else 0

    def slowdown_since(self, onset_ns: int, now_ns: int) -> Slowdown | None:
        """Return how much longer the job's steps take since an onset, None where its steps cannot tell.

        Args:
            onset_ns: a time of the past.
            now_ns: the slice's end; an earlier time gives what was known by then.
        """
        history, ends_ns = self._until(now_ns)
        key = onset_ns, ends_ns.size
        if key not in self._changes:
            if len(self._changes) >= _MOST_CHANGES:
                self._changes.clear()
            change = find_pace_change(history[:, 0], ends_ns, onset_ns)
            grew = change is not None and grew_in_self_time(history, ends_ns, onset_ns)
            self._changes[key] = None if change is None else (change, grew)
        known = self._changes[key]
        found = None if known is None else known[0].at(now_ns)
        return found if known is None or found is None else replace(found, is_of_own=known[1])

    def most_growth_seconds(self, onset_ns: int, now_ns: int) -> float | None:
        """Return by how much the job's steps may at most be longer since an onset, None = too few steps.

        Args:
            onset_ns: a time of the past.
            now_ns: the slice's end; an earlier time gives what was known by then.
        """
        history, ends_ns = self._until(now_ns)
        return most_growth_seconds(history[:, 0], ends_ns, onset_ns)

    def waited_seconds(self, onset_ns: int) -> float:
        """Return the ranks' median communication time in a step before an onset, NaN = unknown."""
        waited = self._until(onset_ns)[0][:, 3]
        return median_of(waited) if waited.size else float("nan")

    def change(self, newest_count: int, strength_ratio: float) -> JobChange | None:
        """Return how the newest steps differ from the usual ones, None unless they grew by the ratio at least."""
        first = bisect_right(self._ends_ns, self.baseline.normal_since_ns)
        rows = np.array(self._rows[first:], float).reshape(-1, _COLUMNS)
        found = find_job_change(rows, newest_count, strength_ratio, self.baseline.usual(rows.shape[0]))
        return found and replace(found, first_row=first + found.first_row)

    def further_change(self, newest_count: int, strength_ratio: float, after_ns: int) -> JobChange | None:
        """Return how the newest steps differ from all before them while the alarm of an earlier slowdown stands.

        Args:
            newest_count: number of newest steps that count as now.
            strength_ratio: least growth.
            after_ns: the further slowdown begins later than this; else None is returned.
        """
        if not self.baseline.stands:
            return None
        found = find_job_change(np.array(self._rows), newest_count, strength_ratio)
        return found if found is not None and self.begin_ns(found.first_row) > after_ns else None

    def accepted_seconds(self, onset_ns: int, change: JobChange, config: StepsConfig) -> float:
        """Return for how long a slowdown that becomes the job's normal pace now has lasted, seconds; 0.0: it does not.

        Until then what was usual before it is kept.

        Args:
            onset_ns: begin of the slowdown, whose alarm stands.
            change: the slowdown.
            config: settings.
        """
        if not self.baseline.stands:
            self.baseline.keep(self._usual_before(onset_ns), change.step_seconds, onset_ns)
        lasted_seconds = self.baseline.lasted_seconds(change.step_seconds, self.newest_ns, config.job_strength_ratio)
        if lasted_seconds < config.accepted_seconds:
            return 0.0
        self.baseline.accept()
        return lasted_seconds

    def _usual_before(self, onset_ns: int) -> FloatArray:
        """Return what was usual before an onset: what is kept, or the usual row of the normal steps that ended by then.

        Where no normal step ended by then, all steps count.
        """
        first = bisect_right(self._ends_ns, self.baseline.normal_since_ns)
        before = self._rows[first : bisect_right(self._ends_ns, onset_ns)]
        kept = self.baseline.usual(len(before))
        return usual_row(np.array(before or self._rows, float)) if kept is None else kept

    def begin_ns(self, row: int) -> int:
        """Return when a step (index in the history) began."""
        return self._ends_ns[row] - int(self._rows[row][0] * NS_PER_SECOND)

    def to_state(self) -> dict[str, Any]:
        """Return the state as JSON-able values, to be put among others."""
        return {
            "history": self._rows,
            "history_ns": self._ends_ns,
            "longest_pause_ns": self.longest_pause_ns,
            "baseline": self.baseline.to_state(),
        }

    def load_state(self, state: Mapping[str, Any]) -> None:
        """Replace the state by the values of ``to_state``, other ones among them ignored."""
        self._rows, self._ends_ns = state["history"], state["history_ns"]
        self._forget()
        self.longest_pause_ns = state["longest_pause_ns"]
        self.baseline.load_state(state["baseline"])
