"""Encoding of verdicts as CloudEvents 1.0, structured mode (one JSON object), and what all such events share.

``data`` is the line of ``verdicts.jsonl`` plus what that line leaves out or rounds, so that the round trip
is exact. Source and id together are unique for each event, as the specification demands, and the same
on every retry, so that consumers can drop duplicates.
"""

from __future__ import annotations

from collections.abc import Mapping
from datetime import UTC, datetime, timedelta
from typing import Any
from urllib.parse import quote

from tocsin.schemas.errors import DecodeError, FieldError
from tocsin.schemas.records import NS_PER_SECOND, JobKey
from tocsin.schemas.verdicts import (
    MAX_WITNESSES,
    ActionKind,
    Component,
    ComponentKind,
    Evidence,
    FaultKind,
    Suspect,
    Verdict,
    VerdictState,
    Witness,
    WitnessKind,
    evidence_ids,
    suspect_object,
)
from tocsin.schemas.wire.validate import (
    MAX_ATTEMPT,
    MAX_RANKS,
    ObjectReader,
    check_int,
    dump_json,
    load_json,
)

SPEC_VERSION = "1.0"
VERDICT_TYPE = "dev.tocsin.verdict.v1"
CONTENT_TYPE = "application/cloudevents+json"
MAX_EVENT_BYTES = 1_000_000

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


def verdict_event(verdict: Verdict) -> dict[str, Any]:
    """Return the CloudEvent of a verdict as a JSON object; its id is ``<verdict id>.<update>``."""
    data = verdict.to_line()
    data["suspects"] = [suspect_object(suspect) for suspect in verdict.suspects]
    data["cluster"] = verdict.job.cluster
    data["attempt"] = verdict.job.attempt
    data["expires_ns"] = verdict.expires_ns
    data["confidence"] = verdict.confidence
    if verdict.costs_ratio is not None:
        data["costs_ratio"] = verdict.costs_ratio
    ids = evidence_ids(verdict)
    data["evidence"] = [
        {"id": found, **_write_evidence(evidence)} for found, evidence in zip(ids, verdict.evidence, strict=True)
    ]
    subject = verdict.suspects[0].component.name if verdict.suspects else verdict.job.job_id
    event_id = f"{verdict.verdict_id}.{verdict.update}"
    return envelope_of(VERDICT_TYPE, event_id, subject, verdict.detected_ns, verdict.job) | {"data": data}


def encode_verdict(verdict: Verdict) -> bytes:
    """Encode a verdict as the bytes of a structured CloudEvent.

    Raises:
        FieldError: a field has a value that ``decode_verdict`` would refuse, e.g. NaN.
    """
    event = verdict_event(verdict)
    _read_verdict(data_of(event, VERDICT_TYPE, "verdict"))
    return dump_json(event, "verdict", sort=False)


def decode_verdict(data: bytes) -> Verdict:
    """Decode the CloudEvent of a verdict; unknown attributes and keys are ignored.

    Raises:
        DecodeError: the bytes are no JSON, or more than ``MAX_EVENT_BYTES``.
        FieldError: the event has another type, or a field has a wrong value.
    """
    event = load_event(data, "verdict")
    verdict = _read_verdict(data_of(event, VERDICT_TYPE, "verdict"))
    check_event_id(event, verdict_event(verdict))
    return verdict


def rfc3339(ts_ns: int) -> str:
    """Format Unix nanoseconds as RFC 3339 in UTC, exact to the nanosecond.

    Computed with integers only, because a float64 of seconds resolves 200 ns in this century.

    Example:
        >>> rfc3339(1_767_323_045_000_000_007)
        '2026-01-02T03:04:05.000000007Z'

    Raises:
        FieldError: the value is no integer from 0 to the end of int64 (the year 2262).
    """
    seconds, fraction = divmod(check_int(ts_ns, "time", 0), NS_PER_SECOND)
    return f"{_EPOCH + timedelta(seconds=seconds):%Y-%m-%dT%H:%M:%S}.{fraction:09d}Z"


def envelope_of(kind: str, event_id: str, subject: str, ts_ns: int, job: JobKey) -> dict[str, Any]:
    """Return the CloudEvents attributes of an event, without its data."""
    return {
        "specversion": SPEC_VERSION,
        "id": event_id,
        "source": f"/{quote(job.cluster, safe='')}/tocsin",
        "type": kind,
        "subject": subject,
        "time": rfc3339(ts_ns),
        "partitionkey": f"{job.cluster}/{job.job_id}",
        "datacontenttype": "application/json",
    }


