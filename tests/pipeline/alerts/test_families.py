"""Metrics of the alerts: an incident that nobody is told of is counted, with its reason, while it stands."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from tests.pipeline.alerts.verdict_samples import at, verdict
from tocsin.pipeline.alerts.families import alert_families
from tocsin.pipeline.alerts.notice import DeliveryReason, DeliveryResult
from tocsin.pipeline.alerts.queue import AlertQueue
from tocsin.pipeline.alerts.router import AlertRouter, RouterConfig
from tocsin.pipeline.alerts.routes import Route, RouteConfig, RouteMatch
from tocsin.pipeline.alerts.sender import AlertSender, SenderConfig
from tocsin.pipeline.lab.testing.alerts import FakeAdapter
from tocsin.schemas.verdicts import FaultKind, Verdict, VerdictState


class Alerts:
    """A router with one route for hosts whose name begins with ``n``, a queue and a sender."""

    def __init__(self, folder: Path) -> None:
        routes = RouteConfig({}, (Route("all", "a", RouteMatch(host=("n*",))),))
        self.adapter = FakeAdapter()
        self.covered: set[str] = set()
        self.router = AlertRouter(
            RouterConfig(routes), covered_by=lambda one: "fleet" if one.verdict_id in self.covered else ""
        )
        self.queue = AlertQueue(folder / "alerts.db", at(0))
        self.sender = AlertSender(self.queue, {"a": self.adapter}, SenderConfig(jitter_seconds=0.0))
        self.now_second = 0

    def say(self, second: int, *verdicts: Verdict) -> None:
        self.now_second = second
        told = [(one, "a") for one in self.router.on_verdicts(verdicts, at(second))]
        self.queue.put(told, at(second))
        self.sender.run_once(at(second))

    def metric(self, name: str) -> list[tuple[Mapping[str, Any], float]]:
        families = alert_families(self.router, self.sender, self.queue, at(self.now_second))
        (found,) = [one for one in families if one.name == name]
        return [(one.labels, one.value) for one in found.samples]

    def incidents(self) -> dict[str, float]:
        return {
            f"{labels['state']} {labels['reason']}".strip(): value
            for labels, value in self.metric("tocsin_alerts_incidents")
        }


@pytest.fixture
def alerts(tmp_path: Path) -> Alerts:
    return Alerts(tmp_path)


def test_an_incident_that_fits_no_route_is_untold_until_it_ends(alerts: Alerts) -> None:
    alerts.say(0, verdict(1), verdict(2, host="m1"))
    assert alerts.incidents() == {"told": 1, "untold no_route": 1}
    alerts.say(9, verdict(2, 9, host="m1", update=1, state=VerdictState.RESOLVED))

    assert alerts.incidents() == {"told": 1}


def test_one_that_comes_to_fit_a_route_is_told(alerts: Alerts) -> None:
    alerts.say(0, verdict(1, host="m1"))
    alerts.say(5, verdict(1, 5, host="n1", update=1))

    assert alerts.incidents() == {"told": 1}


def test_what_would_be_told_by_no_plain_route_is_not_missed(alerts: Alerts) -> None:
    alerts.say(0, verdict(1, host="m1", state=VerdictState.OPEN), verdict(2, host="m1", fault=FaultKind.DEGRADED))

    assert alerts.incidents() == {"told": 0}


def test_one_that_a_fleet_incident_stands_for_has_its_reason(alerts: Alerts) -> None:
    alerts.covered.add(verdict(1).verdict_id)
    alerts.say(0, verdict(1))

    assert alerts.incidents() == {"told": 0, "untold covered_by_fleet": 1}


def test_one_that_the_receiver_refused_is_untold_while_it_stands(alerts: Alerts) -> None:
    alerts.adapter.answers = [DeliveryResult(DeliveryReason.REJECTED)]
    alerts.say(0, verdict(1))
    assert alerts.incidents() == {"told": 0, "untold rejected": 1}
    assert alerts.metric("tocsin_alerts_trouble") == [({"receiver": "a", "reason": "rejected"}, 1)]
    alerts.say(9, verdict(1, 9, update=1, state=VerdictState.RESOLVED))

    assert alerts.incidents() == {"told": 0}


def test_one_of_which_nothing_is_heard_any_more_is_forgotten(alerts: Alerts) -> None:
    alerts.say(0, verdict(1, host="m1"))
    alerts.say(600 + 3600, verdict(2, 600 + 3600, host="m1"))
    assert alerts.incidents() == {"told": 0, "untold no_route": 2}
    alerts.say(600 + 3601)

    assert alerts.incidents() == {"told": 0, "untold no_route": 1}
