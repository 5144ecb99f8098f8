"""The dashboards' queries in a real Prometheus that scrapes the pages of tocsin's own code."""

from __future__ import annotations

import re
from contextlib import ExitStack
from pathlib import Path

from tests.deploy.exposed import pages
from tests.deploy.grafana_macros import Page
from tests.deploy.test_grafana_metrics import QUERIES
from tests.peers.conftest import running
from tests.peers.test_prometheus import query
from tests.pipeline.alerts.adapters.receiver import Receiver, Reply, receiving, refused_port
from tests.pipeline.waiting import until
from tocsin.schemas.formats.prometheus_text import render

CHOSEN: dict[str, dict[str, tuple[str, ...]]] = {
    "fleet": {"cluster": (), "job": (), "host": ()},
    "job": {"cluster": ("test",), "job": ("job",), "host": ()},
    "monitor": {"cluster": ()},
}
"""Dashboard -> what is chosen; the job is that of the engine's page."""
UNHURT = {
    "monitor: Records that agents lost",
    "monitor: Executors that do not answer, and those without a connection",
    "monitor: Executors that do not answer, and those without a connection 1",
    "monitor: What executors say",
    "monitor: What has no effect at executors",
    "monitor: What has no effect at the controller",
}
"""Queries that show only what is wrong or new, and find nothing on pages that stand still."""
_ONLY = re.compile(r" (?:==|>) 0\b")
"""The comparison by which such a query leaves out what is well."""


def _page(stack: ExitStack, text: str) -> Receiver:
    headers = {"Content-Type": "text/plain; version=0.0.4"}
    return stack.enter_context(receiving(lambda _request: Reply(200, text.encode(), headers)))


def test_prometheus_answers_each_query_of_the_dashboards(tmp_path: Path) -> None:
    (tmp_path / "engine").mkdir()
    shown = pages(tmp_path / "engine")
    with ExitStack() as stack:
        jobs = {name: _page(stack, render(families)).url.removeprefix("http://") for name, families in shown.items()}
        scraped = "".join(
            f"  - job_name: {name}\n    static_configs: [{{targets: ['{target}']}}]\n" for name, target in jobs.items()
        )
        config = tmp_path / "prometheus.yml"
        config.write_text(f"global: {{scrape_interval: 250ms}}\nscrape_configs:\n{scraped}")
        port = refused_port()
        url = f"http://127.0.0.1:{port}"
        flags = [
            f"--config.file={config}",
            f"--storage.tsdb.path={tmp_path / 'tsdb'}",
            f"--web.listen-address=127.0.0.1:{port}",
        ]
        stack.enter_context(running("prometheus", flags, f"{url}/-/ready", tmp_path / "prometheus.log"))
        until(lambda: len(query(url, "count_over_time(up[1m]) >= 4")) == len(jobs), 60)
        asked = {name: Page(0, 60, CHOSEN[name.partition(":")[0]]).promql(one.text) for name, one in QUERIES.items()}
        found = {name: len(query(url, text)) for name, text in asked.items()}
        unfiltered = {name: len(query(url, _ONLY.sub("", asked[name]))) for name in UNHURT}

    assert {name for name, count in found.items() if count == 0} == UNHURT
    assert all(unfiltered.values()), unfiltered
