"""PagerDuty's Events API v2: an incident is one alert, named by the verdict's id.

A notice that is sent twice adds a line to the alert, and pages nobody again. One who resolves the alert in PagerDuty
while the incident stands is paged again if the incident changes: ``tocsin incidents close`` ends it for good.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from typing import Final

from tocsin.pipeline.alerts.adapters.http import HttpAnswer, HttpClient, HttpConfig
from tocsin.pipeline.alerts.adapters.keys import delivery_id, incident_key
from tocsin.pipeline.alerts.adapters.kinds import (
    AdapterKind,
    check_settings,
    checked_url,
    http_config,
    receiver_schema,
    secret_settings,
    texts_of,
    url_setting,
)
from tocsin.pipeline.alerts.adapters.secrets import SecretSource, needed_secret
from tocsin.pipeline.alerts.adapters.wording import (
    MAX_SUMMARY_CHARACTERS,
    body_of,
    cut,
    proposal_text,
    reason_meaning,
    rfc3339,
    summary_text,
)
from tocsin.pipeline.alerts.notice import AlertSeverity, DeliveryReason, DeliveryResult, Notice, NoticeKind
from tocsin.pipeline.stores.rows import cause_text, evidence_text, machine_text, one_line
from tocsin.schemas.errors import CredentialError

EVENTS_URL: Final = "https://events.pagerduty.com/v2/enqueue"
"""Address for events unless the settings name another one."""
MAX_EVENT_BYTES: Final = 512 * 1024
"""PagerDuty takes no larger event."""
MAX_FIELD_CHARACTERS: Final = 255
"""Longest source, component, group or class."""
SEVERITIES: Final[Mapping[AlertSeverity, str]] = {
    AlertSeverity.PAGE: "critical",
    AlertSeverity.TICKET: "warning",
    AlertSeverity.INFORMATION: "info",
}
"""Severity at PagerDuty by ours, unless the settings say otherwise."""
PAGERDUTY_SEVERITIES: Final = ("critical", "error", "warning", "info")
"""Severities that PagerDuty knows."""
_KEY_IS_WRONG: Final = re.compile(rb"routing[ _]key", re.IGNORECASE)
"""What PagerDuty's 400 names where the integration key is wrong."""
_MAX_EVIDENCE_COUNT: Final = 20
_BODY_CHARACTERS: Final = 65_536


class PagerDutyAdapter:
    """Sends events to one integration of PagerDuty.

    Args:
        url: address for events.
        routing_key: the integration's key.
        http: timeouts and trust.
        severities: severity at PagerDuty by ours.
    """

    kind: str = "pagerduty"
    max_batch_count: int = 1
    resend_seconds: float | None = None

    def __init__(
        self,
        url: str,
        routing_key: SecretSource,
        http: HttpConfig,
        severities: Mapping[AlertSeverity, str] = SEVERITIES,
    ) -> None:
        self._url = url
        self._routing_key = routing_key
        self._severities = dict(severities)
        self._client = HttpClient(http)

    def send(self, notices: Sequence[Notice], now_ns: int) -> DeliveryResult:
        """See ``Adapter.send``."""
        (notice,) = notices
        try:
            key = self._routing_key.read()
        except CredentialError as error:
            return DeliveryResult(DeliveryReason.SECRET_MISSING, str(error))
        body = self._event(notice, key)
        return _result(self._client.post(self._url, body, {"Content-Type": "application/json"}, now_ns, (key,)))

    def close(self) -> None:
        """See ``Adapter.close``."""
        self._client.close()

    def _event(self, notice: Notice, key: str) -> bytes:
        """Return the event as JSON of at most ``MAX_EVENT_BYTES``; evidence and text are cut to fit."""
        evidence_count, body_characters = _MAX_EVIDENCE_COUNT, _BODY_CHARACTERS
        while True:
            event = {
                "routing_key": key,
                "event_action": "resolve" if notice.is_ending else "trigger",
                "dedup_key": incident_key(notice)[:MAX_FIELD_CHARACTERS],
                "client": "tocsin",
                "payload": self._payload(notice, evidence_count, body_characters),
            }
            packed = json.dumps(event, ensure_ascii=False).encode("utf-8", "replace")
            if len(packed) <= MAX_EVENT_BYTES or not body_characters:
                return packed
            evidence_count, body_characters = evidence_count // 2, body_characters // 2

    def _payload(self, notice: Notice, evidence_count: int, body_characters: int) -> dict[str, object]:
        """Return the payload of an event."""
        verdict = notice.verdict
        is_incident = notice.kind not in {NoticeKind.TEST, NoticeKind.WATCHDOG}
        found: dict[str, object] = {
            "summary": cut(summary_text(notice), MAX_SUMMARY_CHARACTERS),
            "source": _field(machine_text(verdict) if is_incident and verdict.suspects else verdict.job.job_id)
            or "tocsin",
            "severity": self._severities[notice.severity],
            "timestamp": rfc3339(verdict.onset_ns if is_incident else notice.made_ns),
            "group": _field(verdict.job.job_id),
            "class": _field(verdict.cause if is_incident else notice.kind.value),
            "custom_details": {
                "kind": notice.kind.value,
                "text": cut(body_of(notice), body_characters) if body_characters else "",
                "delivery": delivery_id(notice),
            },
        }
        if is_incident:
            found["component"] = _field(", ".join(s.component.name for s in verdict.suspects))
            found["custom_details"] = {
                **_details(notice, evidence_count),
                "text": cut(body_of(notice), body_characters) if body_characters else "",
            }
        return {name: value for name, value in found.items() if value}


