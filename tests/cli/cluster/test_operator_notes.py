"""Notes of people through the whole cluster: what is under work pages nobody, a denial cancels, a closing closes."""

from __future__ import annotations

import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest
from kafka import KafkaProducer

from tests.collectors.peer import wait_until
from tests.conftest import ROOT
from tests.pipeline.alerts.adapters.receiver import Receiver, Reply, receiving
from tests.pipeline.kafka.notes_kit import ANN, gpu_lost, placed_hosts
from tocsin.cli.cluster.broker import Broker
from tocsin.cli.cluster.clickhouse import ClickHouseEndpoint
from tocsin.cli.cluster.commands import CommandConfig, arguments_of, works_text
from tocsin.cli.cluster.flink import Flink
from tocsin.cli.cluster.process import Child, Program
from tocsin.cli.cluster.signing import engine_keys
from tocsin.cli.main import main
from tocsin.pipeline.lab.testing import FakeJob, JobShape
from tocsin.pipeline.stores.clickhouse_address import parse_address
from tocsin.pipeline.stores.clickhouse_store import ClickHouseBackend
from tocsin.schemas.credential_store import write_credentials
from tocsin.schemas.credentials import Role, new_credential
from tocsin.schemas.errors import StoreError
from tocsin.schemas.kafka.topics import headers_of, key_of, timestamp_ms, topic_of
from tocsin.schemas.records import NS_PER_SECOND, JobKey, JobRecord
from tocsin.schemas.signatures import Signer
from tocsin.schemas.wire.codec import encode

JOB = JobKey("c1", "job", 0)
SHAPE = JobShape(leaf_hosts_count=4)
HOSTS = {SHAPE.host_of(rank) for rank in range(SHAPE.rank_count)} | {"spare"}
_EARLY_NS = NS_PER_SECOND // 2
_ROUTES = """version: 1
receivers:
  hook: {{kind: webhook, url: '{url}/', signing_key_env: TEST_HOOK_KEY}}
routes:
  - {{name: all, receiver: hook}}
"""


class Site:
    """A job and a spare host whose agents sign what they send, live; a cluster; somebody who is paged.

    Attributes:
        job_ends: set: a rank of the job is killed in the next second.
        spare_fails: set: the spare host loses a GPU in the next second.
    """

    def __init__(self, broker: Broker, prefix: str, endpoint: ClickHouseEndpoint, folder: Path, hook: Receiver) -> None:
        self.broker, self.prefix, self.endpoint, self.folder, self.hook = broker, prefix, endpoint, folder, hook
        agents = {host: new_credential(Role.AGENT, host, 1) for host in HOSTS}
        self.signers = {host: Signer(one) for host, one in agents.items()}
        write_credentials(folder / "all.json", (ANN, *agents.values()))
        write_credentials(folder / "ann.json", (ANN,))
        (folder / "alerts.yaml").write_text(_ROUTES.format(url=hook.url))
        keys = engine_keys(folder / "keys")
        self.config = CommandConfig(
            prefix, *keys, alerts=str(folder / "alerts.yaml"), credentials=str(folder / "all.json")
        )
        self.kafka = [f"--kafka={broker.address}", f"--topic-prefix={prefix}"]
        self.children: dict[str, Child] = {}
        self.job_ends, self.spare_fails = threading.Event(), threading.Event()
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)

    def start(self, flink: Flink) -> None:
        assert main(["topics", "apply", "--partitions=1", *self.kafka]) == 0
        for name in self.config.names():
            arguments = arguments_of(name, self.config, self.broker.address, lambda: self.endpoint.url)
            command, log = [sys.executable, "-m", "tocsin", *arguments], self.folder / f"{name}.log"
            self.children[name] = Child(Program(name, command, log, folder=ROOT))
            self.children[name].start()
        own = [f"--rest={flink.url}", f"--name={self.prefix}", "--start=latest", "--checkpoint-seconds=2"]
        own += [f"--credentials={self.config.credentials}", f"--signing-key={self.config.signing_key}"]
        assert main(["flink", "submit", *own, *self.kafka]) == 0
        wait_until(lambda: all(child.said(works_text(name)) for name, child in self.children.items()), 120)
        self._thread.start()

    def stop(self) -> None:
        self._stop.set()
        if self._thread.is_alive():
            self._thread.join(60)
        for child in self.children.values():
            child.kill()

    def _run(self) -> None:
        """Send each second's records half a second before it begins: late is nothing, on a busy machine neither."""
        producer = KafkaProducer(bootstrap_servers=self.broker.address, linger_ms=0)
        begin_ns = time.time_ns() // NS_PER_SECOND * NS_PER_SECOND
        job = FakeJob(JobShape(leaf_hosts_count=4, start_ns=begin_ns), JOB)
        while not self._stop.wait(max(0.0, (job.now_ns - _EARLY_NS - time.time_ns()) / NS_PER_SECOND)):
            if self.job_ends.is_set():
                self.job_ends.clear()
                job.kill(3)
            records: list[JobRecord] = [*job.second(), *placed_hosts(job.now_ns, {"spare": "leaf9"})]
            if self.spare_fails.is_set():
                self.spare_fails.clear()
                records.append(gpu_lost("spare", job.now_ns))
            for record in records:
                data = self.signers[record.host].sign(encode(record))
                where, at_ms = topic_of(record, self.prefix), timestamp_ms(record)
                producer.send(where, data, key_of(record), headers_of(record), None, at_ms)
            producer.flush()
        producer.close()

    def rows(self, query: str) -> list[Mapping[str, Any]]:
        backend = ClickHouseBackend(parse_address(self.endpoint.url))
        try:
            return backend.select(query)
        except StoreError:
            return []  # the sink has not made the tables yet
        finally:
            backend.close()

    def incidents(self, job_id: str) -> list[tuple[str, str, str]]:
        query = "SELECT verdict_id, state, reason FROM tocsin.incidents_all WHERE job = '{}' ORDER BY update_number"
        newest = {one["verdict_id"]: one for one in self.rows(query.format(job_id))}
        return [(name, one["state"], one["reason"]) for name, one in newest.items()]

    def say(self, *words: str) -> None:
        """A person's command is taken."""
        assert main([*words, *self.kafka, f"--token-file={self.folder / 'ann.json'}"]) == 0, words

    def told(self) -> set[tuple[str, str]]:
        return {(one.json["incident"], one.json["kind"]) for one in list(self.hook.asked)}


