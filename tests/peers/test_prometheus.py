"""Prometheus itself: it takes our rules and our page."""

from __future__ import annotations

import json
import subprocess
import urllib.parse
import urllib.request
from pathlib import Path
from typing import Any

import pytest

from tests.peers.conftest import running
from tests.pipeline.alerts.adapters.receiver import Reply, receiving, refused_port
from tests.pipeline.stores.samples import verdict
from tests.pipeline.waiting import until
from tests.tools import peers
from tocsin.pipeline.incidents.standing import incident_families
from tocsin.schemas.formats.prometheus_text import render

ROOT = Path(__file__).parents[2]
RULES = sorted(
    path for path in (ROOT / "deploy/prometheus").glob("*.yml") if "groups:" in path.read_text(encoding="utf-8")
)
SCRAPE = """
global: {{scrape_interval: 250ms}}
scrape_configs:
  - job_name: tocsin
    static_configs: [{{targets: ['{target}']}}]
"""


@pytest.mark.parametrize("rules", RULES, ids=lambda path: str(path.name))
def test_promtool_takes_the_rules(rules: Path) -> None:
    checked = subprocess.run(
        [peers.program("promtool"), "check", "rules", rules], capture_output=True, text=True, check=False
    )
    assert checked.returncode == 0, checked.stderr + checked.stdout


def test_promtool_says_that_the_rules_about_tocsin_fire_when_they_should(tmp_path: Path) -> None:
    rules, test = ROOT / "deploy/prometheus/alerts.yml", tmp_path / "test.yml"
    test.write_text((ROOT / "tests/deploy/alerts_test.yml").read_text("utf-8").replace("RULES", str(rules)))
    ran = subprocess.run(
        [peers.program("promtool"), "test", "rules", test], capture_output=True, text=True, check=False
    )
    assert ran.returncode == 0, ran.stderr + ran.stdout


def query(url: str, text: str) -> list[Any]:
    with urllib.request.urlopen(f"{url}/api/v1/query?query={urllib.parse.quote(text)}", timeout=30) as answer:
        return list(json.load(answer)["data"]["result"])


def test_prometheus_reads_the_incidents(tmp_path: Path) -> None:
    page = render(incident_families([verdict("0123456789abcdef", 0)], 0)).encode()
    with receiving(lambda _request: Reply(200, page, {"Content-Type": "text/plain; version=0.0.4"})) as server:
        config = tmp_path / "prometheus.yml"
        config.write_text(SCRAPE.format(target=server.url.removeprefix("http://")))
        port = refused_port()
        flags = [
            f"--config.file={config}",
            f"--storage.tsdb.path={tmp_path / 'tsdb'}",
            f"--web.listen-address=127.0.0.1:{port}",
        ]
        url = f"http://127.0.0.1:{port}"
        with running("prometheus", flags, f"{url}/-/ready", tmp_path / "prometheus.log"):
            until(lambda: bool(query(url, "tocsin_incident")), 60)
            found = query(url, "tocsin_incident")

    assert [one["value"][1] for one in found] == ["1"]
    assert found[0]["metric"]["host"]
