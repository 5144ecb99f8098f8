"""What somebody who signed in may say."""

from __future__ import annotations

from dataclasses import replace

import pytest

from tocsin.pipeline.identity.principal import BY_SECRET, BY_SIGNATURE, WAYS, Principal
from tocsin.pipeline.incidents.closing import close_event
from tocsin.schemas.credentials import Role, new_credential
from tocsin.schemas.errors import IdentityError
from tocsin.schemas.model_announcement import withdrawal
from tocsin.schemas.reasons import IdentityRefusal as Why
from tocsin.schemas.records import Event, EventSource, JobKey, Severity, Tick

EVENT = Event(JobKey("c", "j"), "n0", 1, 0, EventSource.PROCESS, "nan", Severity.INFO)
SCHEDULED = replace(EVENT, source=EventSource.SCHEDULER, host="n5")


def _reason(principal: Principal, record: object) -> str:
    try:
        principal.check(record)  # type: ignore[arg-type]
    except IdentityError as error:
        return error.reason
    return ""


CLOSING = close_event(JobKey("c", "j"), "v1", "seen", "uid:0", 1)


@pytest.mark.parametrize("by", WAYS)
@pytest.mark.parametrize("role", list(Role))
def test_only_a_recording_s_player_repeats_what_the_control_socket_said(role: Role, by: str) -> None:
    allowed = "" if role is Role.PLAYER else Why.CLOSE_REFUSED
    assert _reason(Principal("n0", role, by), CLOSING) == allowed
    assert _reason(Principal(CLOSING.host, role, by), CLOSING) == allowed


def test_an_operator_closes_with_a_signature_and_in_the_own_name_only() -> None:
    ann = new_credential(Role.OPERATOR, "ann", 1)
    own = close_event(JobKey("c", "j"), "v1", "seen", "operator:ann", 1)
    assert _reason(Principal("ann", Role.OPERATOR, BY_SIGNATURE, ann), own) == ""
    assert _reason(Principal("ann", Role.OPERATOR, BY_SIGNATURE, ann), CLOSING) == Why.CLOSE_REFUSED
    assert _reason(Principal("ann", Role.OPERATOR, BY_SECRET, ann), own) == Why.CLOSE_REFUSED
    reader = new_credential(Role.READER, "ann", 1)
    named = close_event(JobKey("c", "j"), "v1", "seen", "reader:ann", 1)
    assert _reason(Principal("ann", Role.READER, BY_SIGNATURE, reader), named) == Why.CLOSE_REFUSED


_SILENT = {Role.READER, Role.EXECUTOR, Role.CHECKER, Role.CONTROLLER}


@pytest.mark.parametrize(
    ("role", "own", "foreign", "scheduled", "model"),
    [
        (Role.AGENT, "", Why.RECORD_HOST, Why.ROLE_REFUSED, Why.MODEL_REFUSED),
        (Role.PLAYER, "", "", "", Why.MODEL_REFUSED),
        (Role.SCHEDULER, Why.ROLE_REFUSED, Why.ROLE_REFUSED, "", Why.MODEL_REFUSED),
        (Role.READER, Why.ROLE_REFUSED, Why.ROLE_REFUSED, Why.ROLE_REFUSED, Why.MODEL_REFUSED),
        (Role.EXECUTOR, Why.ROLE_REFUSED, Why.ROLE_REFUSED, Why.ROLE_REFUSED, Why.MODEL_REFUSED),
        (Role.CHECKER, Why.ROLE_REFUSED, Why.ROLE_REFUSED, Why.ROLE_REFUSED, Why.MODEL_REFUSED),
        (Role.CONTROLLER, Why.ROLE_REFUSED, Why.ROLE_REFUSED, Why.ROLE_REFUSED, Why.MODEL_REFUSED),
    ],
)
def test_what_each_role_may_say(role: Role, own: str, foreign: str, scheduled: str, model: str) -> None:
    principal = Principal("n0", role)
    said = (EVENT, replace(EVENT, host="n5"), SCHEDULED, withdrawal("peers", 1))
    assert [_reason(principal, record) for record in said] == [own, foreign, scheduled, model]
    assert _reason(principal, Tick(1)) == (Why.ROLE_REFUSED if role in _SILENT else "")
