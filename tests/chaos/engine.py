"""The distributed engine on one set of topics: a Flink job, and the consumer that fills the tables."""

from __future__ import annotations

import contextlib
import io
import sys
import time
from collections.abc import Iterator, Sequence
from pathlib import Path

from tests.chaos.outcome import Outcome, embedded, outcome, read_tables
from tests.chaos.plays import Play, play_together
from tests.chaos.settle import Chain
from tocsin.cli.cluster.broker import Broker, BrokerConfig
from tocsin.cli.cluster.clickhouse import ClickHouseEndpoint, EndpointConfig
from tocsin.cli.cluster.flink import Flink
from tocsin.cli.cluster.flink_conf import FlinkConfig
from tocsin.cli.cluster.process import Child, Program
from tocsin.cli.main import main
from tocsin.pipeline.stores.clickhouse_address import ClickHouseAddress, parse_address
from tocsin.schemas.errors import EngineError
from tocsin.schemas.kafka.settings import kafka_settings

PARTITIONS = 2
SETTLE_SECONDS = 240.0


@contextlib.contextmanager
def servers(folder: Path) -> Iterator[Distributed]:
    """Broker, Flink and endpoint of their own, in a folder."""
    broker, flink = Broker(BrokerConfig(folder / "kafka")), Flink(FlinkConfig(folder / "flink", slot_count=1))
    endpoint = ClickHouseEndpoint(EndpointConfig(folder / "clickhouse"))
    try:
        for server in (broker, endpoint, flink):
            server.start()
        yield Distributed(broker, flink, endpoint, folder)
    finally:
        for server in (flink, endpoint, broker):
            server.stop()


class Distributed:
    """Runs plays through Kafka, Flink, the consumer and the endpoint, and compares."""

    def __init__(self, broker: Broker, flink: Flink, endpoint: ClickHouseEndpoint, folder: Path) -> None:
        """Use servers that run already; ``folder`` is for what is written beside them."""
        self._broker, self._flink, self._endpoint, self.folder = broker, flink, endpoint, folder

    @property
    def kafka(self) -> str:
        """The broker's address."""
        return self._broker.address

    @property
    def clickhouse(self) -> ClickHouseAddress:
        """The endpoint's address."""
        return parse_address(self._endpoint.url)

    def crash_broker(self, away_seconds: float) -> None:
        """Kill it with -9, and start it again with its log."""
        self._broker.crash()
        time.sleep(away_seconds)
        self._broker.start()

    @contextlib.contextmanager
    def job(self, prefix: str, *flags: str) -> Iterator[Chain]:
        """Topics, a job on them, and a consumer; ended afterwards."""
        self._run(["topics", "apply", f"--partitions={PARTITIONS}", "--retain-forever", *self._kafka(prefix)])
        job = [f"--rest={self._flink.url}", f"--name={prefix}"]
        fixed = ["--start=earliest", "--checkpoint-seconds=1", "--allow-player"]
        self._run(["flink", "submit", *job, *fixed, *flags, *self._kafka(prefix)])
        consumer = self._consumer(prefix)
        try:
            consumer.start()
            yield Chain(kafka_settings(self.kafka), prefix, self._flink.rest, prefix, f"{prefix}.flink")
        finally:
            consumer.stop()
            self._run(["flink", "cancel", *job])

    def compare(self, plays: Sequence[Play], prefix: str, *flags: str) -> list[Outcome]:
        """Play them as one stream, and say of each whether it is as the embedded engine says.

        Args:
            plays: they end together.
            prefix: of the topics.
            flags: of ``tocsin flink submit``.
        """
        data = self.folder / f"{prefix}-data"
        said = embedded(plays, data, is_whole=True)
        with self.job(prefix, *flags) as chain:
            play_together(plays, chain.settings, prefix)
            is_settled = chain.wait_settled(SETTLE_SECONDS)
            lines = chain.lines()
        wanted, found = read_tables(data), read_tables(data, self.clickhouse)
        outcomes = [
            outcome(play, said[play.job_id], [line for job, line in lines if job == play.job_id], wanted, found)
            for play in plays
        ]
        if not is_settled and not any(one.differs for one in outcomes):
            raise EngineError(f"{prefix}: equal, but not settled within {SETTLE_SECONDS:.0f} s")
        return outcomes

    def _kafka(self, prefix: str) -> list[str]:
        return [f"--kafka={self._broker.address}", f"--topic-prefix={prefix}"]

    def _consumer(self, prefix: str) -> Child:
        command = [sys.executable, "-m", "tocsin", "sink", "clickhouse", *self._kafka(prefix)]
        log = self.folder / f"{prefix}-sink.log"
        return Child(Program("the consumer", [*command, f"--clickhouse={self._endpoint.url}"], log))

    def _run(self, command: list[str]) -> None:
        said = io.StringIO()
        with contextlib.redirect_stdout(said), contextlib.redirect_stderr(said):
            status = main(command)
        if status:
            raise EngineError(f"tocsin {' '.join(command[:2])} ended with {status}: {said.getvalue()}")
