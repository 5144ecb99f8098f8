"""What people were told, as rows of the database."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from tests.clickhouse_fixtures import opened_store
from tests.pipeline.stores.test_store import ask
from tocsin.pipeline.runtime.embedded.store_writer import StoreWriter, Write
from tocsin.pipeline.stores.alert_sent import AlertSent
from tocsin.pipeline.stores.sql_store import SqlStore
from tocsin.schemas.records import NS_PER_SECOND, JobKey

SENT = AlertSent(
    job=JobKey("c", "j", 2),
    verdict_id="v1",
    verdict_update=3,
    route="wake",
    receiver="pager",
    receiver_kind="pagerduty",
    kind="firing",
    severity="page",
    outcome="delivered",
    detail="accepted\nby the server",
    tries_count=4,
    made_ns=5 * NS_PER_SECOND,
    sent_ns=9 * NS_PER_SECOND + 1,
)
QUERY = "SELECT * EXCEPT (written) FROM tocsin.alerts_sent FINAL ORDER BY made, kind"


@pytest.fixture(params=["chdb", "server"])
def store(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[SqlStore]:
    with opened_store(request.param, tmp_path) as opened:
        yield opened


def test_a_delivery_is_one_row_though_it_is_written_twice(store: SqlStore) -> None:
    failed = replace(SENT, kind="resolved", outcome="gave_up", made_ns=20 * NS_PER_SECOND)
    writer = StoreWriter(store)
    writer.start()
    writer.put(Write(alerts=(SENT,)) + Write(alerts=(failed,)))
    writer.put(Write(alerts=(SENT,)))
    writer.stop()

    first, second = ask(store, QUERY)
    assert {name: str(value) for name, value in first.items()} == {
        "cluster": "c",
        "job_id": "j",
        "attempt": "2",
        "verdict_id": "v1",
        "update_number": "3",
        "route": "wake",
        "receiver": "pager",
        "receiver_kind": "pagerduty",
        "kind": "firing",
        "severity": "page",
        "outcome": "delivered",
        "detail": "accepted by the server",
        "tries": "4",
        "made": "1970-01-01 00:00:05.000000000",
        "sent": "1970-01-01 00:00:09.000000001",
    }
    assert (second["kind"], second["outcome"]) == ("resolved", "gave_up")
