"""An action that the drill signs with a key of its own: the job controller must not obey it."""

from __future__ import annotations

import contextlib
import http.client
import json
import time
from typing import Final

from tocsin.cli.drill.act.settings import JOB_ID
from tocsin.cli.drill.launcher import CLUSTER
from tocsin.pipeline.actions.executors.job_controller import PATH, SIGNATURE_HEADER
from tocsin.pipeline.identity.action_signatures import ActionSigner
from tocsin.pipeline.identity.message_signatures import new_signing_key
from tocsin.schemas.action_codec import encode_action
from tocsin.schemas.action_states import ActionState
from tocsin.schemas.actions import Action, ActionTarget, Machine, action_id_of
from tocsin.schemas.credentials import Role
from tocsin.schemas.job_key import JobKey
from tocsin.schemas.records import NS_PER_SECOND
from tocsin.schemas.verdicts import ActionKind

_VALID_NS: Final = 600 * NS_PER_SECOND
_ANSWER_SECONDS: Final = 5.0


def forged_restart(host: str, now_ns: int) -> Action:
    """Return a restart of the drill's job that nobody decided, as if an executor had begun it.

    Args:
        host: host of the rank to blame.
        now_ns: the present.
    """
    target = ActionTarget(JobKey(CLUSTER, JOB_ID, 0), None, (Machine(host),))
    return Action(
        action_id=action_id_of("forged", ActionKind.RESTART, target),
        verdict_id="forged",
        verdict_update=0,
        kind=ActionKind.RESTART,
        target=target,
        cause="process_frozen",
        rule="process_is_named",
        budget_class="process_frozen",
        issued_ns=now_ns,
        deadline_ns=now_ns + _VALID_NS,
        state=ActionState.STARTED,
        reason="started",
        changed_ns=now_ns,
        holder="forger",
        lease_ns=now_ns + _VALID_NS,
    )


def answer_to_forgery(port: int, host: str) -> str:
    """Post a forged restart to a job controller on this machine; return the reason of its refusal, "" if it took it.

    Args:
        port: where the job controller listens.
        host: host of the rank to blame.
    """
    now_ns = time.time_ns()
    value = encode_action(forged_restart(host, now_ns))
    key = new_signing_key(Role.CONTROLLER, "forger", now_ns)
    header = {SIGNATURE_HEADER: ActionSigner(key).header(value).decode()}
    with contextlib.closing(http.client.HTTPConnection("127.0.0.1", port, timeout=_ANSWER_SECONDS)) as connection:
        connection.request("POST", PATH, value, header)
        answer = connection.getresponse()
        found = json.loads(answer.read())
    return "" if answer.status == http.HTTPStatus.OK else str(found.get("reason") or answer.status)
