"""Every adapter through the conformance kit."""

from __future__ import annotations

import json

from tests.pipeline.alerts.adapters.conformance import SECRET, Case, Conformance
from tests.pipeline.alerts.adapters.receiver import Reply
from tocsin.pipeline.alerts.notice import DeliveryReason


class TestAlertmanager(Conformance):
    case = Case(
        "alertmanager",
        lambda url, secret: {"kind": "alertmanager", "urls": [url], "bearer_token_file": str(secret)},
        Reply(200),
        lambda request: request.json[0]["labels"],
        lambda request: (request.json[0]["labels"], request.json[0]["startsAt"]),
        lambda request: request.json[0]["endsAt"] <= "2025-11-01T00:01:20.000Z",
        DeliveryReason.DELIVERED,
    )


class TestPagerDuty(Conformance):
    case = Case(
        "pagerduty",
        lambda url, secret: {"kind": "pagerduty", "url": url, "routing_key_file": str(secret)},
        Reply(202, b'{"status":"success","message":"Event processed","dedup_key":"x"}'),
        lambda request: (request.json["dedup_key"], request.json["routing_key"]),
        lambda request: request.json["payload"]["custom_details"]["delivery"],
        lambda request: request.json["event_action"] == "resolve",
        DeliveryReason.BAD_ANSWER,
    )


class TestWebhook(Conformance):
    case = Case(
        "webhook",
        lambda url, secret: {"kind": "webhook", "url": url, "signing_key_file": str(secret)},
        Reply(204),
        lambda request: request.json["incident"],
        lambda request: (request.headers["Tocsin-Delivery"], request.json["delivery"]),
        lambda request: request.json["is_ending"],
        DeliveryReason.DELIVERED,
    )


class TestSlack(Conformance):
    case = Case(
        "slack",
        lambda url, secret: {"kind": "slack", "url": url, "channel": "C1", "token_file": str(secret)},
        Reply(200, json.dumps({"ok": True, "channel": "C1", "ts": "1.5"}).encode()),
        lambda request: request.json["metadata"]["event_payload"]["incident"],
        lambda request: request.json["metadata"]["event_payload"]["delivery"],
        lambda request: request.path == "/chat.update" and request.json["ts"] == "1.5",
        DeliveryReason.BAD_ANSWER,
    )


class TestSlackWebhook(Conformance):
    case = Case(
        "slack",
        lambda url, secret: {"kind": "slack", "webhook_url_file": str(secret)},
        Reply(200, b"ok"),
        lambda request: None,
        lambda request: None,
        lambda request: any(word in request.json["text"] for word in ("Resolved", "Taken back", "Lapsed")),
        DeliveryReason.DELIVERED,
        secret_text=lambda url: f"{url}/services/{SECRET}",
        is_named=False,
    )


class TestSecretWebhook(Conformance):
    case = Case(
        "webhook",
        lambda url, secret: {"kind": "webhook", "url_file": str(secret), "signing_key_file": str(secret)},
        Reply(200),
        lambda request: request.json["incident"],
        lambda request: (request.headers["Tocsin-Delivery"], request.json["delivery"]),
        lambda request: request.json["is_ending"],
        DeliveryReason.DELIVERED,
        secret_text=lambda url: f"{url}/in?token={SECRET}",
    )


class TestAlertmanagerBehindBasicAuthentication(Conformance):
    case = Case(
        "alertmanager",
        lambda url, secret: {"kind": "alertmanager", "urls": [url], "username": "t", "password_file": str(secret)},
        Reply(200),
        lambda request: request.json[0]["labels"],
        lambda request: (request.json[0]["labels"], request.json[0]["startsAt"]),
        lambda request: request.json[0]["endsAt"] <= "2025-11-01T00:01:20.000Z",
        DeliveryReason.DELIVERED,
    )


def test_the_secret_is_one_that_every_receiver_takes() -> None:
    assert len(SECRET) == 32
