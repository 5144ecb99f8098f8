"""A breaker for each class of evidence: a flood of one class is more likely a false alarm than many faults."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from tocsin.pipeline.actions.config import BreakerConfig, ns
from tocsin.pipeline.actions.guards.guard import ActionCase, GuardOutcome, Ruling
from tocsin.pipeline.actions.reasons import ActionReason
from tocsin.schemas.actions import HARD_KINDS


@dataclass(slots=True)
class _Class:
    """What is known of one class.

    Attributes:
        seen: host -> when it showed the class last; within the window, and a few more hosts than allowed.
        opened_ns: since when the breaker is open, 0 = closed.
        through_ns: when it let the last action through, 0 = none since it opened.
        through: that action.
    """

    seen: dict[str, int] = field(default_factory=dict)
    opened_ns: int = 0
    through_ns: int = 0
    through: str = ""


class BreakerGuard:
    """Holds actions of a class that too many hosts show at once; other classes go on.

    After a time it lets one action through, and one more after each further such time. It closes when the flood is
    over for that time. What waits behind it is judged anew, and expires by its own deadline.
    """

    name = "breaker"

    def __init__(self) -> None:
        """Start with all classes closed."""
        self._classes: dict[str, _Class] = {}

    def seen(self, case: ActionCase) -> None:
        """Note that the action's machines show its class, whether or not anything comes of it."""
        if case.action.kind not in HARD_KINDS or case.action.target.is_leaf():
            return
        rules, key = case.config.breaker, self._key(case)
        known = self._classes.pop(key, None) or _Class()
        self._classes[key] = known
        for host in case.tracked.hosts:
            known.seen.pop(host, None)
            known.seen[host] = case.now_ns
        self._forget(known, case.now_ns - ns(rules.window_seconds))
        while len(known.seen) > rules.host_count + 1:
            del known.seen[next(iter(known.seen))]
        if len(known.seen) > rules.host_count and not known.opened_ns:
            known.opened_ns, known.through_ns, known.through = case.now_ns, 0, ""
        while len(self._classes) > rules.class_count:
            del self._classes[next(iter(self._classes))]

    def judge(self, case: ActionCase) -> Ruling | None:
        """See ``Guard.judge``."""
        known = self._classes.get(self._key(case))
        if known is None or not known.opened_ns or case.action.kind not in HARD_KINDS:
            return None
        if case.action.target.is_leaf() or known.through == case.action.action_id:
            return None
        rules = case.config.breaker
        last_ns = max(known.opened_ns, known.through_ns)
        if case.now_ns - last_ns >= ns(rules.half_open_seconds):
            return None
        detail = f"more than {rules.host_count} machines of {case.action.budget_class}"
        return Ruling(GuardOutcome.HOLD, ActionReason.BREAKER_OPEN, detail)

    def allowed(self, case: ActionCase) -> None:
        """Note that an action may be begun now: if the breaker is open, it is the one that was let through."""
        known = self._classes.get(self._key(case))
        if known is not None and known.opened_ns and case.action.kind in HARD_KINDS:
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

    def _key(self, case: ActionCase) -> str:
        return f"{case.cluster}\n{case.action.budget_class}"

    def _forget(self, known: _Class, before_ns: int) -> None:
        """Forget the hosts that showed the class before a time."""
        for host, seen_ns in list(known.seen.items()):
            if seen_ns < before_ns:
                del known.seen[host]
