"""An eviction names the free machines that could take the place, the best first (Arnold's statement A5)."""

from __future__ import annotations

import json
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.pipeline.actions.kit import CLUSTER, JOB, T0, Stage, verdict_on
from tocsin.models.placement.groups import block_coordinates, groups_of_coordinates
from tocsin.models.placement.spread import job_spread
from tocsin.pipeline.actions.facts import FactBook
from tocsin.pipeline.actions.spare_advice import ALPHA_RATIO, ranked_spares
from tocsin.schemas.action_codec import decode_action, encode_action
from tocsin.schemas.action_events import GroupHosts, JobFacts, MachineFacts
from tocsin.schemas.actions import ActionTarget
from tocsin.schemas.kinds import GroupKind
from tocsin.schemas.verdicts import ActionKind

HOSTS = tuple(f"n{index}" for index in range(8))
GROUPS = groups_of_coordinates(block_coordinates(len(HOSTS), 4, 4, 4))
"""Four stages of two replicas, one host each."""
FACTS = tuple(
    GroupHosts(kind, tuple(HOSTS[host] for host in GROUPS[kind].hosts_of(index)))
    for kind in (GroupKind.DP, GroupKind.PP)
    for index in range(len(GROUPS[kind].names))
)


def book_of(pods: dict[str, str], **changes: object) -> FactBook:
    """What is known: minipods of machines, the job's groups, and the spares that the job controller names."""
    book = FactBook(1_000)
    for host, pod in pods.items():
        book.take_machine(MachineFacts(CLUSTER, host, T0, leaf=f"leaf-{pod}", minipod=pod))
    spares = tuple(host for host in pods if host not in HOSTS)
    told = JobFacts(JOB, T0, hosts=HOSTS, spare_count=len(spares), spare_hosts=spares, groups=FACTS)
    book.take_job(replace(told, **changes))  # type: ignore[arg-type]
    return book


def target_of(book: FactBook, *hosts: str) -> ActionTarget:
    """An eviction's target."""
    return book.target(JOB, None, hosts, T0)


pod_names = st.sampled_from(("a", "b", "c"))


@settings(max_examples=50, deadline=None)
@given(st.lists(pod_names, min_size=8, max_size=8), st.lists(pod_names, min_size=2, max_size=5), st.integers(0, 7))
def test_the_advised_spare_has_the_least_weighted_spread_of_all(pods: list[str], free: list[str], gone: int) -> None:
    where = dict(zip(HOSTS, pods, strict=True)) | {f"s{index}": pod for index, pod in enumerate(free)}
    book = book_of(where)

    ranked = ranked_spares(book, target_of(book, HOSTS[gone]), T0)

    def spread(spare: str) -> float:
        numbers = np.array([ord(where[spare if at == gone else host]) - ord("a") for at, host in enumerate(HOSTS)])
        return job_spread(GROUPS, numbers, ALPHA_RATIO).weighted_spread

    assert sorted(ranked) == sorted(name for name in where if name not in HOSTS)
    assert [spread(one) for one in ranked] == sorted(spread(one) for one in ranked)
    assert spread(ranked[0]) == min(spread(f"s{index}") for index in range(len(free)))


def test_two_machines_get_two_spares() -> None:
    pods = {host: "a" if at % 2 == 0 else "b" for at, host in enumerate(HOSTS)}
    book = book_of({**pods, "sb1": "b", "sa1": "a", "sb2": "b", "sc1": "c"})

    ranked = ranked_spares(book, target_of(book, "n0", "n1"), T0)

    assert ranked[0] == "sa1"
    assert ranked[1] in ("sb1", "sb2")
    assert set(ranked) == {"sa1", "sb1", "sb2", "sc1"}
    assert len(ranked) == 4


@pytest.mark.parametrize(
    "changes",
    [
        {"spare_hosts": ()},
        {"groups": ()},
        {"spare_hosts": ("nowhere",)},
        {"job": replace(JOB, attempt=JOB.attempt + 1)},
        {"ts_ns": T0 - 1},
    ],
    ids=["no spares", "no groups", "minipod unknown", "another attempt", "too old"],
)
def test_nothing_is_advised_where_something_is_not_known(changes: dict[str, object]) -> None:
    book = book_of(dict.fromkeys(HOSTS, "a") | {"s0": "a"}, **changes)

    assert ranked_spares(book, target_of(book, "n0"), T0) == ()


def test_an_eviction_carries_the_spares_and_other_actions_do_not() -> None:
    stage = Stage()
    for at, host in enumerate((*HOSTS, "s0", "s1")):
        pod = "b" if host == "s0" or at in (4, 5, 6, 7) else "a"
        stage.tell(MachineFacts(CLUSTER, host, T0 + 1, leaf=f"leaf-{pod}", minipod=pod))
    stage.tell(JobFacts(JOB, T0 + 1, groups=FACTS))
    stage.tell(JobFacts(JOB, T0 + 1, spare_hosts=("s0", "s1"), spare_count=2))
    stage.crash()
    stage.judge(verdict_on("n1"))
    stage.judge(verdict_on("n2", name="v2", action=ActionKind.DRAIN))
    evicted = stage.on_host("n1")

    assert evicted.spares == ("s1", "s0")
    assert decode_action(encode_action(evicted)).spares == ("s1", "s0")
    assert stage.on_host("n2", ActionKind.DRAIN).spares == ()


def test_an_action_of_a_controller_that_knows_no_spares_is_read() -> None:
    stage = Stage()
    stage.judge(verdict_on("n1"))
    event = json.loads(encode_action(stage.on_host("n1")))
    del event["data"]["spares"]

    assert decode_action(json.dumps(event).encode()).spares == ()
