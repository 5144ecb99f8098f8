"""What a site starts to let the controller act: calls that are taken, and no more rights than each role needs."""

from __future__ import annotations

import argparse
import json
import os
import shlex
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import jsonschema
import pytest
import yaml

from tests.deploy import files
from tests.deploy.files import Command
from tests.deploy.test_commands import parsed
from tocsin.cli.executor import TARGETS
from tocsin.schemas.kafka.settings import kafka_settings
from tocsin.schemas.kafka.topics import (
    ACTION_ACKS,
    ACTIONS,
    CLOCK,
    COLLECTIVES,
    EVENTS,
    FRAMES,
    NOTES_TAKEN,
    OPERATOR_ANSWERS,
    OPERATOR_NOTES,
    STEPS,
)

ACT = files.DEPLOY / "kubernetes-act"
REPLICAS = files.DEPLOY / "kubernetes-executor"
COMPOSE: dict[str, Any] = yaml.safe_load((files.DEPLOY / "compose-act.yaml").read_text("utf-8"))
SCHEMA = json.loads((Path(__file__).parent / "compose-spec.json").read_text("utf-8"))
UNITS = [name for name in TARGETS if name != "kubernetes"]  # that one runs in the cluster whose nodes it changes
BY_SLURM = {"slurm", "preflight"}  # users that Slurm knows on every node


def objects(name: str) -> list[dict[str, Any]]:
    return list(yaml.safe_load_all((ACT / name).read_text("utf-8")))


def patched(name: str, container: str) -> tuple[dict[str, Any], dict[str, str]]:
    """The pod of a patch, and the variables that it adds to a container of ``deploy/kubernetes``."""
    (patch,) = objects(name)
    pod = patch["spec"]["template"]["spec"]
    whole = files.named("Deployment", patch["metadata"]["name"], patch["metadata"]["namespace"])
    assert container in {one["name"] for one in whole["spec"]["template"]["spec"]["containers"]}
    (one,) = pod["containers"]
    assert one["name"] == container
    return pod, {variable["name"]: variable["value"] for variable in one["env"]}


def replicas() -> tuple[list[dict[str, Any]], list[dict[str, Any]]]:
    """The objects that run the executor for Kubernetes, and those of its rights."""
    found = (
        yaml.safe_load_all((REPLICAS / name).read_text("utf-8")) for name in ("executor-kubernetes.yaml", "rbac.yaml")
    )
    running, rights = (list(one) for one in found)
    return running, rights


def executor(found: list[dict[str, Any]] | None = None) -> tuple[dict[str, Any], dict[str, Any], dict[str, str]]:
    """The pod of an executor (that for jobs), its container, and its variables."""
    settings, deployment, *_ = found or objects("executor-job.yaml")
    pod = deployment["spec"]["template"]["spec"]
    (container,) = pod["containers"]
    keys = {one["name"]: one["valueFrom"]["configMapKeyRef"] for one in container["env"]}
    assert {key["name"] for key in keys.values()} == {settings["metadata"]["name"]}
    return pod, container, {name: settings["data"][key["key"]] for name, key in keys.items()}


def calls() -> Iterator[Command]:
    for target in UNITS:
        unit = files.unit(f"tocsin-executor-{target}.service")
        environment = dict(line.split("=", 1) for line in unit["Environment"])
        yield Command(f"systemd: {target}", tuple(unit["ExecStart"][0].split()[1:]), environment)
    _, container, environment = executor()
    yield Command("kubernetes-act: executor-job", tuple(container["args"]), environment)
    _, container, environment = executor(replicas()[0])
    yield Command("kubernetes-executor", tuple(container["args"]), environment)
    for name, service in COMPOSE["services"].items():
        command = tuple(service.get("command") or files.compose()["services"][name]["command"])
        yield Command(f"compose-act.yaml: {name}", command, service["environment"])
    for name, part in (("controller", "controller"), ("sink", "sink")):
        own = files.named("Deployment", f"tocsin-{part}")["spec"]["template"]["spec"]["containers"][0]
        yield Command(f"kubernetes-act: {name}", tuple(own["args"]), patched(f"{name}-acts.yaml", part)[1])


@pytest.mark.parametrize("command", list(calls()), ids=lambda one: one.where)
def test_the_command_line_takes_each_call_and_has_all_that_acting_needs(
    command: Command, monkeypatch: pytest.MonkeyPatch
) -> None:
    args: argparse.Namespace = parsed(command, monkeypatch)

    if command.arguments[0] == "executor":
        assert args.token_file
        assert args.metrics_listen.endswith((":9446", ":9447", ":9448", ":9449", ":9450", ":9451"))
    else:
        assert args.act, command.where
    wanted = ("controller_key", "credentials", "verdict_keys") if args_of(command) == "controller" else ()
    for name in wanted or ("controller_keys",):
        assert getattr(args, name).endswith(".json"), name


def args_of(command: Command) -> str:
    return command.arguments[0]


