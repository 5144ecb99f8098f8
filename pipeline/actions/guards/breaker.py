"""A breaker for each class of evidence: a flood of one class is more likely a false alarm than many faults."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, Final

from tocsin.pipeline.actions.config import BreakerConfig, ns
from tocsin.pipeline.actions.guards.guard import ActionCase, GuardOutcome, Ruling
from tocsin.pipeline.actions.guards.return_checks import RETURN_RULE
from tocsin.pipeline.actions.reasons import ActionReason
from tocsin.schemas.actions import HARD_KINDS
from tocsin.schemas.verdicts import ActionKind, FaultKind

_TAKEN: Final = "taken"
_CHECKED: Final = "checked"
_STOPPED: Final = "stopped"


@dataclass(slots=True)
class _Class:
    """What is known of one class.

    Attributes:
        seen: host or job -> when it showed the class last; within the window, and a few more than allowed.
        opened_ns: since when the breaker is open, 0 = closed.
        through_ns: when it let the last action through, 0 = none since it opened.
        through: that action.
    """

    seen: dict[str, int] = field(default_factory=dict)
    opened_ns: int = 0
    through_ns: int = 0
    through: str = ""


class BreakerGuard:
    """Holds actions of a class that too many hosts or jobs show at once; other classes go on.

    Machines that are taken, machines that are checked, and running jobs that are stopped count apart. A restart, a
    rollback or a check does not count where the verdict says that the job has failed already: it stops nothing. Nor
    does a check before a return: no job uses the machine.
    After a time it lets one action through, and one more after each further such time. It closes when the flood is
    over for that time. What waits behind it is judged anew, and expires by its own deadline.
    """

    name = "breaker"

    def __init__(self) -> None:
        """Start with all classes closed."""
        self._classes: dict[str, _Class] = {}

    def seen(self, case: ActionCase) -> None:
        """Note that the action's machines show its class, whether or not anything comes of it."""
        group = _group(case)
        if not group or case.tracked.is_leaf:
            return
        rules, key = case.config.breaker, self._key(case, group)
        known = self._classes.pop(key, None) or _Class()
        self._classes[key] = known
        for name in _names(case, group):
            known.seen.pop(name, None)
            known.seen[name] = case.now_ns
        self._forget(known, case.now_ns - ns(rules.window_seconds))
        while len(known.seen) > rules.host_count + 1:
            del known.seen[next(iter(known.seen))]
        if len(known.seen) > rules.host_count and not known.opened_ns:
            known.opened_ns, known.through_ns, known.through = case.now_ns, 0, ""
        while len(self._classes) > rules.class_count:
            del self._classes[next(iter(self._classes))]

    def judge(self, case: ActionCase) -> Ruling | None:
        """See ``Guard.judge``."""
        group = _group(case)
        known = self._classes.get(self._key(case, group))
        if known is None or not known.opened_ns or not group:
            return None
        if case.tracked.is_leaf or known.through == case.action.action_id:
            return None
        rules = case.config.breaker
        last_ns = max(known.opened_ns, known.through_ns)
        if case.now_ns - last_ns >= ns(rules.half_open_seconds):
            return None
        what = "jobs" if group == _STOPPED else "machines"
        detail = f"more than {rules.host_count} {what} of {case.action.budget_class}"
        return Ruling(GuardOutcome.HOLD, ActionReason.BREAKER_OPEN, detail)

    def allowed(self, case: ActionCase) -> None:
        """Note that an action may be begun now: if the breaker is open, it is the one that was let through."""
        known = self._classes.get(self._key(case, _group(case)))
        if known is not None and known.opened_ns:
            known.through_ns, known.through = case.now_ns, case.action.action_id

    def on_time(self, rules: BreakerConfig, now_ns: int) -> None:
        """Close the breakers whose flood is over.

        Args:
            rules: settings.
            now_ns: the present time.
        """
        for key, known in list(self._classes.items()):
            self._forget(known, now_ns - ns(rules.window_seconds))
            is_calm = not known.seen
            if known.opened_ns and is_calm and now_ns - known.opened_ns >= ns(rules.half_open_seconds):
                known.opened_ns, known.through_ns, known.through = 0, 0, ""
            if not known.opened_ns and not known.seen:
                del self._classes[key]

    def to_state(self) -> list[Any]:
        """Return the state as JSON-able values."""
        return [
            [key, list(known.seen.items()), known.opened_ns, known.through_ns, known.through]
            for key, known in self._classes.items()
        ]

    def load_state(self, state: Sequence[Any]) -> None:
        """Replace the state by what ``to_state`` returned."""
        self._classes = {
            key: _Class(dict(seen), opened_ns, through_ns, through)
            for key, seen, opened_ns, through_ns, through in state
        }

    def _key(self, case: ActionCase, group: str) -> str:
        return f"{case.cluster}\n{group}\n{case.action.budget_class}"

    def _forget(self, known: _Class, before_ns: int) -> None:
        """Forget the hosts that showed the class before a time."""
        for host, seen_ns in list(known.seen.items()):
            if seen_ns < before_ns:
                del known.seen[host]


def _group(case: ActionCase) -> str:
    """Return what an action does that a flood must not do to many, "" for nothing."""
    kind = case.action.kind
    if kind in HARD_KINDS:
        return _TAKEN
    is_free = case.tracked.verdict.fault is FaultKind.FAIL_STOP or case.action.rule == RETURN_RULE
    if kind is ActionKind.NOTIFY or is_free:
        return ""
    return _CHECKED if kind is ActionKind.PROBE else _STOPPED


def _names(case: ActionCase, group: str) -> tuple[str, ...]:
    """Return what an action counts as: its machines, or its job where it concerns the job."""
    if group == _STOPPED or case.action.target.component is None:
        return (case.action.target.job.job_id,)
    return case.tracked.hosts
