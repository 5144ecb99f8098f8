"""Which hosts that steps show to be slow can be at fault."""

from __future__ import annotations

from dataclasses import replace

import pytest

from tests.pipeline.rca.rules.kit import slower_since
from tocsin.pipeline.lab.testing.builders import at_second, build_empty_frame, build_graph
from tocsin.pipeline.rca.rules.slow import SlowRules, can_be_at_fault
from tocsin.schemas.reasons import Reason
from tocsin.schemas.records import RankPlace
from tocsin.schemas.verdicts import Component, ComponentKind, Suspect


@pytest.mark.parametrize(
    ("stages", "hosts", "common", "can"),
    [
        (1, (2,), "", True),
        (1, (2, 5), "", True),
        (1, (2, 5, 9), "", False),
        (1, (2, 5, 9), "leaf3", True),
        (4, (2, 6), "", False),
        (4, (2, 5), "", True),
    ],
    ids=["one", "two of sixteen", "three", "three behind a switch", "stages of one pipeline", "of two pipelines"],
)
def test_hosts_that_steps_name_together_are_few_and_no_pipeline(
    stages: int, hosts: tuple[int, ...], common: str, can: bool
) -> None:
    count = 16 // stages
    graph = build_graph(RankPlace(r, f"n{r}", dp=r % count, tp=0, pp=r // count) for r in range(16))
    graph.take([build_empty_frame(f"n{host}", at_second(1)) for host in range(16)])
    suspects = tuple(Suspect(Component(ComponentKind.HOST, f"n{host}"), (host,)) for host in hosts)
    leaf = Component(ComponentKind.LEAF, common) if common else None
    finding = replace(slower_since(0), suspects=suspects, reason=Reason.SAME_RANK_SLOWEST, common=leaf)

    assert can_be_at_fault(graph, finding, SlowRules()) is can
