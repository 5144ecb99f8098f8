"""A controller inside an engine, driven by hand: its log in a folder, a clock, an executor and a person."""

from __future__ import annotations

import base64
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tests.pipeline.actions.kit import CLUSTER, KINDS, LIVE, T0, ScriptedLadder
from tocsin.pipeline.actions.config import ControllerConfig
from tocsin.pipeline.actions.controller import ActionController
from tocsin.pipeline.actions.ladder import Ladder
from tocsin.pipeline.identity.action_signatures import AckChecker, AckSigner, ActionChecker, ActionSigner
from tocsin.pipeline.identity.message_signatures import new_signing_key, public_half
from tocsin.pipeline.runtime.embedded.actions.action_follower import ActionFollower, ActionHooks
from tocsin.pipeline.runtime.embedded.actions.action_log import ActionLog
from tocsin.pipeline.runtime.embedded.actions.action_requests import ActionRequests
from tocsin.pipeline.runtime.embedded.control_socket import ACTOR, Message
from tocsin.pipeline.runtime.embedded.dead_letters import DeadLetter
from tocsin.schemas.action_codec import encode_ack, encode_event
from tocsin.schemas.action_events import Ack, ActionEvent, ExecutorHeard
from tocsin.schemas.actions import Action
from tocsin.schemas.credentials import Role
from tocsin.schemas.records import NS_PER_SECOND
from tocsin.schemas.verdicts import ActionKind, Verdict

CONTROLLER_KEY = new_signing_key(Role.CONTROLLER, "engine", 1)
EXECUTOR_KEY = new_signing_key(Role.EXECUTOR, "slurm", 1)
OTHER_KEY = new_signing_key(Role.EXECUTOR, "other", 1)
SCHEDULER_KEY = new_signing_key(Role.SCHEDULER, "launcher", 1)
CHECKER_KEY = new_signing_key(Role.CHECKER, "n1", 1)
PUBLIC = [public_half(one) for one in (CONTROLLER_KEY, EXECUTOR_KEY, OTHER_KEY, SCHEDULER_KEY, CHECKER_KEY)]


@dataclass
class Acting:
    """One engine's life; a second object on the same folder is the life after a restart.

    Attributes:
        folder: folder of the log.
        config: settings of the controller.
        now_ns: the present time.
        is_settled: whether the engine has judged for long enough.
        ladder: the policy.
        rows: changes that were told for the database.
        letters: dead letters.
        acks: executors' messages that had an effect.
        left_out: reasons of messages without effect.
    """

    folder: Path
    config: ControllerConfig = LIVE
    now_ns: int = T0
    is_settled: bool = True
    ladder: Ladder = field(default_factory=ScriptedLadder)
    rows: list[Action] = field(default_factory=list)
    letters: list[DeadLetter] = field(default_factory=list)
    acks: list[Ack] = field(default_factory=list)
    left_out: list[str] = field(default_factory=list)

    def __post_init__(self) -> None:
        """Open the log and start."""
        hooks = ActionHooks(
            lambda: {CLUSTER},
            lambda _: (),
            self.rows.extend,
            self.acks.append,
            lambda _, why: self.left_out.append(why.reason.value),
            lambda _: self.is_settled,
        )
        controller = ActionController(self.config, self.ladder)
        self.log = ActionLog(self.folder / "actions.db")
        self.follower = ActionFollower(controller, self.log, ActionSigner(CONTROLLER_KEY), lambda: self.now_ns, hooks)
        self.requests = ActionRequests(
            self.follower, lambda: AckChecker(PUBLIC), lambda: self.now_ns, lambda _, one: self.letters.append(one)
        )
        self.follower.start()

    def tick(self, *verdicts: Verdict, seconds: float = 1.0, tick_ns: int | None = None) -> None:
        """Let time pass, and give the verdicts of one tick."""
        self.now_ns += int(seconds * NS_PER_SECOND)
        self.follower.on_verdicts(verdicts, self.now_ns if tick_ns is None else tick_ns)

    def executor_lives(self) -> None:
        """An executor that can do everything says that it lives."""
        self.exchange(ExecutorHeard(CLUSTER, "slurm", KINDS, self.now_ns))
        self.tick()

    def exchange(self, *told: Ack | ActionEvent, after: int = 0, key: Any = EXECUTOR_KEY) -> Message:
        """The executor ``slurm`` sends messages, signed with a key, and asks for actions."""
        signer = AckSigner(key)
        values = [encode_ack(one) if isinstance(one, Ack) else encode_event(one) for one in told]
        messages = [
            {"value": base64.b64encode(one).decode(), "signature": base64.b64encode(signer.header(one)).decode()}
            for one in values
        ]
        request = {"executor": "slurm", "after": after, "messages": messages, ACTOR: "executor:slurm"}
        answer = self.requests.for_executors()["executor_exchange"](request)
        assert isinstance(answer, dict)
        return answer

    def fetched(self, after: int = 0) -> list[Action]:
        """Return the actions, without pages, that the executor gets, after checking their signatures."""
        checker = ActionChecker(PUBLIC)
        found = [
            checker.admit(base64.b64decode(one["value"]), base64.b64decode(one["signature"]), self.now_ns)
            for one in self.exchange(after=after)["actions"]
        ]
        return [one for one in found if one.kind is not ActionKind.NOTIFY]

    def states(self) -> Sequence[tuple[str, str, str]]:
        """Return kind, state and reason of all actions that are no pages."""
        return [(one.kind.value, one.state.value, one.reason) for one in self.wanted()]

    def wanted(self) -> tuple[Action, ...]:
        """Return the actions that are no pages."""
        return tuple(one for one in self.follower.shown if one.kind is not ActionKind.NOTIFY)

    def close(self) -> None:
        """End in order."""
        self.follower.close()
