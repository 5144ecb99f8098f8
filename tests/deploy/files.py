"""The files of deploy/, read: compose services, Kubernetes objects and their pods, the commands in all of them."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any, Final

import yaml

ROOT: Final = Path(__file__).resolve().parents[2]
DEPLOY: Final = ROOT / "deploy"
KUBERNETES: Final = DEPLOY / "kubernetes"
DOCS: Final = ROOT / "docs" / "deploy.md"
OURS: Final = ("tocsin", "tocsin-agent")
"""Images whose entry point is the command line."""


@dataclass(frozen=True)
class Container:
    """One container of one pod, with what it gets from ConfigMaps.

    Attributes:
        owner: ``Kind/name`` of the object it belongs to.
        spec: as in the manifest.
        pod: the pod's spec.
        namespace: where it runs.
        is_init: whether it runs before the others and ends.
    """

    owner: str
    spec: Mapping[str, Any]
    pod: Mapping[str, Any]
    namespace: str
    is_init: bool = False

    @property
    def image(self) -> str:
        """Return the image without its tag."""
        return str(self.spec.get("image", "")).rpartition(":")[0]


@dataclass(frozen=True)
class Command:
    """A call of ``tocsin`` as it will be made.

    Attributes:
        where: file and object.
        arguments: what follows ``tocsin``.
        environment: the variables that are set.
    """

    where: str
    arguments: tuple[str, ...]
    environment: Mapping[str, str]


@cache
def compose() -> dict[str, Any]:
    """Return compose.yaml."""
    return dict(yaml.safe_load((DEPLOY / "compose.yaml").read_text("utf-8")))


@cache
def small() -> dict[str, Any]:
    """Return compose-small.yaml."""
    return dict(yaml.safe_load((DEPLOY / "compose-small.yaml").read_text("utf-8")))


@cache
def objects() -> tuple[dict[str, Any], ...]:
    """Return every Kubernetes object that kustomization.yaml names."""
    names = yaml.safe_load((KUBERNETES / "kustomization.yaml").read_text("utf-8"))["resources"]
    return tuple(found for name in names for found in yaml.safe_load_all((KUBERNETES / name).read_text("utf-8")))


def named(kind: str, name: str, namespace: str | None = None) -> dict[str, Any]:
    """Return one Kubernetes object."""
    found = [
        one
        for one in objects()
        if one["kind"] == kind
        and one["metadata"]["name"] == name
        and namespace in {None, one["metadata"].get("namespace")}
    ]
    assert len(found) == 1, f"{kind}/{name} in {namespace}: {len(found)} of them"
    return found[0]


def pods() -> Iterator[tuple[dict[str, Any], dict[str, Any]]]:
    """Give each object that makes pods, with its pods' template."""
    for one in objects():
        spec = one.get("spec", {})
        template = spec.get("podTemplate") if one["kind"] == "FlinkDeployment" else spec.get("template")
        if template:
            yield one, template


def containers() -> Iterator[Container]:
    """Give every container; Flink's has the deployment's image."""
    for one, template in pods():
        owner, namespace = f"{one['kind']}/{one['metadata']['name']}", one["metadata"]["namespace"]
        for key in ("initContainers", "containers"):
            for spec in template["spec"].get(key, ()):
                whole = {"image": one["spec"].get("image", ""), **spec}
                yield Container(owner, whole, template["spec"], namespace, key == "initContainers")


def config(name: str, namespace: str) -> dict[str, str]:
    """Return a ConfigMap's data."""
    return dict(named("ConfigMap", name, namespace)["data"])


def environment_of(container: Container) -> dict[str, str]:
    """Return the variables that a container gets; values that only a node knows are made up."""
    found: dict[str, str] = {}
    for source in container.spec.get("envFrom", ()):
        found |= config(source["configMapRef"]["name"], container.namespace)
    for one in container.spec.get("env", ()):
        source = one.get("valueFrom", {})
        if "configMapKeyRef" in source:
            reference = source["configMapKeyRef"]
            found[one["name"]] = config(reference["name"], container.namespace)[reference["key"]]
        else:
            found[one["name"]] = one.get("value", "127.0.0.1")
    return found


def commands() -> Iterator[Command]:
    """Give each call of the command line in compose.yaml, the manifests and the systemd unit."""
    for name, service in compose()["services"].items():
        if service["image"].rpartition(":")[0] in OURS:
            yield Command(f"compose.yaml: {name}", tuple(service["command"]), service["environment"])
    for container in containers():
        if container.image in OURS and "command" not in container.spec:
            environment = environment_of(container)
            arguments = [str(one) for one in container.spec["args"]]
            for name, value in environment.items():
                arguments = [one.replace(f"$({name})", value) for one in arguments]
            yield Command(f"kubernetes: {container.owner}", tuple(arguments), environment)
    for name, service in small()["services"].items():
        yield Command(f"compose-small.yaml: {name}", tuple(service["command"]), service.get("environment", {}))
    engine = unit("tocsin-serve.service")
    yield Command(
        "systemd: serve",
        tuple(engine["ExecStart"][0].split()[1:]),
        dict(line.split("=", 1) for line in engine["Environment"]),
    )
    settings = unit()
    start = settings["ExecStart"][0].split()
    assert start[0].endswith("/tocsin")
    environment = dict(line.split("=", 1) for line in settings["Environment"]) | agent_environment()
    yield Command("systemd", tuple(start[1:]), environment)


def unit(name: str = "tocsin-agent.service") -> dict[str, list[str]]:
    """Return the settings of a systemd unit, all values of each."""
    found: dict[str, list[str]] = {}
    for line in (DEPLOY / "systemd" / name).read_text("utf-8").splitlines():
        if line and line[0] not in "#[":
            key, _, value = line.partition("=")
            found.setdefault(key, []).append(value)
    return found


def agent_environment() -> dict[str, str]:
    """Return the variables of agent.env.example, those in comments included."""
    lines = (DEPLOY / "systemd" / "agent.env.example").read_text("utf-8").splitlines()
    pairs = (line.removeprefix("#").partition("=") for line in lines)
    return {name: value for name, _, value in pairs if name.startswith("TOCSIN_")}


def flink_job(kind: str) -> dict[str, Any]:
    """Return what the Flink job is told: by ``compose`` or ``kubernetes``."""
    if kind == "compose":
        text = compose()["services"]["jobmanager"]["environment"]["TOCSIN_FLINK_JOB"]
    else:
        text = config("tocsin-settings", "tocsin-flink")["job.json"]
    return dict(json.loads(text))


def flink_settings(kind: str) -> dict[str, str]:
    """Return Flink's configuration: of ``compose`` or ``kubernetes``."""
    if kind == "kubernetes":
        return {
            name: str(value) for name, value in named("FlinkDeployment", "tocsin")["spec"]["flinkConfiguration"].items()
        }
    lines = compose()["services"]["jobmanager"]["environment"]["FLINK_PROPERTIES"].splitlines()
    return dict(line.split(": ", 1) for line in lines if line.strip())
