"""Groups that cross minipods beside groups that do not: what is slow for its placement alone accuses no machine.

Steps take half a second. Of eight ranks the first lies in a minipod of its own: its pair and its data-parallel group
are the only ones that cross minipods.
"""

from __future__ import annotations

from dataclasses import dataclass

import pytest

from tests.timelines import build_scenario
from tocsin.pipeline.lab.testing import JobShape, Scenario, between


@dataclass(frozen=True, slots=True)
class _LoneShape(JobShape):
    """A job whose rank 0 lies in another minipod than the others."""

    def _switches_of(self, rank: int) -> tuple[str, str]:
        return f"leaf{rank // 4}", "minipod0" if rank else "minipod1"


def _lone_job() -> Scenario:
    return Scenario(_LoneShape(step_seconds=0.5))


def test_groups_that_alone_cross_minipods_accuse_no_machine() -> None:
    """They all have one rank in common, and no other group is slow: as if it were that rank's link."""
    scenario = _lone_job()
    scenario.at(60).inject(scenario.job.slow_link, 0, 0.1)
    scenario.want(between(60, 115), fault="fail_slow", cause="placement", suspects=[])
    scenario.run(115).check()
    assert not scenario.accused_names()


@pytest.mark.parametrize("rank", [3, 4])
def test_a_slow_link_within_a_minipod_is_named_beside_groups_that_cross_minipods(rank: int) -> None:
    scenario = _lone_job()
    scenario.at(60).inject(scenario.job.slow_link, rank, 0.1)
    scenario.want(between(60, 115), fault="fail_slow", cause="network_slow", suspects=[f"n{rank:02d}"])
    scenario.run(115).check()


def test_groups_that_have_always_been_slower_for_their_placement_are_told_as_information() -> None:
    """They have no better past, but an equal group within a minipod is faster."""
    scenario = _lone_job()
    scenario.at(0).inject(scenario.job.slow_link, 0, 0.1)
    scenario.want(between(30, 60), fault="degraded", cause="placement", suspects=[])
    scenario.run(115).check()
    assert not scenario.accused_names()
    assert {verdict.cause for verdict in scenario.verdicts} == {"placement"}
    assert {verdict.action.value for verdict in scenario.verdicts} == {"none"}


def test_groups_that_have_always_been_as_fast_across_minipods_are_no_news() -> None:
    _lone_job().want_nothing(115)


@pytest.mark.parametrize("rank", [0, 3])
def test_among_equally_spread_groups_a_slow_link_is_named(rank: int) -> None:
    """Both data-parallel groups cross the same two minipods, and no pair does."""
    scenario, job = build_scenario(step_seconds=0.5, leaf_hosts_count=2, minipod_leaves_count=2)
    scenario.at(60).inject(job.slow_link, rank, 0.1)
    scenario.want(between(60, 90), fault="fail_slow", cause="network_slow", suspects=[f"n{rank:02d}"])
    scenario.run(115).check()
