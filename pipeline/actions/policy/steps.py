"""At which step of a rule a job is: one further each time it fails again."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Final

from tocsin.schemas.records import NS_PER_SECOND

_MOST_KEYS: Final = 10_000
_MOST_VERDICTS: Final = 8


@dataclass(slots=True)
class _Climb:
    """The steps of one rule on one job: present step, when it was asked for, and the steps of the last verdicts."""

    index: int
    asked_ns: int
    by_verdict: dict[str, int] = field(default_factory=dict)


class FailureSteps:
    """The present steps by key (a rule and a job).

    A failure that began before the present step was asked for is the same failure. A job that did not fail for
    ``forget_seconds`` begins at the first step again.
    """

    def __init__(self, forget_seconds: float) -> None:
        """Start without failures."""
        self._forget_ns = int(forget_seconds * NS_PER_SECOND)
        self._climbs: dict[str, _Climb] = {}

    def of(self, key: str, verdict_id: str, onset_ns: int, now_ns: int) -> int:
        """Return the index of the step that a verdict asks for; it may lie beyond the last step of its rule.

        Args:
            key: the rule and the job.
            verdict_id: the verdict; all its updates ask for the same step.
            onset_ns: begin of its fault.
            now_ns: the present time.
        """
        climb = self._climbs.pop(key, None)
        if climb is None or now_ns - climb.asked_ns > self._forget_ns:
            climb = _Climb(0, now_ns)
        elif verdict_id not in climb.by_verdict and onset_ns > climb.asked_ns:
            climb.index, climb.asked_ns = climb.index + 1, now_ns
        self._climbs[key] = climb
        if len(self._climbs) > _MOST_KEYS:
            del self._climbs[next(iter(self._climbs))]
        return self._remember(climb, verdict_id, climb.by_verdict.get(verdict_id, climb.index))

    def go_on(self, key: str, verdict_id: str, index: int, now_ns: int) -> int | None:
        """Go one step further for a verdict whose step is over; return the new step.

        Args:
            key: the rule and the job.
            verdict_id: the verdict.
            index: the step that is over; None is returned where it is not the present step of job and verdict.
            now_ns: the present time.
        """
        climb = self._climbs.get(key)
        if climb is None or not climb.by_verdict.get(verdict_id) == climb.index == index:
            return None
        climb.index, climb.asked_ns = climb.index + 1, now_ns
        return self._remember(climb, verdict_id, climb.index)

    def forget(self, now_ns: int) -> None:
        """Forget jobs that did not fail for long."""
        old = [key for key, climb in self._climbs.items() if now_ns - climb.asked_ns > self._forget_ns]
        for key in old:
            del self._climbs[key]

    def to_state(self) -> dict[str, list[Any]]:
        """Return the steps as JSON values."""
        return {key: [one.index, one.asked_ns, one.by_verdict] for key, one in self._climbs.items()}

    def load_state(self, state: Mapping[str, Any]) -> None:
        """Replace the steps by what ``to_state`` returned."""
        self._climbs = {key: _Climb(*values) for key, values in state.items()}

    @staticmethod
    def _remember(climb: _Climb, verdict_id: str, index: int) -> int:
        """Keep the step of a verdict, and of the last few others; return it."""
        climb.by_verdict[verdict_id] = index
        if len(climb.by_verdict) > _MOST_VERDICTS:
            del climb.by_verdict[next(iter(climb.by_verdict))]
        return index