@pytest.fixture
def site(
    flink_cluster: Flink,
    kafka_broker: Broker,
    topic_prefix: str,
    private_endpoint: Callable[[], ClickHouseEndpoint],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> Iterator[Site]:
    monkeypatch.setenv("TEST_HOOK_KEY", "k" * 40)
    endpoint = private_endpoint()
    endpoint.start()
    with receiving(lambda _: Reply(204)) as hook:
        made = Site(kafka_broker, topic_prefix, endpoint, tmp_path, hook)
        try:
            made.start(flink_cluster)
            yield made
        finally:
            made.stop()
            main(["flink", "cancel", f"--rest={flink_cluster.url}", f"--name={topic_prefix}"])


@pytest.mark.timeout(600)
def test_planned_work_a_denial_and_a_closing_reach_all_who_act_by_them(
    site: Site, capsys: pytest.CaptureFixture[str]
) -> None:
    host = SHAPE.host_of(3)
    site.say("maintenance", host, "--kind", "host", "--cluster", "c1", "--for", "1h", "--reason", "new cable")
    assert "by operator:ann: new cable" in capsys.readouterr().out
    time.sleep(10)  # the job makes steps
    site.job_ends.set()
    site.spare_fails.set()

    wait_until(lambda: site.incidents("job") and site.incidents("idle"), 180)
    [(idle, _, _)] = site.incidents("idle")
    wait_until(lambda: (idle, "firing") in site.told(), 60)
    site.say("feedback", idle[:8], "false", "--note", "a tester pulled the card")
    wait_until(lambda: site.incidents("idle") == [(idle, "cancelled", "denied_by_human")], 60)

    [(died, state, _)] = site.incidents("job")
    assert state in ("open", "confirmed")
    site.say("incidents", "close", died[:8], "--note", "cable replaced")
    wait_until(lambda: site.incidents("job") == [(died, "resolved", "closed_by_human")], 60)

    notes = "SELECT target, actor FROM tocsin.maintenance FINAL"
    # the sink writes what people said in another thread than verdicts
    wait_until(lambda: site.rows(notes) == [{"target": host, "actor": "operator:ann"}])
    said = "SELECT verdict_id, is_true, actor FROM tocsin.feedback FINAL"
    wait_until(lambda: site.rows(said) == [{"verdict_id": idle, "is_true": False, "actor": "operator:ann"}])
    wait_until(lambda: (idle, "taken_back") in site.told(), 60)
    assert {name for name, _ in site.told()} == {idle}  # what fell under work is seen and stored, and pages nobody
