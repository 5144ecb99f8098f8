"""Arnold's ``max_pods_dp`` and ``max_pods_pp`` of a running job, also as metrics."""

from __future__ import annotations

from dataclasses import replace
from types import SimpleNamespace
from typing import Any, cast

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tocsin.models.placement.groups import RankCoordinates, groups_of_coordinates, indexed
from tocsin.models.placement.spread import job_spread
from tocsin.pipeline.job.placement import Placement
from tocsin.pipeline.job.pod_spread import most_pods
from tocsin.pipeline.lab.testing import JobShape, Scenario
from tocsin.pipeline.runtime.embedded.service_metrics import most_pods_families
from tocsin.schemas.kinds import GroupKind
from tocsin.schemas.records import JobKey, RankPlace, Topology

JOB = JobKey("c", "j")


def places(pods: list[str], dp: int, pp: int, tp: int = 1) -> dict[int, RankPlace]:
    """Return ranks in Megatron's order, one host for each; ``pods``: minipod of each host."""
    found = {}
    for rank in range(dp * pp * tp):
        place = RankPlace(rank, f"n{rank}", minipod=pods[rank], world_size=dp * pp * tp)
        found[rank] = replace(place, dp=rank // tp % dp, pp=rank // tp // dp, tp=rank % tp)
    return found


@given(st.data(), st.integers(1, 4), st.integers(1, 4), st.integers(1, 2))
def test_the_numbers_are_those_of_the_advice(data: st.DataObject, dp: int, pp: int, tp: int) -> None:
    count = dp * pp * tp
    pods = data.draw(st.lists(st.sampled_from(["a", "b", "c"]), min_size=count, max_size=count))
    told = places(pods, dp, pp, tp)
    axes = (np.array([getattr(told[rank], name) for rank in range(count)], np.int64) for name in ("dp", "pp", "tp"))
    groups = groups_of_coordinates(RankCoordinates(np.arange(count), *axes))
    spread = job_spread(groups, indexed(pods)[1], 0.5)

    assert most_pods(told) == {GroupKind.DP: spread.max_pods_dp, GroupKind.PP: spread.max_pods_pp}


def test_a_node_that_moves_to_another_minipod_raises_the_number() -> None:
    placement = Placement()
    told = places(["a", "a", "b", "b"] * 2, 4, 2)
    placement.take(Topology(JOB, "n0", 1, tuple(told.values())))
    assert placement.most_pods() == {GroupKind.DP: 2, GroupKind.PP: 1}

    placement.take(Topology(JOB, "n0", 2, (replace(told[0], minipod="c"),)))
    assert placement.most_pods() == {GroupKind.DP: 3, GroupKind.PP: 2}


@pytest.mark.parametrize("lacking", [{"tp": -1}, {"dp": -1}, {"minipod": ""}])
def test_without_coordinates_or_minipods_nothing_is_told(lacking: dict[str, Any]) -> None:
    told = {rank: replace(place, **lacking) for rank, place in places(["a", "b"], 2, 1).items()}

    assert most_pods(told) == {}
    assert most_pods({}) == {}


class _TwoPods(JobShape):
    def place_of(self, rank: int, host: str) -> RankPlace:
        return replace(super().place_of(rank, host), dp=rank, tp=0, minipod=f"pod{rank // 4}")


@pytest.mark.parametrize(("shape", "told"), [(JobShape, False), (_TwoPods, True)])
def test_a_running_job_has_both_metrics_where_minipods_are_known(*, shape: type[JobShape], told: bool) -> None:
    scenario = Scenario(shape())
    scenario.run(5)
    families = most_pods_families(cast(Any, SimpleNamespace(engine=scenario.engine)))

    assert [one.name for one in families] == ["tocsin_max_pods_dp", "tocsin_max_pods_pp"]
    key = scenario.job.job
    labels = {"cluster": key.cluster, "job": key.job_id, "attempt": str(key.attempt)}
    assert [[one.labels for one in family.samples] for family in families] == [[labels] if told else []] * 2
    if told:
        most = scenario.engine.most_pods()[key]
        assert [family.samples[0].value for family in families] == [most[GroupKind.DP], most[GroupKind.PP]]
        assert most == {GroupKind.DP: 2, GroupKind.PP: 1}
