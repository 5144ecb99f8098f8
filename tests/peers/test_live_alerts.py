"""A real ``tocsin serve`` with real agents tells a real Alertmanager: once, over three kills, and the end of it."""

from __future__ import annotations

import sqlite3
import threading
import time
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from tests.chaos.live_jobs import Agents, Fault, Job
from tests.chaos.live_round import Engine
from tests.pipeline.alerts.adapters.receiver import Receiver
from tests.pipeline.waiting import until
from tocsin.cli.main import main
from tocsin.cli.paths import control_socket
from tocsin.pipeline.runtime.embedded.control_socket import ControlClient

ROUTES = """
version: 1
receivers:
  am: {{kind: alertmanager, urls: ['{url}'], resend_seconds: 10}}
  calm: {{kind: alertmanager, urls: ['{url}'], resend_seconds: 60}}
routes:
  - {{name: wake, receiver: am}}
watchdog: {{receiver: calm, every_seconds: 10}}
"""
"""An alert stands for three resends: half a minute, in which a killed engine is back on a slow machine, too."""
SENT = "SELECT verdict_id, kind, outcome FROM tocsin.alerts_sent FINAL ORDER BY made"


def alerts(webhook: Receiver, name: str, status: str) -> list[dict[str, Any]]:
    """What the webhook was told of the alerts of a name."""
    told = [alert for one in webhook.asked for alert in one.json["alerts"]]
    return [alert for alert in told if (alert["labels"]["alertname"], alert["status"]) == (name, status)]


@pytest.mark.timeout(240)
def test_a_fault_is_told_once_over_three_kills_and_its_end_too(
    tmp_path: Path,
    alertmanager: str,
    webhook: Receiver,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    routes = tmp_path / "alerts.yaml"
    routes.write_text(ROUTES.format(url=alertmanager))
    monkeypatch.setenv("TOCSIN_ALERTS", str(routes))
    engine = Engine(tmp_path)
    agents = Agents(tmp_path, engine.address)
    job = Job(Fault("job-live", "kill", 1, 0.0), agents, tmp_path)
    try:
        engine.start()
        agents.start()
        thread = threading.Thread(target=job.run, args=(time.monotonic() + 1.0,), daemon=True)
        thread.start()
        until(lambda: bool(alerts(webhook, "TocsinIncident", "firing")), 60)
        until(lambda: '"firing","delivered"' in sent_rows(engine.data, capsys))  # else it would die with the engine
        for _ in range(3):
            engine.kill(0.5)
            until_sent_again(engine.data / "alerts.db")
        thread.join(60)
        standing = {alert["labels"]["verdict_id"] for alert in alerts(webhook, "TocsinIncident", "firing")}
        client = ControlClient(control_socket(engine.data))
        for name in standing - {one["labels"]["verdict_id"] for one in alerts(webhook, "TocsinIncident", "resolved")}:
            client.call("incident_close", id=name, note="the test is over")
        until(
            lambda: {one["labels"]["verdict_id"] for one in alerts(webhook, "TocsinIncident", "resolved")} == standing,
            60,
        )
        assert len(alerts(webhook, "TocsinWatchdog", "firing")) == 1
        assert alerts(webhook, "TocsinWatchdog", "resolved") == []
        until(lambda: '"resolved","delivered"' in sent_rows(engine.data, capsys))
        assert '"firing","delivered"' in sent_rows(engine.data, capsys)
    finally:
        agents.stop()
        engine.child.kill()

    fired = Counter(alert["labels"]["verdict_id"] for alert in alerts(webhook, "TocsinIncident", "firing"))
    assert fired
    assert set(fired.values()) == {1}
    assert {alert["labels"]["host"] for alert in alerts(webhook, "TocsinIncident", "firing")} == {"n1"}


def sent_rows(data: Path, capsys: pytest.CaptureFixture[str]) -> str:
    """What ``tocsin sql`` says of what was told; a row is written after its message was delivered."""
    capsys.readouterr()
    assert main(["sql", SENT, "--data", str(data), "--format", "CSV"]) == 0
    return capsys.readouterr().out


def until_sent_again(path: Path) -> None:
    """Wait until the engine goes on sending what stands."""
    before_ns = last_sent_ns(path)
    until(lambda: last_sent_ns(path) > before_ns, 60)


def last_sent_ns(path: Path) -> int:
    """When a told incident was sent last, by the queue's file."""
    base = sqlite3.connect(f"{path.as_uri()}?mode=ro", uri=True, timeout=5)
    try:
        return int(base.execute("SELECT coalesce(max(sent_ns), 0) FROM told").fetchone()[0])
    finally:
        base.close()
