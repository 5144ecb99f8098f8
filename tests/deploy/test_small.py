"""The small form: deploy/compose-small.yaml, its example settings, and who scrapes it."""

from __future__ import annotations

from typing import Any

import jsonschema
import pytest
import yaml

from tests.deploy import files
from tests.deploy.test_compose import SCHEMA
from tocsin import __version__
from tocsin.cli.main import main

SERVICES: dict[str, Any] = files.small()["services"]


def after(name: str, flag: str) -> str:
    command = SERVICES[name]["command"]
    return str(command[command.index(flag) + 1])


def test_it_has_the_form_of_the_compose_specification() -> None:
    jsonschema.Draft7Validator(SCHEMA).validate(files.small())


@pytest.mark.parametrize("name", SERVICES)
def test_a_container_may_do_little_and_comes_back(name: str) -> None:
    service = SERVICES[name]
    assert service["cap_drop"] == ["ALL"]
    assert service["security_opt"] == ["no-new-privileges:true"]
    assert service["read_only"] is True
    assert service["restart"] == "unless-stopped"
    assert service["image"].rpartition(":")[2] == __version__
    assert not {"privileged", "cap_add", "user", "devices"} & set(service)
    assert all(port.startswith("127.0.0.1:") for port in service.get("ports", ()))


def test_only_the_agent_sees_the_host_and_only_where_it_is_asked_for() -> None:
    assert not {"pid", "network_mode"} & set(SERVICES["serve"])
    assert SERVICES["agent"]["profiles"] == ["agent"]
    assert "healthcheck" in SERVICES["serve"]
    assert SERVICES["agent"]["depends_on"] == {"serve": {"condition": "service_healthy"}}


def test_the_agent_speaks_to_the_engine_s_socket_in_their_volume() -> None:
    assert after("serve", "--listen") == after("agent", "--engine") == "unix:/run/tocsin/engine.sock"
    assert all("tocsin-run:/run/tocsin" in service["volumes"] for service in SERVICES.values())


def test_the_example_of_settings_is_right(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["config", "check", str(files.DEPLOY / "tocsin.toml.example")]) == 0
    assert "serve.listen = 127.0.0.1:4440" in capsys.readouterr().out


def test_prometheus_looks_where_their_pages_are() -> None:
    scraped = yaml.safe_load((files.DEPLOY / "prometheus" / "small.yml").read_text("utf-8"))["scrape_configs"]
    targets = {job["job_name"]: job["static_configs"][0]["targets"] for job in scraped}
    assert targets == {"tocsin-serve": ["127.0.0.1:9443"], "tocsin-agent": ["127.0.0.1:9441"]}
