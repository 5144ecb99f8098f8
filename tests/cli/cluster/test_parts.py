"""The small parts of a cluster: state in its folder, steps side by side, Flink's settings."""

from __future__ import annotations

import subprocess
import sys
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from tocsin.cli.cluster.flink_conf import FlinkConfig, parse_settings, settings_of, write_conf
from tocsin.cli.cluster.process import Child, Program, free_port, is_free
from tocsin.cli.cluster.state import ClusterState, alone, is_held, last_state, read_state, write_state
from tocsin.cli.cluster.steps import Steps
from tocsin.schemas.errors import ConfigError, EngineError

STATE = ClusterState(7, "running", {"kafka": "a:1"}, {"kafka": "/log"}, {"kafka": 8})


def test_a_state_counts_while_its_cluster_lives(tmp_path: Path) -> None:
    assert read_state(tmp_path) is None
    with alone(tmp_path):
        write_state(tmp_path, STATE)
        assert read_state(tmp_path) == STATE
        with pytest.raises(EngineError, match=r"process 7.*cluster down"), alone(tmp_path):
            pass
    assert read_state(tmp_path) is None
    assert last_state(tmp_path) == STATE


def test_a_cluster_that_was_killed_holds_nothing(tmp_path: Path) -> None:
    code = f"""
import sys, time
from pathlib import Path
from tocsin.cli.cluster.state import alone
with alone(Path({str(tmp_path)!r})):
    print("held", flush=True)
    time.sleep(1000)
"""
    other = subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE)
    assert other.stdout is not None
    other.stdout.readline()
    assert is_held(tmp_path)
    other.kill()
    other.wait()
    other.stdout.close()

    assert not is_held(tmp_path)


def test_a_broken_state_is_none(tmp_path: Path) -> None:
    with alone(tmp_path):
        (tmp_path / "cluster.json").write_text('{"pid": 1, "colour": "red"}')
        assert read_state(tmp_path) is None


def test_a_folder_that_cannot_be_made(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(ConfigError, match="--folder"), alone(tmp_path / "file" / "cluster"):
        pass


def test_steps_wait_for_what_they_need() -> None:
    order: list[str] = []
    both = threading.Barrier(2, timeout=60)
    steps = Steps(lambda name, _: order.append(name))
    steps.add("a", both.wait)
    steps.add("b", both.wait)  # neither ends without the other: they run side by side
    steps.add("c", lambda: None, "a", "b")
    steps.run()

    assert sorted(order[:2]) == ["a", "b"]
    assert order[2] == "c"


def test_an_error_is_raised_at_once_and_stops_what_follows() -> None:
    stuck, done = threading.Event(), []

    def fail() -> None:
        raise EngineError("no room")

    steps = Steps(lambda *_: None)
    steps.add("stuck", stuck.wait)
    steps.add("fails", fail)
    steps.add("after", lambda: done.append(1), "fails")
    with pytest.raises(EngineError, match="no room"):
        steps.run()
    stuck.set()

    assert not done


def test_a_port_that_is_taken_is_not_free() -> None:
    import socket

    with socket.socket() as one:
        one.bind(("127.0.0.1", 0))
        one.listen()
        assert not is_free(one.getsockname()[1])
    assert is_free(free_port())


def test_a_child_is_ended_once_however_many_end_it(tmp_path: Path) -> None:
    """Who ends a cluster that starts meets the thread that waits for a part of it: both kill the same child."""
    for _ in range(5):
        child = Child(Program("a sleeper", ["sleep", "100"], tmp_path / "log"))
        child.start()
        together = threading.Barrier(5)

        def end(child: Child = child, together: threading.Barrier = together) -> None:
            together.wait()
            child.kill()

        with ThreadPoolExecutor(4) as pool:
            ends = [pool.submit(end) for _ in range(4)]
            together.wait()
            with pytest.raises(EngineError, match="before it was ready"):
                child.wait_ready(lambda: False, 60)
            for one in ends:
                one.result()
        assert not child.is_running()


@pytest.fixture
def home(tmp_path: Path) -> Path:
    """As much of the wheel's Flink as the settings need."""
    conf = tmp_path / "home" / "conf"
    conf.mkdir(parents=True)
    (conf / "config.yaml").write_text("env:\n  java:\n    opts:\n      all: --add-exports=a/b=C --add-opens=d/e=F\n")
    (conf / "log4j.properties").write_text("x = y\n")
    return tmp_path / "home"


def test_settings_stand_in_a_folder_of_their_own(home: Path, tmp_path: Path) -> None:
    config = FlinkConfig(tmp_path / "it's", settings={"heartbeat.interval": "9 s"})
    write_conf(home, tmp_path / "conf", settings_of(config, 1234, 5678, home))
    lines = dict(line.split(": ", 1) for line in (tmp_path / "conf" / "config.yaml").read_text().splitlines())

    assert lines["env.java.opts.all"] == "'--add-exports=a/b=C --add-opens=d/e=F'"
    assert lines["rest.port"] == "'1234'"
    assert lines["rest.bind-address"] == "'127.0.0.1'"
    assert lines["heartbeat.interval"] == "'9 s'"
    assert lines["io.tmp.dirs"] == f"'{tmp_path}/it''s/tmp'"
    assert "metrics.reporters" not in lines
    assert (tmp_path / "conf" / "log4j.properties").is_file()


def test_the_reporter_is_there_or_it_is_said(home: Path, tmp_path: Path) -> None:
    config = FlinkConfig(tmp_path, metrics_ports="9249-9250")
    with pytest.raises(EngineError, match="Prometheus"):
        settings_of(config, 1, 2, home)
    (home / "plugins" / "metrics-prometheus").mkdir(parents=True)

    assert settings_of(config, 1, 2, home)["metrics.reporter.prom.port"] == "9249-9250"


def test_a_wheel_that_is_another_flink_is_said(home: Path, tmp_path: Path) -> None:
    (home / "conf" / "config.yaml").write_text("rest: {}\n")
    with pytest.raises(EngineError, match=r"env\.java\.opts\.all"):
        write_conf(home, tmp_path / "conf", {})


@pytest.mark.parametrize(
    ("make", "setting"),
    [
        (lambda: FlinkConfig(Path(), slot_count=0), "slots"),
        (lambda: FlinkConfig(Path(), task_manager_count=0), "task managers"),
        (lambda: FlinkConfig(Path(), metrics_ports="http"), "metrics ports"),
        (lambda: FlinkConfig(Path(), settings={"a: b\nc": "1"}), "Flink setting"),
        (lambda: parse_settings(["a"]), "NAME=VALUE"),
    ],
)
def test_a_wrong_setting_is_named(make: Callable[[], object], setting: str) -> None:
    with pytest.raises(ConfigError, match=setting):
        make()
