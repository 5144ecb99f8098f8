"""The engine as a service: what is spoken, written, taken back and shown."""

from __future__ import annotations

import math
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.model_announcements import announced
from tests.pipeline.runtime.embedded.service_bench import ServiceBench
from tocsin.pipeline.incidents.proposals import HoldRules
from tocsin.pipeline.lab.testing import MemoryStore
from tocsin.pipeline.runtime.embedded.service import EngineService, ServiceConfig
from tocsin.pipeline.runtime.embedded.service_metrics import families_of
from tocsin.schemas.action_states import ActionState
from tocsin.schemas.errors import EngineError, ModelRefusedError
from tocsin.schemas.formats.prometheus_text import render
from tocsin.schemas.model_announcement import BOUNDARY_NS
from tocsin.schemas.records import NS_PER_SECOND
from tocsin.schemas.verdicts import ActionKind, FaultKind
from tocsin.schemas.wire.codec import encode


@pytest.fixture
def bench(tmp_path: Path) -> Iterator[ServiceBench]:
    made = ServiceBench(tmp_path)
    yield made
    made.service.stop()


def test_a_slow_rank_is_written_with_its_evidence(bench: ServiceBench) -> None:
    """The suspect's series beside the peers' median and their 5 and 95 %, from before the onset."""
    bench.run(40)
    bench.job.slow(3, "forward", 4.0)
    bench.run(20)
    bench.wait(lambda: bool(bench.store.evidence))
    onset_ns = bench.store.verdicts[0].onset_ns
    own = [point for point in bench.store.evidence if point.metric == "own_seconds"]
    before = [point for point in own if point.ts_ns < onset_ns - NS_PER_SECOND]
    after = [point for point in own if point.ts_ns > onset_ns + NS_PER_SECOND]

    assert len(before) > 20
    assert all(point.peer_count == 7 and point.component.name == "n03" for point in own)
    assert all(point.peer_p05_value <= point.peer_median_value <= point.peer_p95_value for point in own)
    assert max(point.suspect_value for point in before) < min(point.suspect_value for point in after)
    assert not any(math.isnan(point.suspect_value) for point in own)


def test_a_verdict_that_closes_takes_its_action_back(bench: ServiceBench) -> None:
    """Nobody drains a machine for a fault that is over."""
    bench.run(20)
    bench.job.slow(3, "forward", 4.0)
    bench.run(60)
    bench.job.slow(3, "forward", 1.0)
    bench.run(20)
    bench.wait(lambda: bool(bench.store.actions) and bench.store.actions[-1].state is ActionState.CANCELLED)
    kinds = [(change.action.kind.value, change.state.value) for change in bench.store.actions]

    drained = [("probe", "proposed"), ("probe", "proposed"), ("probe", "cancelled"), ("drain", "proposed")]
    assert kinds == [*drained, ("drain", "cancelled")]
    assert len(bench.store.actions_of([bench.store.verdicts[0].verdict_id])) == 2  # each action is one row
    assert bench.store.actions[-1].detail == "recovered"


def test_a_hard_action_of_a_young_engine_waits_and_its_verdict_does_not(tmp_path: Path) -> None:
    bench = ServiceBench(tmp_path, HoldRules(90, 600))
    try:
        bench.run(20)
        bench.job.slow(3, "forward", 4.0)
        bench.run(80)
        bench.wait(lambda: any(change.action.kind is ActionKind.DRAIN for change in bench.store.actions[-1:]))
        drains = [change for change in bench.store.actions if change.action.kind is ActionKind.DRAIN]
        drained = next(one for one in bench.store.verdicts if one.action is ActionKind.DRAIN)

        assert [(one.state.value, one.detail) for one in drains] == [("waiting", "engine_young"), ("proposed", "")]
        assert drains[0].action == drains[1].action
        assert drained.detected_ns + drained.update == drains[0].changed_ns < drains[1].changed_ns
    finally:
        bench.service.stop()


def test_a_database_that_is_away_loses_nothing(bench: ServiceBench) -> None:
    """The write is tried again; the engine goes on meanwhile."""
    bench.store.failures_left_count = 5
    bench.run(20)
    bench.job.kill(3)
    bench.run(10)
    bench.wait(lambda: len(bench.store.verdicts) == 2)

    assert [verdict.update for verdict in bench.store.verdicts] == [0, 1]


