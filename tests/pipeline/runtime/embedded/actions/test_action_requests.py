"""Who may ask about actions, and what an executor's messages must prove."""

from __future__ import annotations

import threading
from dataclasses import replace
from pathlib import Path

import pytest

from tests.pipeline.actions.kit import verdict_on
from tests.pipeline.runtime.embedded.actions.acting import CONTROLLER_KEY, OTHER_KEY, Acting
from tocsin.pipeline.actions.config import ControllerConfig
from tocsin.pipeline.runtime.embedded.control_socket import ACTOR, EngineRefusedError, Message
from tocsin.schemas.action_events import Ack, AckKind
from tocsin.schemas.action_states import ActionState
from tocsin.schemas.errors import FieldError
from tocsin.schemas.records import NS_PER_SECOND
from tocsin.schemas.verdicts import ActionKind

CONFIG = ControllerConfig(is_dry_run=False, approval_kinds=frozenset({ActionKind.RESTART}))


@pytest.fixture
def acting(tmp_path: Path) -> Acting:
    """An engine in which a restart waits for a person."""
    acting = Acting(tmp_path, CONFIG)
    acting.tick()
    acting.executor_lives()
    acting.tick(verdict_on("n1", action=ActionKind.RESTART, at_seconds=2))
    assert [state for _, state, _ in acting.states()] == ["waiting_approval"]
    return acting


def _say(acting: Acting, name: str, **request: object) -> Message:
    """Ask in a thread while the engine ticks, and return the answer; a refusal is raised."""
    found: list[Message | EngineRefusedError] = []

    def ask() -> None:
        handlers = {**acting.requests.asking(), **acting.requests.changing()}
        try:
            answer = handlers[name]({ACTOR: "uid:7", **request})
        except EngineRefusedError as error:
            found.append(error)
        else:
            assert isinstance(answer, dict)
            found.append(answer)

    thread = threading.Thread(target=ask)
    thread.start()
    while thread.is_alive():
        acting.tick(seconds=0.01)
        thread.join(0.01)
    if isinstance(found[0], EngineRefusedError):
        raise found[0]
    return found[0]


def _claim(acting: Acting, seq: int = 1) -> Ack:
    (action,) = acting.wanted()
    lease_ns = acting.now_ns + 30 * NS_PER_SECOND
    return Ack(
        action.action_id, action.target.job, AckKind.CLAIMED, "slurm", action.epoch, seq, acting.now_ns, lease_ns
    )


def test_a_person_approves_and_the_actor_is_kept(acting: Acting) -> None:
    action_id = acting.wanted()[0].action_id
    changed = _say(acting, "action_approve", id=action_id[:6], note="looked at it")["action"]
    assert (changed["state"], changed["actor"]) == ("approved", "uid:7")
    acting.exchange(_claim(acting))
    acting.tick()
    acting.exchange(replace(_claim(acting, 2), kind=AckKind.STARTED, lease_ns=0))
    acting.tick()
    with pytest.raises(EngineRefusedError, match="no effect on an action that is started"):
        _say(acting, "action_deny", id=action_id)


def test_a_denied_action_is_over_and_listed_only_with_all(acting: Acting) -> None:
    action_id = acting.wanted()[0].action_id
    assert _say(acting, "action_deny", id=action_id, note="no")["action"]["state"] == "refused"
    assert _say(acting, "actions_list")["actions"] == []
    everything = _say(acting, "actions_list", everything=True)["actions"]
    assert {one["action_id"] for one in everything} == {one.action_id for one in acting.follower.shown}
    assert action_id in {one["action_id"] for one in everything}
    states = [one["state"] for one in _say(acting, "action_show", id=action_id)["history"]]
    assert states[-1] == "refused"
    assert "waiting_approval" in states


@pytest.mark.parametrize(("wanted", "reason"), [("zz", "not_found"), ("", None)])
def test_an_id_must_mean_one_action(acting: Acting, wanted: str, reason: str | None) -> None:
    with pytest.raises((EngineRefusedError, FieldError)) as caught:
        acting.requests.asking()["action_show"]({ACTOR: "uid:7", "id": wanted})
    assert reason is None or caught.value.reason == reason


def test_an_executor_speaks_for_itself_only(acting: Acting) -> None:
    exchange = acting.requests.for_executors()["executor_exchange"]
    with pytest.raises(EngineRefusedError) as caught:
        exchange({ACTOR: "executor:other", "executor": "slurm", "after": 0, "messages": []})
    assert caught.value.reason == "not_yours"


@pytest.mark.parametrize("key", [OTHER_KEY, CONTROLLER_KEY])
def test_an_ack_signed_by_somebody_else_is_a_dead_letter_and_has_no_effect(acting: Acting, key: object) -> None:
    _say(acting, "action_approve", id=acting.wanted()[0].action_id)
    answer = acting.exchange(_claim(acting), key=key)
    acting.tick()
    assert len(answer["refused"]) == 1
    assert len(acting.letters) == 1
    assert [one.state for one in acting.wanted()] == [ActionState.APPROVED]
    acting.exchange(_claim(acting))
    acting.tick()
    assert [one.state for one in acting.wanted()] == [ActionState.CLAIMED]


@pytest.mark.parametrize(
    "message",
    [None, {}, {"value": "%%", "signature": ""}, {"value": "e30=", "signature": ""}, {"value": 3, "signature": "e30="}],
)
def test_what_is_no_signed_message_is_a_dead_letter(acting: Acting, message: object) -> None:
    request = {ACTOR: "executor:slurm", "executor": "slurm", "after": 0, "messages": [message]}
    answer = acting.requests.for_executors()["executor_exchange"](request)
    assert isinstance(answer, dict)
    assert len(answer["refused"]) == len(acting.letters) == 1


def test_an_old_ack_played_again_changes_nothing(acting: Acting) -> None:
    _say(acting, "action_approve", id=acting.wanted()[0].action_id)
    claim = _claim(acting)
    acting.exchange(claim)
    acting.tick()
    before = acting.wanted()
    acting.exchange(claim)
    acting.tick()
    assert acting.wanted() == before
    assert (acting.acks, acting.left_out) == ([claim], ["ack_repeated"])


def test_an_executor_asks_only_for_what_changed(acting: Acting) -> None:
    first = acting.exchange()
    assert len(first["actions"]) == 2, "the action and the page that it waits for a person"
    assert acting.exchange(after=first["seq"]) == {"actions": [], "seq": first["seq"], "refused": []}
    _say(acting, "action_approve", id=acting.wanted()[0].action_id)
    assert [one["seq"] for one in acting.exchange(after=first["seq"])["actions"]] == [first["seq"] + 1]
