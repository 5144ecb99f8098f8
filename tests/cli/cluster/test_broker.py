"""A real broker starts, takes a record, gives it back, and survives its own death."""

import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from kafka import KafkaAdminClient, KafkaConsumer, KafkaProducer, TopicPartition

from tests.collectors.peer import wait_until
from tocsin.cli.cluster.broker import Broker
from tocsin.cli.cluster.process import Child, Program
from tocsin.cli.processes import running_members
from tocsin.schemas.errors import EngineError


def make_topic(broker: Broker, name: str) -> None:
    admin = KafkaAdminClient(bootstrap_servers=broker.address)
    admin.create_topics({name: {"num_partitions": 1, "replication_factor": 1}})
    admin.close()


def send(broker: Broker, topic: str, value: bytes) -> None:
    producer = KafkaProducer(bootstrap_servers=broker.address, compression_type="zstd")
    producer.send(topic, value, key=b"k", headers=[("kind", b"tick")], timestamp_ms=1_700_000_000_000).get(60)
    producer.close()


def read(broker: Broker, topic: str, count: int) -> list[tuple[int, bytes, bytes]]:
    consumer = KafkaConsumer(bootstrap_servers=broker.address, auto_offset_reset="earliest")
    consumer.assign([TopicPartition(topic, 0)])
    found: list[tuple[int, bytes, bytes]] = []

    def all_there() -> bool:
        for records in consumer.poll(timeout_ms=200).values():
            found.extend((record.timestamp, record.key, record.value) for record in records)
        return len(found) >= count

    wait_until(all_there, 60)
    consumer.close()
    return found


def test_it_takes_a_record_and_gives_it_back(kafka_broker: Broker, topic_prefix: str) -> None:
    make_topic(kafka_broker, topic_prefix)
    send(kafka_broker, topic_prefix, b"hello")

    assert read(kafka_broker, topic_prefix, 1) == [(1_700_000_000_000, b"k", b"hello")]


def test_what_it_took_is_there_after_kill_9_and_a_restart(
    private_broker: Callable[..., Broker], topic_prefix: str
) -> None:
    broker = private_broker()
    address = broker.address
    make_topic(broker, topic_prefix)
    send(broker, topic_prefix, b"before")
    broker.crash()
    assert not broker.is_running()
    broker.start()
    send(broker, topic_prefix, b"after")

    assert broker.address == address
    assert [value for _, _, value in read(broker, topic_prefix, 2)] == [b"before", b"after"]


def test_it_dies_with_the_process_that_started_it() -> None:
    code = """
import sys, time
from pathlib import Path
from tocsin.cli.cluster.process import Child, Program
child = Child(Program("sleep", ["sh", "-c", "sleep 1000 & sleep 1000"], Path(sys.argv[1])))
child.start()
child.wait_ready(lambda: len(child.members()) == 3, 60)
print(child._watchdog.pid, flush=True)
time.sleep(1000)
"""
    parent = subprocess.Popen([sys.executable, "-c", code, os.devnull], stdout=subprocess.PIPE, text=True)
    assert parent.stdout is not None
    group = int(parent.stdout.readline())
    assert len(running_members(group)) == 4
    parent.kill()
    parent.wait()
    parent.stdout.close()

    wait_until(lambda: not running_members(group))


def test_a_program_that_ends_at_once_is_told_with_its_last_words(tmp_path: Path) -> None:
    child = Child(Program("the broker", ["sh", "-c", "echo no room left >&2; exit 3"], tmp_path / "log"))
    child.start()
    with pytest.raises(EngineError, match=r"the broker ended with status 3 before it was ready(.|\n)*no room left"):
        child.wait_ready(lambda: False, 60)
    assert child.members() == []
