"""Findings of steps and of metrics, joined."""

from __future__ import annotations

from dataclasses import replace

import pytest

from tests.pipeline.rca.rules.kit import slower_since
from tocsin.pipeline.lab.testing.builders import at_second, build_finding
from tocsin.pipeline.rca.join import join
from tocsin.schemas.reasons import Reason
from tocsin.schemas.verdicts import Component, ComponentKind, Evidence, FaultKind, Suspect


def test_a_machine_that_only_still_differs_hides_not_that_the_job_is_slow() -> None:
    slow = slower_since(0)
    holds = replace(slow, fault=FaultKind.DEGRADED, only_holds=True)

    assert join([slow], [holds]) == [slow, holds]


@pytest.mark.parametrize("cause", ["unknown", "workload_change", "shared_service"])
def test_a_machine_that_differs_and_is_not_why_hides_not_that_the_job_is_slow(cause: str) -> None:
    slow = replace(slower_since(0), cause=cause)
    differs = replace(build_finding("n3"), fault=FaultKind.DEGRADED, reason=Reason.NO_IMPACT)

    assert join([slow], [differs]) == [slow, differs]


@pytest.mark.parametrize(
    ("by_metrics", "named"), [(("n3",), ["n3"]), (("n3", "n4"), ["n2", "n3", "n4"]), (("n6",), ["n2", "n3", "n4"])]
)
def test_of_several_that_steps_name_alike_the_one_whose_metrics_tell_why_is_named(
    by_metrics: tuple[str, ...], named: list[str]
) -> None:
    reported = [replace(build_finding(host), reason=Reason.METRICS_DIFFER_STEPS_SLOWER) for host in by_metrics]
    [found] = join([build_finding("n2", "n3", "n4")], reported)

    assert [suspect.component.name for suspect in found.suspects] == named


@pytest.mark.parametrize(("later", "named"), [(20, ("n3", (7,))), (90, ("7", (7,)))])
def test_a_slow_rank_whose_machine_nobody_knows_runs_on_the_one_whose_metrics_tell_why(
    later: int, named: tuple[str, tuple[int, ...]]
) -> None:
    reported = replace(build_finding("n3"), reason=Reason.METRICS_DIFFER_STEPS_SLOWER, onset_ns=at_second(later))
    rank = Suspect(Component(ComponentKind.RANK, "7"), (7,))
    [found] = join([replace(build_finding("n2"), suspects=(rank,))], [reported])

    assert [(suspect.component.name, suspect.ranks) for suspect in found.suspects] == [named]


def test_of_those_behind_one_switch_none_is_singled_out_by_its_metrics() -> None:
    leaf = Component(ComponentKind.LEAF, "leaf-3")
    reported = replace(build_finding("n3"), reason=Reason.METRICS_DIFFER_STEPS_SLOWER)
    [found] = join([replace(build_finding("n2", "n3"), common=leaf)], [reported])

    assert [suspect.component.name for suspect in found.suspects] == ["n2", "n3"]
    assert found.common == leaf


@pytest.mark.parametrize(
    ("metric", "score", "names"),
    [
        ("rdma_bytes_per_second", 1.4, ["n3"]),
        ("gpu_sm_clock_hertz", 1.4, ["n3"]),
        ("rdma_bytes_per_second", 0.6, []),
        ("gpu_util_ratio", 1.4, []),
    ],
)
def test_a_slow_link_tells_more_than_that_all_compute_longer(metric: str, score: float, names: list[str]) -> None:
    """Timers hold what ranks wait for: behind a slow link all compute longer."""
    longer = replace(slower_since(0), cause="workload_change")
    shown = Evidence("peers", metric, score, at_second(0), at_second(60), "it differs")
    machine = replace(slower_since(0), suspects=build_finding("n3").suspects, evidence=(shown,))

    found = join([longer], [machine])

    assert [suspect.component.name for finding in found for suspect in finding.suspects] == names
