"""The Flink job as deploy/ starts it, on Flink's own scripts: the manifests' arguments and settings, no container."""

from __future__ import annotations

import importlib.util
import json
import os
import shutil
import sys
import time
import urllib.request
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest
import yaml
from kafka import KafkaProducer

from tests.collectors.peer import wait_until
from tests.deploy import files
from tests.deploy.test_prometheus import FLINK, OUR_FLINK
from tests.kafka_kit import headers, make_certificates, make_topics, read_until
from tocsin.cli.cluster.beam_loopback import write_jar
from tocsin.cli.cluster.broker import Broker
from tocsin.cli.cluster.jars import fetch_jars
from tocsin.cli.cluster.process import Child, Program, free_port
from tocsin.schemas.kafka.settings import kafka_settings
from tocsin.schemas.kafka.topics import (
    DEAD_LETTER,
    INPUTS,
    KIND_HEADER,
    TICKED,
    tick_key,
    topic_name,
)
from tocsin.schemas.records import Tick
from tocsin.schemas.wire.codec import encode

PASSWORD = "pass word-of-tests"
OF_THE_CLUSTER = ("high-availability.",)
"""Settings that need Kubernetes."""
MODULE = "org.apache.kafka.common.security.scram.ScramLoginModule"

pytestmark = [pytest.mark.slow, pytest.mark.timeout(420)]


@pytest.fixture
def broker(tmp_path: Path, private_broker: Callable[..., Broker]) -> Broker:
    """As settings.yaml wants it: SASL_SSL, SCRAM-SHA-512, a user tocsin."""
    if shutil.which("openssl") is None:
        pytest.skip("no openssl on the PATH")
    secrets = tmp_path / "secrets"
    secrets.mkdir()
    make_certificates(secrets)
    (secrets / "password").write_text(PASSWORD)
    return private_broker(
        secure=("SASL_SSL",),
        properties={
            "sasl.enabled.mechanisms": "SCRAM-SHA-512",
            "listener.name.sasl_ssl.scram-sha-512.sasl.jaas.config": f"{MODULE} required;",
            "ssl.keystore.type": "PEM",
            "ssl.keystore.location": str(secrets / "broker.pem"),
        },
        format_arguments=("--add-scram", f"SCRAM-SHA-512=[name=tocsin,password={PASSWORD}]"),
    )


def wheel() -> Path:
    """The folder of pyflink, which holds a whole Flink."""
    spec = importlib.util.find_spec("pyflink")
    if spec is None or spec.origin is None:
        pytest.skip("pip install '.[flink]'")
    return Path(spec.origin).parent


@pytest.fixture
def home(tmp_path: Path) -> Path:
    """A FLINK_HOME as the Dockerfile makes it, of links to the wheel's files."""
    folder = tmp_path / "flink"
    shutil.copytree(wheel() / "bin", folder / "bin")
    for name in ("lib", "opt", "plugins"):
        shutil.copytree(wheel() / name, folder / name, copy_function=os.symlink)
    for needed in (fetch_jars().flink_connector, fetch_jars().zstd):
        (folder / "lib" / needed.name).symlink_to(needed)
    jar = files.named("FlinkDeployment", "tocsin")["spec"]["job"]["jarURI"].removeprefix("local:///opt/flink/")
    (folder / jar).parent.mkdir()
    write_jar(next((wheel() / "opt").glob("flink-python-*.jar")), folder / jar)
    return folder


def configure(folder: Path, tmp_path: Path, ports: Mapping[str, int]) -> None:
    """The manifest's settings, with this machine's paths and ports."""
    shutil.copytree(wheel() / "conf", folder)
    own = {
        name: value.replace("file:///state", f"file://{tmp_path}/state")
        for name, value in files.flink_settings("kubernetes").items()
        if not name.startswith(OF_THE_CLUSTER)
    }
    own |= dict.fromkeys(("python.client.executable", "python.executable"), sys.executable)
    own |= {name: str(port) for name, port in ports.items()}
    own |= dict.fromkeys(("jobmanager.rpc.address", "taskmanager.host", "rest.address"), "127.0.0.1")
    own |= {"jobmanager.memory.process.size": "1200m", "taskmanager.memory.process.size": "1600m"}
    path = folder / "config.yaml"
    own["env.java.opts.all"] = yaml.safe_load(path.read_text("utf-8"))["env"]["java"]["opts"]["all"]
    path.write_text("".join(f"{name}: {value}\n" for name, value in own.items()), "utf-8")


