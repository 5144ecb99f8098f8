"""Several machines at once: a switch or a minipod that fell is named as what they share, and nothing else is.

Steps take two seconds; four hosts hang on a leaf, two leaves on a minipod.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest

from tests.timelines import build_metrics_scenario
from tocsin.pipeline.lab.testing import (
    MachineShape,
    MetricsJob,
    MetricsScenario,
    between,
)
from tocsin.schemas import events
from tocsin.schemas.reasons import Reason
from tocsin.schemas.verdicts import ActionKind, Verdict

PFC, RDMA, CLOCK = "pfc_tx_packets_per_second", "rdma_bytes_per_second", "gpu_sm_clock_hertz"
HOOKS = pytest.mark.parametrize("has_hook", [True, False], ids=["steps", "no_steps"])


def _scenario(ranks: int = 16, *, has_hook: bool = True, **shape: Any) -> tuple[MetricsScenario, MetricsJob]:
    switches = {"leaf_hosts_count": 4, "minipod_leaves_count": 2} | shape
    return build_metrics_scenario(MachineShape(has_hook=has_hook), ranks, **switches)


def _names(ranks: Sequence[int]) -> list[str]:
    return [f"n{rank:02d}" for rank in ranks]


def _last(scenario: MetricsScenario) -> Verdict:
    [verdict] = [verdict for verdict in scenario.final() if verdict.suspects and verdict.fault.value != "degraded"]
    return verdict


def _common(scenario: MetricsScenario) -> tuple[str, str]:
    common = _last(scenario).common
    assert common is not None
    return common.kind.value, common.name


def _actions(scenario: MetricsScenario) -> set[ActionKind]:
    return {verdict.action for verdict in scenario.verdicts if verdict.suspects}


def _worse_link(scenario: MetricsScenario, job: MetricsJob, ranks: Sequence[int], second: int = 150) -> None:
    for rank in ranks:
        scenario.at(second).inject(job.raise_by, rank, PFC, 5000.0 + 100 * rank)
        scenario.at(second).inject(job.shift, rank, RDMA, 0.5)
        scenario.at(second).inject(job.slow_link, rank, 0.8)


class TestSilentTogether:
    @HOOKS
    def test_a_leaf_that_fell(self, has_hook: bool) -> None:
        scenario, job = _scenario(has_hook=has_hook)
        for rank in range(4, 8):
            scenario.at(150).inject(job.lose_host, rank)
        scenario.run(240)

        assert scenario.accused_names() == _names(range(4, 8))
        assert _common(scenario) == ("leaf", "leaf1")
        assert _last(scenario).cause == "machine_unreachable"

    @pytest.mark.parametrize("ranks", [16, 32])
    def test_a_minipod_that_fell_is_half_of_a_job_or_less(self, ranks: int) -> None:
        scenario, job = _scenario(ranks)
        for rank in range(8):
            scenario.at(150).inject(job.lose_host, rank)
        scenario.run(240)

        assert scenario.accused_names() == _names(range(8))
        assert _common(scenario) == ("minipod", "minipod0")

    def test_half_of_a_job_that_shares_nothing_is_nobody_s_fault(self) -> None:
        scenario, job = _scenario()
        for rank in range(0, 16, 2):
            scenario.at(150).inject(job.lose_host, rank)
        scenario.run(240)

        assert not scenario.accused_names()


class TestMetricsTogether:
    def test_the_link_of_all_that_hang_on_a_leaf_of_a_larger_job(self) -> None:
        scenario, job = _scenario(32)
        _worse_link(scenario, job, range(4, 8))
        scenario.run(220)

        assert scenario.accused_names() == _names(range(4, 8))
        assert _common(scenario) == ("leaf", "leaf1")
        assert _actions(scenario) <= {ActionKind.PROBE, ActionKind.NOTIFY}

    @pytest.mark.parametrize("ranks", [(4, 5), (4, 5, 6)])
    @pytest.mark.parametrize("has_other_sign", [False, True])
    def test_hosts_of_a_leaf_that_are_congested_and_nothing_else_are_not_drained(
        self, ranks: Sequence[int], has_other_sign: bool
    ) -> None:
        """Another job's traffic does that, and lets them move less; where their clocks are low, too, it is them."""
        scenario, job = _scenario(32)
        for rank in ranks:
            scenario.at(150).inject(job.raise_by, rank, PFC, 5000.0)
            scenario.at(150).inject(job.shift, rank, RDMA, 0.7)
            if has_other_sign:
                scenario.at(150).inject(job.shift, rank, CLOCK, 0.7)
            scenario.at(150).inject(job.slow_link, rank, 0.8)
        scenario.run(300)

        assert scenario.accused_names() == _names(ranks)
        assert bool(_actions(scenario) & {ActionKind.EVICT, ActionKind.DRAIN}) is has_other_sign

    def test_a_leaf_of_a_quarter_of_the_job_is_told_and_nobody_drains_its_machines(self) -> None:
        scenario, job = _scenario()
        _worse_link(scenario, job, range(4, 8))
        scenario.run(400)

        assert scenario.accused_names() == _names(range(4, 8))
        assert _common(scenario) == ("leaf", "leaf1")
        assert {verdict.reason for verdict in scenario.verdicts if verdict.update == 0} == {Reason.PFC_CONGESTED}
        assert _actions(scenario) <= {ActionKind.PROBE, ActionKind.NOTIFY}

    @HOOKS
    def test_a_minipod_whose_leaves_are_all_congested_is_placement_and_nobody_is_named(self, has_hook: bool) -> None:
        scenario, job = _scenario(32, has_hook=has_hook)
        _worse_link(scenario, job, range(8, 16))
        scenario.want(between(160, 200), fault="fail_slow", cause="placement", suspects=[], action="notify")
        scenario.run(200).check()
        assert "minipod1" in scenario.final()[0].evidence[0].text

    def test_a_congested_minipod_that_makes_nothing_slower_is_no_news(self) -> None:
        scenario, job = _scenario(32)
        for rank in range(8, 16):
            scenario.at(150).inject(job.raise_by, rank, PFC, 5000.0)
        scenario.run(200).check()
        assert "placement" not in {verdict.cause for verdict in scenario.verdicts}

    def test_of_two_leaves_nobody_knows_which_is_as_it_should_be(self) -> None:
        scenario, job = _scenario(8)
        _worse_link(scenario, job, range(4, 8))
        scenario.run(260)

        assert not scenario.accused_names()

    def test_a_leaf_that_is_alone_in_its_minipod_may_be_behind_a_congested_one(self) -> None:
        scenario, job = _scenario(minipod_leaves_count=1)
        _worse_link(scenario, job, range(4, 8))
        scenario.run(260)

        assert not scenario.accused_names()

    def test_a_leaf_that_is_congested_and_makes_nothing_slower_is_no_news(self) -> None:
        scenario, job = _scenario()
        for rank in range(4, 8):
            scenario.at(150).inject(job.raise_by, rank, PFC, 5000.0)
        scenario.run(260)

        assert not scenario.accused_names()

    def test_two_machines_of_a_leaf(self) -> None:
        scenario, job = _scenario()
        _worse_link(scenario, job, (4, 5))
        scenario.run(260)

        assert scenario.accused_names() == _names((4, 5))
        assert _common(scenario) == ("leaf", "leaf1")

    @pytest.mark.parametrize("others", [(), (9, 14)], ids=["they-alone", "hosts-of-other-leaves-are-marked"])
    def test_two_machines_of_a_leaf_of_a_congested_network(self, others: tuple[int, ...]) -> None:
        scenario, job = _scenario(has_hook=False)
        for rank in (4, 5):
            scenario.at(150).inject(job.raise_by, rank, PFC, 3000.0)
        for rank in others:
            scenario.at(150).inject(job.raise_by, rank, "ecn_packets_per_second", 900.0)
        scenario.at(150).inject(job.slow_all, "backward", 1.5)
        scenario.run(260)

        assert scenario.accused_names() == ([] if others else _names((4, 5)))

    def test_a_whole_minipod_is_congested_and_that_is_nobody_s_fault(self) -> None:
        scenario, job = _scenario()
        _worse_link(scenario, job, range(8))
        scenario.run(260)

        assert not scenario.accused_names()

    def test_four_machines_of_four_leaves_are_not_named(self) -> None:
        scenario, job = _scenario()
        _worse_link(scenario, job, (0, 4, 8, 12))
        scenario.run(260)

        assert not scenario.accused_names()

    def test_a_leaf_s_machines_that_compute_slower_are_no_switch_s_fault(self) -> None:
        """Clocks do not hang on a leaf: a rack that is too warm does, but who says so needs more than this."""
        scenario, job = _scenario()
        for rank in range(4, 8):
            scenario.at(150).inject(job.shift, rank, CLOCK, 0.8)
        scenario.at(150).inject(job.slow_all, "forward", 1.3)
        scenario.run(260)

        assert not scenario.accused_names()


