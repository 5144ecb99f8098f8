"""A slowdown of the whole job that its groups' transfers explain: those across minipods, or all of them."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import replace

import pytest

from tocsin.pipeline.lab.testing.builders import at_second, build_finding, build_graph
from tocsin.pipeline.rca.evidence.network import NetworkConfig, NetworkTracker
from tocsin.pipeline.rca.finding import Finding
from tocsin.pipeline.rca.slower_groups import explain_by_groups
from tocsin.schemas.reasons import Reason
from tocsin.schemas.records import (
    NS_PER_SECOND,
    CollectiveRecord,
    CommGroup,
    GroupKind,
    Groups,
    JobKey,
    RankPlace,
)
from tocsin.schemas.verdicts import Anomaly, Component, ComponentKind, Evidence, FaultKind

JOB = JobKey("test", "job")
GROUPS = {"across": (0, 1, 4, 5), "first": (0, 1), "second": (2, 3), "third": (4, 5), "fourth": (6, 7)}
"""Ranks 0 to 3 lie in one minipod, 4 to 7 in another."""
SLOWER = Finding(
    FaultKind.FAIL_SLOW,
    "unknown",
    (),
    at_second(60),
    0.8,
    Reason.JOB_WIDE_SLOWDOWN,
    (Evidence("steps", "step_seconds", 2.0, at_second(60), at_second(90), "the steps take longer"),),
)


def slower_steps(metric: str = "step_seconds", communication_ratio: float = 0.9) -> Anomaly:
    """An anomaly of the job's steps."""
    detail = {"communication_ratio": communication_ratio}
    span = at_second(60), at_second(90)
    return Anomaly(JOB, span[1], Component(ComponentKind.JOB, "job"), metric, *span, 2.0, "steps", detail=detail)


def explained(
    slow: Mapping[str, float] | Collection[str] = (), *steps: Anomaly, pods: tuple[str, str] = ("a", "b")
) -> Finding:
    """The finding about a slower job after a minute in which these groups' transfers became longer.

    Args:
        slow: names of groups; transfers take 0.3 s instead of 0.1 s.
        steps: anomalies of the job's steps, without any: slower by communication.
        pods: minipods of ranks 0 to 3 and of ranks 4 to 7.
    """
    places = [RankPlace(rank, f"n{rank}", minipod=pods[rank // 4]) for rank in range(8)]
    graph = build_graph(places)
    table = tuple(CommGroup(name, GroupKind.DP, ranks) for name, ranks in GROUPS.items())
    graph.take([Groups(JOB, "n0", at_second(0), table)])
    tracker = NetworkTracker(NetworkConfig(), graph)
    for second in range(1, 91):
        for name, ranks in GROUPS.items():
            end_ns = at_second(second) + int((0.3 if name in slow and second >= 60 else 0.1) * NS_PER_SECOND)
            done = [
                CollectiveRecord(end_ns, "completion", rank, name, "AllReduce", second, 1, at_second(second), end_ns)
                for rank in ranks
            ]
            tracker.take(done)
    [found] = explain_by_groups([SLOWER], steps or (slower_steps(),), tracker)
    return found


def test_groups_across_minipods_that_alone_become_slower_are_placement() -> None:
    found = explained(["across"])
    assert (found.cause, found.reason, found.suspects) == ("placement", Reason.GROUPS_ACROSS_SLOW, ())
    assert found.evidence[0].text == (
        "transfers of groups across minipods (1) take 3.0 times as long as before or more, those of the others (4) "
        "1.0 times at most"
    )


def test_all_groups_that_become_slower_are_the_network() -> None:
    found = explained(list(GROUPS))
    assert (found.cause, found.reason, found.suspects) == ("communication", Reason.LONG_TRANSFERS, ())
    assert explained(list(GROUPS), pods=("", "")).cause == "communication"


@pytest.mark.parametrize("slow", [(), ("first",), ("across", "first"), ("first", "second", "third", "fourth")])
def test_other_groups_explain_nothing(slow: tuple[str, ...]) -> None:
    assert explained(slow) == SLOWER


def test_nothing_crosses_where_minipods_are_unknown() -> None:
    assert explained(["across"], pods=("", "")) == SLOWER


def test_a_job_that_computes_longer_or_has_a_slow_rank_is_not_explained_by_transfers() -> None:
    assert explained(list(GROUPS), slower_steps(communication_ratio=0.3)) == SLOWER
    assert explained(list(GROUPS), slower_steps(), slower_steps("own_seconds")) == SLOWER


@pytest.mark.parametrize(
    "other",
    [
        replace(SLOWER, cause="shared_service"),
        replace(SLOWER, ends=Reason.NEW_NORMAL),
        replace(SLOWER, suspects=build_finding("n3").suspects),
    ],
)
def test_findings_that_have_a_reason_stay_as_they_are(other: Finding) -> None:
    graph = build_graph([RankPlace(0, "n0")])
    tracker = NetworkTracker(NetworkConfig(), graph)
    assert explain_by_groups([other], [slower_steps()], tracker) == [other]
