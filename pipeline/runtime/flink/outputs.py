"""Messages that a job's driver sends to output topics."""

from __future__ import annotations

from typing import NamedTuple

from tocsin.schemas.cloudevents import encode_verdict
from tocsin.schemas.kafka.topics import VERDICTS, job_key
from tocsin.schemas.reasons import Reason
from tocsin.schemas.records import JobKey
from tocsin.schemas.verdicts import ActionKind, FaultKind, Verdict, VerdictState, verdict_id_of


class Output(NamedTuple):
    """One message for a topic.

    Attributes:
        topic: topic name without prefix.
        key: key of the message.
        value: value of the message.
        headers: headers of the message.
        timestamp_ms: time of the message, None = when it is sent; only ``Seat.commit`` heeds it.
    """

    topic: str
    key: bytes
    value: bytes
    headers: dict[str, bytes]
    timestamp_ms: int | None = None


def canary(job: JobKey, end_ns: int) -> Verdict:
    """Return a test verdict without suspects that is resolved at once; the views leave it out by its reason."""
    return Verdict(
        verdict_id=verdict_id_of(job, (), FaultKind.DEGRADED, end_ns),
        job=job,
        fault=FaultKind.DEGRADED,
        cause="unknown",
        suspects=(),
        onset_ns=end_ns,
        detected_ns=end_ns,
        confidence=0.0,
        action=ActionKind.NONE,
        reason=Reason.CANARY.value,
        evidence=(),
        state=VerdictState.RESOLVED,
        update=0,
        expires_ns=end_ns,
    )


def verdict_output(verdict: Verdict) -> Output:
    """Return a verdict as a message; its id and update headers let consumers recognize duplicates."""
    headers = {"id": verdict.verdict_id.encode(), "update": b"%d" % verdict.update}
    return Output(VERDICTS, job_key(verdict.job), encode_verdict(verdict), headers)
