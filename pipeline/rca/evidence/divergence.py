"""Sign of a diverging job: its loss or its gradient norm is five times its past, on all ranks alike."""

from __future__ import annotations

from dataclasses import dataclass, field
from statistics import median
from typing import Any, Final

from tocsin.pipeline.rca.evidence.job_numbers import JobStep
from tocsin.pipeline.rca.finding import Finding
from tocsin.schemas.reasons import Reason
from tocsin.schemas.records import NS_PER_SECOND
from tocsin.schemas.verdicts import Evidence, FaultKind

DETECTOR: Final = "job_numbers"


@dataclass(frozen=True, slots=True)
class DivergenceConfig:
    """Settings.

    Attributes:
        factor: ratio to the number's own past that is a sign: five, as in ByteRobust (SOSP'25).
        newest_count: steps whose median is compared with the past. So half of them must be high: a spike of some
            steps that recovers is no sign.
        past_count: steps before them whose median is the past.
        least_past_count: fewest of them. A job that began with fewer steps has no past yet.
        accepted_ns: after so long at the new level it is the job's normal one, as for slow steps.
    """

    factor: float = 5.0
    newest_count: int = 16
    past_count: int = 256
    least_past_count: int = 128
    accepted_ns: int = 1800 * NS_PER_SECOND


@dataclass(slots=True)
class NumberLevel:
    """One number's newest steps, and its past, which does not learn from steps while the sign stands.

    Attributes:
        config: settings.
        name: ``loss`` or ``grad_norm``.
        newest: (time, value) of the newest steps, oldest first.
        past: values before them, oldest first.
        since_ns: when the sign began, 0 = there is none.
    """

    config: DivergenceConfig
    name: str
    newest: list[tuple[int, float]] = field(default_factory=list)
    past: list[float] = field(default_factory=list)
    since_ns: int = 0

    def take(self, ts_ns: int, value: float) -> None:
        """Take the number of the next step."""
        self.newest.append((ts_ns, value))
        if len(self.newest) > self.config.newest_count:
            _, left = self.newest.pop(0)
            if not self.since_ns:
                self.past = [*self.past, left][-self.config.past_count :]
        self._judge()

    def _judge(self) -> None:
        """Begin or end the sign."""
        usual = self.usual
        if usual is None or self.now < self.config.factor * usual:
            self.since_ns = 0
        elif not self.since_ns:
            self.since_ns = next(ts_ns for ts_ns, value in self.newest if value >= self.config.factor * usual)

    @property
    def usual(self) -> float | None:
        """Median of the past; None: it is too short, or not all positive, so that no ratio can be told."""
        if len(self.past) < self.config.least_past_count or len(self.newest) < self.config.newest_count:
            return None
        return median(self.past) if min(self.past) > 0 else None

    @property
    def now(self) -> float:
        """Median of the newest steps."""
        return median(value for _, value in self.newest)

    def accept(self) -> None:
        """Take the new level as the normal one: the past begins anew."""
        self.past, self.since_ns = [], 0


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
                level.take(step.ts_ns, step.values[level.name])

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
        what = "loss" if level.name == "loss" else "gradient norm"
        text = (
            f"the job's {what} is {now:.3g} (median of its last {self._config.newest_count} steps), "
            f"in the {len(level.past)} steps before {usual:.3g}"
        )
        score = now / usual / self._config.factor if usual else 1.0
        return Evidence(DETECTOR, level.name, score, level.since_ns, now_ns, text, now, usual)

    def to_state(self) -> list[Any]:
        """Return the state as JSON-serialisable values, for a snapshot."""
        return [[level.since_ns, level.past, [list(one) for one in level.newest]] for level in self._levels]

    def load_state(self, state: list[Any]) -> None:
        """Replace the state by values that ``to_state`` returned."""
        for level, (since_ns, past, newest) in zip(self._levels, state, strict=True):
            level.since_ns, level.past = since_ns, list(past)
            level.newest = [(ts_ns, value) for ts_ns, value in newest]
