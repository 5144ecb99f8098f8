"""Cache hits of a start, from the hook over the agent and the engine to ``tocsin startup JOB``."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.collectors.agent.core_bench import Bench
from tests.collectors.fakes import Agent
from tests.pipeline.waiting import until
from tocsin.cli.main import main
from tocsin.cli.paths import database_folder
from tocsin.collectors.hook._identity import from_environment
from tocsin.collectors.hook._recorder import Recorder
from tocsin.collectors.hook._sender import Sender
from tocsin.collectors.hook._stages import StartMarks
from tocsin.pipeline.runtime.embedded.ettr_follower import attach_ettr
from tocsin.pipeline.runtime.embedded.service import EngineService, ServiceConfig
from tocsin.pipeline.runtime.embedded.store_writer import StoreWriter
from tocsin.pipeline.stores.chdb_store import ChdbStore
from tocsin.schemas.wire.codec import encode


@pytest.fixture
def hook(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[tuple[Agent, StartMarks, Recorder]]:
    """What a hook sends, the marks of its start, and the hook itself."""
    agent, marks = Agent(tmp_path / "a.sock"), StartMarks()
    monkeypatch.setenv("RANK", "0")
    sender = Sender(agent.path)
    sender.connect()
    recorder = Recorder(from_environment(), sender)
    marks.follow(recorder)
    yield agent, marks, recorder
    agent.close()


class Followed:
    """A host's agent whose records an engine takes each second, with a database."""

    def __init__(self, folder: Path) -> None:
        self.bench, self.store = Bench(), ChdbStore(database_folder(folder))
        self.store.migrate()
        config = ServiceConfig(f"unix:{folder}/e.sock", folder / "c.sock", dead_letter_folder=folder)
        self.service = EngineService(config, self.store, lambda: self.bench.ts, StoreWriter(self.store))
        attach_ettr(self.service, self.store, folder)
        self.service.start(ticking=False)

    def passes(self, seconds: int, agent: Agent) -> None:
        """Hand on what the hook has sent, then let time pass."""
        for message in agent.drain():
            keys = {name: value for name, value in message.items() if name not in {"v", "t", "job", "rank", "ts"}}
            self.bench.hook(message["t"], message["rank"], **keys)
        agent.seen.clear()
        for _ in range(seconds):
            for record in self.bench.runs(1):
                self.service.engine.take(encode(record))
            self.service.tick(self.bench.ts)

    def end(self) -> None:
        self.service.stop()
        until(lambda: self.service.writer.waiting_count == 0)
        self.store.close()


def test_what_hook_and_program_know_of_caches_stands_beside_the_stages(
    hook: tuple[Agent, StartMarks, Recorder], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    agent, marks, recorder = hook
    followed = Followed(tmp_path)
    marks.on_lookups(3, 4)
    marks.tell("env_setup", "end", seconds=30.0)
    marks.tell("model_init", "begin")
    followed.passes(10, agent)
    with recorder.phases["compile"]:
        marks.on_lookups(2, 2)
        followed.passes(20, agent)
    marks.on_model()
    recorder.begin_step(None)
    followed.passes(5, agent)
    marks.on_lookups(0, 1)
    recorder.end_step()
    followed.passes(20, agent)
    followed.end()

    assert main(["startup", "j", "--json", "--data", str(tmp_path)]) == 0
    [start] = json.loads(capsys.readouterr().out)["starts"]
    assert start["state"] == "trained"
    assert {one["stage"]: one["cache_hit_ratio"] for one in start["stages"]} == {
        "env_setup": 0.75,
        "model_init": None,
        "compile": 1.0,
        "first_step": 0.0,
    }
    assert main(["startup", "j", "--data", str(tmp_path)]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert [said for said in ("75 % hits", "hit", "miss") for line in lines if f" {said} " in line] == [
        *("75 % hits", "hit", "miss"),
    ]
