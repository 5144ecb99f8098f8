"""Cache hits of a start: torch's own counters, the program's word, and a real compilation, cold and warm."""

import os
import subprocess
import sys
import textwrap
from collections import Counter, defaultdict
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from tests.collectors.fakes import Agent
from tocsin.collectors import hook
from tocsin.collectors.hook import _caches
from tocsin.collectors.hook._caches import CacheCount
from tocsin.collectors.hook._identity import from_environment
from tocsin.collectors.hook._recorder import Recorder
from tocsin.collectors.hook._sender import Sender
from tocsin.collectors.hook._stages import StartMarks


@pytest.fixture
def counters(monkeypatch: pytest.MonkeyPatch) -> dict[str, Counter[str]]:
    """The counters of a module that stands for torch's."""
    found: dict[str, Counter[str]] = defaultdict(Counter)
    monkeypatch.setitem(sys.modules, _caches.COUNTERS, SimpleNamespace(counters=found))
    return found


@pytest.fixture
def started(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[tuple[Agent, StartMarks, Recorder]]:
    """An agent, the marks of a start, and the hook that tells them."""
    agent, marks = Agent(tmp_path / "agent.sock"), StartMarks()
    for name, value in {"TOCSIN_JOB_ID": "j", "RANK": "3"}.items():
        monkeypatch.setenv(name, value)
    sender = Sender(agent.path)
    sender.connect()
    recorder = Recorder(from_environment(), sender)
    marks.follow(recorder)
    yield agent, marks, recorder
    agent.close()


def ratios(agent: Agent) -> dict[str, float | None]:
    return {one["stage"]: one.get("cache_hit_ratio") for one in agent.of("stage") if one["edge"] == "end"}


def test_each_lookup_counts_for_the_stage_that_began_last(
    started: tuple[Agent, StartMarks, Recorder], counters: dict[str, Counter[str]]
) -> None:
    agent, marks, recorder = started
    counters["inductor"] += Counter(fxgraph_cache_bypass=1)
    marks.tell("env_setup", "end")
    counters["inductor"] += Counter(fxgraph_cache_hit=5)  # in no stage
    marks.tell("model_init", "begin")
    with recorder.phases["compile"]:
        counters["inductor"] += Counter(fxgraph_cache_hit=2, fxgraph_cache_miss=1, extern_calls=9)
        counters["aot_autograd"] += Counter(autograd_cache_hit=1, total=4)
    marks.on_model()
    recorder.begin_step(None)
    counters["aot_autograd"] += Counter(autograd_cache_bypass=1, autograd_cache_hit=1)
    recorder.end_step()

    assert ratios(agent) == {"env_setup": 0.0, "compile": 0.75, "model_init": None, "first_step": 0.5}


def test_counters_that_are_set_back_or_of_another_form_tell_nothing(
    monkeypatch: pytest.MonkeyPatch, counters: dict[str, Counter[str]]
) -> None:
    count = CacheCount()
    counters["inductor"] += Counter(fxgraph_cache_hit=3, fxgraph_cache_miss=3)
    count.begin("compile")
    counters["inductor"].clear()
    assert count.end("compile") is None
    strange: tuple[Any, ...] = (None, {"inductor": 3}, {"inductor": {"fxgraph_cache_hit": "x"}})
    for form in strange:
        monkeypatch.setitem(sys.modules, _caches.COUNTERS, SimpleNamespace(counters=form))
        count.begin("compile")
        assert count.end("compile") is None
    monkeypatch.delitem(sys.modules, _caches.COUNTERS)
    count.begin("compile")
    assert count.end("compile") is None
    assert _caches.COUNTERS not in sys.modules


def test_a_fork_that_becomes_a_rank_does_not_count_what_its_parent_looked_up(
    started: tuple[Agent, StartMarks, Recorder], counters: dict[str, Counter[str]]
) -> None:
    agent, marks, _ = started
    counters["inductor"] += Counter(fxgraph_cache_hit=3)
    marks.adopt()
    counters["inductor"] += Counter(fxgraph_cache_miss=1)
    marks.tell("env_setup", "end")

    assert ratios(agent) == {"env_setup": 0.0}


def test_the_program_says_what_it_knows_of_its_caches(
    started: tuple[Agent, StartMarks, Recorder], monkeypatch: pytest.MonkeyPatch
) -> None:
    agent, marks, recorder = started
    monkeypatch.setattr(hook, "MARKS", marks)
    hook.cache_hits(0.25)
    marks.tell("env_setup", "end")
    hook.cache_hits(9, 9)  # in no stage
    with recorder.phases["checkpoint"]:
        hook.cache_hits(1, 2)
        hook.cache_hits(2, 2)
    recorder.begin_step(None)
    hook.cache_hits(0, 0)
    recorder.end_step()
    hook.cache_hits(1, 1)

    assert ratios(agent) == {"env_setup": 0.25, "checkpoint_resume": 0.75, "first_step": None}


@pytest.mark.parametrize(
    ("values", "error", "named"),
    [
        ((2,), ValueError, "hits is 2"),
        ((-1, 2), ValueError, "hits is -1"),
        ((1, float("inf")), ValueError, "lookups is inf"),
        ((1, None), TypeError, "lookups is None"),
        ((True, 1), TypeError, "hits is True"),
    ],
)
def test_what_is_no_number_of_lookups_is_named(values: tuple[Any, ...], error: type[Exception], named: str) -> None:
    with pytest.raises(error, match=named):
        hook.cache_hits(*values)


SCRIPT = """
    import torch
    from tocsin.collectors import hook

    hook.init("job", 3, "east")
    model = torch.nn.Linear(4, 2)
    compiled = torch.compile(model)
    hook.attach(model)
    with torch.no_grad(), hook.step():
        compiled(torch.ones(3, 4))
"""


@pytest.mark.gate
def test_a_compilation_in_the_first_step_finds_nothing_when_cold_and_all_when_warm(tmp_path: Path) -> None:
    pytest.importorskip("torch", reason="it is torch's compilation")
    agent, found = Agent(tmp_path / "agent.sock"), list[float | None]()
    own = {"TORCHINDUCTOR_CACHE_DIR": str(tmp_path / "cache"), "TORCHINDUCTOR_COMPILE_THREADS": "1"}
    for _ in range(2):
        environment = {**os.environ, **own, "TOCSIN_AGENT_SOCKET": agent.path}
        with subprocess.Popen([sys.executable, "-c", textwrap.dedent(SCRIPT)], env=environment):
            last = agent.wait_for(lambda one: one["t"] == "stage" and one["edge"] == "end", 180)
        assert last["stage"] == "first_step"
        found.append(last.get("cache_hit_ratio"))
        agent.seen.clear()
    agent.close()

    assert found == [0.0, 1.0]
