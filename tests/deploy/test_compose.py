"""deploy/compose.yaml: its form, and what a container may do."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
from pathlib import Path
from typing import Any

import jsonschema
import pytest
import yaml

from tests.deploy import files

SERVICES: dict[str, Any] = files.compose()["services"]
OURS = {name: service for name, service in SERVICES.items() if service["image"].startswith("tocsin")}
SCHEMA = json.loads((Path(__file__).parent / "compose-spec.json").read_text("utf-8"))
ONE_SHOT = {"topics", "migrate"}


def test_it_has_the_form_of_the_compose_specification() -> None:
    jsonschema.Draft7Validator(SCHEMA).validate(files.compose())


@pytest.mark.parametrize(
    ("service", "setting", "value"),
    [("kafka", "port", ["1:1"]), ("sink", "depends_on", {"kafka": {"condition": "ready"}}), ("sink", "command", 7)],
)
def test_the_form_is_really_looked_at(service: str, setting: str, value: object) -> None:
    broken = json.loads(json.dumps(files.compose()))
    broken["services"][service][setting] = value

    with pytest.raises(jsonschema.ValidationError):
        jsonschema.Draft7Validator(SCHEMA).validate(broken)


def test_docker_compose_takes_it() -> None:
    """The whole reading, where a docker compose (or compose-go's own command) is on the PATH."""
    docker = shutil.which("docker")
    path = str(files.DEPLOY / "compose.yaml")
    if docker and subprocess.run([docker, "compose", "version"], capture_output=True, check=False).returncode == 0:
        command = [docker, "compose", "-f", path, "--profile", "monitoring", "config", "--quiet"]
    elif found := shutil.which("compose-spec"):
        command = [found, path]
    else:
        pytest.skip("no docker compose and no compose-spec on the PATH")
    environment = {**os.environ, "TOCSIN_CLICKHOUSE_PASSWORD": "x"}
    ran = subprocess.run(command, capture_output=True, text=True, env=environment, check=False)

    assert ran.returncode == 0, ran.stderr


@pytest.mark.parametrize("name", SERVICES)
def test_what_is_waited_for_can_come(name: str) -> None:
    waited = SERVICES[name].get("depends_on", {})
    for other, how in waited.items() if isinstance(waited, dict) else ():
        condition = how["condition"]
        if condition == "service_healthy":
            assert "healthcheck" in SERVICES[other]
        elif condition == "service_completed_successfully":
            assert other in ONE_SHOT
    assert set(waited) <= set(SERVICES)


@pytest.mark.parametrize("name", SERVICES)
def test_a_service_comes_back_and_one_that_ends_does_not(name: str) -> None:
    assert SERVICES[name]["restart"] == ("on-failure" if name in ONE_SHOT else "unless-stopped")


@pytest.mark.parametrize("name", SERVICES)
def test_ports_are_open_to_this_machine_only(name: str) -> None:
    for port in SERVICES[name].get("ports", ()):
        assert re.match(r"127\.0\.0\.1:|\$\{TOCSIN_KAFKA_BIND:-127\.0\.0\.1\}:", port), port


@pytest.mark.parametrize("name", OURS)
def test_our_containers_have_no_capability(name: str) -> None:
    assert OURS[name]["cap_drop"] == ["ALL"]
    assert OURS[name]["security_opt"] == ["no-new-privileges:true"]
    assert not {"privileged", "cap_add", "pid", "network_mode", "user"} & set(OURS[name])


def test_no_service_is_privileged_or_sees_the_host() -> None:
    for service in SERVICES.values():
        assert not {"privileged", "pid", "network_mode", "devices", "cap_add"} & set(service)
        mounts = [mount for mount in service.get("volumes", ()) if mount.startswith(("/", "~"))]
        assert mounts == []


def test_no_password_stands_in_it() -> None:
    secrets = files.compose()["secrets"]
    assert secrets == {"clickhouse_password": {"environment": "TOCSIN_CLICKHOUSE_PASSWORD"}}
    for service in SERVICES.values():
        for variable, value in service.get("environment", {}).items():
            if "PASSWORD" in variable:
                assert variable.endswith("_FILE")
                assert value == "/run/secrets/clickhouse_password"
                assert service["secrets"] == ["clickhouse_password"]


def test_a_secret_from_the_environment_needs_a_root_that_can_be_written() -> None:
    """docker/compose issue 12031: such a secret is copied in when the container is made."""
    assert not [name for name, service in SERVICES.items() if "secrets" in service and service.get("read_only")]


def test_git_ignores_the_file_with_the_password() -> None:
    assert "/.env" in (files.DEPLOY / ".gitignore").read_text("utf-8").splitlines()


def test_the_broker_s_listeners_fit_together() -> None:
    settings = SERVICES["kafka"]["environment"]
    listeners = {part.partition("://")[0] for part in settings["KAFKA_LISTENERS"].split(",")}
    advertised = dict(part.split("://") for part in settings["KAFKA_ADVERTISED_LISTENERS"].split(","))
    protocols = dict(part.split(":") for part in settings["KAFKA_LISTENER_SECURITY_PROTOCOL_MAP"].split(","))

    assert listeners == set(protocols)
    assert set(advertised) == listeners - {settings["KAFKA_CONTROLLER_LISTENER_NAMES"]}
    assert advertised[settings["KAFKA_INTER_BROKER_LISTENER_NAME"]] == SERVICES["ticker"]["environment"]["TOCSIN_KAFKA"]
    assert settings["KAFKA_AUTO_CREATE_TOPICS_ENABLE"] == "false"


def test_prometheus_looks_where_pages_are() -> None:
    scraped = yaml.safe_load((files.DEPLOY / "prometheus" / "compose.yml").read_text("utf-8"))["scrape_configs"]
    targets = {target for job in scraped for one in job["static_configs"] for target in one["targets"]}
    port = files.flink_settings("compose")["metrics.reporter.prom.port"]
    pages = set()
    for name, service in SERVICES.items():
        command = service.get("command", [])
        if "--metrics-listen" in command and "profiles" not in service:
            pages.add(f"{name}:{command[command.index('--metrics-listen') + 1].rpartition(':')[2]}")

    assert {name.partition(":")[0] for name in pages} == {"sink", "controller"}
    assert targets == {*pages, f"jobmanager:{port}", f"taskmanager:{port}"}
