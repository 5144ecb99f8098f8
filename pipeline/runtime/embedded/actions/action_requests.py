"""Who may ask about actions and how: people on the control socket or as operators, and executors on the listener."""

from __future__ import annotations

import base64
import logging
from collections.abc import Callable, Mapping
from typing import Any, Final

from tocsin.pipeline.identity.action_signatures import AckChecker
from tocsin.pipeline.runtime.embedded.actions.action_follower import ActionFollower
from tocsin.pipeline.runtime.embedded.actions.action_log import LogLine
from tocsin.pipeline.runtime.embedded.control_socket import ACTOR, EngineRefusedError, Handler, Message
from tocsin.pipeline.runtime.embedded.dead_letters import DEAD_LETTERS, DeadLetter
from tocsin.schemas.action_codec import decode_action
from tocsin.schemas.action_events import Approval, Cancel, Command, Denial
from tocsin.schemas.action_states import FINAL_STATES
from tocsin.schemas.actions import Action
from tocsin.schemas.errors import FieldError, IdentityError, SchemaError
from tocsin.schemas.operator_notes import check_note
from tocsin.schemas.plain_objects import plain_object
from tocsin.schemas.verdicts import ActionKind
from tocsin.schemas.wire.validate import INT64_MAX, check_int, check_name

_LOG = logging.getLogger("tocsin.actions")
_TAKEN_SECONDS: Final = 5.0
"""How long a request waits until the controller has taken it."""
_MAX_MESSAGES: Final = 100
_MAX_SHOWN: Final = 1000
_COMMANDS: Final[Mapping[str, type[Approval | Denial | Cancel]]] = {
    "action_approve": Approval,
    "action_deny": Denial,
    "action_cancel": Cancel,
}


