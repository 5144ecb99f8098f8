"""Actions, acks and events as CloudEvents."""

from __future__ import annotations

import dataclasses
import hashlib
import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests import action_strategies
from tocsin.schemas.action_codec import (
    decode_ack_or_event,
    decode_action,
    encode_ack,
    encode_action,
    encode_event,
)
from tocsin.schemas.action_events import Ack, AckKind, ActionEvent, Approval, CheckResult, EngineHeartbeat, EngineWay
from tocsin.schemas.action_states import ActionState
from tocsin.schemas.actions import Action, ActionTarget, Machine, action_id_of
from tocsin.schemas.errors import DecodeError, FieldError, SchemaError
from tocsin.schemas.job_key import JobKey
from tocsin.schemas.verdicts import ActionKind, Component, ComponentKind

T0 = 1_767_323_045_000_000_007
JOB = JobKey("eu west", "job778", 2)
TARGET = ActionTarget(JOB, Component(ComponentKind.HOST, "n012"), (Machine("n012", "boot-1"),))
ACTION = Action(
    action_id=action_id_of("0123456789abcdef", ActionKind.EVICT, TARGET),
    verdict_id="0123456789abcdef",
    verdict_update=4,
    kind=ActionKind.EVICT,
    target=TARGET,
    cause="gpu_ecc",
    rule="machine_fault",
    budget_class="gpu_ecc",
    issued_ns=T0,
    deadline_ns=T0 + 9,
    state=ActionState.APPROVED,
    reason="allowed",
    changed_ns=T0,
    revision=1,
    epoch=7,
)
ACK = Ack(ACTION.action_id, JOB, AckKind.CLAIMED, "slurm", 7, 1, T0, T0 + 5)


def changed(wire: bytes, **data: Any) -> bytes:
    """A CloudEvent with some keys of its data changed."""
    event = json.loads(wire)
    return json.dumps(event | {"data": event["data"] | data}).encode()


@given(action_strategies.actions)
def test_an_action_comes_back_as_it_was(action: Action) -> None:
    wire = encode_action(action)

    assert decode_action(wire) == action
    assert encode_action(decode_action(wire)) == wire


@given(action_strategies.acks)
def test_an_ack_comes_back_as_it_was(ack: Ack) -> None:
    assert decode_ack_or_event(encode_ack(ack)) == ack


@given(action_strategies.events)
def test_an_event_comes_back_as_it_was(told: ActionEvent) -> None:
    assert decode_ack_or_event(encode_event(told)) == told


def test_the_envelope_of_an_action() -> None:
    event = json.loads(encode_action(ACTION))

    assert event["type"] == "dev.tocsin.action.v1"
    assert event["id"] == f"{ACTION.action_id}.7.1"
    assert (event["subject"], event["partitionkey"]) == ("n012", "eu west/job778")
    machine = {"host": "n012", "boot_id": "boot-1", "node_uid": "", "pod_uid": "", "pod_name": ""}
    assert event["data"]["target"]["machines"] == [machine]


def test_the_update_is_no_part_of_the_id() -> None:
    renewed = dataclasses.replace(ACTION, verdict_update=5)

    assert decode_action(encode_action(renewed)).action_id == ACTION.action_id


@pytest.mark.parametrize(
    "target",
    [
        dataclasses.replace(TARGET, machines=(Machine("n012", "boot-2"),)),
        dataclasses.replace(TARGET, machines=(Machine("n012", "boot-1", pod_uid="pod"),)),
        dataclasses.replace(TARGET, machines=(Machine("n013", "boot-1"),)),
        dataclasses.replace(TARGET, job=dataclasses.replace(JOB, attempt=3)),
        dataclasses.replace(TARGET, job=dataclasses.replace(JOB, cluster="us")),
        dataclasses.replace(TARGET, slurm_job_id="778"),
    ],
    ids=["rebooted", "other_pod", "other_host", "other_attempt", "other_cluster", "other_slurm_job"],
)
def test_another_incarnation_is_another_action(target: ActionTarget) -> None:
    assert action_id_of("0123456789abcdef", ActionKind.EVICT, target) != ACTION.action_id


