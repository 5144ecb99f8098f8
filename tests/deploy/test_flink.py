"""The Flink job of compose.yaml and of the manifests: what it is told, and that it runs so."""

from __future__ import annotations

import json
import re
import zipfile
from pathlib import Path

import pytest

from tests.deploy import files
from tests.kafka_fixtures import need_java
from tocsin.cli.cluster import flink_conf
from tocsin.cli.cluster.jars import fetch_jars
from tocsin.pipeline.runtime.flink.options import OPTIONS_VARIABLE, options_from
from tocsin.schemas.kafka.settings import kafka_settings

BOTH = ["compose", "kubernetes"]
OF_ONE_FORM = {
    "jobmanager.rpc.address",
    "jobmanager.memory.process.size",
    "taskmanager.memory.process.size",
    "high-availability.type",
    "high-availability.storageDir",
}
"""What differs on purpose: the operator sets addresses and memory, and compose has nowhere to keep a leader."""


@pytest.mark.parametrize("kind", BOTH)
def test_the_job_takes_its_options(kind: str) -> None:
    options = options_from(json.dumps(files.flink_job(kind)))

    assert options.slot_count == int(files.flink_settings(kind)["taskmanager.numberOfTaskSlots"])
    assert options.stream.prefix == "tocsin"
    assert options.stream.group == "tocsin.flink"  # as 'tocsin flink submit' calls it
    if kind == "kubernetes":
        assert options.slot_count == files.named("FlinkDeployment", "tocsin")["spec"]["job"]["parallelism"]


def test_the_job_s_variable_is_the_one_that_it_reads() -> None:
    (container,) = [one for one in files.containers() if one.image == "tocsin-flink"]

    assert set(files.environment_of(container)) == {OPTIONS_VARIABLE}
    assert OPTIONS_VARIABLE in files.compose()["services"]["jobmanager"]["environment"]


def test_flink_restarts_and_keeps_checkpoints_as_the_local_cluster_does(tmp_path: Path) -> None:
    wanted = flink_conf.settings_of(flink_conf.FlinkConfig(tmp_path), 1, 2, tmp_path)
    ours = files.flink_settings("kubernetes")
    same = {name for name in ours if name.startswith(("restart-strategy.", "execution.checkpointing.ext"))}

    assert len(same) == 5
    assert {name: ours[name] for name in same} == {name: wanted[name] for name in same}


def test_the_job_speaks_to_the_brokers_of_the_others() -> None:
    compose = files.compose()["services"]["ticker"]["environment"]["TOCSIN_KAFKA"]

    assert files.flink_job("compose")["stream"]["servers"] == compose
    environment = files.config("tocsin-environment", "tocsin")
    assert files.flink_job("kubernetes")["stream"]["servers"] == environment["TOCSIN_KAFKA"]
    assert files.flink_job("kubernetes")["stream"]["prefix"] == environment["TOCSIN_TOPIC_PREFIX"]


def test_both_forms_configure_flink_alike() -> None:
    compose, kubernetes = (files.flink_settings(kind) for kind in BOTH)

    assert set(compose) ^ set(kubernetes) <= OF_ONE_FORM
    for name in set(compose) & set(kubernetes):
        assert compose[name] == kubernetes[name], name


def test_both_forms_start_the_same_program() -> None:
    command = files.compose()["services"]["jobmanager"]["command"]
    job = files.named("FlinkDeployment", "tocsin")["spec"]["job"]

    assert command == ["standalone-job", "--job-classname", job["entryClass"], *job["args"]]


def test_the_job_s_security_is_that_of_the_others(tmp_path: Path) -> None:
    path = tmp_path / "kafka.toml"
    path.write_text(files.config("tocsin-settings", "tocsin")["kafka.toml"])
    settings = kafka_settings("x:1", str(path))
    properties = files.flink_job("kubernetes")["stream"]["properties"]
    jaas = properties["sasl.jaas.config"]

    assert properties["security.protocol"] == settings.protocol
    assert properties["sasl.mechanism"] == settings.mechanism
    assert properties["ssl.truststore.location"] == settings.ca_file
    assert f'username="{settings.username}"' in jaas
    folder, _, name = settings.password.file.rpartition("/")
    assert f'password="${{dir:{folder}:{name}}}";' in jaas


def test_the_classes_that_the_settings_name_are_in_the_jars(tmp_path: Path) -> None:
    """Those of the manifests, and those that 'tocsin flink submit' writes."""
    need_java()
    config, password = tmp_path / "kafka.toml", tmp_path / "password"
    password.write_text("x")
    text = files.config("tocsin-settings", "tocsin")["kafka.toml"]
    config.write_text(text.replace("/etc/tocsin/kafka/password", str(password)))
    properties = files.flink_job("kubernetes")["stream"]["properties"]
    jaas = kafka_settings("h:1", str(config)).java_properties()["sasl.jaas.config"]
    wanted = {properties["config.providers.dir.class"], properties["sasl.jaas.config"].split()[0], jaas.split()[0]}
    with zipfile.ZipFile(fetch_jars().flink_connector) as jar:
        known = set(jar.namelist())

    assert {name for name in wanted if name.replace(".", "/") + ".class" not in known} == set()


def test_the_job_s_jar_is_the_one_that_the_image_makes() -> None:
    text = (files.DEPLOY / "Dockerfile").read_text("utf-8")
    linked = re.findall(r"cluster.beam_loopback \\\n\s+(\S+) (\S+)", text)
    jar = files.named("FlinkDeployment", "tocsin")["spec"]["job"]["jarURI"]

    assert [f"local://{target}" for _, target in linked] == [jar]
    assert files.flink_settings("kubernetes")["python.executable"] == "/opt/tocsin/bin/python"
    assert "python -m venv /opt/tocsin" in text