class ActionRequests:
    """Answers requests about the actions of one engine, from any thread."""

    def __init__(
        self,
        follower: ActionFollower,
        checker: Callable[[], AckChecker],
        clock_ns: Callable[[], int],
        dead_letter: Callable[[str, DeadLetter], None],
    ) -> None:
        """Answer for a follower.

        Args:
            follower: has the controller and its log.
            checker: returns what checks the signatures of executors, with the credentials of now.
            clock_ns: returns the present time.
            dead_letter: keeps what has no effect because of its signature or form.
        """
        self._follower = follower
        self._checker = checker
        self._clock_ns = clock_ns
        self._dead_letter = dead_letter

    def asking(self) -> dict[str, Handler]:
        """Return the requests that change nothing, by name: ``actions_list`` and ``action_show``."""
        return {"actions_list": self._list, "action_show": self._show}

    def changing(self) -> dict[str, Handler]:
        """Return the requests of people that change something: approve, deny, cancel."""
        return {name: self._commander(name) for name in _COMMANDS}

    def for_executors(self) -> dict[str, Handler]:
        """Return the one request of executors."""
        return {"executor_exchange": self._exchange}

    def _list(self, request: Message) -> Message:
        """Return the newest actions: ``everything`` in (false: without pages and what is over), ``actions`` out."""
        is_all = request.get("everything") is True
        shown = [
            one
            for one in self._follower.shown
            if is_all or (one.state not in FINAL_STATES and one.kind is not ActionKind.NOTIFY)
        ]
        return {
            "actions": [plain_object(one) for one in shown[-_MAX_SHOWN:]],
            "is_dry_run": self._follower.controller.config.is_dry_run,
        }

    def _show(self, request: Message) -> Message:
        """Return one action and its history: ``id``, or its beginning, in."""
        action = self._find(request)
        lines = self._follower.log.history(action.action_id)
        return {"action": plain_object(action), "history": [plain_object(decode_action(one.value)) for one in lines]}

    def _commander(self, name: str) -> Handler:
        """Return the handler of a command: ``id`` and ``note`` in, the action as it is after it out."""

        def answer(request: Message) -> Message:
            action = self._find(request)
            note = check_note(request.get("note", ""), "note", empty=True)
            cluster = action.target.job.cluster
            said: Command = _COMMANDS[name](cluster, action.action_id, str(request[ACTOR]), self._clock_ns(), note)
            before = self._follower.left_out
            if not self._follower.tell(said).wait(_TAKEN_SECONDS):
                raise EngineRefusedError("the controller has not taken it yet: see 'tocsin actions show'", "busy")
            after = self._find({"id": action.action_id})
            if after.revision == action.revision:
                counts = self._follower.left_out
                reasons = [one for one, count in counts.items() if count > before.get(one, 0)]
                text = f"{name.removeprefix('action_')} has no effect on an action that is {after.state.value}"
                raise EngineRefusedError(f"{text} ({', '.join(reasons) or after.reason})", "no_effect")
            return {"action": plain_object(after)}

        return answer

    def _find(self, request: Message) -> Action:
        """Return the action that an id or its beginning means; raise ``EngineRefusedError`` for none or several."""
        wanted = check_name(request.get("id"), "id")
        found = [one for one in self._follower.shown if one.action_id.startswith(wanted)]
        if not found:
            raise EngineRefusedError(f"no action has the id {wanted[:40]!r}", "not_found")
        if len(found) > 1:
            several = ", ".join(one.action_id for one in found[:8])
            raise EngineRefusedError(f"{wanted[:40]!r} begins {several}", "ambiguous")
        return found[0]

    def _exchange(self, request: Message) -> Message:
        """Take an executor's signed messages and return the actions that changed since it asked last.

        In: ``executor``, the name in which its credential speaks, ``after`` (place in the log) and ``messages``
        (``value`` and ``signature``, both base64). Out: ``actions`` (``seq``, ``value``, ``signature``), ``seq``, and
        the reasons of the ``refused`` messages.
        """
        executor = check_name(request.get("executor"), "executor")
        if str(request[ACTOR]).removeprefix("executor:") != executor:
            raise EngineRefusedError(f"{request[ACTOR]} speaks for itself only, not for {executor[:80]!r}", "not_yours")
        after = check_int(request.get("after", 0), "after", 0, INT64_MAX)
        messages = request.get("messages", [])
        if not isinstance(messages, list) or len(messages) > _MAX_MESSAGES:
            raise FieldError("messages", messages, f"a list of at most {_MAX_MESSAGES}")
        refused = [one for one in (self._take(message, executor) for message in messages) if one]
        lines = self._follower.log.after(after)
        return {"actions": [_shown(one) for one in lines], "seq": lines[-1].seq if lines else after, "refused": refused}

    def _take(self, message: object, executor: str) -> str:
        """Take one signed message; return why it has no effect, "" if it has."""
        value, signature = b"", b""
        try:
            value, signature = _bytes_of(message, "value"), _bytes_of(message, "signature")
            told = self._checker().admit(value, signature or None, self._clock_ns())
        except (IdentityError, SchemaError) as error:
            _LOG.warning("a message about an action is refused", extra={"reason": error.reason, "executor": executor})
            letter = DeadLetter(self._clock_ns(), executor, error.reason, str(error), value)
            self._dead_letter(DEAD_LETTERS, letter)
            return error.reason
        self._follower.tell(told)
        return ""


def _shown(line: LogLine) -> dict[str, Any]:
    return {
        "seq": line.seq,
        "value": base64.b64encode(line.value).decode(),
        "signature": base64.b64encode(line.signature).decode(),
    }


def _bytes_of(message: object, name: str) -> bytes:
    """Return a field of bytes; raise ``FieldError`` if it is none."""
    found = message.get(name) if isinstance(message, dict) else None
    if not isinstance(found, str):
        raise FieldError(name, found, "text in base64")
    try:
        return base64.b64decode(found, validate=True)
    except ValueError as error:
        raise FieldError(name, found[:40], "text in base64") from error
