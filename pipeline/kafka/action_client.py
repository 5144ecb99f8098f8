"""Asks about actions over Kafka, as a person does: reads the topic of actions, and says a signed word about one."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final

from tocsin.pipeline.actions.reasons import ActionReason
from tocsin.pipeline.identity.action_signatures import AckSigner, ActionChecker, actor_of
from tocsin.pipeline.kafka.action_exchange import ActionLine, KafkaExchange
from tocsin.pipeline.runtime.embedded.control_socket import EngineAbsentError, EngineRefusedError
from tocsin.schemas.action_codec import decode_action, encode_event
from tocsin.schemas.action_events import Approval, Cancel, Denial
from tocsin.schemas.action_states import FINAL_STATES, ActionState
from tocsin.schemas.actions import Action
from tocsin.schemas.errors import FieldError, IdentityError, SchemaError
from tocsin.schemas.operator_notes import check_note
from tocsin.schemas.plain_objects import plain_object
from tocsin.schemas.verdicts import ActionKind
from tocsin.schemas.wire.validate import check_name

ANSWER_SECONDS: Final = 20.0
"""How long an effect is waited for; a controller that takes over needs up to ten."""
_LOOK_SECONDS: Final = 0.25
_MAX_SHOWN: Final = 1000
_COMMANDS: Final[Mapping[str, type[Approval | Denial | Cancel]]] = {
    "action_approve": Approval,
    "action_deny": Denial,
    "action_cancel": Cancel,
}
Answer = dict[str, Any]


class ActionClient:
    """Answers what an engine's control socket is asked about actions, from the topics."""

    def __init__(
        self,
        exchange: KafkaExchange,
        signer: AckSigner | None,
        checker: ActionChecker | None,
        *,
        answer_seconds: float = ANSWER_SECONDS,
        clock_ns: Callable[[], int] = time.time_ns,
    ) -> None:
        """Prepare; nothing is connected yet.

        Args:
            exchange: reads and writes the topics.
            signer: signs commands with an operator's key pair; None: nothing can be said.
            checker: checks actions against the controllers' keys; None: every writer of the topic is believed.
            answer_seconds: how long an effect is waited for.
            clock_ns: Unix time in nanoseconds.
        """
        self._exchange = exchange
        self._signer = signer
        self._checker = checker
        self._answer_seconds = answer_seconds
        self._clock_ns = clock_ns

    def call(self, cmd: str, **args: Any) -> Answer:
        """Answer ``actions_list``, ``action_show``, ``action_approve``, ``action_deny`` or ``action_cancel``.

        Raises:
            EngineRefusedError: no action, or several, have the id, or a word has no effect.
            EngineAbsentError: no controller took it in time.
            EngineError: a topic is missing, or the broker refuses.
            FieldError: a value is wrong.
        """
        actions = self._actions(self._exchange.fetch())
        if cmd == "actions_list":
            return _listed(actions, is_all=args.get("everything") is True)
        action = _found(actions, check_name(args.get("id"), "id"))
        if cmd == "action_show":
            return {"action": plain_object(action), "history": [plain_object(one) for one in self._history(action)]}
        return {"action": plain_object(self._say(cmd, action, check_note(args.get("note", ""), "note", empty=True)))}

    def _actions(self, lines: Sequence[ActionLine]) -> list[Action]:
        """Return the actions of lines that can be believed; of one action the highest epoch and revision counts."""
        newest: dict[str, Action] = {}
        for one in self._read(lines):
            known = newest.get(one.action_id)
            if known is None or (known.epoch, known.revision) <= (one.epoch, one.revision):
                newest[one.action_id] = one
        return sorted(newest.values(), key=lambda one: (one.issued_ns, one.action_id))

    def _read(self, lines: Sequence[ActionLine]) -> list[Action]:
        found = []
        for line in lines:
            try:
                if self._checker is None:
                    found.append(decode_action(line.value))
                else:
                    found.append(self._checker.admit(line.value, line.signature or None, self._clock_ns()))
            except (SchemaError, IdentityError):
                continue
        return found

    def _history(self, action: Action) -> list[Action]:
        """Return the changes of an action that the compacted topic still has, oldest first."""
        own = [one for one in self._read(self._exchange.changes()) if one.action_id == action.action_id]
        return sorted(own, key=lambda one: (one.epoch, one.revision))

    def _say(self, cmd: str, action: Action, note: str) -> Action:
        """Say a word about an action, and return the action as it is after it."""
        if self._signer is None:
            raise FieldError("--token-file", "", "a key pair of role operator (tocsin token issue)")
        actor = actor_of(self._signer.credential)
        said = _COMMANDS[cmd](action.target.job.cluster, action.action_id, actor, self._clock_ns(), note)
        value, seq = encode_event(said), 0
        self._exchange.send([(value, self._signer.header(value))], action.action_id)
        until = time.monotonic() + self._answer_seconds
        while time.monotonic() < until:
            lines = self._exchange.fetch(seq)
            for one in self._actions(lines):
                is_later = (one.epoch, one.revision) > (action.epoch, action.revision)
                if one.action_id == action.action_id and is_later and one.actor == actor:
                    return one
            seq = lines[-1].seq if lines else seq
            time.sleep(_LOOK_SECONDS)
        if action.state in FINAL_STATES:
            text = f"{cmd.removeprefix('action_')} has no effect on an action that is {action.state.value}"
            raise EngineRefusedError(f"{text} ({action.reason})", "no_effect")
        text = f"the action did not change within {self._answer_seconds:g} s: no controller runs, or it does not count"
        raise EngineAbsentError(f"{text} (see the topic dead-letter and tocsin_action_messages_left_out_total)")


def _listed(actions: Sequence[Action], *, is_all: bool) -> Answer:
    """Return the newest actions; unless all are asked for, without pages and what is over."""
    shown = [one for one in actions if is_all or (one.state not in FINAL_STATES and one.kind is not ActionKind.NOTIFY)]
    is_dry_run = any(one.state is ActionState.PROPOSED and one.reason == ActionReason.DRY_RUN.value for one in shown)
    return {"actions": [plain_object(one) for one in shown[-_MAX_SHOWN:]], "is_dry_run": is_dry_run}


def _found(actions: Sequence[Action], wanted: str) -> Action:
    """Return the action that an id or its beginning means; raise ``EngineRefusedError`` for none or several."""
    found = [one for one in actions if one.action_id.startswith(wanted)]
    if not found:
        raise EngineRefusedError(f"no action has the id {wanted[:40]!r}", "not_found")
    if len(found) > 1:
        several = ", ".join(one.action_id for one in found[:8])
        raise EngineRefusedError(f"{wanted[:40]!r} begins {several}", "ambiguous")
    return found[0]
