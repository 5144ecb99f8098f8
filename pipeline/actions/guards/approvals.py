"""Who has to approve what: the policy's wish, kinds, unproven classes, and whole leaves."""

from __future__ import annotations

from tocsin.pipeline.actions.guards.guard import ActionCase, GuardOutcome, Ruling
from tocsin.pipeline.actions.reasons import ActionReason
from tocsin.schemas.actions import REMOVING_KINDS


class ApprovalGuard:
    """Asks a person where the policy or the kind of the action wants one."""

    name = "approvals"

    def judge(self, case: ActionCase) -> Ruling | None:
        """See ``Guard.judge``."""
        if case.tracked.approved_ns:
            return None
        if case.tracked.needs_approval:
            return Ruling(GuardOutcome.ASK, ActionReason.POLICY_ASKS, case.tracked.note)
        if case.action.kind in case.config.approval_kinds:
            return Ruling(GuardOutcome.ASK, ActionReason.KIND_ASKS)
        return None


class LeafGuard:
    """Asks a person before all machines behind one switch are left out."""

    name = "leaf"

    def judge(self, case: ActionCase) -> Ruling | None:
        """See ``Guard.judge``."""
        target = case.action.target
        if case.tracked.approved_ns or not case.tracked.is_leaf or target.component is None:
            return None
        detail = f"{len(target.hosts)} machines behind {target.component.name}"
        return Ruling(GuardOutcome.ASK, ActionReason.LEAF_ASKS, detail)


class UnprovenClassGuard:
    """Asks a person after several actions of a class that nothing ever proved right.

    A flood that trickles over weeks passes every budget; it does not pass this one. A failed check under load, or a
    person's word, proves an action. A class is counted over all clusters of the controller: a false signal that comes
    with a version of the driver is the same in each of them.
    """

    name = "class_unproven"

    def __init__(self) -> None:
        """Start without classes."""
        self._unproven: dict[str, list[str]] = {}
        """Class -> its actions that nothing proved right."""

    def judge(self, case: ActionCase) -> Ruling | None:
        """See ``Guard.judge``."""
        action = case.action
        if case.tracked.approved_ns or action.kind not in REMOVING_KINDS or case.tracked.is_leaf:
            return None
        known = self._unproven.get(action.budget_class, ())
        count = sum(name != action.action_id for name in known)
        if count < case.config.unproven_count:
            return None
        return Ruling(GuardOutcome.ASK, ActionReason.CLASS_UNPROVEN, f"{count} unproven of {action.budget_class}")

    def allowed(self, case: ActionCase) -> None:
        """Note that an action may be begun now; until it is proved it counts against its class."""
        if case.action.kind not in REMOVING_KINDS or case.tracked.is_leaf:
            return
        known = self._unproven.setdefault(case.action.budget_class, [])
        if case.action.action_id not in known and len(known) < _KEPT_COUNT:
            known.append(case.action.action_id)
        while len(self._unproven) > case.config.breaker.class_count:
            del self._unproven[next(iter(self._unproven))]

    def forgotten(self, budget_class: str, action_id: str) -> None:
        """Note that an action was proved right, or ended without having been begun."""
        known = self._unproven.get(budget_class)
        if known is not None and action_id in known:
            known.remove(action_id)
            if not known:
                del self._unproven[budget_class]

    def to_state(self) -> list[tuple[str, list[str]]]:
        """Return the state as JSON-able values."""
        return [(key, list(names)) for key, names in self._unproven.items()]

    def load_state(self, state: list[tuple[str, list[str]]]) -> None:
        """Replace the state by what ``to_state`` returned."""
        self._unproven = {}
        for key, names in state:
            budget_class = key.split("\n")[-1]  # a state of before has the cluster in front of it
            self._unproven.setdefault(budget_class, []).extend(names)


_KEPT_COUNT = 16
"""Most unproven actions of one class that are remembered."""
