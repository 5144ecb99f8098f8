"""Connects the controller of actions with an engine that has not started."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from tocsin.pipeline.actions.config import ControllerConfig
from tocsin.pipeline.actions.controller import ActionController
from tocsin.pipeline.actions.life import LeftOutMessage
from tocsin.pipeline.actions.policy.config import Policy
from tocsin.pipeline.actions.policy.ladder import PolicyLadder
from tocsin.pipeline.identity.action_signatures import AckChecker, ActionSigner
from tocsin.pipeline.runtime.embedded.actions.action_follower import ActionFollower, ActionHooks
from tocsin.pipeline.runtime.embedded.actions.action_log import FILE_NAME, ActionLog
from tocsin.pipeline.runtime.embedded.actions.action_requests import ActionRequests
from tocsin.pipeline.runtime.embedded.actions.action_rows import change_of
from tocsin.pipeline.runtime.embedded.actions.engine_facts import EngineFacts
from tocsin.pipeline.runtime.embedded.dead_letters import DEAD_LETTERS, DeadLetter
from tocsin.pipeline.runtime.embedded.note_follower import NoteFollower
from tocsin.pipeline.runtime.embedded.operator_requests import answerers_of
from tocsin.pipeline.runtime.embedded.store_writer import Write
from tocsin.pipeline.stores.base import ActionChange
from tocsin.schemas.action_codec import encode_ack, encode_event
from tocsin.schemas.action_events import Ack, ActionEvent, JobFacts, MachineFacts
from tocsin.schemas.actions import Action
from tocsin.schemas.credentials import Credential
from tocsin.schemas.operator_notes import Feedback, Maintenance, OperatorNote

if TYPE_CHECKING:
    from tocsin.pipeline.runtime.embedded.service import EngineService


@dataclass(frozen=True, slots=True)
class ActionSettings:
    """With what the controller of an engine works.

    Attributes:
        policy: what is done about which verdict.
        config: settings of the controller.
        signing_key: the private key of role ``controller``.
        credentials: returns the credentials of now, of which executors' keys are used.
        on_change: is given each change of an action that is no dry run, in the ticking thread.
        facts: returns what agents and ranks told of machines and jobs, with any time.
    """

    policy: Policy
    config: ControllerConfig
    signing_key: Credential
    credentials: Callable[[], Sequence[Credential]]
    on_change: Callable[[ActionChange], None] = lambda _change: None
    facts: Callable[[], Iterable[MachineFacts | JobFacts]] = lambda: ()


def attach_actions(
    service: EngineService, folder: Path, notes: NoteFollower, settings: ActionSettings
) -> ActionFollower:
    """Attach the controller of actions to an engine that has not started, and return what drives it.

    Attach it after what adds verdicts. Unless it is a dry run, its rows take the place of the engine's proposals in
    the table ``actions``.

    Args:
        service: the engine.
        folder: folder of the log.
        notes: people's notes; the controller gets each.
        settings: with what it works.

    Raises:
        ConfigError: the log cannot be used.
        FieldError: the key is no private key of role ``controller``.
        SnapshotError: the log's state cannot be read.
    """
    clock_ns = service.time.now_ns
    hooks = _hooks_of(service, settings)
    controller = ActionController(settings.config, PolicyLadder(settings.policy))
    follower = ActionFollower(
        controller, ActionLog(folder / FILE_NAME), ActionSigner(settings.signing_key), clock_ns, hooks
    )
    service.memory.proposals.is_replaced = not settings.config.is_dry_run

    def take_note(note: OperatorNote) -> None:
        if isinstance(note, Feedback | Maintenance):
            follower.tell(note)

    notes.listeners.append(take_note)
    requests = ActionRequests(follower, lambda: AckChecker(settings.credentials()), clock_ns, service.dead_letters.put)
    _allow(service, follower, requests)
    service.engine.taps.append(follower.tap)
    service.attach(follower)
    return follower


def _hooks_of(service: EngineService, settings: ActionSettings) -> ActionHooks:
    """Return what the controller asks the engine, and where it puts rows and dead letters."""
    clock_ns = service.time.now_ns
    is_dry_run = settings.config.is_dry_run

    def on_changes(actions: Sequence[Action]) -> None:
        if not is_dry_run:
            rows = tuple(change_of(one, is_dry_run=is_dry_run) for one in actions)
            service.writer.put(Write(actions=rows, action_changes=tuple(actions)))
            for row in rows:
                settings.on_change(row)

    def on_ack(ack: Ack) -> None:
        if not is_dry_run:
            service.writer.put(Write(action_acks=(ack,)))

    def on_left_out(message: Ack | ActionEvent, why: LeftOutMessage) -> None:
        value = encode_ack(message) if isinstance(message, Ack) else encode_event(message)
        who = message.executor if isinstance(message, Ack) else ""
        service.dead_letters.put(DEAD_LETTERS, DeadLetter(clock_ns(), who, why.reason.value, why.what, value))

    engine = service.engine
    return ActionHooks(
        lambda: {job.cluster for job in engine.jobs()},
        EngineFacts(engine, settings.facts).changed,
        on_changes,
        on_ack,
        on_left_out,
        service.memory.proposals.is_settled,
    )


def _allow(service: EngineService, follower: ActionFollower, requests: ActionRequests) -> None:
    """Let people ask on the control socket, and operators and executors on the listener."""
    asking, changing = requests.asking(), requests.changing()
    follower.requests = {**asking, **changing}
    readers = service.server.readers
    readers.answerers = {**readers.answerers, **answerers_of(asking)}
    readers.changers = {**readers.changers, **answerers_of(changing)}
    readers.for_executors = {**readers.for_executors, **answerers_of(requests.for_executors())}
