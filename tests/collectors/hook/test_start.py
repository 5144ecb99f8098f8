"""Stages of a start as the hook tells them: what it sees of a script that knows nothing of them."""

import importlib
import os
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest

from tests.collectors.fakes import Agent
from tocsin.collectors.hook import _stages
from tocsin.collectors.hook._identity import from_environment
from tocsin.collectors.hook._recorder import Recorder
from tocsin.collectors.hook._sender import Sender
from tocsin.collectors.hook._stages import StartMarks, process_seconds


@pytest.fixture
def agent(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Agent]:
    agent = Agent(tmp_path / "agent.sock")
    for name, value in {"TOCSIN_AGENT_SOCKET": agent.path, "TOCSIN_JOB_ID": "j", "RANK": "3"}.items():
        monkeypatch.setenv(name, value)
    monkeypatch.delenv("TORCHELASTIC_RESTART_COUNT", raising=False)
    yield agent
    agent.close()


@pytest.fixture
def torch(monkeypatch: pytest.MonkeyPatch) -> Any:
    """A module that stands for torch's, with an ``init_process_group`` that notes its calls."""
    calls: list[Any] = []

    def init_process_group(*args: Any, **kwargs: Any) -> str:
        calls.append((args, kwargs))
        if "fails" in kwargs:
            raise RuntimeError("no store")
        return "joined"

    c10d = SimpleNamespace(init_process_group=init_process_group, calls=calls)
    monkeypatch.setitem(sys.modules, _stages.C10D, c10d)
    monkeypatch.setitem(sys.modules, "torch.distributed", SimpleNamespace(init_process_group=init_process_group))
    return c10d


def running(agent: Agent, marks: StartMarks) -> Recorder:
    """Return the recorder of a hook that has started."""
    sender = Sender(agent.path)
    sender.connect()
    recorder = Recorder(from_environment(), sender)
    marks.follow(recorder)
    return recorder


def stages(agent: Agent) -> list[tuple[str, str]]:
    return [(one["stage"], one["edge"]) for one in agent.of("stage")]


def step(recorder: Recorder) -> None:
    recorder.begin_step(None)
    recorder.end_step()


ALL = [
    ("env_setup", "end"),
    ("model_init", "begin"),
    ("model_init", "end"),
    ("first_step", "begin"),
    ("first_step", "end"),
]


def test_a_script_that_changes_nothing_tells_its_stages(agent: Agent, torch: Any) -> None:
    marks, original = StartMarks(), torch.init_process_group
    marks.install()

    assert sys.modules["torch.distributed"].init_process_group("gloo", rank=1) == "joined"
    recorder = running(agent, marks)
    marks.on_model()
    step(recorder)
    step(recorder)

    assert stages(agent) == ALL
    first = agent.of("stage")[0]
    assert (first["job"][1], first["rank"], first["start_kind"]) == ("j", 3, "full")
    assert 0 < first["seconds"] < 86400
    assert torch.calls == [(("gloo",), {"rank": 1})]
    assert torch.init_process_group is original
    assert recorder.start is None


def test_a_rank_that_waits_for_the_others_has_ended_its_stage(agent: Agent, torch: Any) -> None:
    marks = StartMarks()
    marks.install()
    with pytest.raises(RuntimeError, match="no store"):
        torch.init_process_group(fails=True)

    assert stages(agent) == [("env_setup", "end")]
    torch.init_process_group()
    torch.init_process_group()
    assert stages(agent) == [("env_setup", "end"), ("model_init", "begin")]


