"""A claim counts only for a kind that the newest announcement of its executor holds."""

from __future__ import annotations

import pytest

from tests.pipeline.actions.kit import CLUSTER, T0, Stage, verdict_on
from tocsin.pipeline.actions.ladder import Proposal
from tocsin.schemas.action_events import AckKind, ExecutorHeard
from tocsin.schemas.action_states import ActionState
from tocsin.schemas.actions import Action
from tocsin.schemas.records import NS_PER_SECOND
from tocsin.schemas.verdicts import ActionKind

DRAIN, EVICT = (ActionKind.DRAIN,), (ActionKind.DRAIN, ActionKind.EVICT)


def evict_with(*announced: tuple[float, tuple[ActionKind, ...]], cluster: str = CLUSTER) -> tuple[Stage, Action]:
    """An eviction that may be claimed, after an executor ``k8s`` announced kinds at these seconds."""
    stage = Stage()
    for at_seconds, kinds in announced:
        ts_ns = T0 + int(at_seconds * NS_PER_SECOND)
        stage.controller.on_event(ExecutorHeard(cluster, "k8s", kinds, ts_ns), stage.now_ns)
    stage.judge(verdict_on("n1"))
    return stage, stage.on_host("n1")


@pytest.mark.parametrize(
    ("announced", "holder"),
    [
        (((0, EVICT),), "k8s"),
        (((0, DRAIN),), ""),
        (((0, DRAIN), (5, EVICT)), "k8s"),
        (((0, EVICT), (5, DRAIN)), ""),
        (((5, DRAIN), (0, EVICT)), ""),
        ((), ""),
    ],
    ids=["announced", "of another kind", "a later version does more", "less", "an old announcement", "none"],
)
def test_the_newest_announcement_decides_what_is_claimed(
    announced: tuple[tuple[float, tuple[ActionKind, ...]], ...], holder: str
) -> None:
    stage, action = evict_with(*announced)
    stage.ack(action, AckKind.CLAIMED, "k8s")

    assert stage.action(action.action_id).holder == holder
    assert stage.controller.left_out == ({} if holder else {"kind_not_announced": 1} | _old(announced))


def _old(announced: tuple[tuple[float, tuple[ActionKind, ...]], ...]) -> dict[str, int]:
    """Announcements that are older than one before."""
    return {"fact_old": 1} if [one for one, _ in announced] == [5, 0] else {}


def test_a_kind_that_is_announced_in_another_cluster_does_not_count() -> None:
    stage, action = evict_with((0, EVICT), cluster="c2")
    stage.ack(action, AckKind.CLAIMED, "k8s")

    assert stage.controller.left_out == {"kind_not_announced": 1}


def probe_of(*hosts: str) -> tuple[Stage, Action]:
    """A check of machines, of which ``n1`` alone has an executor for checks."""
    stage = Stage()
    stage.controller.on_event(ExecutorHeard(CLUSTER, "slurm", EVICT, stage.now_ns + 1), stage.now_ns)
    stage.controller.on_event(
        ExecutorHeard(CLUSTER, "checker:n1", (ActionKind.PROBE,), stage.now_ns, ("n1",)), stage.now_ns
    )
    stage.ladder.answer = lambda verdict: [Proposal(verdict, ActionKind.PROBE, None, hosts, "rule", verdict.cause)]
    stage.judge(verdict_on(*hosts, action=ActionKind.PROBE))
    (action,) = [one for one in stage.controller.actions() if one.kind is ActionKind.PROBE]
    return stage, action


@pytest.mark.parametrize(
    ("hosts", "state", "holder"),
    [
        (("n1",), ActionState.CLAIMED, "checker:n1"),
        (("n2",), ActionState.WAITING, ""),
        (("n1", "n2"), ActionState.WAITING, ""),
        ((), ActionState.WAITING, ""),
    ],
    ids=["its own host", "another host", "a group", "no host"],
)
def test_who_acts_on_one_host_is_nobody_for_others(hosts: tuple[str, ...], state: ActionState, holder: str) -> None:
    stage, action = probe_of(*hosts)
    stage.ack(action, AckKind.CLAIMED, "checker:n1")
    found = stage.action(action.action_id)

    assert (found.state, found.holder) == (state, holder)
    assert stage.controller.left_out == ({} if holder else {"kind_not_announced": 1})
    assert stage.pages() == ([] if holder else ["no_executor"])


def test_what_was_refused_to_one_executor_is_given_to_another() -> None:
    stage, action = evict_with((0, DRAIN))
    stage.ack(action, AckKind.CLAIMED, "k8s")
    assert stage.states() == [(ActionState.APPROVED, "allowed")]
    stage.ack(action, AckKind.CLAIMED)

    assert stage.action(action.action_id).holder == "slurm"


def test_a_refused_claim_is_logged_and_kept(caplog: pytest.LogCaptureFixture) -> None:
    stage, action = evict_with((0, DRAIN))
    with caplog.at_level("INFO"):
        stage.ack(action, AckKind.CLAIMED, "k8s")

    assert [one.reason for one in stage.controller.take_left_out()] == ["kind_not_announced"]
    assert f"claimed of k8s about {action.action_id}" in caplog.text


def test_who_announces_less_than_before_does_not_keep_what_it_holds() -> None:
    stage, action = evict_with((0, EVICT))
    stage.ack(action, AckKind.CLAIMED, "k8s")
    stage.controller.on_event(ExecutorHeard(CLUSTER, "k8s", DRAIN, stage.now_ns + 1), stage.now_ns)
    stage.at(20)
    stage.ack(action, AckKind.CLAIMED, "k8s")
    stage.at(31)

    assert stage.states() == [(ActionState.APPROVED, "lease_over")]