class TestEventsTogether:
    @pytest.mark.parametrize(("ranks", "common"), [(range(4, 8), "leaf1"), (range(8), "minipod0"), ((4, 5), "leaf1")])
    def test_ports_that_lose_their_link_at_once(self, ranks: Sequence[int], common: str) -> None:
        scenario, job = _scenario()
        for rank in ranks:
            scenario.at(150 + rank / 10).inject(job.event, rank, events.IB_PORT, state="down", port="mlx5_0")
        scenario.at(152).inject(job.pause, 300, "")
        scenario.run(200)

        assert scenario.accused_names() == _names(ranks)
        assert _common(scenario)[1] == common

    def test_ports_of_half_of_the_job_that_share_nothing(self) -> None:
        scenario, job = _scenario()
        for rank in range(0, 16, 2):
            scenario.at(150).inject(job.event, rank, events.IB_PORT, state="down", port="mlx5_0")
        scenario.at(152).inject(job.pause, 300, "")
        scenario.run(200)

        assert not scenario.accused_names()

    def test_what_does_not_hang_on_a_switch_is_not_named_together(self) -> None:
        scenario, job = _scenario()
        for rank in (4, 5):
            scenario.at(150 + rank / 10).inject(job.event, rank, events.ECC, kind="uncorrected", count=1)
        scenario.at(152).inject(job.pause, 300, "")
        scenario.run(200)

        assert scenario.accused_names() == _names((4,))
