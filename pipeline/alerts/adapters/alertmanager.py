"""Alertmanager: an incident is one alert, sent again until it ends.

Alertmanager knows an alert by its labels. So the labels of an incident are those of the notice that told it first: the
adapter returns them as the notice's reference, and the next notice brings them back. What changes meanwhile (cause,
suspects, action, severity) stands in the annotations.

A firing alert ends by itself three resends after it was last sent, so a short absence of the sender resolves nothing.
An ending resolves it at once.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Final
from urllib.parse import quote

from tocsin.pipeline.alerts.adapters.authorization import (
    AUTHORIZATION_PROPERTIES,
    Authorization,
    authorization_of,
)
from tocsin.pipeline.alerts.adapters.http import HttpAnswer, HttpClient, HttpConfig, host_of
from tocsin.pipeline.alerts.adapters.keys import incident_key
from tocsin.pipeline.alerts.adapters.kinds import (
    AdapterKind,
    check_settings,
    checked_url,
    http_config,
    labels_setting,
    receiver_schema,
    text_setting,
    texts_of,
    url_setting,
)
from tocsin.pipeline.alerts.adapters.wording import (
    body_of,
    cut,
    job_text,
    moment_text,
    proposal_text,
    rfc3339,
    summary_text,
)
from tocsin.pipeline.alerts.notice import MISCONFIGURED, DeliveryReason, DeliveryResult, Notice, NoticeKind
from tocsin.pipeline.stores.rows import cause_text, component_text, machine_text, one_line
from tocsin.schemas.errors import ConfigError, CredentialError
from tocsin.schemas.records import NS_PER_SECOND
from tocsin.schemas.verdicts import ComponentKind, Verdict

ALERT_NAMES: Final = {NoticeKind.TEST: "TocsinTest", NoticeKind.WATCHDOG: "TocsinWatchdog"}
"""Label ``alertname`` by kind of notice; every other kind is ``INCIDENT_ALERT``."""
INCIDENT_ALERT: Final = "TocsinIncident"
"""Label ``alertname`` of an incident."""
RESENDS_AHEAD_COUNT: Final = 3
"""Number of resends for which a firing alert outlives its sender."""
MAX_LABEL_CHARACTERS: Final = 200
"""Longest value of a label; the rest is cut."""
MAX_DESCRIPTION_CHARACTERS: Final = 16_384
"""Longest annotation."""
_PATH: Final = "/api/v2/alerts"
_MILLISECOND_NS: Final = 1_000_000

Labels = dict[str, str]
"""Labels of an alert."""


class AlertmanagerAdapter:
    """Sends notices to one or more Alertmanagers of one cluster, by API v2.

    Every Alertmanager gets every alert, as Prometheus does it; it is delivered if one of them took it.

    Args:
        urls: their addresses, without ``/api/v2/alerts``.
        http: timeouts and trust.
        authorization: user or token.
        resend_seconds: time between two sends of a firing alert.
        labels: labels that every alert gets.
        links: templates of the annotation ``runbook_url`` and of ``generatorURL``, by those names. ``{cause}``,
            ``{fault}``, ``{job}``, ``{host}`` and ``{verdict_id}`` are replaced.
    """

    kind: str = "alertmanager"
    max_batch_count: int = 64

    def __init__(
        self,
        urls: Sequence[str],
        http: HttpConfig,
        authorization: Authorization,
        *,
        resend_seconds: float = 60.0,
        labels: Mapping[str, str] | None = None,
        links: Mapping[str, str] | None = None,
    ) -> None:
        self.resend_seconds: float | None = resend_seconds
        self._urls = tuple(url.rstrip("/") + _PATH for url in urls)
        self._client = HttpClient(http)
        self._authorization = authorization
        self._ahead_ns = int(RESENDS_AHEAD_COUNT * resend_seconds * NS_PER_SECOND)
        self._labels = dict(labels or {})
        self._links = dict(links or {})

    def send(self, notices: Sequence[Notice], now_ns: int) -> DeliveryResult:
        """See ``Adapter.send``. A notice that is sent again changes nothing but when its alert would end by itself."""
        try:
            headers = {"Content-Type": "application/json", **self._authorization.headers()}
        except CredentialError as error:
            return DeliveryResult(DeliveryReason.SECRET_MISSING, str(error))
        labels = [self._labels_of(notice) for notice in notices]
        alerts = [self._alert(notice, own, now_ns) for notice, own in zip(notices, labels, strict=True)]
        body = json.dumps(alerts).encode()
        answers = {host_of(url): self._client.post(url, body, headers, now_ns) for url in self._urls}
        return _result(
            answers,
            tuple("" if one.kind in ALERT_NAMES else _packed(own) for one, own in zip(notices, labels, strict=True)),
        )

    def close(self) -> None:
        """See ``Adapter.close``."""
        self._client.close()

    def _labels_of(self, notice: Notice) -> Labels:
        """Return the labels of a notice's alert: those of the first notice of its incident."""
        own = _unpacked(notice.reference) or _first_labels(notice)
        return {**self._labels, **own}

    def _alert(self, notice: Notice, labels: Labels, now_ns: int) -> dict[str, object]:
        """Return one alert of the API."""
        verdict = notice.verdict
        start_ns = notice.told_ns if notice.kind in ALERT_NAMES else min(verdict.onset_ns, now_ns)
        end_ns = (
            max(min(now_ns, verdict.detected_ns), start_ns + _MILLISECOND_NS)
            if notice.is_ending
            else now_ns + self._ahead_ns
        )
        alert: dict[str, object] = {
            "labels": labels,
            "annotations": self._annotations(notice),
            "startsAt": rfc3339(start_ns),
            "endsAt": rfc3339(end_ns),
        }
        if "generator_url" in self._links:
            alert["generatorURL"] = _filled(self._links["generator_url"], verdict)
        return alert

    def _annotations(self, notice: Notice) -> Labels:
        """Return the annotations: what people read, and what of it may change."""
        verdict = notice.verdict
        found = {
            "summary": summary_text(notice),
            "description": cut(body_of(notice), MAX_DESCRIPTION_CHARACTERS),
            "kind": notice.kind.value,
            "urgency": notice.severity.value,
        }
        if notice.kind in ALERT_NAMES:
            return found
        found |= {
            "state": verdict.state.value,
            "suspects": machine_text(verdict),
            "cause_now": cause_text(verdict),
            "confidence": f"{verdict.confidence:.2f}",
            "action": proposal_text(verdict),
            "job": job_text(verdict),
            "since": moment_text(verdict.onset_ns),
            "told": moment_text(notice.told_ns),
        }
        if "runbook_url" in self._links:
            found["runbook_url"] = _filled(self._links["runbook_url"], verdict)
        return found


