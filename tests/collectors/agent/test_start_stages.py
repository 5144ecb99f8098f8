"""Stages of a start from the hook's datagrams to the finding that names the late host."""

from typing import Any

from tests.collectors.agent.core_bench import JOB, T0, Bench, S, events
from tocsin.pipeline.rca.evidence.startup import StartupConfig, StartupDetector
from tocsin.pipeline.runtime.embedded.engine import EmbeddedEngine, EngineConfig
from tocsin.schemas.records import EventSource, JobKey, Topology
from tocsin.schemas.verdicts import Verdict
from tocsin.schemas.wire.codec import encode


def test_a_stage_is_an_event_of_its_rank_and_makes_no_rank(bench: Bench) -> None:
    bench.hook("stage", 2, stage="env_setup", edge="begin", start_kind="full")
    bench.runs(50)
    ended: dict[str, Any] = {
        "stage": "env_setup",
        "edge": "end",
        "start_kind": "full",
        "seconds": 50.5,
        "cache_hit_ratio": 0.25,
    }
    bench.hook("stage", 2, **ended)
    found = events(bench.runs(1) and bench.records, "stage")

    assert [(one.rank, one.source, dict(one.payload)) for one in found] == [
        (2, EventSource.STARTUP, {"stage": "env_setup", "edge": "begin", "start_kind": "full"}),
        (2, EventSource.STARTUP, ended),
    ]
    assert not events(bench.records, "stall")
    assert not [one for one in bench.records if isinstance(one, Topology)]


def test_a_wrong_stage_is_a_dead_letter(bench: Bench) -> None:
    wrong: tuple[dict[str, Any], ...] = (
        {"stage": "coffee"},
        {"edge": "middle"},
        {"start_kind": 1},
        {"seconds": -1},
        {"seconds": "x"},
        {"cache_hit_ratio": 1.5},
    )
    for keys in wrong:
        bench.hook("stage", **{"stage": "env_setup", "edge": "end", "start_kind": "full", **keys})

    assert bench.core.tally.dead_letters["bad_field"] == 6
    assert not events(bench.runs(1), "stage")


def test_a_stranger_speaks_for_no_rank_that_runs(bench: Bench) -> None:
    bench.hello()
    with bench.spoken_by(99):
        bench.hook("stage", stage="env_setup", edge="begin", start_kind="full")

    assert bench.core.tally.dead_letters["foreign_rank"] == 1


def test_the_late_host_is_named_while_it_is_late_by_what_agents_send() -> None:
    hosts, detector = [Bench(f"n{at}") for at in range(6)], StartupDetector(StartupConfig())
    named = []
    for second in range(90):
        for rank, bench in enumerate(hosts):
            late = rank == 3
            if second == 1:
                bench.hook("stage", rank, stage="env_setup", edge="begin", start_kind="full")
            if second == (80 if late else 15 + rank):
                bench.hook("stage", rank, stage="env_setup", edge="end", start_kind="full", seconds=second - 1.0)
            for event in events(bench.runs(1), "stage"):
                detector.on_event(event)
        named += [(second, one.accused) for one in detector.on_time((T0 + second + 1) * S)]

    assert named[0][0] < 40
    assert {accused for _, accused in named} == {("n3",)}


def is_served(bench: Bench) -> bool:
    return JobKey(*JOB) in set(bench.core.keys())


def begins(bench: Bench, rank: int = 0) -> None:
    bench.hook("stage", rank, stage="env_setup", edge="begin", start_kind="full")


def test_a_host_that_starts_for_minutes_before_its_first_hello_is_not_silent() -> None:
    hosts, engine = [Bench(f"n{at}") for at in range(2)], EmbeddedEngine(EngineConfig())
    told = list[Verdict]()
    for second in range(140):
        for rank, bench in enumerate(hosts):
            if second == 1:
                begins(bench, rank)
            for record in bench.runs(1):
                engine.take(encode(record))
        told += engine.tick(hosts[0].ts).verdicts

    assert [one.reason for one in told] == []


def test_a_job_that_starts_is_served_until_its_processes_are_gone(bench: Bench) -> None:
    begins(bench)
    with bench.spoken_by(78):
        begins(bench, 1)
    bench.runs(300)
    bench.watcher.gone.add(77)
    bench.runs(5)
    assert is_served(bench)
    bench.watcher.gone.add(78)
    bench.runs(1)
    assert not is_served(bench)


def test_of_processes_that_cannot_be_seen_a_start_is_served_for_an_hour(bench: Bench) -> None:
    bench.watcher.hidden.add(77)
    begins(bench)
    bench.runs(3590, tick=5)
    assert is_served(bench)
    bench.runs(20, tick=5)
    assert not is_served(bench)
