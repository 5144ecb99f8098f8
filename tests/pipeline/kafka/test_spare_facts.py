"""Groups and switches reach the controller over Kafka as inside an embedded engine; an eviction names spares."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from tests.pipeline.actions.kit import CLUSTER, JOB, T0, verdict_on
from tests.pipeline.kafka.action_kit import HOSTS, ActionWorld, status_of
from tocsin.pipeline.actions.facts import FactBook
from tocsin.pipeline.job.place_columns import rows_of_places
from tocsin.pipeline.kafka.action_facts import StatusFacts
from tocsin.pipeline.lab.testing import JobShape, Scenario
from tocsin.pipeline.runtime.embedded.actions.engine_facts import EngineFacts
from tocsin.pipeline.stores.base import JobStatus
from tocsin.pipeline.stores.report_codec import decode_status, encode_status
from tocsin.schemas.action_events import ActionEvent, JobFacts, MachineFacts
from tocsin.schemas.errors import FieldError
from tocsin.schemas.kafka.topics import JOB_STATUS
from tocsin.schemas.records import NS_PER_SECOND, JobKey, RankPlace, Topology

Told = Callable[[], list[ActionEvent]]


def placed(host_of: Callable[[int], str], pod_of: Callable[[int], str]) -> dict[int, RankPlace]:
    """Four stages of two replicas, a rank a host."""
    return {
        rank: RankPlace(
            rank, host_of(rank), dp=rank % 2, pp=rank // 2, tp=0, leaf=f"l{pod_of(rank)}", minipod=pod_of(rank)
        )
        for rank in range(8)
    }


def with_places(value: bytes, places: object) -> JobStatus:
    """The state of an attempt, with these places."""
    status = decode_status(value)
    return replace(status, state={**status.state, "places": places})


def about_places(found: list[ActionEvent]) -> list[ActionEvent]:
    """Groups and switches, without the time."""
    groups = [replace(one, ts_ns=0) for one in found if isinstance(one, JobFacts) and one.groups]
    return [*groups, *(replace(one, ts_ns=0) for one in found if isinstance(one, MachineFacts))]


def test_over_kafka_the_controller_is_told_what_an_embedded_one_is_told() -> None:
    scenario = Scenario(JobShape())
    scenario.run(12)
    engine, job, start_ns = scenario.engine, scenario.job.job, scenario.job.now_ns
    pipeline = engine.pipeline(job)
    assert pipeline is not None
    embedded, kafka = EngineFacts(engine, lambda: ()), StatusFacts()
    seen = []
    for turn, host in enumerate(("g0", "g0", "m0")):
        now_ns = start_ns + turn * 10 * NS_PER_SECOND
        hosts = [host, *(f"g{rank}" for rank in range(1, 8))]
        places = placed(hosts.__getitem__, lambda rank: f"pod{rank % 3}")
        pipeline.graph.take([Topology(job, one.host, now_ns, (one,)) for one in places.values()])
        [state] = engine.status()["jobs"]
        kafka.take(decode_status(encode_status(JobStatus(job, now_ns, True, state))))
        by_kafka = about_places(list(kafka.due((), now_ns, with_heartbeats=False)))
        assert by_kafka == about_places(list(embedded.changed(now_ns)))
        seen.append(len(by_kafka))
    assert seen[0] == 1 + 8
    assert seen[1] == 0, "the same is told once"
    assert seen[2] >= 2, "new groups, and the switch of the host that is new"


def evicted(world: ActionWorld) -> tuple[str, ...]:
    """Spares in the eviction of n1, of a job whose eight ranks stand on n0 to n7."""
    places = rows_of_places(placed(lambda rank: HOSTS[rank], lambda rank: "a" if rank % 2 else "b"))
    world.settle()
    world.is_judging = False
    status = with_places(status_of(world.now_ns, HOSTS[:8]), places)
    world.seats.write(JOB_STATUS, encode_status(status), timestamp_ns=world.now_ns)
    for spare, pod in (("s0", "b"), ("s1", "a"), ("s2", "c")):
        world.tell(MachineFacts(CLUSTER, spare, world.now_ns, minipod=pod))
    world.tell(JobFacts(JOB, world.now_ns, spare_hosts=("s0", "s1", "s2"), spare_count=3))
    world.run(2)
    world.judge(verdict_on("n1", at_seconds=(world.now_ns - T0) / NS_PER_SECOND))
    world.run()
    return world.actions()[0].spares


def test_an_eviction_names_the_spare_that_suits_the_groups_first() -> None:
    found = evicted(ActionWorld())

    assert found[0] == "s1", "n1 and its data-parallel peers of odd ranks stand in minipod a"
    assert set(found) == {"s0", "s1", "s2"}


def test_what_ranks_told_before_the_first_state_does_not_hide_hosts_and_groups() -> None:
    facts, book, now_ns = StatusFacts(), FactBook(1_000), 20 * NS_PER_SECOND
    names = JobFacts(JOB, 0, slurm_job_id="77")
    for fact in facts.due((names,), now_ns, with_heartbeats=False):
        assert isinstance(fact, JobFacts)
        book.take_job(fact)
    places = rows_of_places(placed(lambda rank: HOSTS[rank], lambda _: "a"))
    facts.take(with_places(status_of(now_ns - 8 * NS_PER_SECOND, HOSTS[:8]), places))
    for fact in facts.due((), now_ns, with_heartbeats=False):
        if isinstance(fact, JobFacts):
            book.take_job(fact)
    known = book.job(CLUSTER, JOB.job_id)
    assert known is not None
    assert known.slurm_job_id == "77"
    assert known.hosts == tuple(sorted(HOSTS[:8]))
    assert known.groups


def test_a_state_of_an_older_engine_and_one_of_an_earlier_attempt_change_nothing() -> None:
    facts, places = StatusFacts(), rows_of_places(placed(lambda rank: HOSTS[rank], lambda _: "a"))
    later = JobKey(CLUSTER, JOB.job_id, JOB.attempt + 1)
    facts.take(decode_status(status_of(5 * NS_PER_SECOND, HOSTS[:8], later)))
    assert about_places(list(facts.due((), 6 * NS_PER_SECOND, with_heartbeats=False))) == []
    facts.take(with_places(status_of(7 * NS_PER_SECOND, HOSTS[:8], later), places))
    assert len(about_places(list(facts.due((), 8 * NS_PER_SECOND, with_heartbeats=False)))) == 1 + 8
    facts.take(with_places(status_of(9 * NS_PER_SECOND, HOSTS[:8]), rows_of_places({})))
    assert about_places(list(facts.due((), 10 * NS_PER_SECOND, with_heartbeats=False))) == []


@pytest.mark.parametrize(
    "told", [[], {"hosts": []}, {"hosts": [["a", "", ""]], "ranks": [[0, 1, 0, 0, 0]]}, {"hosts": [1], "ranks": []}]
)
def test_places_that_cannot_be_read_are_refused_by_name(told: Any) -> None:
    with pytest.raises(FieldError, match="places"):
        StatusFacts().take(with_places(status_of(5 * NS_PER_SECOND), told))
