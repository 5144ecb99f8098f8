"""The Alertmanager adapter against a real Alertmanager: one incident is told once, and ends when it ends."""

from __future__ import annotations

import time
from dataclasses import replace
from typing import Any

from tests.pipeline.alerts.adapters.notices import notice
from tests.pipeline.alerts.adapters.receiver import Receiver
from tests.pipeline.waiting import until
from tocsin.pipeline.alerts.adapters import ADAPTERS
from tocsin.pipeline.alerts.notice import Adapter, Notice, NoticeKind

RESEND_SECONDS = 5


def adapter_for(url: str) -> Adapter:
    return ADAPTERS["alertmanager"].make(
        {"kind": "alertmanager", "urls": [url], "resend_seconds": RESEND_SECONDS}, "receivers.am"
    )


def now_notice(kind: NoticeKind = NoticeKind.FIRING, reference: str = "", **changes: Any) -> Notice:
    """A notice of an incident that began a moment ago by the real clock, which Alertmanager reads."""
    now = time.time_ns()
    made = notice(kind, reference, onset_ns=now - 5_000_000_000, detected_ns=now, **changes)
    return replace(made, told_ns=now, made_ns=now)


def told(webhook: Receiver, status: str) -> list[Any]:
    return [alert for one in webhook.asked for alert in one.json["alerts"] if alert["status"] == status]


def test_one_incident_sent_again_and_again_by_two_processes_is_told_once_and_resolves(
    alertmanager: str, webhook: Receiver
) -> None:
    first, firing = adapter_for(alertmanager), now_notice()
    sent = [first.send([firing], time.time_ns()) for _ in range(3)]
    assert [one.is_delivered for one in sent] == [True, True, True]
    until(lambda: bool(told(webhook, "firing")))
    second = adapter_for(alertmanager)  # the first was killed; its notice is sent again by the next process
    reference = sent[-1].references[0]
    assert second.send([replace(firing, reference=reference)], time.time_ns()).is_delivered
    changed = now_notice(NoticeKind.CHANGED, reference, cause="ecc_error")
    assert second.send([changed], time.time_ns()).is_delivered
    ending = now_notice(NoticeKind.RESOLVED, reference)
    assert second.send([ending], time.time_ns()).is_delivered
    until(lambda: bool(told(webhook, "resolved")))

    firings = told(webhook, "firing")
    assert len(firings) == 1
    assert firings[0]["labels"]["alertname"] == "TocsinIncident"
    assert {alert["fingerprint"] for alert in told(webhook, "resolved")} == {firings[0]["fingerprint"]}


def test_a_short_absence_of_the_sender_resolves_nothing_and_a_long_one_does(
    alertmanager: str, webhook: Receiver
) -> None:
    adapter = adapter_for(alertmanager)
    reference = adapter.send([now_notice()], time.time_ns()).references[0]
    until(lambda: bool(told(webhook, "firing")))
    time.sleep(2 * RESEND_SECONDS)  # the subject of the test: two resends are missed by the clock of Alertmanager
    assert not told(webhook, "resolved")
    adapter.send([replace(now_notice(), reference=reference)], time.time_ns())
    until(lambda: bool(told(webhook, "resolved")), 10 * RESEND_SECONDS)
    assert len(told(webhook, "firing")) == 1
