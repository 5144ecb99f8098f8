"""``tocsin placement JOB`` against a running engine."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from tocsin.cli.main import main
from tocsin.cli.paths import control_socket
from tocsin.pipeline.lab.testing import MemoryStore
from tocsin.pipeline.runtime.embedded.service import EngineService, ServiceConfig
from tocsin.schemas.job_key import JobKey
from tocsin.schemas.kinds import GroupKind
from tocsin.schemas.records import NS_PER_SECOND, CommGroup, Groups, RankPlace, Topology

T0 = 1_790_000_000 * NS_PER_SECOND
JOB = JobKey("default", "llm", 1)


class Engine:
    """An engine with a control socket, and a clock that the test moves."""

    def __init__(self, folder: Path) -> None:
        self.data = folder / "data"
        self.data.mkdir()
        self.now_ns = T0
        config = ServiceConfig(f"unix:{folder}/e.sock", control_socket(self.data))
        self.service = EngineService(config, MemoryStore(), lambda: self.now_ns)
        self.service.start(ticking=False)

    def tell(self, job: JobKey, places: list[RankPlace], groups: list[CommGroup]) -> None:
        """Let agents tell places and groups, and the engine judge that second."""
        for host in sorted({place.host for place in places}):
            own = tuple(place for place in places if place.host == host)
            self.service.engine.take_record(Topology(job, host, self.now_ns, own))
        if groups:
            self.service.engine.take_record(Groups(job, places[0].host, self.now_ns, tuple(groups)))
        for _ in range(4):
            self.now_ns += NS_PER_SECOND
            self.service.tick(self.now_ns)


@pytest.fixture
def engine(tmp_path: Path) -> Iterator[Engine]:
    made = Engine(tmp_path)
    yield made
    made.service.stop()


def places(*, minipod: str = "pod{}", dp: int = 1) -> list[RankPlace]:
    """Two stages of two replicas, a rank a host; each stage stands in one minipod."""
    return [
        RankPlace(
            rank, f"h{rank}", dp=rank % 2 * dp, pp=rank // 2, tp=0, minipod=minipod.format(rank // 2), world_size=4
        )
        if dp
        else RankPlace(rank, f"h{rank}", minipod=minipod.format(rank // 2), world_size=4)
        for rank in range(4)
    ]


def test_a_running_job_is_measured(engine: Engine, capsys: pytest.CaptureFixture[str]) -> None:
    engine.tell(JOB, places(), [])

    assert main(["placement", "llm", "--data", str(engine.data), "--json"]) == 0

    found = json.loads(capsys.readouterr().out)
    touched = {group["kind"]: group["pods_touched"] for group in found["groups"]}
    assert found["job"] == "llm attempt 1"
    assert (touched["dp"], touched["pp"]) == (1, 2)


def test_the_newest_attempt_and_told_groups_count(engine: Engine, capsys: pytest.CaptureFixture[str]) -> None:
    engine.tell(JOB, places(minipod="old{}"), [])
    newer = JobKey(JOB.cluster, JOB.job_id, 2)
    engine.tell(newer, places(dp=0), [CommGroup("c1", GroupKind.DP, (0, 3))])

    assert main(["placement", "llm", "--data", str(engine.data), "--json"]) == 0

    found = json.loads(capsys.readouterr().out)
    assert found["job"] == "llm attempt 2"
    assert [(group["name"], group["pods_touched"]) for group in found["groups"]] == [("c1", 2)]


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        (["other"], "the engine knows no job 'other'"),
        (["llm"], "its ranks tell no data-parallel coordinate, and no group is known"),
    ],
)
def test_what_cannot_be_answered_is_said(
    engine: Engine, capsys: pytest.CaptureFixture[str], arguments: list[str], text: str
) -> None:
    engine.tell(JOB, places(dp=0), [])

    assert main(["placement", *arguments, "--data", str(engine.data)]) == 2
    assert text in capsys.readouterr().err


def test_without_an_engine_the_error_says_so(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["placement", "llm", "--data", str(tmp_path)]) == 2
    assert "no engine runs here that could know such a job" in capsys.readouterr().err
