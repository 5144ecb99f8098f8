"""How the hook says that its rank is over."""

import os
import subprocess
import sys
import time
from pathlib import Path
from types import SimpleNamespace

import pytest

from tests.collectors.fakes import Agent
from tocsin.collectors import hook
from tocsin.collectors.hook._thread import DEFAULT_STUCK_SECONDS, _seconds

ROOT = Path(__file__).resolve().parents[3]


def fill(agent: Agent) -> hook.Hook:
    """A hook whose agent's socket is full (the kernel takes a handful of datagrams)."""
    one = hook.init("job", 3, "east", agent_socket=agent.path)
    one.reporter.stop()
    while one.recorder.send("groups", groups=[]):
        pass
    assert one.recorder.sender.connected
    return one


def test_a_bye_that_found_no_room_is_tried_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    agent = Agent(tmp_path / "agent.sock")
    fill(agent)
    monkeypatch.setattr(hook, "time", SimpleNamespace(monotonic=lambda: 0.0, sleep=lambda _: agent.drain()))
    hook.close()

    assert len(agent.of("bye")) == 1
    agent.close()


def test_a_bye_that_nobody_takes_is_given_up(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    agent = Agent(tmp_path / "agent.sock")
    fill(agent)
    slept: list[float] = []
    monkeypatch.setattr(hook, "time", SimpleNamespace(monotonic=lambda: sum(slept), sleep=slept.append))
    hook.close()

    assert sum(slept) == pytest.approx(hook.GOODBYE_SECONDS, abs=0.02)
    assert agent.of("bye") == []
    agent.close()


@pytest.mark.parametrize(
    ("ends", "kinds"),
    [
        ("raise ValueError('no such shard')", ["exit"]),
        ("pass", ["bye"]),
        ("sys.exit(0)", ["bye"]),
        ("raise KeyboardInterrupt", ["bye"]),
    ],
)
def test_what_nobody_caught_is_an_exit_and_no_bye(tmp_path: Path, ends: str, kinds: list[str]) -> None:
    agent = Agent(tmp_path / "agent.sock")
    code = f"import sys\nfrom tocsin.collectors import hook\nwith hook.step():\n    pass\n{ends}\n"
    env = {**os.environ, "PYTHONPATH": str(ROOT / "src"), "TOCSIN_AGENT_SOCKET": agent.path, "RANK": "3"}
    ran = subprocess.run([sys.executable, "-c", code], env=env, capture_output=True, timeout=60, check=False)
    last = [message for message in agent.drain() if message["t"] in {"bye", "exit"}]

    assert [message["t"] for message in last] == kinds
    assert last[0]["rank"] == 3
    if kinds == ["exit"]:
        assert (ran.returncode, last[0]["code"], last[0]["signal"]) == (1, 1, 0)
        assert last[0]["stderr_tail"].endswith("ValueError: no such shard\n")
    agent.close()


@pytest.mark.parametrize("value", ["nan", "inf", "-1", "0", "soon", "1e30"])
def test_a_patience_that_is_none_is_the_default(monkeypatch: pytest.MonkeyPatch, value: str) -> None:
    monkeypatch.setenv("TOCSIN_STUCK_DUMP_SECONDS", value)

    assert _seconds("TOCSIN_STUCK_DUMP_SECONDS", DEFAULT_STUCK_SECONDS) == DEFAULT_STUCK_SECONDS


def test_an_operation_that_lasts_is_told_at_once_and_once(tmp_path: Path) -> None:
    agent = Agent(tmp_path / "agent.sock")
    one = hook.init("job", 3, "east", agent_socket=agent.path)
    one.reporter.stop()
    young, old = (("w", "all_reduce", seq, 8, time.time_ns() - age_ns) for seq, age_ns in ((2, 0), (1, 600_000_000)))

    assert [one.reporter.newly_overdue(rows) for rows in ([young], [young, old], [old])] == [False, True, False]
    hook.close()
    agent.close()
