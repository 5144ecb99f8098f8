"""What the dashboards find in the tables of tocsin serve, which writes fewer than the sink of Kafka does."""

from __future__ import annotations

from pathlib import Path

from tests.clickhouse_fixtures import opened_store
from tests.deploy.files import ROOT
from tests.deploy.test_grafana_queries import CHOSEN, QUERIES, VARIABLES, ask, fill

EMPTY = {"job: Steps by attempt", "job: Why no verdict was given"}
"""Queries that find nothing where tocsin serve writes the tables."""


def test_where_serve_writes_the_rest_finds_something_and_the_docs_say_what_does_not(tmp_path: Path) -> None:
    asked = {name: query.text for name, query in QUERIES.items() if "tocsin.job_status" in query.text}
    with opened_store("chdb", tmp_path) as store:
        fill(store, by_serve=True)
        assert {name for name, sql in asked.items() if not ask(store, sql, CHOSEN)} == EMPTY
        assert all(ask(store, text, CHOSEN) for text in VARIABLES.values())
    text = " ".join((ROOT / "docs" / "grafana.md").read_text("utf-8").split())
    assert [name for name in EMPTY if f"*{name.partition(': ')[2]}*" not in text] == []
