"""Signatures of actions and acks: who may say what, and in whose name."""

from __future__ import annotations

from dataclasses import replace

import pytest

from tests.schemas.test_action_codec import ACK, ACTION
from tocsin.pipeline.identity.action_signatures import AckChecker, AckSigner, ActionChecker, ActionSigner, actor_of
from tocsin.pipeline.identity.message_signatures import new_signing_key, public_half
from tocsin.pipeline.identity.verdict_signatures import VerdictSigner
from tocsin.schemas.action_codec import encode_ack, encode_action, encode_event
from tocsin.schemas.action_events import (
    Ack,
    ActionEvent,
    Approval,
    CheckResult,
    EngineHeartbeat,
    EngineWay,
    ExecutorHeard,
    MachineFacts,
)
from tocsin.schemas.credentials import Credential, Role
from tocsin.schemas.errors import FieldError, IdentityError, SchemaError
from tocsin.schemas.reasons import IdentityRefusal as Why
from tocsin.schemas.verdicts import ActionKind

NOW = 1_800_000_000_000_000_000
ENGINE = new_signing_key(Role.ENGINE, "engine", NOW)
CONTROLLER = new_signing_key(Role.CONTROLLER, "controller", NOW)
SLURM = new_signing_key(Role.EXECUTOR, "slurm", NOW)
KUBE = new_signing_key(Role.EXECUTOR, "kube", NOW)
ANN = new_signing_key(Role.OPERATOR, "ann", NOW)
AGENT = new_signing_key(Role.AGENT, "n1", NOW)
N1 = new_signing_key(Role.CHECKER, "n1", NOW)
ANY_HOST = new_signing_key(Role.CHECKER, "*", NOW)
KEYS = [public_half(one) for one in (ENGINE, CONTROLLER, SLURM, KUBE, ANN, AGENT, N1, ANY_HOST)]
ACKS, ACTIONS = AckChecker(KEYS), ActionChecker(KEYS)
PROBE = (ActionKind.PROBE,)
OWN = ExecutorHeard("c", "checker:n1", PROBE, NOW, ("n1",))
APPROVAL = Approval("c", ACTION.action_id, "operator:ann", NOW)


def wire(told: Ack | ActionEvent) -> bytes:
    """The bytes of an ack or an event."""
    return encode_ack(told) if isinstance(told, Ack) else encode_event(told)


def why(told: Ack | ActionEvent, signer: Credential) -> str:
    """The reason for which a message is refused, "" if it is admitted."""
    value = wire(told)
    try:
        assert ACKS.admit(value, AckSigner(signer).header(value), NOW) == told
    except IdentityError as error:
        return error.reason
    return ""


def test_an_action_of_the_controller_is_admitted_and_of_nobody_else() -> None:
    value = encode_action(ACTION)

    assert ACTIONS.admit(value, ActionSigner(CONTROLLER).header(value), NOW) == ACTION
    for header in (None, AckSigner(SLURM).header(value), VerdictSigner(ENGINE).header(value), b"x"):
        with pytest.raises(IdentityError):
            ACTIONS.admit(value, header, NOW)
    with pytest.raises(FieldError, match="of role controller"):
        ActionSigner(SLURM)


@pytest.mark.parametrize(
    ("told", "signer", "reason"),
    [
        (ACK, SLURM, ""),
        (ACK, KUBE, Why.HELLO_HOST),
        (ACK, ANN, Why.ROLE_REFUSED),
        (ACK, ENGINE, Why.ROLE_REFUSED),
        (ExecutorHeard("c", "kube", (), NOW), KUBE, ""),
        (ExecutorHeard("c", "kube", (), NOW), SLURM, Why.HELLO_HOST),
        (OWN, N1, ""),
        (replace(OWN, executor="checker:n2", hosts=("n2",)), N1, Why.HELLO_HOST),
        (replace(OWN, executor="n1"), N1, Why.HELLO_HOST),
        (replace(OWN, hosts=("n2",)), N1, Why.HELLO_HOST),
        (replace(OWN, hosts=()), N1, Why.ROLE_REFUSED),
        (replace(OWN, hosts=("n1", "n2")), N1, Why.ROLE_REFUSED),
        (replace(OWN, kinds=(ActionKind.PROBE, ActionKind.EVICT)), N1, Why.ROLE_REFUSED),
        (OWN, ANY_HOST, Why.HELLO_HOST),
        (replace(ACK, executor="checker:n1"), N1, ""),
        (replace(ACK, executor="checker:n1"), SLURM, Why.HELLO_HOST),
        (replace(ACK, executor="n1"), N1, Why.HELLO_HOST),
        (ACK, N1, Why.HELLO_HOST),
        (CheckResult("c", "n1", "", "burn", is_passed=True, is_under_load=True, ts_ns=NOW), N1, ""),
        (CheckResult("c", "n2", "", "burn", is_passed=True, is_under_load=True, ts_ns=NOW), N1, Why.HELLO_HOST),
        (MachineFacts("c", "n1", NOW), N1, Why.ROLE_REFUSED),
        (APPROVAL, ANN, ""),
        (APPROVAL, SLURM, Why.ROLE_REFUSED),
        (replace(APPROVAL, actor="operator:bob"), ANN, Why.HELLO_HOST),
        (replace(APPROVAL, actor="uid:0"), ANN, Why.HELLO_HOST),
        (MachineFacts("c", "n1", NOW), AGENT, ""),
        (MachineFacts("c", "n2", NOW), AGENT, Why.HELLO_HOST),
        (MachineFacts("c", "n2", NOW), SLURM, ""),
        (EngineHeartbeat("c", EngineWay.FLINK, NOW), ENGINE, ""),
        (EngineHeartbeat("c", EngineWay.FLINK, NOW), AGENT, Why.ROLE_REFUSED),
    ],
)
def test_who_may_say_what(told: Ack | ActionEvent, signer: Credential, reason: str) -> None:
    assert why(told, signer) == reason


def test_what_is_unsigned_forged_or_of_a_revoked_key_is_refused() -> None:
    value = encode_ack(ACK)
    header = AckSigner(SLURM).header(value)
    forged = AckSigner(replace(KUBE, key_id=SLURM.key_id)).header(value)
    revoked = AckChecker([replace(public_half(SLURM), revoked_ns=NOW)])

    for checker, data, said, reason in (
        (ACKS, value, None, Why.UNSIGNED),
        (ACKS, value, forged, Why.BAD_SIGNATURE),
        (ACKS, value + b" ", header, Why.BAD_SIGNATURE),
        (AckChecker([]), value, header, Why.UNKNOWN_KEY),
        (revoked, value, header, Why.KEY_REVOKED),
    ):
        with pytest.raises(IdentityError) as caught:
            checker.admit(data, said, NOW)
        assert caught.value.reason == reason


def test_signed_noise_is_refused_by_its_schema() -> None:
    with pytest.raises(SchemaError):
        ACKS.admit(b"{}", AckSigner(SLURM).header(b"{}"), NOW)


def test_the_actor_of_a_command_is_the_holder_of_its_key() -> None:
    assert actor_of(ANN) == "operator:ann"
