"""The whole chain with Kafka, Flink and ClickHouse: the same fault, effect in Slurm, page and rows."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.peers.slurm import Slurm
from tests.peers.whole_chain import Site, check, play
from tests.pipeline.alerts.adapters.receiver import Receiver
from tocsin.cli.cluster.broker import Broker
from tocsin.cli.cluster.clickhouse import ClickHouseEndpoint
from tocsin.cli.cluster.flink import Flink
from tocsin.cli.cluster.signing import engine_keys
from tocsin.cli.main import main
from tocsin.pipeline.identity.message_signatures import public_half
from tocsin.schemas.credential_store import change, read_credentials


def start_engine(site: Site, kafka: list[str], prefix: str, flink: Flink, clickhouse: str) -> None:
    """Everything between the agents and the executor."""
    private, public = engine_keys(site.folder / "keys")
    keys, signing = f"--verdict-keys={public}", f"--signing-key={private}"
    credentials = f"--credentials={site.credentials}"
    controller = site.token("controller", "controller")
    change(site.credentials, lambda before: (*before, *map(public_half, read_credentials(private))))
    assert main(["topics", "apply", "--partitions=1", *kafka]) == 0
    site.run("ticker", "ticker", *kafka, ready="ticking")
    sink = ["sink", "clickhouse", *kafka, f"--clickhouse={clickhouse}", keys, "--act"]
    site.run("sink", *sink, f"--controller-keys={site.credentials}", ready="tocsin sink: ")
    acting = ["controller", "--act", "--spares=1", *kafka, keys, signing, credentials]
    site.run("controller", *acting, f"--controller-key={controller}", ready="tocsin controller: ")
    site.run("alerts", "alerts", "run", f"--alerts={site.routes}", *kafka, keys, signing, ready="tocsin alerts: ")
    submit = ["flink", "submit", f"--rest={flink.url}", f"--name={prefix}", "--start=latest", "--checkpoint-seconds=2"]
    assert main([*submit, credentials, signing, *kafka]) == 0


@pytest.fixture
def bare_site(tmp_path: Path, slurm: Slurm, alertmanager: str) -> Site:
    return Site(tmp_path, slurm, alertmanager)


@pytest.fixture
def site(
    bare_site: Site,
    flink_cluster: Flink,
    kafka_broker: Broker,
    topic_prefix: str,
    private_endpoint: Callable[[], ClickHouseEndpoint],
) -> Iterator[Site]:
    made, endpoint = bare_site, private_endpoint()
    endpoint.start()
    made.database = [f"--clickhouse={endpoint.url}"]
    kafka = [f"--kafka={kafka_broker.address}", f"--topic-prefix={topic_prefix}"]
    try:
        start_engine(made, kafka, topic_prefix, flink_cluster, endpoint.url)
        made.start_agents(kafka)
        made.start_executor(made.credentials, kafka)
        yield made
    finally:
        made.stop()
        main(["flink", "cancel", f"--rest={flink_cluster.url}", f"--name={topic_prefix}"])


@pytest.mark.timeout(420)
def test_a_lost_gpu_takes_its_node_out_of_the_job_and_pages_once_with_kafka_and_flink(
    site: Site, webhook: Receiver, capsys: pytest.CaptureFixture[str]
) -> None:
    node = play(site, webhook)
    check(site, webhook, node, capsys)
