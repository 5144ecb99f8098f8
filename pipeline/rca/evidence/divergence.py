"""Sign of a diverging job: its loss or its gradient norm is five times its past, on all ranks alike.

A job that goes back to a checkpoint is compared with what it was before that step. So the higher loss of an earlier
step is no sign, and nor is the gradient norm of a second warm-up.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from statistics import median
from typing import Any, Final, NamedTuple

from tocsin.pipeline.rca.evidence.job_numbers import JobStep
from tocsin.pipeline.rca.finding import Finding
from tocsin.schemas.reasons import Reason
from tocsin.schemas.records import NS_PER_SECOND
from tocsin.schemas.verdicts import Evidence, FaultKind

DETECTOR: Final = "job_numbers"
_LOWER_RATIO: Final = 0.98
"""A level counts as lower than the last one from this ratio on, so that a falling loss leaves few levels."""
_MAX_LOWS: Final = 512


@dataclass(frozen=True, slots=True)
class DivergenceConfig:
    """Settings.

    Attributes:
        factor: ratio to the number's own past that is a sign: five, as in ByteRobust (SOSP'25).
        newest_loss_count: steps of the loss whose median is compared with the past. So half of them must be high: a
            spike of some steps that recovers is no sign.
        newest_norm_count: the same for the gradient norm, which has longer spikes.
        held_count: steps whose median is a level that the loss held. The lowest such level is its past.
        past_count: steps whose median is the past of the gradient norm ...
        least_past_count: ... fewest of them. A job that began with fewer steps has no past yet.
        level_ratio: a past whose newest steps are so many times its median rises already, as in a warm-up of the
            learning rate: what follows is no jump of the gradient norm.
        accepted_ns: after so long at the new level it is the job's normal one, as for slow steps.
    """

    factor: float = 5.0
    newest_loss_count: int = 16
    newest_norm_count: int = 32
    held_count: int = 128
    past_count: int = 256
    least_past_count: int = 128
    level_ratio: float = 2.0
    accepted_ns: int = 1800 * NS_PER_SECOND


class StepValue(NamedTuple):
    """A number of one step: the step's number, its time and the value."""

    step: int
    ts_ns: int
    value: float


@dataclass(slots=True)
class NumberLevel:
    """One number's newest steps, and its past, which does not learn from steps while the sign stands.

    Attributes:
        config: settings.
        name: ``loss`` or ``grad_norm``.
        newest: the newest steps, oldest first.
        past: those before them, oldest first.
        lows: (step, level) of the loss: levels that it held, each lower than the one before.
        since_ns: when the sign began, 0 = there is none.
    """

    config: DivergenceConfig
    name: str
    newest: list[StepValue] = field(default_factory=list)
    past: list[StepValue] = field(default_factory=list)
    lows: list[tuple[int, float]] = field(default_factory=list)
    since_ns: int = 0

    @property
    def newest_count(self) -> int:
        """Steps whose median is the present level."""
        return self.config.newest_loss_count if self.name == "loss" else self.config.newest_norm_count

    def take(self, new: StepValue) -> None:
        """Take the number of the next step; an earlier step than the last one is a job that went back."""
        if self.newest and new.step <= self.newest[-1].step:
            self._go_back(new.step)
        self.newest.append(new)
        if len(self.newest) > self.newest_count:
            left = self.newest.pop(0)
            if not self.since_ns:
                self._learn(left)
        self._judge()

    def _go_back(self, step: int) -> None:
        """Forget what came after a step that the job went back to."""
        self.newest, self.since_ns = [], 0
        self.past = [one for one in self.past if one.step < step] if self.name == "loss" else []
        self.lows = [one for one in self.lows if one[0] < step]

    def _learn(self, left: StepValue) -> None:
        """Let a step become part of the past."""
        self.past = [*self.past, left][-self.config.past_count :]
        if self.name != "loss":
            return
        if left.value <= 0:
            self.lows = []
        held = [one.value for one in self.past[-self.config.held_count :]]
        if len(held) < self.config.held_count or min(held) <= 0:
            return
        level = median(held)
        if not self.lows or level < _LOWER_RATIO * self.lows[-1][1]:
            self.lows = [*self.lows, (left.step, level)][-_MAX_LOWS:]

    def _judge(self) -> None:
        """Begin or end the sign."""
        usual = self.usual
        if usual is None or self.now < self.config.factor * usual:
            self.since_ns = 0
        elif not self.since_ns:
            self.since_ns = next(one.ts_ns for one in self.newest if one.value >= self.config.factor * usual)

    @property
    def usual(self) -> float | None:
        """Level of the past: the lowest that the loss held, the median of the norm; None: none that tells a ratio."""
        if len(self.newest) < self.newest_count:
            return None
        if self.name == "loss":
            return self.lows[-1][1] if self.lows else None
        values = [one.value for one in self.past]
        if len(values) < self.config.least_past_count or min(values) <= 0:
            return None
        usual = median(values)
        return usual if median(values[-self.newest_count :]) < self.config.level_ratio * usual else None

    @property
    def now(self) -> float:
        """Median of the newest steps."""
        return median(one.value for one in self.newest)

    def accept(self) -> None:
        """Take the new level as the normal one: the past begins anew."""
        self.past, self.lows, self.since_ns = [], [], 0


