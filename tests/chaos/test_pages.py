"""The sender of alerts and the controller, killed on a real broker: a short form of their rounds of ``make chaos``."""

from __future__ import annotations

from pathlib import Path

from tests.chaos.page_round import PageConfig, run_page_round
from tocsin.cli.cluster.broker import Broker


def test_the_pages_of_killed_processes_are_those_of_an_undisturbed_run(
    kafka_broker: Broker, topic_prefix: str, tmp_path: Path
) -> None:
    reported = run_page_round(PageConfig(seed=3, kills_count=1), kafka_broker, tmp_path, topic_prefix)

    print(reported.text())
    assert reported.problems == []
    assert reported.kills == {"alerts": 1, "controller": 1}
    assert reported.incidents_count == 4
