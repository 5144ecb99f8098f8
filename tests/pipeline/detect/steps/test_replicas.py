"""When slow ranks are a replica whose data are longer."""

from __future__ import annotations

import numpy as np
import pytest

from tocsin.models.steps import SlowPart, SlowRanks, StepWindow
from tocsin.pipeline.detect.steps.replicas import is_whole_replica
from tocsin.pipeline.job.graph import JobGraph
from tocsin.schemas.records import JobKey, RankPlace, Topology

JOB = JobKey("c", "j")
RANKS = range(6)
"""Two stages of three replicas, a host each."""


def graph() -> JobGraph:
    found = JobGraph()
    found.take([Topology(JOB, f"n{r}", 1, (RankPlace(r, f"n{r}", dp=r % 3, pp=r // 3),)) for r in RANKS])
    return found


def answer(own_seconds: list[float], peer_seconds: float = 1.0) -> bool:
    """Whether rank 0, slow by half a second, is of a replica that is longer."""
    own = np.tile(np.array(own_seconds), (5, 1))
    nothing = np.zeros_like(own)
    window = StepWindow(own, nothing, np.stack([nothing] * 4), np.array([0, 0, 0, 1, 1, 1]))
    part = SlowPart(0, 0.5, 0.5, 1.5, "", 0.0, 0)
    return is_whole_replica(SlowRanks((part,), 2.0, peer_seconds, 1.0), window, tuple(RANKS), graph())


@pytest.mark.parametrize(
    ("own_seconds", "is_whole"),
    [
        ([1.5, 1, 1, 1.5, 1, 1], True),
        ([1.5, 1, 1, 3.0, 2, 2], True),  # a stage of twice the work
        ([1.5, 1, 1, 1.0, 1, 1], False),
        ([1.5, 1, 1, 1.2, 1, 1], False),
        ([1.5, 1, 1, 1.0, 1.5, 1], False),  # another replica
    ],
)
def test_a_replica_is_longer_where_its_other_stages_are(own_seconds: list[float], *, is_whole: bool) -> None:
    assert answer(own_seconds) is is_whole


@pytest.mark.parametrize("of_other_stage", [[np.nan, np.nan, np.nan], [np.nan, 1.0, 1.0]])
def test_a_stage_that_tells_nothing_clears_nobody(of_other_stage: list[float]) -> None:
    assert answer([1.5, 1.0, 1.0, *of_other_stage]) is False


def test_peers_that_compute_nothing_are_no_error() -> None:
    assert answer([0.5, 0.0, 0.0, 1.5, 1.0, 1.0], peer_seconds=0.0) is False
