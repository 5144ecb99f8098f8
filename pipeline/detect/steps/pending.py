"""Steps that not all ranks have finished yet."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

from tocsin.pipeline.core.arrays import map_from, map_state
from tocsin.pipeline.detect.steps.config import StepsConfig
from tocsin.pipeline.detect.steps.rows import pending_from, pending_state
from tocsin.pipeline.job.announced_phases import Announced, StepExcuses
from tocsin.schemas.reasons import Reason
from tocsin.schemas.records import NS_PER_SECOND, StepRecord


class PendingSteps:
    """Collects the ranks' rows of each step until all active ranks have finished it."""

    def __init__(self, announced: Announced, abstain: Callable[[Reason], None]) -> None:
        """Start without rows.

        Args:
            announced: the job's announced phases.
            abstain: called with the reason of each row that is left out.
        """
        self._announced = announced
        self._abstain = abstain
        self._excused = StepExcuses(announced)
        self._rows: dict[int, dict[int, StepRecord]] = {}
        """Step -> rank -> its row."""
        self._since_ns: dict[int, int] = {}
        """Step -> end of the slice in which its first row came."""
        self._seen_count: dict[int, int] = {}
        """Rank -> number of its rows, those left out included."""
        self._newest_ns: dict[int, int] = {}
        """Rank -> end of its newest step."""

    def take(self, rows: Sequence[StepRecord], now_ns: int, config: StepsConfig) -> None:
        """Add rows; a large job sends thousands a second, so phases are looked up only where there are any.

        Args:
            rows: rows of any ranks.
            now_ns: end of the slice.
            config: settings.
        """
        warmup_count, seen, newest = config.warmup_count, self._seen_count, self._newest_ns
        has_phases = self._announced.any
        pending = self._rows
        for row in rows:
            rank, ts_ns = row.rank, row.ts_ns
            seen[rank] = count = seen.get(rank, 0) + 1
            if ts_ns > newest.get(rank, -1):
                newest[rank] = ts_ns
            if count <= warmup_count:
                self._abstain(Reason.WARMING_UP)
                continue
            if row.communication_seconds is None:
                self._abstain(Reason.NO_HOOK)  # no rank can be singled out; the job's step time is known all the same
            if has_phases:
                begin_ns = ts_ns - int(row.duration_seconds * NS_PER_SECOND)
                if self._excused.take(rank, row.step, begin_ns, ts_ns):
                    self._abstain(Reason.ANNOUNCED_PHASE)
                    continue
            ranks = pending.get(row.step)
            if ranks is None:
                ranks = pending[row.step] = {}
                self._since_ns[row.step] = now_ns
            ranks[rank] = row

    def begin_anew(self, since_ns: int) -> None:
        """Forget the rows of steps that ended by a time."""
        for step, rows in list(self._rows.items()):
            self._rows[step] = {rank: row for rank, row in rows.items() if row.ts_ns > since_ns}
            if not self._rows[step]:
                del self._rows[step], self._since_ns[step]

    def newest_ns_of(self, rank: int) -> int:
        """Return the end of a rank's newest step, 0 = it finished none."""
        return self._newest_ns.get(rank, 0)

    def pop_ripe(self, now_ns: int, config: StepsConfig) -> Iterator[dict[int, StepRecord]]:
        """Remove and yield the steps that can be judged, in order: rank -> its row.

        A step is ripe when all active ranks have finished it, or after ``ripe_ns``; it waits for the steps before.

        Args:
            now_ns: end of the slice.
            config: settings.
        """
        if not self._rows:
            return
        active = {rank for rank, ts in self._newest_ns.items() if now_ns - ts <= config.active_ns}
        active = {rank for rank in active if self._seen_count[rank] > config.warmup_count}
        for step in sorted(self._rows):
            rows = self._rows[step]
            waited_ns = now_ns - self._since_ns[step]
            if not active <= rows.keys() and waited_ns < config.ripe_ns:
                break
            del self._rows[step], self._since_ns[step]
            yield rows

    def to_state(self) -> dict[str, Any]:
        """Return the state as values of a snapshot, to be put among others."""
        return {
            "pending": pending_state(self._rows),
            "pending_since": sorted(self._since_ns.items()),
            "seen": map_state(self._seen_count, "<i8"),
            "last_row": map_state(self._newest_ns, "<i8"),
            "excused": self._excused.to_state(),
        }

    def load_state(self, state: Mapping[str, Any]) -> None:
        """Replace the state by the values of ``to_state``, other ones among them ignored."""
        self._rows = pending_from(state["pending"])
        self._since_ns = dict(map(tuple, state["pending_since"]))
        self._seen_count = map_from(state["seen"])
        self._newest_ns = map_from(state["last_row"])
        self._excused.load_state(state["excused"])