def test_host_health_counts_whole_minutes(bench: ServiceBench) -> None:
    """Scores of detectors included; the fake job sends no frames, so there are no samples."""
    bench.run(20)
    bench.job.slow(3, "forward", 4.0)
    bench.run(120)
    bench.wait(lambda: bool(bench.store.health))
    worst = max(bench.store.health, key=lambda minute: minute.worst_score)

    assert (worst.host, worst.worst_metric) == ("n03", "own_seconds")
    assert worst.worst_score > 1.0


def test_status_and_verdicts_over_the_control_socket(bench: ServiceBench) -> None:
    """What ``tocsin status`` and the drill read."""
    bench.run(20)
    bench.job.freeze(3)
    bench.run(10)
    status = bench.client.call("status", job_id="job")
    stream = bench.client.stream("verdicts", after=0)
    first = next(line for line in stream if "verdict" in line)

    assert status["jobs"][0]["world_size"] == 8
    assert status["ranks"]["3"]["stopped"] is True
    assert first["verdict"]["cause"] == "process_frozen"
    assert "n03" in first["summary"]


def test_the_metrics_page_names_verdicts_by_reason(bench: ServiceBench) -> None:
    """A named reason is a label."""
    bench.run(20)
    bench.job.kill(3)
    bench.run(10)
    page = render(families_of(bench.service))

    assert 'tocsin_engine_verdict_lines_total{reason="first_fatal_exit",state="open"} 1' in page
    assert bench.service.health.live() == (False, "dead threads: ticker")


def test_the_metrics_page_counts_what_is_wrong_now(bench: ServiceBench) -> None:
    """Every fault and state has a line, so that an alert sees the change from 0."""
    bench.run(20)
    before = render(families_of(bench.service))
    bench.job.kill(3)
    bench.run(10)
    after = render(families_of(bench.service))

    for page, count in ((before, 0), (after, 1)):
        lines = [line for line in page.splitlines() if line.startswith("tocsin_open_incidents{")]
        assert len(lines) == 2 * len(FaultKind)
        counts = [float(line.split()[-1]) for line in lines if 'fault="fail_stop"' in line]
        assert sum(counts) == count


def test_the_metrics_page_names_what_became_of_connections(bench: ServiceBench) -> None:
    bench.service.server.counters.update(connections=3, connection_errors=1)
    page = render(families_of(bench.service))
    lines = [line for line in page.splitlines() if line.startswith("tocsin_engine_connections_total{")]

    outcomes = {"accepted": "3", "failed": "1", "not_accepted": "0"}
    assert lines == [f'tocsin_engine_connections_total{{outcome="{name}"}} {n}' for name, n in outcomes.items()]


def test_announced_models_outlive_the_engine(tmp_path: Path) -> None:
    config = ServiceConfig("127.0.0.1:0", tmp_path / "c.sock", model_folder=tmp_path / "data")
    first, second = (EngineService(config, MemoryStore(), lambda: NS_PER_SECOND) for _ in range(2))
    first.tick(NS_PER_SECOND)
    assert first.engine.take(encode(announced(0, 1, 15))) == "ok"
    first.tick(2 * NS_PER_SECOND)
    third = EngineService(config, MemoryStore(), lambda: NS_PER_SECOND)

    assert second.engine.models.status(0) == []
    assert third.engine.models.status(0) == first.engine.models.status(0) != []
    (tmp_path / "data" / "announced-models.json").write_text('{"announcements": ["*"]}')
    with pytest.raises(EngineError, match=r"announced-models\.json cannot be read"):
        EngineService(config, MemoryStore(), lambda: NS_PER_SECOND)
    for service in (first, second, third):
        service.server.start()
        service.server.close()


def test_the_metrics_page_counts_slices_detectors_and_models(bench: ServiceBench) -> None:
    bench.run(20)
    now_ns = bench.service.engine.watermark_ns or 0
    start_ns = now_ns // BOUNDARY_NS * BOUNDARY_NS
    bench.service.engine.take(encode(announced(start_ns, 5, 15)))
    with pytest.raises(ModelRefusedError):
        bench.service.engine.take(encode(announced(start_ns, 5, 16)))
    bench.run(2)
    page = render(families_of(bench.service))

    assert 'tocsin_engine_models_total{outcome="accepted"} 1' in page
    assert 'tocsin_engine_models_total{outcome="not_a_boundary"} 1' in page
    assert 'tocsin_engine_slices_total{kind="second"}' in page
    assert 'tocsin_engine_detector_seconds_total{detector="steps"}' in page
