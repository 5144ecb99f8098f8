"""What an engine tells its controller of actions about jobs."""

from __future__ import annotations

from tocsin.pipeline.lab.testing import JobShape, Scenario
from tocsin.pipeline.runtime.embedded.actions.engine_facts import EngineFacts
from tocsin.schemas.action_events import AttemptChange, AttemptChangeKind, JobFacts
from tocsin.schemas.records import NS_PER_SECOND, RankPlace, Topology


def test_that_ranks_moved_is_told_in_the_same_second_and_once() -> None:
    scenario = Scenario(JobShape())
    scenario.run(12)
    engine, job, now_ns = scenario.engine, scenario.job.job, scenario.job.now_ns
    facts = EngineFacts(engine, lambda: ())

    hosts: list[tuple[str, ...]] = []

    def told(seconds: int) -> list[tuple[AttemptChange, ...]]:
        found = list(facts.changed(now_ns + seconds * NS_PER_SECOND))
        hosts.extend(one.hosts for one in found if isinstance(one, JobFacts) and one.hosts)
        return [one.changes for one in found if isinstance(one, JobFacts) and one.changes]

    assert told(0) == []
    pipeline = engine.pipeline(job)
    assert pipeline is not None
    pipeline.graph.take([Topology(job, "m00", now_ns, (RankPlace(3, "m00", world_size=8),))])
    assert told(1) == [tuple(AttemptChange(AttemptChangeKind.PLACES, now_ns, host) for host in ("m00", "n03"))]
    assert len(hosts) == 2
    assert set(hosts[1]) - set(hosts[0]) == {"m00"}
    assert told(2) == told(9) == []
    assert len(hosts) == 2
