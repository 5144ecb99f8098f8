"""Stages of a start from the hook's datagrams to the finding that names the late host."""

from typing import Any

from tests.collectors.agent.core_bench import T0, Bench, S, events
from tocsin.pipeline.rca.evidence.startup import StartupConfig, StartupDetector
from tocsin.schemas.records import EventSource, Topology


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
