"""One agent's sink killed with -9 again and again: judged as what the topics hold, and nobody accuses its host."""

from __future__ import annotations

from pathlib import Path

from tests.chaos.agent_round import AGENT, AgentConfig, run_agent_round
from tests.chaos.engine import Distributed
from tests.chaos.outcome import table_text
from tocsin.cli.cluster.broker import Broker
from tocsin.cli.cluster.clickhouse import ClickHouseEndpoint
from tocsin.cli.cluster.flink import Flink


def test_a_host_whose_agent_dies_is_judged_by_what_came_of_it(
    flink_cluster: Flink,
    kafka_broker: Broker,
    clickhouse_endpoint: ClickHouseEndpoint,
    topic_prefix: str,
    tmp_path: Path,
) -> None:
    distributed = Distributed(kafka_broker, flink_cluster, clickhouse_endpoint, tmp_path)
    config = AgentConfig(seed=1, speed=12.0, stream_seconds=300.0, life_seconds=(2.0, 4.0), gap_seconds=(0.2, 1.0))
    reported = run_agent_round(config, distributed, topic_prefix)

    print(table_text(reported.outcomes))
    assert reported.problems == []
    assert [one.differs for one in reported.outcomes] == [""]
    assert reported.counts[AGENT] >= 1  # that the host has a gap is among the problems, however slow the machine is
