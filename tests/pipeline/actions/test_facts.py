"""Which boot of a machine an action is for: that of the evidence."""

from __future__ import annotations

import pytest

from tests.pipeline.actions.kit import CLUSTER, T0, Stage, verdict_on
from tocsin.schemas.action_events import AckKind, MachineFacts
from tocsin.schemas.action_states import ActionState
from tocsin.schemas.records import NS_PER_SECOND


def booted(stage: Stage, seconds: int, boot_id: str = "second", *, told_after: int = 3) -> None:
    """Boot n1; its agent says so a few seconds later, in an engine that knows when."""
    at_ns = T0 + seconds * NS_PER_SECOND
    stage.tell(MachineFacts(CLUSTER, "n1", at_ns + told_after * NS_PER_SECOND, boot_id=boot_id, booted_ns=at_ns))


@pytest.mark.parametrize("is_restarted", [False, True], ids=["same controller", "another controller"])
def test_a_late_verdict_from_before_a_boot_acts_on_nothing(is_restarted: bool) -> None:
    stage = Stage()
    booted(stage, 20)
    if is_restarted:
        stage.crash()
    stage.at(30).judge(verdict_on("n1", at_seconds=15))
    action = stage.on_host("n1")
    assert action.target.machines[0].boot_id == "boot-n1"
    assert (action.state, action.reason) == (ActionState.EXPIRED, "rebooted")


def test_evidence_from_after_a_boot_is_about_the_new_one() -> None:
    stage = Stage()
    booted(stage, 20)
    stage.at(40).judge(verdict_on("n1", at_seconds=35))
    action = stage.on_host("n1")
    assert (action.target.machines[0].boot_id, action.state) == ("second", ActionState.APPROVED)


def test_a_machine_that_boots_before_the_claim_is_not_acted_on() -> None:
    stage = Stage()
    stage.judge(verdict_on("n1"))
    booted(stage, 5)
    stage.at(9).ack(stage.on_host("n1"), AckKind.CLAIMED)
    assert stage.states() == [(ActionState.EXPIRED, "rebooted")]


def test_a_boot_whose_predecessor_nobody_told_is_another_incarnation_than_older_evidence() -> None:
    stage = Stage()
    told = MachineFacts(CLUSTER, "spare", T0 + 30 * NS_PER_SECOND, boot_id="x", booted_ns=T0 + 20 * NS_PER_SECOND)
    stage.tell(told)
    target = stage.controller._desk.facts.target  # noqa: SLF001  # the book has no other way in
    before, after = (target(verdict_on().job, None, ("spare",), T0 + s * NS_PER_SECOND) for s in (10, 25))
    assert before.machines[0].boot_id not in {"", "x"}
    assert after.machines[0].boot_id == "x"


def test_the_same_boot_told_again_with_a_corrected_clock_is_the_same_incarnation() -> None:
    stage = Stage()
    booted(stage, -600, "boot-n1")
    booted(stage, 1, "boot-n1")
    stage.at(5).judge(verdict_on("n1"))
    assert stage.on_host("n1").state is ActionState.APPROVED