@pytest.mark.parametrize(
    ("data", "field"),
    [
        ({"action_id": "0" * 32}, "action.action_id"),
        ({"kind": "erase"}, "action.data.kind"),
        ({"kind": "none"}, "action.kind"),
        ({"state": "gone"}, "action.data.state"),
        ({"deadline_ns": -1}, "action.data.deadline_ns"),
        ({"deadline_ns": T0 - 1}, "action.deadline_ns"),
        ({"verdict_id": ""}, "action.data.verdict_id"),
        ({"target": None}, "action.data.target"),
        ({"target": {"job": {"cluster": "c", "job_id": "j", "attempt": "2"}}}, "action.data.target.job.attempt"),
        ({"parameters": [{"name": "step"}]}, "action.data.parameters[0].value"),
    ],
)
def test_a_wrong_field_is_named(data: dict[str, Any], field: str) -> None:
    with pytest.raises(FieldError) as caught:
        decode_action(changed(encode_action(ACTION), **data))

    assert caught.value.field == field


def test_an_ack_of_another_envelope_is_refused() -> None:
    event = json.loads(encode_ack(ACK))

    with pytest.raises(FieldError, match="id = "):
        decode_ack_or_event(json.dumps(event | {"id": "another"}).encode())
    with pytest.raises(FieldError, match=r"event\.type"):
        decode_ack_or_event(encode_action(ACTION))
    with pytest.raises(FieldError, match=r"action\.type"):
        decode_action(encode_ack(ACK))


def test_a_check_of_a_sender_that_counts_no_gpus_is_read() -> None:
    told = CheckResult("c1", "n1", "boot-1", "preflight", is_passed=True, is_under_load=True, ts_ns=T0)
    event = json.loads(encode_event(told))
    del event["data"]["gpu_count"], event["data"]["known_gpu_count"]
    body = json.dumps(event["data"], sort_keys=True, separators=(",", ":")).encode()
    event["id"] = hashlib.sha256(b"dev.tocsin.action.check_result.v1" + body).hexdigest()[:32]

    assert decode_ack_or_event(json.dumps(event).encode()) == told
    event["data"]["is_passed"] = False
    with pytest.raises(FieldError, match="id"):
        decode_ack_or_event(json.dumps(event).encode())


def test_an_approval_without_actor_or_action_is_refused() -> None:
    wire = encode_event(Approval("c", ACTION.action_id, "uid:0", T0))

    with pytest.raises(FieldError, match=r"approval\.data\.action_id"):
        decode_ack_or_event(changed(wire, action_id=""))
    with pytest.raises(FieldError, match=r"approval\.data\.actor"):
        decode_ack_or_event(changed(wire, actor=""))


def test_a_heartbeat_of_endless_checkpoints_is_refused() -> None:
    wire = encode_event(EngineHeartbeat("c", EngineWay.FLINK, T0, 10.0))

    with pytest.raises(DecodeError):
        decode_ack_or_event(wire.replace(b"10.0", b"Infinity"))


@given(st.binary(max_size=60))
def test_noise_raises_nothing_else(noise: bytes) -> None:
    for read in (decode_action, decode_ack_or_event):
        with pytest.raises(SchemaError):
            read(noise)


def test_who_may_begin() -> None:
    claimed = dataclasses.replace(ACTION, state=ActionState.CLAIMED, holder="slurm", lease_ns=T0 + 5)

    assert claimed.may_begin("slurm", T0 + 4)
    assert not claimed.may_begin("slurm", T0 + 5)
    assert not claimed.may_begin("kube", T0 + 4)
    assert not dataclasses.replace(claimed, lease_ns=T0 + 99).may_begin("slurm", ACTION.deadline_ns)
    assert not dataclasses.replace(claimed, state=ActionState.CANCELLED).may_begin("slurm", T0)
