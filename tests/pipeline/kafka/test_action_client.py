"""What people are told of actions from the topic, and their signed word, over an exchange in memory."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest

from tests.pipeline.kafka.action_kit import ANN, KEYS, ActionWorld
from tests.pipeline.kafka.test_action_work import struck
from tocsin.pipeline.identity.action_signatures import AckSigner, ActionChecker
from tocsin.pipeline.kafka.action_client import ActionClient
from tocsin.pipeline.kafka.action_exchange import ActionLine
from tocsin.pipeline.runtime.embedded.control_socket import EngineAbsentError, EngineRefusedError
from tocsin.schemas.errors import FieldError
from tocsin.schemas.kafka.topics import ACTION_ACKS, ACTIONS


class MemoryExchange:
    """The topics of a world; a look lets a second pass."""

    def __init__(self, world: ActionWorld) -> None:
        self.world = world

    def changes(self, after: int = 0) -> list[ActionLine]:
        lines = self.world.seats.log.get(ACTIONS, [])
        return [ActionLine(one.offset_count + 1, one.value or b"", one.signature or b"") for one in lines][after:]

    def fetch(self, after: int = 0) -> list[ActionLine]:
        self.world.run()
        return self.changes(after)

    def send(self, messages: Sequence[tuple[bytes, bytes]], executor: str) -> None:
        for value, signature in messages:
            self.world.seats.write(ACTION_ACKS, value, executor.encode(), self.world.now_ns, signature or None)


def client(world: ActionWorld, *, is_operator: bool = True) -> ActionClient:
    """A client of a person, who waits for a moment only."""
    exchange: Any = MemoryExchange(world)
    signer = AckSigner(ANN) if is_operator else None
    return ActionClient(exchange, signer, ActionChecker(KEYS), answer_seconds=0.4, clock_ns=lambda: world.now_ns)


def test_actions_are_listed_shown_and_cancelled() -> None:
    world = ActionWorld()
    struck(world)
    person = client(world)
    listed = person.call("actions_list")
    assert [one["state"] for one in listed["actions"]] == ["approved"]
    assert not listed["is_dry_run"]
    name = listed["actions"][0]["action_id"]
    changed = person.call("action_cancel", id=name[:8], note="mine")["action"]
    assert (changed["state"], changed["actor"], changed["detail"]) == ("cancelled", "operator:ann", "mine")
    shown = person.call("action_show", id=name)
    assert [one["state"] for one in shown["history"]] == ["approved", "cancelled"]
    assert person.call("actions_list")["actions"] == []


def test_a_word_without_effect_is_an_error_with_its_reason() -> None:
    world = ActionWorld()
    struck(world)
    person, name = client(world), world.actions()[0].action_id
    person.call("action_deny", id=name)
    with pytest.raises(EngineRefusedError, match="cancel has no effect on an action that is refused"):
        person.call("action_cancel", id=name)
    with pytest.raises(EngineRefusedError, match="no action has the id"):
        person.call("action_show", id="zzz")
    with pytest.raises(FieldError, match="token-file"):
        client(world, is_operator=False).call("action_cancel", id=name)


def test_a_controller_that_is_away_is_told() -> None:
    world = ActionWorld()
    struck(world)
    person, name = client(world), world.actions()[0].action_id
    world.seats.holder = None
    world.run = lambda *_, **__: None  # type: ignore[method-assign]
    with pytest.raises(EngineAbsentError, match="no controller runs"):
        person.call("action_cancel", id=name)


def test_what_no_known_controller_signed_is_not_shown() -> None:
    world = ActionWorld()
    struck(world)
    log = world.seats.log[ACTIONS]
    world.seats.write(ACTIONS, log[-1].value or b"", log[-1].key or b"")
    del log[:-1]
    assert client(world).call("actions_list", everything=True)["actions"] == []
