"""The registry knows every source, each entry says which settings its source reads, and nothing is imported unasked."""

import ast
import dataclasses
import os
import subprocess
import sys
from pathlib import Path

import pytest

import tocsin.cli.agent as command
from tocsin.collectors.clock import FakeClock
from tocsin.collectors.sources import registry
from tocsin.collectors.sources.procfs import Roots
from tocsin.collectors.sources.registry import SOURCES, Source, make_collectors, process_watcher
from tocsin.collectors.sources.settings import SourceSettings

ALL = SourceSettings(
    roots=Roots(),
    period_seconds=1.0,
    process_tree_pid=0,
    disk_path="/",
    nvml="fake:1",
    rdma="auto",
    kmsg_path="/dev/kmsg",
    prometheus_urls=("http://a/",),
    prometheus_mapping_path="",
    prometheus_seconds=5.0,
)
OFF = dataclasses.replace(ALL, disk_path="", nvml="off", rdma="off", kmsg_path="", prometheus_urls=())
WATCHER_MODULE = "process"


class ReadSettings:
    """Settings that remember which of their fields were read."""

    def __init__(self, settings: SourceSettings) -> None:
        self.read: set[str] = set()
        self._settings = settings

    def __getattr__(self, name: str) -> object:
        self.read.add(name)
        return getattr(self._settings, name)


def modules_with_collectors() -> set[str]:
    """Return the modules of ``collectors/sources/`` that define a class with a method ``collect``."""
    folder = Path(registry.__file__).parent
    return {
        path.stem
        for path in folder.glob("*.py")
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8")))
        if isinstance(node, ast.ClassDef)
        and any(isinstance(item, ast.FunctionDef) and item.name == "collect" for item in node.body)
    }


def test_every_module_with_a_collector_is_registered() -> None:
    assert modules_with_collectors() == {source.module for source in SOURCES} | {WATCHER_MODULE}
    assert process_watcher(ALL, FakeClock()).name == WATCHER_MODULE


def test_the_command_line_imports_no_module_with_a_collector() -> None:
    tree = ast.parse(Path(command.__file__).read_text(encoding="utf-8"))
    imported = {node.module or "" for node in ast.walk(tree) if isinstance(node, ast.ImportFrom)}
    imported |= {alias.name for node in ast.walk(tree) if isinstance(node, ast.Import) for alias in node.names}

    assert not imported & {f"tocsin.collectors.sources.{module}" for module in modules_with_collectors()}


@pytest.mark.parametrize("source", SOURCES, ids=lambda source: source.module)
def test_an_entry_names_the_settings_that_its_source_reads(source: Source) -> None:
    settings = ReadSettings(ALL)
    made = source.make(settings)  # type: ignore[arg-type]  # stands in for them

    assert settings.read == set(source.settings)
    assert all(callable(collector.collect) for collector in made)


@pytest.mark.parametrize("source", SOURCES, ids=lambda source: source.module)
def test_a_source_that_is_not_wanted_makes_no_collector(source: Source) -> None:
    wanted = dataclasses.replace(ALL, process_tree_pid=int(source.module == "process_tree"))
    names = {collector.name for collector in source.make(wanted)}

    assert names <= {collector.name for collector in make_collectors(wanted)}
    unwanted = dataclasses.replace(OFF, process_tree_pid=int(source.module != "process_tree"))
    assert not names & {collector.name for collector in make_collectors(unwanted)}


def test_sources_that_are_off_are_not_imported() -> None:
    code = (
        "import sys\n"
        "from tests.collectors.sources.test_registry import OFF\n"
        "before = set(sys.modules)\n"
        "from tocsin.collectors.sources.registry import make_collectors\n"
        "make_collectors(OFF)\n"
        "print(sorted(m for m in sys.modules if m.startswith('tocsin.collectors.sources.')))\n"
        "print('pynvml' in sys.modules)"
    )
    root = Path(__file__).parents[3]
    env = {**os.environ, "PYTHONPATH": os.pathsep.join([str(root), str(root / "src")])}
    found = subprocess.run([sys.executable, "-c", code], env=env, capture_output=True, text=True, check=True)

    names = [f"tocsin.collectors.sources.{name}" for name in ("host", "host_facts", "procfs", "registry", "settings")]
    assert found.stdout == f"{names}\nFalse\n"