def _first_labels(notice: Notice) -> Labels:
    """Return the labels of an incident that is told for the first time, without empty ones."""
    verdict = notice.verdict
    found = {"alertname": ALERT_NAMES.get(notice.kind, INCIDENT_ALERT), "severity": notice.severity.value}
    if notice.kind is NoticeKind.WATCHDOG:
        found |= {"route": notice.route, "severity": "none"}
    elif notice.kind is NoticeKind.TEST:
        found |= {"route": notice.route, "verdict_id": incident_key(notice)}
    else:
        hosts = [s.component.name for s in verdict.suspects if s.component.kind is ComponentKind.HOST]
        others = [component_text(s.component) for s in verdict.suspects if s.component.kind is not ComponentKind.HOST]
        found |= {
            "verdict_id": verdict.verdict_id,
            "cluster": verdict.job.cluster,
            "job": verdict.job.job_id,
            "host": ",".join(hosts),
            "component": ",".join(others),
            "fault": verdict.fault.value,
            "cause": verdict.cause,
        }
    return {name: cut(one_line(value), MAX_LABEL_CHARACTERS) for name, value in found.items() if value.strip()}


def _packed(labels: Labels) -> str:
    """Return labels as the reference of a notice."""
    return json.dumps(labels, sort_keys=True, separators=(",", ":"))