class Divergence:
    """Loss and gradient norm of one job against their own past."""

    def __init__(self, config: DivergenceConfig) -> None:
        """Start without steps.

        Args:
            config: settings.
        """
        self._config = config
        self._levels = [NumberLevel(config, name) for name in ("loss", "grad_norm")]

    def take(self, step: JobStep) -> None:
        """Take the next settled step of the job."""
        for level in self._levels:
            if level.name in step.values:
                level.take(StepValue(step.step, step.ts_ns, step.values[level.name]))

    def find(self, now_ns: int) -> Finding | None:
        """Return a finding that names nobody while a number is too high; None: none is.

        Args:
            now_ns: the slice's end.
        """
        high = [level for level in self._levels if level.since_ns]
        if not high:
            return None
        since_ns = min(level.since_ns for level in high)
        evidence = tuple(self._evidence(level, now_ns) for level in high)
        is_accepted = now_ns - since_ns >= self._config.accepted_ns
        if is_accepted:
            for level in high:
                level.accept()
        return Finding(
            FaultKind.DEGRADED,
            "divergence",
            (),
            since_ns,
            0.8,
            Reason.NUMBERS_JUMPED,
            evidence,
            ends=Reason.NEW_NORMAL if is_accepted else None,
        )

    def _evidence(self, level: NumberLevel, now_ns: int) -> Evidence:
        """Return one number's level as evidence."""
        usual, now = level.usual or 0.0, level.now
        is_loss = level.name == "loss"
        past = f"the lowest level that it held for {self._config.held_count} steps was"
        past = past if is_loss else f"in the {len(level.past)} steps before"
        text = (
            f"the job's {'loss' if is_loss else 'gradient norm'} is {now:.3g} (median of its last "
            f"{level.newest_count} steps), {past} {usual:.3g}"
        )
        score = now / usual / self._config.factor if usual else 1.0
        return Evidence(DETECTOR, level.name, score, level.since_ns, now_ns, text, now, usual)

    def to_state(self) -> list[Any]:
        """Return the state as JSON-serialisable values, for a snapshot."""
        return [
            [level.since_ns, [list(one) for one in level.past], [list(one) for one in level.newest], level.lows]
            for level in self._levels
        ]

    def load_state(self, state: list[Any]) -> None:
        """Replace the state by values that ``to_state`` returned."""
        for level, (since_ns, past, newest, lows) in zip(self._levels, state, strict=True):
            level.since_ns = since_ns
            level.past = [StepValue(*one) for one in past]
            level.newest = [StepValue(*one) for one in newest]
            level.lows = [(step, value) for step, value in lows]
