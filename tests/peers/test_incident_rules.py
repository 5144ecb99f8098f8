"""The rules about incidents in a real Prometheus, which tells a real Alertmanager: one incident pages once."""

from __future__ import annotations

import shutil
import subprocess
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.peers.conftest import running
from tests.peers.test_prometheus import query
from tests.pipeline.alerts.adapters.receiver import Receiver, Reply, receiving, refused_port
from tests.pipeline.stores.samples import verdict
from tests.pipeline.waiting import until
from tests.tools import peers
from tocsin.pipeline.incidents.standing import incident_families
from tocsin.schemas.formats.prometheus_text import render
from tocsin.schemas.verdicts import FaultKind, Verdict, VerdictState

FOLDER = Path(__file__).parents[2] / "deploy" / "prometheus"
CONFIRMED = VerdictState.CONFIRMED
NAMED = verdict("0123456789abcdef", 1, state=CONFIRMED, cause="unknown")
EXPLAINED = verdict("0123456789abcdef", 2, state=CONFIRMED, fault=FaultKind.FAIL_STOP, cause="ecc_error")
NOBODY = verdict("fedcba9876543210", 1, state=CONFIRMED, cause="unknown", suspects=())
PROMETHEUS = """
global: {{scrape_interval: 250ms, evaluation_interval: 250ms}}
rule_files: [{rules}]
scrape_configs:
  - job_name: tocsin-serve
    static_configs: [{{targets: ['{target}']}}]
alerting:
  alertmanagers:
    - static_configs: [{{targets: ['{alertmanager}']}}]
"""

Page = Callable[..., None]
"""Shows other verdicts on the page from now on."""


def test_promtool_says_that_the_rules_fire_when_they_should(tmp_path: Path) -> None:
    shutil.copy(FOLDER / "incidents.yml", tmp_path)
    shutil.copy(Path(__file__).with_name("incidents_test.yml"), tmp_path)
    command = [str(peers.program("promtool")), "test", "rules", "incidents_test.yml"]
    ran = subprocess.run(command, capture_output=True, text=True, check=False, cwd=tmp_path)
    assert ran.returncode == 0, ran.stdout + ran.stderr


def _alertmanager_config(webhook: Receiver) -> str:
    """Return the shipped configuration with short waits, and all receivers at the webhook."""
    config: dict[str, Any] = yaml.safe_load((FOLDER / "alertmanager.yml").read_text("utf-8"))
    for route in config["route"]["routes"]:
        route |= {"group_wait": "1s", "group_interval": "500ms"}
    for receiver in config["receivers"][1:]:
        receiver["webhook_configs"] = [{"url": webhook.url, "send_resolved": True}]
    return str(yaml.safe_dump(config))


def _rules() -> str:
    """Return the shipped rules with short waits."""
    text = (FOLDER / "incidents.yml").read_text("utf-8")
    return text.replace("keep_firing_for: 5m", "keep_firing_for: 10s").replace("for: 2m", "for: 2s")


@pytest.fixture
def told(tmp_path: Path, webhook: Receiver) -> Iterator[tuple[str, Page]]:
    """Prometheus with the rules, an Alertmanager with the inhibit rules; Prometheus' address, and the page to set."""
    shown: list[bytes] = [b""]
    ports = refused_port(), refused_port()
    (tmp_path / "incidents.yml").write_text(_rules())
    (tmp_path / "am.yml").write_text(_alertmanager_config(webhook))
    headers = {"Content-Type": "text/plain; version=0.0.4"}

    def show(*verdicts: Verdict) -> None:
        shown[0] = render(incident_families(verdicts, 0)).encode()

    show()
    with ExitStack() as stack:
        page = stack.enter_context(receiving(lambda _request: Reply(200, shown[0], headers)))
        (tmp_path / "prometheus.yml").write_text(
            PROMETHEUS.format(
                rules=tmp_path / "incidents.yml",
                target=page.url.removeprefix("http://"),
                alertmanager=f"127.0.0.1:{ports[1]}",
            )
        )
        alertmanager = [
            f"--config.file={tmp_path / 'am.yml'}",
            f"--storage.path={tmp_path / 'am'}",
            f"--web.listen-address=127.0.0.1:{ports[1]}",
            "--cluster.listen-address=",
        ]
        ready = f"http://127.0.0.1:{ports[1]}/-/ready"
        stack.enter_context(running("prometheus-alertmanager", alertmanager, ready, tmp_path / "am.log"))
        url = f"http://127.0.0.1:{ports[0]}"
        flags = [
            f"--config.file={tmp_path / 'prometheus.yml'}",
            f"--storage.tsdb.path={tmp_path / 'tsdb'}",
            f"--web.listen-address=127.0.0.1:{ports[0]}",
            "--rules.alert.resend-delay=1s",
        ]
        stack.enter_context(running("prometheus", flags, f"{url}/-/ready", tmp_path / "prometheus.log"))
        yield url, show


def test_one_incident_pages_once_whatever_changes_and_its_job_stays_silent(
    told: tuple[str, Page], webhook: Receiver
) -> None:
    url, show = told

    def alerts(status: str) -> list[Any]:
        return [alert for one in webhook.asked for alert in one.json["alerts"] if alert["status"] == status]

    def firing(name: str, extra: str = "") -> bool:
        return bool(query(url, f'ALERTS{{alertname="{name}",alertstate="firing"{extra}}}'))

    show(NAMED, NOBODY)
    until(lambda: bool(alerts("firing")), 60)
    show(EXPLAINED, NOBODY)
    until(lambda: firing("TocsinJobIncident"), 60)
    show()  # the engine is away for a moment
    until(lambda: not query(url, "tocsin_incident"), 60)
    show(EXPLAINED, NOBODY)
    until(lambda: bool(query(url, 'tocsin:incident:page{cause="ecc_error"}')), 60)
    assert firing("TocsinHostIncident", ',host="n3"')
    show()
    until(lambda: any(alert["labels"].get("host") == "n3" for alert in alerts("resolved")), 60)

    assert {alert["labels"]["alertname"] for alert in alerts("firing")} == {"TocsinHostIncident"}
    assert len(alerts("firing")) == 1
    labels = alerts("firing")[0]["labels"]
    assert labels == {
        "alertname": "TocsinHostIncident",
        "cluster": "c1",
        "job": "job-1",
        "host": "n3",
        "severity": "critical",
    }
    [ended] = [alert for alert in alerts("resolved") if alert["labels"] == labels]
    assert ended["annotations"]["runbook_url"].endswith("/ecc_error.md")