def _unpacked(reference: str) -> Labels:
    """Return the labels of a reference, {} if it is none of ours."""
    try:
        found = json.loads(reference) if reference else {}
    except ValueError:
        return {}
    return {str(name): str(value) for name, value in found.items()} if isinstance(found, dict) else {}


def _filled(template: str, verdict: Verdict) -> str:
    """Return an address with the words of a verdict in place of the names in braces."""
    host = verdict.suspects[0].component.name if verdict.suspects else ""
    words = {
        "cause": verdict.cause,
        "fault": verdict.fault.value,
        "job": verdict.job.job_id,
        "host": host,
        "verdict_id": verdict.verdict_id,
    }
    for name, value in words.items():
        template = template.replace(f"{{{name}}}", quote(one_line(value), safe=""))
    return template


def _result(answers: Mapping[str, HttpAnswer], references: tuple[str, ...]) -> DeliveryResult:
    """Return the result of a message to several Alertmanagers: delivered if one took it, else what can be retried."""
    took = [one for one in answers.values() if one.reason is DeliveryReason.DELIVERED]
    others = [one for one in answers.values() if one.reason is not DeliveryReason.DELIVERED]
    detail = "; ".join(one.detail for one in others)
    if took:
        return DeliveryResult(DeliveryReason.DELIVERED, detail, references=references)
    worst = min(others, key=lambda one: (not DeliveryResult(one.reason).is_retryable, one.reason in MISCONFIGURED))
    return DeliveryResult(worst.reason, detail, worst.retry_after_seconds)


_SCHEMA: Final = receiver_schema(
    AlertmanagerAdapter.kind,
    "One or more Alertmanagers of one cluster, by API v2.",
    {
        "urls": {
            "type": "array",
            "minItems": 1,
            "maxItems": 8,
            "uniqueItems": True,
            "items": url_setting("Address of an Alertmanager, without /api/v2/alerts."),
            "description": "Addresses of the Alertmanagers; each gets every alert.",
        },
        "resend_seconds": {
            "type": "number",
            "minimum": 5,
            "maximum": 3600,
            "default": 60,
            "description": "A firing alert is sent again after this time. It ends by itself three times as late.",
        },
        "labels": labels_setting("Labels that every alert gets; they replace none of tocsin's."),
        "runbook_url": text_setting(
            "Annotation runbook_url; {cause}, {fault}, {job}, {host}, {verdict_id} are replaced."
        ),
        "generator_url": text_setting("The alert's generatorURL; the same names are replaced.", pattern="^https?://"),
        **AUTHORIZATION_PROPERTIES,
    },
    [["urls"]],
)


def _make(settings: Mapping[str, object], where: str) -> AlertmanagerAdapter:
    """See ``AdapterKind.make``."""
    check_settings(settings, _SCHEMA, where)
    found = settings["urls"]
    urls = [checked_url(url, f"{where}.urls.{at}") for at, url in enumerate(found)] if isinstance(found, list) else []
    labels = texts_of(settings, "labels")
    taken = sorted(set(labels) & _OWN_LABELS)
    if taken:
        raise ConfigError(f"{where}.labels.{taken[0]}", labels[taken[0]], "another name: tocsin sets this label itself")
    return AlertmanagerAdapter(
        urls,
        http_config(settings, where),
        authorization_of(settings, where),
        resend_seconds=float(str(settings.get("resend_seconds", 60))),
        labels=labels,
        links={name: str(settings[name]) for name in ("runbook_url", "generator_url") if name in settings},
    )


_OWN_LABELS: Final = frozenset(
    {"alertname", "cluster", "job", "host", "component", "fault", "cause", "severity", "verdict_id", "route"}
)

ALERTMANAGER: Final = AdapterKind(AlertmanagerAdapter.kind, _SCHEMA, _make)
"""The kind ``alertmanager``."""