def load_event(data: bytes, path: str) -> Mapping[str, Any]:
    """Return the JSON object in these bytes; raise ``DecodeError`` if they are too many or no JSON."""
    if len(data) > MAX_EVENT_BYTES:
        raise DecodeError(f"{path}: {len(data)} bytes, at most {MAX_EVENT_BYTES}")
    event = load_json(data, path)
    if not isinstance(event, dict):
        raise FieldError(path, event, "a JSON object")
    return event


def data_of(event: Mapping[str, Any], kind: str, path: str) -> ObjectReader:
    """Return a reader of an event's ``data`` after checking its version and type.

    Args:
        event: the event.
        kind: the type that it must have.
        path: name of what it holds, for errors.

    Raises:
        FieldError: it is of another version or type, or has no data.
    """
    envelope = ObjectReader(event, path)
    for key, wanted in (("specversion", SPEC_VERSION), ("type", kind)):
        if envelope.text(key) != wanted:
            raise FieldError(envelope.field(key), envelope.value(key), wanted)
    return ObjectReader(envelope.value("data"), f"{path}.data")


def check_event_id(event: Mapping[str, Any], wanted: Mapping[str, Any]) -> None:
    """Raise ``FieldError`` if an event's id or source is not the one that its data gives.

    Consumers drop duplicates by these two.
    """
    for key in ("id", "source"):
        if event.get(key) != wanted[key]:
            raise FieldError(key, event.get(key), f"{wanted[key]}, as the data says")


def _read_verdict(data: ObjectReader) -> Verdict:
    common = data.optional_object("common")
    return Verdict(
        verdict_id=data.name("id"),
        job=_read_job(data),
        fault=data.choice("fault", FaultKind),
        cause=data.name("cause"),
        suspects=tuple(_read_suspect(suspect) for suspect in data.objects("suspects")),
        onset_ns=data.integer("onset_ns", 0),
        detected_ns=data.integer("detected_ns", 0),
        confidence=data.number("confidence", 0.0, 1.0),
        action=data.choice("action", ActionKind),
        reason=data.name("reason"),
        evidence=tuple(_read_evidence(evidence) for evidence in data.objects("evidence")),
        state=data.choice("state", VerdictState),
        update=data.integer("update", 0),
        expires_ns=data.integer("expires_ns", 0),
        common=None if common is None else _read_component(common),
        witnesses=_read_witnesses(data),
        costs_ratio=data.optional_number("costs_ratio", 0.0, 1.0),
    )


def _read_witnesses(data: ObjectReader) -> tuple[Witness, ...]:
    """Read the witnesses of a verdict; empty where an older program wrote none."""
    found = data.optional_objects("witnesses")
    if len(found) > MAX_WITNESSES:
        raise FieldError(data.field("witnesses"), len(found), f"at most {MAX_WITNESSES}")
    return tuple(Witness(one.name("host"), one.choice("kind", WitnessKind)) for one in found)


def _read_job(data: ObjectReader) -> JobKey:
    return JobKey(data.name("cluster"), data.name("job_id"), data.integer("attempt", 0, MAX_ATTEMPT))


def _read_suspect(suspect: ObjectReader) -> Suspect:
    return Suspect(_read_component(suspect), suspect.optional_integers("ranks", 0, MAX_RANKS - 1))


def _write_component(component: Component) -> dict[str, Any]:
    return {"kind": component.kind.value, "name": component.name}


def _read_component(component: ObjectReader) -> Component:
    return Component(component.choice("kind", ComponentKind), component.name("name"))


def _write_evidence(evidence: Evidence) -> dict[str, Any]:
    return {
        "detector": evidence.detector,
        "metric": evidence.metric,
        "score": evidence.score,
        "start_ns": evidence.start_ns,
        "end_ns": evidence.end_ns,
        "text": evidence.text,
        "suspect_value": evidence.suspect_value,
        "peer_value": evidence.peer_value,
        **({"model_version": evidence.model_version} if evidence.model_version else {}),
    }


def _read_evidence(evidence: ObjectReader) -> Evidence:
    start_ns = evidence.integer("start_ns", 0)
    return Evidence(
        detector=evidence.name("detector"),
        metric=evidence.name("metric", empty=True),
        score=evidence.number("score", 0.0),
        start_ns=start_ns,
        end_ns=evidence.integer("end_ns", start_ns),
        text=evidence.text("text"),
        suspect_value=evidence.optional_number("suspect_value"),
        peer_value=evidence.optional_number("peer_value"),
        model_version=evidence.optional_name("model_version"),
    )
