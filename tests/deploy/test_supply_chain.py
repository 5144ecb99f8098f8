"""What is fetched is what was tested: hashes of packages, checksums of jars, digests of images."""

from __future__ import annotations

import hashlib
import re
import shutil
import subprocess
from pathlib import Path

import pytest

from tocsin.cli.cluster.jars import SUMS, check_sums
from tocsin.schemas.errors import EngineError

PIN = re.compile(r"^(?P<name>[A-Za-z0-9._-]+)==(?P<version>[^ ;\\]+)")


def _pins(text: str) -> dict[str, str]:
    found = (PIN.match(line) for line in text.splitlines())
    return {match["name"].lower(): match["version"] for match in found if match}


@pytest.mark.parametrize("name", ["requirements.lock", "uv.lock"])
def test_each_pin_has_hashes_and_is_the_one_that_was_tested(repo_root: Path, name: str) -> None:
    text = (repo_root / "deploy" / name).read_text()
    blocks = [block for block in re.split(r"\n(?=[A-Za-z0-9])", text.strip()) if "win32" not in block]  # not ours
    tested = _pins((repo_root / "constraints.txt").read_text())
    pins = _pins("\n".join(blocks))
    assert pins
    assert len(pins) == len(blocks)
    assert [block for block in blocks if "--hash=sha256:" not in block] == []
    assert {package: version for package, version in pins.items() if tested.get(package) != version} == {}


def test_the_lock_names_no_address(repo_root: Path) -> None:
    for path in (repo_root / "deploy").glob("*.lock"):
        assert "://" not in path.read_text(), path.name


def test_the_lock_has_every_package_that_the_project_names(repo_root: Path) -> None:
    import tomllib

    project = tomllib.loads((repo_root / "pyproject.toml").read_text())["project"]
    named = [*project["dependencies"], *(one for extra in project["optional-dependencies"].values() for one in extra)]
    wanted = {re.split(r"[\[<>=~! ]", one)[0].lower() for one in named} - {"tocsin"}
    assert wanted <= _pins((repo_root / "deploy" / "requirements.lock").read_text()).keys()


@pytest.fixture
def jars(tmp_path: Path) -> tuple[Path, str]:
    """Two jars, and their checksums."""
    lines = []
    for name in ("kafka/a.jar", "flink/b.jar"):
        (tmp_path / name).parent.mkdir()
        (tmp_path / name).write_bytes(name.encode())
        lines.append(f"{hashlib.sha256(name.encode()).hexdigest()}  {name}")
    return tmp_path, "\n".join(lines)


def test_jars_with_their_checksums_are_taken(jars: tuple[Path, str]) -> None:
    check_sums(*jars)


def test_a_changed_jar_is_named(jars: tuple[Path, str]) -> None:
    (jars[0] / "kafka/a.jar").write_bytes(b"another")
    with pytest.raises(EngineError, match=r"kafka/a.jar has the checksum .*: not used"):
        check_sums(*jars)


def test_a_missing_jar_is_named(jars: tuple[Path, str]) -> None:
    (jars[0] / "flink/b.jar").unlink()
    with pytest.raises(EngineError, match=r"flink/b.jar was not fetched"):
        check_sums(*jars)


def test_a_jar_that_nobody_listed_is_named(jars: tuple[Path, str]) -> None:
    (jars[0] / "flink/c.jar").write_bytes(b"")
    with pytest.raises(EngineError, match=r"flink/c.jar .* no checksum"):
        check_sums(*jars)


def test_the_checksums_that_ship_are_those_of_the_pom(repo_root: Path) -> None:
    names = {line.split(None, 1)[1] for line in SUMS.read_text().splitlines()}
    pom = (repo_root / "deploy" / "pom.xml").read_text()
    for artifact in ("kafka_2.13", "flink-sql-connector-kafka"):
        versions = [match[1] for name in names if (match := re.search(rf"/{re.escape(artifact)}-(.+)\.jar$", name))]
        assert len(versions) == 1
        assert f">{versions[0]}<" in pom, artifact


def test_digests_are_written_behind_each_tag(repo_root: Path, tmp_path: Path) -> None:
    folder = shutil.copytree(repo_root / "deploy", tmp_path / "deploy")
    crane = tmp_path / "bin" / "crane"
    crane.parent.mkdir()
    crane.write_text('#!/bin/sh\necho "sha256:$(printf %s "$2" | sha256sum | cut -d" " -f1)"\n')
    crane.chmod(0o755)
    path = f"{crane.parent}:/usr/bin:/bin"
    ran = subprocess.run(
        ["bash", str(folder / "digests.sh"), "--write"],
        env={"PATH": path},
        capture_output=True,
        text=True,
        check=False,
    )
    assert ran.returncode == 0, ran.stderr
    compose = (folder / "compose.yaml").read_text()
    foreign = [line for line in re.findall(r"image: *(\S+)", compose) if not line.startswith("tocsin")]
    assert foreign
    assert all(re.search(r":[^@]+@sha256:[0-9a-f]{64}$", image) for image in foreign)
    bases = re.findall(r"^FROM *(\S+:\S+)", (folder / "Dockerfile").read_text(), re.MULTILINE)
    assert bases
    assert all("@sha256:" in base for base in bases)


def test_no_hint_names_a_package_that_anybody_may_register(repo_root: Path) -> None:
    said = re.compile(r"pip install[^\n]*[ '\"]tocsin(\[|['\" ]|$)", re.MULTILINE)
    folders = ("src/tocsin/cli", "pipeline", "collectors", "schemas", "models", "deploy", "docs")
    files = [path for name in folders for path in (repo_root / name).rglob("*") if path.is_file()]
    texts = {path: path.read_text(errors="ignore") for path in [*files, repo_root / "README.md"]}
    assert [str(path) for path, text in texts.items() if said.search(text)] == []