def test_a_second_start_in_place_is_hot(agent: Agent, torch: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TORCHELASTIC_RESTART_COUNT", "1")
    StartMarks().install()
    torch.init_process_group()

    assert {one["start_kind"] for one in agent.of("stage")} == {"hot"}


def test_phases_before_the_first_step_are_stages_and_later_ones_are_none(agent: Agent, torch: Any) -> None:
    marks = StartMarks()
    marks.install()
    recorder = running(agent, marks)
    for name in ("checkpoint", "evaluation"):
        with recorder.phases[name]:
            pass
    step(recorder)
    with recorder.phases["compile"]:
        pass

    assert stages(agent) == [
        ("checkpoint_resume", "begin"),
        ("checkpoint_resume", "end"),
        ("first_step", "begin"),
        ("first_step", "end"),
    ]


def test_a_hook_of_another_name_tells_no_more(agent: Agent, torch: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    marks = StartMarks()
    marks.install()
    torch.init_process_group()
    monkeypatch.setenv("TOCSIN_JOB_ID", "another")
    step(running(agent, marks))

    assert stages(agent) == [("env_setup", "end"), ("model_init", "begin")]


@pytest.mark.parametrize("missing", ["RANK", "TOCSIN_AGENT_SOCKET"])
def test_nothing_is_told_without_a_rank_and_nothing_breaks_without_an_agent(
    agent: Agent, torch: Any, monkeypatch: pytest.MonkeyPatch, missing: str
) -> None:
    for name in ("TOCSIN_RANK", "SLURM_PROCID"):
        monkeypatch.delenv(name, raising=False)
    if missing == "RANK":
        monkeypatch.delenv(missing)
    else:
        monkeypatch.setenv(missing, agent.path + ".none")
    marks = StartMarks()
    marks.install()

    assert torch.init_process_group() == "joined"
    assert stages(agent) == []


def test_a_forked_child_tells_nothing(agent: Agent, torch: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    StartMarks().install()
    monkeypatch.setattr(os, "getpid", lambda: 1)

    assert torch.init_process_group() == "joined"
    assert stages(agent) == []


def test_a_fork_that_becomes_a_rank_tells_its_own_start(
    agent: Agent, torch: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    marks = StartMarks()
    marks.install()
    monkeypatch.setattr(os, "getpid", lambda: 1)
    monkeypatch.setenv(_stages.STARTED, str(time.time_ns() - 1_000_000))
    marks.adopt()
    torch.init_process_group()

    assert stages(agent) == [("env_setup", "end"), ("model_init", "begin")]
    assert agent.of("stage")[0]["seconds"] == pytest.approx(process_seconds(), abs=60)


@pytest.fixture
def late_torch(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[[], ModuleType]]:
    """Return a call that imports a package for the first time, which stands for torch.distributed."""
    package = tmp_path / "late_torch_package"
    package.mkdir()
    (package / "c10d.py").write_text("def init_process_group():\n    return __loader__, __spec__.origin\n")
    (package / "__init__.py").write_text("from late_torch_package.c10d import init_process_group\n")
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setattr(_stages, "C10D", "late_torch_package.c10d")
    others = [finder for finder in sys.meta_path if not isinstance(finder, _stages.TorchFinder)]
    monkeypatch.setattr(sys, "meta_path", others)  # without that of this process's own hook, which waits for torch
    yield lambda: importlib.import_module("late_torch_package")
    for name in ("late_torch_package", "late_torch_package.c10d"):
        sys.modules.pop(name, None)


def test_torch_may_be_imported_after_the_hook(agent: Agent, late_torch: Callable[[], ModuleType]) -> None:
    before = [finder for finder in sys.meta_path if not isinstance(finder, _stages.TorchFinder)]
    StartMarks().install()
    loader, origin = late_torch().init_process_group()

    assert stages(agent) == [("env_setup", "end"), ("model_init", "begin")]
    assert "exec_module" not in vars(loader)
    assert origin.endswith("c10d.py")
    assert sys.meta_path == before


def test_the_age_of_this_process_is_known(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(_stages.STARTED, raising=False)
    seconds = process_seconds()

    assert seconds is not None
    assert 0 < seconds < 86400
    for started in ("0", "later", "\u0663", str(time.time_ns() - 10**20)):
        monkeypatch.setenv(_stages.STARTED, started)
        again = process_seconds()
        assert again is not None
        assert again >= seconds
    monkeypatch.setenv(_stages.STARTED, str(time.time_ns() + 10**12))
    assert process_seconds() is None