def job(broker: Broker, secrets: Path, prefix: str) -> str:
    """The manifest's job.json, with this broker and these files; one slot is enough."""
    found = files.flink_job("kubernetes")
    text = json.dumps(found).replace("/etc/tocsin/kafka", str(secrets))
    found = json.loads(text)
    found["stream"] |= {"servers": broker.address_of("SASL_SSL"), "prefix": prefix, "start": "earliest"}
    found["slot_count"] = 1
    return json.dumps(found)


@pytest.fixture
def cluster(home: Path, tmp_path: Path, broker: Broker, topic_prefix: str) -> Iterator[tuple[int, int]]:
    """A JobManager for the one job, and a TaskManager; gives the ports of their pages."""
    make_topics(broker, topic_prefix)
    ports = {name: free_port() for name in ("jobmanager.rpc.port", "blob.server.port", "rest.port")}
    pages = (free_port(), free_port())
    environment = {
        "FLINK_HOME": str(home),
        "FLINK_LOG_DIR": str(tmp_path / "log"),
        "TOCSIN_FLINK_JOB": job(broker, tmp_path / "secrets", topic_prefix),
        "PYTHONPATH": str(files.ROOT / "src"),
    }
    arguments = files.compose()["services"]["jobmanager"]["command"][1:]
    children = []
    for script, more, port in (("standalone-job.sh", arguments, pages[0]), ("taskmanager.sh", [], pages[1])):
        conf = tmp_path / f"conf-{script}"
        configure(conf, tmp_path, {**ports, "metrics.reporter.prom.port": port})
        command = ["bash", str(home / "bin" / script), "start-foreground", *more]
        child = Child(
            Program(script, command, tmp_path / f"{script}.log", {**environment, "FLINK_CONF_DIR": str(conf)})
        )
        child.start()
        children.append(child)
    yield pages
    for child in children:
        child.stop()


def page(port: int) -> str:
    try:
        with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics", timeout=5) as answer:
            return str(answer.read().decode())
    except OSError:
        return ""


def value(text: str, name: str) -> float:
    found = [line.rpartition(" ")[2] for line in text.splitlines() if line.startswith(name + "{")]
    return float(found[0]) if found else 0.0


def send(broker: Broker, tmp_path: Path, prefix: str) -> None:
    """One record with a bad header, one that no decoder takes, then a tick in every partition, as agents would."""
    config = tmp_path / "kafka.toml"
    text = files.config("tocsin-settings", "tocsin")["kafka.toml"]
    config.write_text(text.replace("/etc/tocsin/kafka", str(tmp_path / "secrets")))
    settings = kafka_settings(broker.address_of("SASL_SSL"), str(config))
    producer = KafkaProducer(**settings.client_options())
    now_ms = int(time.time() * 1000)
    events = topic_name(INPUTS[-1], prefix)
    for kind in (b"nonsense", b"record"):
        header = [(KIND_HEADER, kind)]
        producer.send(events, key=b"c/j", value=b"junk", headers=header, timestamp_ms=now_ms - 10_000, partition=0)
    tick: dict[str, Any] = {"value": encode(Tick(now_ms * 1_000_000)), "headers": [(KIND_HEADER, b"tick")]}
    for topic in (topic_name(name, prefix) for name in TICKED):
        producer.send(topic, key=tick_key(topic), partition=0, timestamp_ms=now_ms, **tick)
    producer.close()


def test_it_judges_over_an_encrypted_broker_and_shows_the_metrics_that_alerts_name(
    cluster: tuple[int, int], broker: Broker, topic_prefix: str, tmp_path: Path
) -> None:
    send(broker, tmp_path, topic_prefix)
    wanted = {b"bad_header", b"undecodable"}

    def reasons(found: list[Any]) -> set[bytes]:
        return {headers(record)["reason"] for record in found}

    # "undecodable" is said by the operators: the record went through window, packing and Python
    dead_letters = read_until(
        broker.address, [topic_name(DEAD_LETTER, topic_prefix)], lambda found: reasons(found) >= wanted, 180
    )
    assert reasons(dead_letters) == wanted

    def shown() -> str:
        return page(cluster[0]) + page(cluster[1])

    ours = {f"{OUR_FLINK}{name}" for name in ("dead_letters", "records", "jobs")}
    wait_until(lambda: all(f"\n{name}{{" in shown() for name in FLINK | ours), 60)
    wait_until(lambda: value(page(cluster[0]), "flink_jobmanager_job_numberOfCompletedCheckpoints") > 0, 60)
    assert value(shown(), "flink_jobmanager_numRunningJobs") == 1
    assert value(shown(), "flink_jobmanager_job_numRestarts") == 0
    assert PASSWORD not in (tmp_path / "standalone-job.sh.log").read_text("utf-8")
    assert PASSWORD not in "".join(path.read_text("latin-1") for path in (tmp_path / "state").rglob("_metadata"))
