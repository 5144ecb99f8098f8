"""Sign of a job that goes slow little by little: each part of its past is slower than the one before."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise
from statistics import median
from typing import Any, Final

from tocsin.pipeline.rca.evidence.job_numbers import JobStep
from tocsin.pipeline.rca.finding import Finding
from tocsin.schemas.reasons import Reason
from tocsin.schemas.records import NS_PER_SECOND
from tocsin.schemas.verdicts import Evidence, FaultKind

DETECTOR: Final = "job_pace"


@dataclass(frozen=True, slots=True)
class GradualConfig:
    """Settings.

    A slowdown is gradual when the past, cut into ``parts_count`` equal parts, is slower in each part than in the part
    before, and no part brings more than half of the growth. By chance that order comes once in 40,320 times.

    Attributes:
        block_count: steps whose median time is kept as one number.
        parts_count: parts of the past that are compared.
        most_doublings_count: how often the past is doubled, from ``parts_count`` blocks on, to look for slower growth.
        growth_ratio: least growth from the first part to the last: that of the step detector for the whole job.
        kept_ratio: share of that growth down to which the sign goes on.
        accepted_ns: after so long without growing further, the pace is the job's normal one.
    """

    block_count: int = 64
    parts_count: int = 8
    most_doublings_count: int = 3
    growth_ratio: float = 0.25
    kept_ratio: float = 0.6
    accepted_ns: int = 1800 * NS_PER_SECOND

    @property
    def kept_blocks_count(self) -> int:
        """Most blocks that are kept."""
        return self.parts_count << self.most_doublings_count


class GradualSlowdown:
    """Step times of one job in blocks, and whether they grow steadily."""

    def __init__(self, config: GradualConfig) -> None:
        """Start without steps.

        Args:
            config: settings.
        """
        self._config = config
        self._steps: list[float] = []
        """Step times of the block that is not full yet, seconds."""
        self._blocks: list[tuple[int, float]] = []
        """End and median step time (seconds) of each block, oldest first."""
        self._before_seconds = 0.0
        """Step time before the slowdown, 0.0 = there is none."""
        self._since_ns = 0
        self._top_seconds = 0.0
        """Highest pace since, and since when."""
        self._top_ns = 0

    def take(self, step: JobStep) -> None:
        """Take the next settled step of the job, of which no announced phase is part."""
        if "step_seconds" not in step.values:
            return
        self._steps.append(step.values["step_seconds"])
        if len(self._steps) < self._config.block_count:
            return
        now_seconds, self._steps = median(self._steps), []
        self._blocks = [*self._blocks, (step.ts_ns, now_seconds)][-self._config.kept_blocks_count :]
        if self._before_seconds:
            self._follow(step.ts_ns, now_seconds)
        else:
            self._look(step.ts_ns)

    def _follow(self, ts_ns: int, now_seconds: float) -> None:
        """End the sign, or note that the job has become slower still."""
        growth_ratio = self._config.growth_ratio
        if now_seconds < (1.0 + self._config.kept_ratio * growth_ratio) * self._before_seconds:
            self._before_seconds = 0.0
        elif now_seconds > (1.0 + growth_ratio) * self._top_seconds:
            self._top_seconds, self._top_ns = now_seconds, ts_ns

    def _look(self, ts_ns: int) -> None:
        """Begin the sign where the newest blocks grow steadily, over a short past or a longer one."""
        for doublings in range(self._config.most_doublings_count + 1):
            size = 1 << doublings
            count = size * self._config.parts_count
            if len(self._blocks) < count:
                return
            newest = self._blocks[-count:]
            parts = [median(seconds for _, seconds in newest[at : at + size]) for at in range(0, count, size)]
            if self._is_steady(parts):
                self._before_seconds, self._since_ns = parts[0], newest[size - 1][0]
                self._top_seconds, self._top_ns = parts[-1], ts_ns
                return

    def _is_steady(self, parts: list[float]) -> bool:
        """Return whether the parts grow enough, each over the one before, and none by more than half of the whole."""
        growths = [after - before for before, after in pairwise(parts)]
        whole = parts[-1] - parts[0]
        return min(growths) > 0 and max(growths) <= whole / 2 and whole >= self._config.growth_ratio * parts[0]

    def find(self, now_ns: int, *, is_explained: bool) -> Finding | None:
        """Return a finding that names nobody while the job is slower than it was; None: it is not.

        Args:
            now_ns: the slice's end.
            is_explained: whether a host stands out, or the step detector tells of the slowdown as a whole.
        """
        if not self._before_seconds:
            return None
        if is_explained:
            self._forget()
            return None
        now_seconds, before = self._blocks[-1][1], self._before_seconds
        minutes = (now_ns - self._since_ns) / (60 * NS_PER_SECOND)
        text = (
            f"the steps became longer little by little, on all ranks alike: {now_seconds * 1e3:.0f} ms a step, "
            f"{minutes:.0f} minutes ago {before * 1e3:.0f} ms"
        )
        is_accepted = now_ns - self._top_ns >= self._config.accepted_ns
        score = (now_seconds / before - 1.0) / self._config.growth_ratio
        evidence = Evidence(DETECTOR, "step_seconds", score, self._since_ns, now_ns, text, now_seconds, before)
        since_ns = self._since_ns
        if is_accepted:
            self._forget()
        ends = Reason.NEW_NORMAL if is_accepted else None
        return Finding(
            FaultKind.DEGRADED, "gradual_slowdown", (), since_ns, 0.7, Reason.STEPS_GROW, (evidence,), ends=ends
        )

    def _forget(self) -> None:
        """End the sign, and let the past begin anew."""
        self._before_seconds, self._blocks, self._steps = 0.0, [], []

    def to_state(self) -> list[Any]:
        """Return the state as JSON-serialisable values, for a snapshot."""
        sign = [self._before_seconds, self._since_ns, self._top_seconds, self._top_ns]
        return [sign, self._steps, [list(block) for block in self._blocks]]

    def load_state(self, state: list[Any]) -> None:
        """Replace the state by values that ``to_state`` returned."""
        sign, steps, blocks = state
        self._before_seconds, self._since_ns, self._top_seconds, self._top_ns = sign
        self._steps, self._blocks = list(steps), [(end_ns, seconds) for end_ns, seconds in blocks]
