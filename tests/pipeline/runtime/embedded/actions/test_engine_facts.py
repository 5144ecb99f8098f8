"""What an engine tells its controller of actions about jobs."""

from __future__ import annotations

from dataclasses import replace

from tocsin.pipeline.lab.testing import JobShape, Scenario
from tocsin.pipeline.runtime.embedded.actions.engine_facts import EngineFacts
from tocsin.schemas.action_events import AttemptChange, AttemptChangeKind, GroupHosts, JobFacts
from tocsin.schemas.kinds import GroupKind
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


def test_the_groups_of_hosts_are_told_once_and_again_where_ranks_moved() -> None:
    scenario = Scenario(JobShape())
    scenario.run(12)
    engine, job, now_ns = scenario.engine, scenario.job.job, scenario.job.now_ns
    places = tuple(
        RankPlace(rank, f"g{rank}", dp=rank % 2, pp=rank // 2, tp=0, minipod="a", world_size=4) for rank in range(4)
    )
    pipeline = engine.pipeline(job)
    assert pipeline is not None
    pipeline.graph.placement.places.clear()
    pipeline.graph.take([Topology(job, "g0", now_ns, places)])
    facts = EngineFacts(engine, lambda: ())

    def told(seconds: int) -> list[tuple[GroupHosts, ...]]:
        found = list(facts.changed(now_ns + seconds * NS_PER_SECOND))
        return [one.groups for one in found if isinstance(one, JobFacts) and one.groups]

    dp, pp = GroupKind.DP, GroupKind.PP
    first = [GroupHosts(dp, ("g0", "g1")), GroupHosts(dp, ("g2", "g3"))]
    assert told(0) == [(*first, GroupHosts(pp, ("g0", "g2")), GroupHosts(pp, ("g1", "g3")))]
    assert told(6) == []
    pipeline.graph.take([Topology(job, "m0", now_ns, (replace(places[0], host="m0"),))])
    [moved] = told(12)
    assert moved[0] == GroupHosts(dp, ("m0", "g1"))
