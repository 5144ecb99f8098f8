"""Every adapter through the conformance kit."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.pipeline.alerts.adapters.conformance import SECRET, Case, Conformance
from tests.pipeline.alerts.adapters.notices import NOW, notice
from tests.pipeline.alerts.adapters.receiver import Reply, receiving
from tocsin.pipeline.alerts.adapters import ADAPTERS
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


@pytest.mark.parametrize(
    ("reply", "reason"),
    [
        (Reply(400, b'{"status":"invalid event","errors":["Length of \'routing_key\' is incorrect"]}'), "unauthorised"),
        (Reply(400, b"Invalid routing key"), "unauthorised"),
        (Reply(400, b'{"status":"invalid event","errors":["\'payload.source\' is missing"]}'), "rejected"),
    ],
)
def test_pagerduty_says_that_the_key_is_wrong_with_400(reply: Reply, reason: str, tmp_path: Path) -> None:
    key = tmp_path / "key"
    key.write_text(SECRET)
    key.chmod(0o600)
    with receiving(lambda _request: reply) as server:
        settings = {"kind": "pagerduty", "url": server.url, "routing_key_file": str(key)}
        result = ADAPTERS["pagerduty"].make(settings, "receivers.it").send([notice()], NOW)

    assert result.reason.value == reason


@pytest.mark.parametrize(
    ("error", "reason"),
    [("channel_not_found", "not_found"), ("is_archived", "not_found"), ("msg_too_long", "rejected")],
)
def test_slack_says_that_the_channel_is_not_there_with_200(error: str, reason: str, tmp_path: Path) -> None:
    token = tmp_path / "token"
    token.write_text(SECRET)
    token.chmod(0o600)
    reply = Reply(200, json.dumps({"ok": False, "error": error}).encode())
    with receiving(lambda _request: reply) as server:
        settings = {"kind": "slack", "url": server.url, "channel": "C1", "token_file": str(token)}
        result = ADAPTERS["slack"].make(settings, "receivers.it").send([notice()], NOW)

    assert result.reason.value == reason
