"""What the dashboards find in the tables of tocsin serve, and in those that the sink of Kafka writes."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.clickhouse_fixtures import opened_store
from tests.deploy.files import ROOT
from tests.deploy.test_grafana_queries import CHOSEN, QUERIES, VARIABLES, ask, fill

TABLES = ("tocsin.job_status", "tocsin.ettr", "tocsin.maintenance")
"""Tables that queries name and that only one of the two writes."""
BY_KAFKA = {"job: Steps by attempt", "job: Why no verdict was given"}
"""Queries that find nothing where tocsin serve writes the tables."""
BY_SERVE = {
    "fleet: Planned work",
    "fleet: Effective training time of jobs (ETTR)",
    "job: Effective training time",
    "job: Wall time by part, all attempts",
    "job: Attempts",
}
"""Queries that find nothing where the sink writes the tables."""


@pytest.mark.parametrize(("without", "empty"), [("kafka", BY_KAFKA), ("serve", BY_SERVE)])
def test_in_each_mode_the_rest_finds_something_and_the_docs_say_what_does_not(
    tmp_path: Path, without: str, empty: set[str]
) -> None:
    asked = {name: query.text for name, query in QUERIES.items() if any(one in query.text for one in TABLES)}
    with opened_store("chdb", tmp_path) as store:
        fill(store, without)
        assert {name for name, sql in asked.items() if not ask(store, sql, CHOSEN)} == empty
        assert all(ask(store, text, CHOSEN) for text in VARIABLES.values())
    text = " ".join((ROOT / "docs" / "grafana.md").read_text("utf-8").split())
    assert [name for name in empty if name.partition(": ")[2] not in text] == []
