"""The table of an action's life, and its page."""

from __future__ import annotations

from pathlib import Path

import pytest

from tocsin.pipeline.actions.chain import GuardChain
from tocsin.pipeline.actions.facts import FactBook
from tocsin.pipeline.actions.reasons import ActionReason
from tocsin.pipeline.actions.transitions import TRANSITIONS, ActionTransition, check_transition
from tocsin.pipeline.incidents.maintenance import MaintenanceBook
from tocsin.schemas.action_states import FINAL_STATES, ActionState
from tocsin.schemas.errors import FieldError

PAGE = (Path(__file__).parents[3] / "docs/actions.md").read_text(encoding="utf-8")


def markdown_table() -> str:
    """The table of transitions as ``docs/actions.md`` shows it."""
    head = "| from | to | reasons | who | when |\n| --- | --- | --- | --- | --- |"
    return "\n".join((head, *map(_row, TRANSITIONS)))


def _row(one: ActionTransition) -> str:
    before = ", ".join(state.value for state in one.before) or "(nothing)"
    reasons = (
        "any" if len(one.reasons) == len(ActionReason) else " ".join(f"`{reason.value}`" for reason in one.reasons)
    )
    return f"| {before} | {one.after.value} | {reasons} | {one.trigger.value} | {one.meaning} |"


def test_the_page_holds_this_table() -> None:
    assert markdown_table() in PAGE


def test_the_page_names_each_state_and_each_guard() -> None:
    chain = GuardChain(MaintenanceBook(FactBook(1).leaf_of))

    assert [state for state in ActionState if f"| `{state.value}` |" not in PAGE] == []
    assert [guard.name for guard in chain.guards if f"| `{guard.name}` |" not in PAGE] == []


def test_each_state_can_be_reached_and_each_reason_is_used() -> None:
    reached = {one.after for one in TRANSITIONS}

    assert reached == set(ActionState)


def test_only_a_page_is_done_at_once() -> None:
    with pytest.raises(FieldError, match="proposed -> undone"):
        check_transition(ActionState.PROPOSED, ActionState.UNDONE, "undone")
    with pytest.raises(FieldError, match="new -> claimed"):
        check_transition(None, ActionState.CLAIMED, "claimed")


@pytest.mark.parametrize("state", sorted(FINAL_STATES))
def test_what_is_over_is_never_carried_out(state: ActionState) -> None:
    """A lapsed action may be judged anew; no final state leads to one in which an executor works on the target."""
    for after in (ActionState.CLAIMED, ActionState.STARTED, ActionState.DONE):
        for reason in ActionReason:
            with pytest.raises(FieldError):
                check_transition(state, after, reason.value)
