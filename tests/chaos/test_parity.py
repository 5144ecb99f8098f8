"""The distributed engine says what the embedded one says: a short form of ``make parity``."""

from __future__ import annotations

from pathlib import Path

from tests.chaos.engine import Distributed
from tests.chaos.outcome import read_tables, table_text
from tests.chaos.plays import both_orders, streams
from tests.chaos.recordings import simulated
from tocsin.cli.cluster.broker import Broker
from tocsin.cli.cluster.clickhouse import ClickHouseEndpoint
from tocsin.cli.cluster.flink import Flink

KINDS = ("nic_dropout", "machine_unreachable")


def test_several_jobs_on_the_same_topics_in_both_orders(
    flink_cluster: Flink,
    kafka_broker: Broker,
    clickhouse_endpoint: ClickHouseEndpoint,
    topic_prefix: str,
    tmp_path: Path,
) -> None:
    plays = [
        play for kind in KINDS for play in both_orders(f"{topic_prefix}-{kind}", simulated(kind, 5, seconds=300), 7)
    ]
    assert len(streams(plays)) == 1
    outcomes = Distributed(kafka_broker, flink_cluster, clickhouse_endpoint, tmp_path).compare(plays, topic_prefix)

    print(table_text(outcomes))
    assert [one.differs for one in outcomes] == [""] * len(plays)
    assert all(one.line_count for one in outcomes)
    wanted = read_tables(tmp_path / f"{topic_prefix}-data")
    assert [bool(tables["ettr"] and tables["ettr_by_job"]) for tables in wanted.values()] == [True] * len(plays)
