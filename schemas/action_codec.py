"""Encoding of actions, acks and what else the controller is told as CloudEvents 1.0 (one JSON object each).

Source and id together are the same on every retry and differ between events, so that duplicates can be dropped. An
action's id is ``<action id>.<epoch>.<revision>``; an ack's ``<action id>.<executor>.<epoch>.<seq>``; any other
event's a hash of its data.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from typing import Any, Final

from tocsin.schemas.action_events import (
    Ack,
    ActionEvent,
    Approval,
    Cancel,
    CheckResult,
    CordonSeen,
    Denial,
    EngineHeartbeat,
    ExecutorHeard,
    HumanChange,
    JobFacts,
    MachineFacts,
    QuietSteps,
)
from tocsin.schemas.actions import Action, check_action
from tocsin.schemas.cloudevents import check_event_id, data_of, envelope_of, load_event
from tocsin.schemas.errors import FieldError
from tocsin.schemas.job_key import FLEET_JOB_ID, JobKey
from tocsin.schemas.operator_notes import Feedback, Maintenance
from tocsin.schemas.plain_objects import plain_object, read_object
from tocsin.schemas.wire.validate import dump_json

ACTION_TYPE: Final = "dev.tocsin.action.v1"
ACK_TYPE: Final = "dev.tocsin.action.ack.v1"
EVENT_TYPES: Final[Mapping[type, str]] = {
    Approval: "dev.tocsin.action.approval.v1",
    Denial: "dev.tocsin.action.denial.v1",
    Cancel: "dev.tocsin.action.cancel.v1",
    HumanChange: "dev.tocsin.action.human_change.v1",
    MachineFacts: "dev.tocsin.action.machine_facts.v1",
    CordonSeen: "dev.tocsin.action.cordon_seen.v1",
    JobFacts: "dev.tocsin.action.job_facts.v1",
    ExecutorHeard: "dev.tocsin.action.executor_heard.v1",
    CheckResult: "dev.tocsin.action.check_result.v1",
    QuietSteps: "dev.tocsin.action.quiet_steps.v1",
    EngineHeartbeat: "dev.tocsin.action.engine_heartbeat.v1",
    Feedback: "dev.tocsin.action.feedback.v1",
    Maintenance: "dev.tocsin.action.maintenance.v1",
}
"""Class of an event -> its CloudEvents type."""
_CLASSES: Final = {name: kind for kind, name in EVENT_TYPES.items()}


def encode_action(action: Action) -> bytes:
    """Encode an action as the bytes of a structured CloudEvent.

    Raises:
        FieldError: a field has a value that ``decode_action`` would refuse.
    """
    event = _action_event(action)
    _read_action(event["data"])
    return dump_json(event, "action", sort=False)


def decode_action(data: bytes) -> Action:
    """Decode the CloudEvent of an action; unknown attributes and keys are ignored.

    Raises:
        DecodeError: the bytes are no JSON, or too many.
        FieldError: the event has another type, or a field has a wrong value.
    """
    event = load_event(data, "action")
    data_of(event, ACTION_TYPE, "action")
    action = _read_action(event["data"])
    check_event_id(event, _action_event(action))
    return action


def encode_ack(ack: Ack) -> bytes:
    """Encode an executor's message as the bytes of a structured CloudEvent.

    Raises:
        FieldError: a field has a value that ``decode_ack_or_event`` would refuse.
    """
    event = _ack_event(ack)
    read_object(Ack, event["data"], "ack.data")
    return dump_json(event, "ack", sort=False)


def encode_event(told: ActionEvent) -> bytes:
    """Encode a command, a fact or a note as the bytes of a structured CloudEvent.

    Raises:
        FieldError: a field has a value that ``decode_ack_or_event`` would refuse.
    """
    event = _event_of(told)
    read_object(type(told), event["data"], f"{_name_of(event)}.data")
    return dump_json(event, "event", sort=False)


def decode_ack_or_event(data: bytes) -> Ack | ActionEvent:
    """Decode one message of the topic ``action-acks``; unknown attributes and keys are ignored.

    Raises:
        DecodeError: the bytes are no JSON, or too many.
        FieldError: the event has a type that does not belong there, or a field has a wrong value.
    """
    event = load_event(data, "event")
    if event.get("type") == ACK_TYPE:
        data_of(event, ACK_TYPE, "ack")
        ack = read_object(Ack, event["data"], "ack.data")
        check_event_id(event, _ack_event(ack))
        return ack
    kind = _CLASSES.get(str(event.get("type")))
    if kind is None:
        raise FieldError("event.type", event.get("type"), f"one of {ACK_TYPE} {' '.join(_CLASSES)}")
    name = _name_of(event)
    data_of(event, EVENT_TYPES[kind], name)
    told: ActionEvent = read_object(kind, event["data"], f"{name}.data")
    wanted = _event_of(told)
    if event.get("id") == (own := _id_of(kind, event["data"])):
        wanted |= {"id": own}  # of a sender that has fewer fields, or more
    check_event_id(event, wanted)
    return told


def _read_action(data: object) -> Action:
    return check_action(read_object(Action, data, "action.data"))


def _action_event(action: Action) -> dict[str, Any]:
    hosts = action.target.hosts
    subject = hosts[0] if len(hosts) == 1 else action.target.job.job_id
    event_id = f"{action.action_id}.{action.epoch}.{action.revision}"
    head = envelope_of(ACTION_TYPE, event_id, subject, action.changed_ns, action.target.job)
    return head | {"data": plain_object(action)}


def _ack_event(ack: Ack) -> dict[str, Any]:
    event_id = f"{ack.action_id}.{ack.executor}.{ack.epoch}.{ack.seq}"
    return envelope_of(ACK_TYPE, event_id, ack.action_id, ack.ts_ns, ack.job) | {"data": plain_object(ack)}


def _event_of(told: ActionEvent) -> dict[str, Any]:
    kind, data = EVENT_TYPES[type(told)], plain_object(told)
    job = told.job if isinstance(told, JobFacts | QuietSteps) else JobKey(told.cluster, FLEET_JOB_ID)
    subject = getattr(told, "host", "") or getattr(told, "action_id", "") or job.job_id
    return envelope_of(kind, _id_of(type(told), data), subject, told.ts_ns, job) | {"data": data}


def _id_of(kind: type, data: Mapping[str, Any]) -> str:
    """Return the id of an event with some data."""
    return hashlib.sha256(EVENT_TYPES[kind].encode() + dump_json(data, "event.data")).hexdigest()[:32]


def _name_of(event: Mapping[str, Any]) -> str:
    """Return the short name of an event's type, for errors."""
    return str(event.get("type")).removesuffix(".v1").rpartition(".")[2]