def _details(notice: Notice, evidence_count: int) -> dict[str, object]:
    """Return the details of an incident that programs may read."""
    verdict = notice.verdict
    return {
        "kind": notice.kind.value,
        "incident": verdict.verdict_id,
        "update": verdict.update,
        "state": verdict.state.value,
        "fault": verdict.fault.value,
        "cause": cause_text(verdict),
        "why": reason_meaning(verdict.reason),
        "confidence": round(verdict.confidence, 2),
        "action": proposal_text(verdict),
        "cluster": one_line(verdict.job.cluster),
        "job": one_line(verdict.job.job_id),
        "attempt": verdict.job.attempt,
        "evidence": [evidence_text(one) for one in verdict.evidence[:evidence_count]],
        "delivery": delivery_id(notice),
    }


def _field(text: str) -> str:
    """Return a text as a short field."""
    return cut(one_line(text), MAX_FIELD_CHARACTERS)


def _result(answer: HttpAnswer) -> DeliveryResult:
    """Return what an answer of PagerDuty means: only a 202 with ``success`` says that the event was taken."""
    if answer.reason is DeliveryReason.DELIVERED:
        if answer.status != 202 or answer.json_object().get("status") != "success":
            return DeliveryResult(DeliveryReason.BAD_ANSWER, f"an answer {answer.status} that is not PagerDuty's")
        return DeliveryResult(DeliveryReason.DELIVERED, references=("",))
    reason = answer.reason
    if reason is DeliveryReason.REJECTED and _KEY_IS_WRONG.search(answer.body):
        reason = DeliveryReason.UNAUTHORISED
    return DeliveryResult(reason, answer.detail, answer.retry_after_seconds)


_SCHEMA: Final = receiver_schema(
    PagerDutyAdapter.kind,
    "An integration of PagerDuty, by the Events API v2.",
    {
        "url": url_setting(
            "Address for events; for the EU https://events.eu.pagerduty.com/v2/enqueue.", default=EVENTS_URL
        ),
        **secret_settings("routing_key", "The integration key, 32 characters."),
        "severities": {
            "type": "object",
            "properties": {one.value: {"enum": list(PAGERDUTY_SEVERITIES)} for one in AlertSeverity},
            "additionalProperties": False,
            "description": "Severity at PagerDuty by tocsin's: page critical, ticket warning, information info.",
        },
    },
    [["routing_key_file", "routing_key_env"]],
)


def _make(settings: Mapping[str, object], where: str) -> PagerDutyAdapter:
    """See ``AdapterKind.make``."""
    key = needed_secret(settings, "routing_key", where)
    check_settings(settings, _SCHEMA, where)
    severities = {
        **SEVERITIES,
        **{AlertSeverity(name): value for name, value in texts_of(settings, "severities").items()},
    }
    url = checked_url(settings.get("url", EVENTS_URL), f"{where}.url")
    return PagerDutyAdapter(url, key, http_config(settings, where), severities)


PAGERDUTY: Final = AdapterKind(PagerDutyAdapter.kind, _SCHEMA, _make)
"""The kind ``pagerduty``."""