def test_kustomize_names_each_file() -> None:
    (settings,) = objects("kustomization.yaml")
    named = {*settings["resources"], *(one["path"] for one in settings["patches"])}
    assert named == {"../kubernetes", *(path.name for path in ACT.glob("*.yaml") if path.name != "kustomization.yaml")}


def test_each_role_has_its_own_key_and_everybody_the_public_ones() -> None:
    documented = files.DOCS.read_text("utf-8")
    mounts = {}
    for name, container in (("controller-acts.yaml", "controller"), ("sink-acts.yaml", "sink")):
        pod, environment = patched(name, container)
        (volume,) = pod["volumes"]
        mounts[container] = volume["secret"]["secretName"]
        assert all(value == "1" or value.startswith("/etc/tocsin/act/") for value in environment.values())
    pod, _, _ = executor()
    mounts["executor"] = next(one["secret"]["secretName"] for one in pod["volumes"] if one["name"] == "act")
    assert len(set(mounts.values())) == len(mounts)
    for secret in (*mounts.values(), "tocsin-kafka-executor"):
        assert f"-n tocsin create secret generic {secret} " in documented
    assert "controller.json" not in documented.partition("create secret generic tocsin-act-keys")[2].partition("\n")[0]


def test_the_executor_has_no_right_that_it_does_not_need() -> None:
    settings, deployment, policy = objects("executor-job.yaml")
    pod, container, environment = executor()

    assert pod["automountServiceAccountToken"] is False
    assert "serviceAccountName" not in pod
    assert pod["securityContext"]["runAsNonRoot"] is True
    assert pod["securityContext"]["seccompProfile"] == {"type": "RuntimeDefault"}
    assert container["securityContext"] == {
        "allowPrivilegeEscalation": False,
        "readOnlyRootFilesystem": True,
        "capabilities": {"drop": ["ALL"]},
    }
    assert {next(iter(set(one) - {"name"})) for one in pod["volumes"]} <= {"configMap", "secret"}
    assert deployment["spec"]["replicas"] == 1
    assert container["livenessProbe"]["httpGet"] == {"path": "/healthz", "port": "metrics"}
    assert [port["containerPort"] for port in container["ports"]] == [9447]
    path = environment["TOCSIN_KAFKA_CONFIG"]
    assert path == "/etc/tocsin/settings/kafka.toml"
    assert 'sasl_username = "tocsin-executor"' in settings["data"]["kafka.toml"]
    open_ports = {port["port"] for rule in policy["spec"]["egress"] for port in rule["ports"]}
    assert open_ports == {int(environment["TOCSIN_KAFKA"].rpartition(":")[2]), 8780}
    assert {port["port"] for rule in policy["spec"]["ingress"] for port in rule["ports"]} == {9447}


def test_the_executor_for_kubernetes_has_two_replicas_and_one_lease_that_it_alone_may_take() -> None:
    (settings, deployment, budget, policy), rights = replicas()
    pod, container, environment = executor(replicas()[0])
    name = deployment["metadata"]["name"]

    assert deployment["spec"]["replicas"] == 2
    assert budget["spec"]["minAvailable"] == 1
    labels = deployment["spec"]["template"]["metadata"]["labels"]
    for selector in (deployment["spec"]["selector"], budget["spec"]["selector"], policy["spec"]["podSelector"]):
        assert selector["matchLabels"].items() <= labels.items()
    assert (pod["serviceAccountName"], pod["automountServiceAccountToken"]) == (name, True)
    assert {one["kind"] for one in rights} == {
        "ServiceAccount",
        "ClusterRole",
        "ClusterRoleBinding",
        "Role",
        "RoleBinding",
    }
    for one in rights:
        assert all(
            who == {"kind": "ServiceAccount", "name": name, "namespace": "tocsin"} for who in one.get("subjects", ())
        )
        for rule in one.get("rules", ()):
            assert "*" not in {*rule["verbs"], *rule["resources"], *rule["apiGroups"]}
            assert not {"secrets", "pods/exec"} & set(rule["resources"])
            assert set(rule["resources"]) != {"pods"} or rule["verbs"] == ["list"]
    (lease,) = [rule["resourceNames"] for one in rights for rule in one.get("rules", ()) if "resourceNames" in rule]
    assert container["args"][container["args"].index("--lease") + 1] == f"tocsin/{lease[0]}"
    assert "readinessProbe" not in container, "a replica that waits for its turn exchanges nothing"
    assert container["livenessProbe"]["httpGet"] == {"path": "/healthz", "port": "metrics"}
    assert [port["containerPort"] for port in container["ports"]] == [9450]
    assert {port["port"] for rule in policy["spec"]["egress"] for port in rule["ports"]} == {
        int(environment["TOCSIN_KAFKA"].rpartition(":")[2]),
        443,
        6443,
    }
    same = executor()
    assert pod["securityContext"] == same[0]["securityContext"]
    assert container["securityContext"] == same[1]["securityContext"]
    assert settings["data"]["kafka.toml"] == objects("executor-job.yaml")[0]["data"]["kafka.toml"]


def test_the_folder_of_the_executor_for_kubernetes_names_each_file_and_its_image_has_the_client() -> None:
    named = yaml.safe_load((REPLICAS / "kustomization.yaml").read_text("utf-8"))["resources"]
    assert {*named, "kustomization.yaml"} == {path.name for path in REPLICAS.iterdir()}
    assert "[engine,kubernetes]" in (files.DEPLOY / "Dockerfile").read_text("utf-8")
    documented = files.DOCS.read_text("utf-8")
    for volume in executor(replicas()[0])[0]["volumes"]:
        if "secret" in volume:
            assert f"-n tocsin create secret generic {volume['secret']['secretName']} " in documented


def test_the_executor_s_kafka_settings_are_read(tmp_path: Path) -> None:
    path = tmp_path / "kafka.toml"
    path.write_text(objects("executor-job.yaml")[0]["data"]["kafka.toml"])
    settings = kafka_settings("kafka:9093", str(path))
    assert (settings.protocol, settings.password.file) == ("SASL_SSL", "/etc/tocsin/kafka/password")


def test_compose_has_the_specified_form_and_shut_in_containers() -> None:
    jsonschema.Draft7Validator(SCHEMA).validate(COMPOSE)
    service = COMPOSE["services"]["executor-job"]
    assert service["cap_drop"] == ["ALL"]
    assert service["security_opt"] == ["no-new-privileges:true"]
    assert service["read_only"] is True
    assert "ports" not in service
    keys = {name: {one.split(":")[0] for one in each["volumes"]} for name, each in COMPOSE["services"].items()}
    assert [name for name, found in keys.items() if "./act/controller.json" in found] == ["controller"]
    assert [name for name, found in keys.items() if "./act/executor-job.json" in found] == ["executor-job"]
    assert all(one.endswith(":ro") for each in COMPOSE["services"].values() for one in each["volumes"])


@pytest.mark.parametrize("target", UNITS)
def test_a_unit_hands_the_credential_to_its_process_alone(target: str) -> None:
    unit = files.unit(f"tocsin-executor-{target}.service")
    assert unit["LoadCredential"] == [f"token.json:/etc/tocsin/executor-{target}.json"]
    assert "TOCSIN_TOKEN_FILE=%d/token.json" in unit["Environment"]
    assert unit["CapabilityBoundingSet"] == unit["AmbientCapabilities"] == [""]
    assert (unit.get("User"), unit.get("DynamicUser")) == ((["slurm"], None) if target in BY_SLURM else (None, ["yes"]))
    assert unit["Restart"] == ["always"]


def granted(folder: Path) -> set[tuple[str, str, str]]:
    """User, operation and resource of each right that the script grants."""
    said = folder / "said"
    program = folder / "kafka-acls.sh"
    program.write_text(f'#!/bin/sh\nprintf "%s\\n" "$*" >> {said}\n')
    program.chmod(0o755)
    environment = {"PATH": f"{folder}:{os.environ['PATH']}", "BOOTSTRAP": "kafka:9093", "CONFIG": "admin.properties"}
    subprocess.run(["/bin/sh", str(files.DEPLOY / "kafka-acls.sh")], env=environment, check=True)
    found = set()
    for line in said.read_text().splitlines():
        words = shlex.split(line)
        after = {word: [words[at + 1] for at, one in enumerate(words[:-1]) if one == word] for word in set(words)}
        (user,) = after["--allow-principal"]
        (resource,) = [f"{kind[2:]} {after[kind][0]}" for kind in ("--topic", "--group", "--transactional-id")
                       if kind in after]  # fmt: skip
        found |= {(user.removeprefix("User:"), operation, resource) for operation in after["--operation"]}
    return found


def test_kafka_grants_each_user_what_its_role_needs_and_no_more(tmp_path: Path) -> None:
    found = granted(tmp_path)

    def rights(user: str, operation: str) -> set[str]:
        return {resource for one, what, resource in found if (one, what) == (user, operation)}

    def topics(*names: str) -> set[str]:
        return {f"topic tocsin.{name}" for name in names}

    assert {user for user, _, _ in found} == {"tocsin-agent", "tocsin", "tocsin-executor", "tocsin-operator"}
    assert rights("tocsin-executor", "Read") == topics(ACTIONS)
    assert rights("tocsin-executor", "Write") == topics(ACTION_ACKS)
    assert rights("tocsin-operator", "Write") == topics(ACTION_ACKS, OPERATOR_NOTES)
    assert rights("tocsin-operator", "Read") == topics(ACTIONS, OPERATOR_ANSWERS, NOTES_TAKEN)
    assert rights("tocsin-agent", "Write") == topics(FRAMES, STEPS, COLLECTIVES, EVENTS, CLOCK)
    assert rights("tocsin-agent", "Read") == set()
    for user in ("tocsin-agent", "tocsin-executor", "tocsin-operator"):
        assert {what for one, what, _ in found if one == user} <= {"Read", "Write", "Describe"}
    assert {"topic tocsin.", "transactional-id tocsin.controller"} <= rights("tocsin", "Write")
