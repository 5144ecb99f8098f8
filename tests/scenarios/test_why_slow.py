"""Why a job is slow, while it runs: what a slowness costs, and which causes name no machine."""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import replace

import pytest

from tocsin.pipeline.detect.peers.anomalies import DETECTOR as PEERS
from tocsin.pipeline.detect.steps.anomalies import DETECTOR as STEPS
from tocsin.pipeline.lab.testing import JobShape, MachineShape, MetricsScenario, Scenario, between
from tocsin.pipeline.runtime.embedded.engine import EngineConfig
from tocsin.schemas.verdicts import FaultKind, VerdictState


class TestWhatItCosts:
    @pytest.mark.parametrize(("factor", "share"), [(2.0, 0.24), (4.0, 0.49)])
    def test_a_verdict_on_a_slow_machine_says_what_it_costs_the_job_now(self, factor: float, share: float) -> None:
        scenario = Scenario(JobShape(step_seconds=0.5))
        scenario.at(20).inject(scenario.job.slow, 3, "forward", factor)
        scenario.want(between(20, 50), suspects=["n03"], state="confirmed")
        scenario.run(60).check()
        told = [one.costs_ratio for one in scenario.verdicts]
        assert told == [pytest.approx(share, abs=0.06)] * len(told)

    def test_a_machine_that_was_slower_from_the_begin_is_only_noted_with_what_it_costs(self) -> None:
        scenario = Scenario(JobShape(step_seconds=0.5))
        scenario.job.slow(3, "forward", 1.6)
        scenario.want(between(20, 110), fault="degraded", suspects=["n03"])
        scenario.run(110).check()
        told = [one.costs_ratio for one in scenario.verdicts if one.suspects]
        assert told == [pytest.approx(0.16, abs=0.03)] * len(told)

    def test_a_slower_job_without_a_suspect_costs_what_its_steps_grew_by(self) -> None:
        scenario = Scenario(JobShape(2, 2, step_seconds=0.5))
        scenario.at(60).inject(scenario.job.slow_all, "forward", 3.0)
        scenario.run(120)
        [last] = scenario.final()
        assert (last.fault, last.suspects) == (FaultKind.FAIL_SLOW, ())
        assert last.costs_ratio == pytest.approx(0.41, abs=0.05)

    def test_a_fault_that_slows_nobody_has_no_cost(self) -> None:
        scenario = Scenario(JobShape())
        scenario.at(20).inject(scenario.job.freeze, 3)
        scenario.run(40)
        assert scenario.verdicts
        assert {one.costs_ratio for one in scenario.verdicts} == {None}


def _lengths(rank: int, step: int, phase: str) -> float:
    """New sequence lengths for each rank in each step."""
    longer = max(0.3, random.Random(rank * 100_003 + step).gauss(1.0, 0.4))
    return longer if phase in ("forward", "backward") else 1.0


def _pause(rank: int, step: int) -> float:
    """A pause in the forward pass, in each step of another rank."""
    return 0.3 if (step * 7) % 8 == rank else 0.0


def _causes(scenario: Scenario) -> set[str]:
    return {verdict.cause for verdict in scenario.verdicts}


class TestUnevenData:
    def test_new_lengths_in_each_step_are_data_and_nobody_is_accused(self) -> None:
        scenario = Scenario(JobShape(step_seconds=0.5))
        scenario.job.load = _lengths
        scenario.want(between(30, 65), fault="degraded", cause="data_imbalance", suspects=[], action="none")
        scenario.run(65).check()
        assert _causes(scenario) == {"data_imbalance"}
        assert scenario.verdicts[0].costs_ratio == pytest.approx(0.27, abs=0.05)

    def test_a_job_that_becomes_slower_by_new_lengths_is_slow_by_its_data(self) -> None:
        scenario = Scenario(JobShape(step_seconds=0.5))
        scenario.job.load = lambda rank, step, phase: _lengths(rank, step, phase) if step > 120 else 1.0
        scenario.want(between(80, 120), fault="fail_slow", cause="data_imbalance", suspects=[], action="notify")
        scenario.run(130).check()
        assert len({verdict.verdict_id for verdict in scenario.verdicts}) == 1

    def test_equal_lengths_are_nothing(self) -> None:
        scenario = Scenario(JobShape(step_seconds=0.5, jitter_ratio=0.06))
        scenario.want_nothing(60)


class TestLongStage:
    def test_a_stage_that_is_longer_on_all_replicas_is_the_stage(self) -> None:
        scenario = Scenario(JobShape(8, stage_count=2, step_seconds=0.5))
        scenario.job.load = lambda rank, _step, phase: 1.6 if rank >= 4 and phase != "data" else 1.0
        scenario.want(between(30, 65), fault="degraded", cause="stage_imbalance", suspects=[], reason="long_stage")
        scenario.run(65).check()
        assert "stage 1" in scenario.verdicts[0].evidence[0].text

    def test_a_stage_that_is_longer_on_one_replica_is_that_machine(self) -> None:
        scenario = Scenario(JobShape(8, stage_count=2, step_seconds=0.5))
        for phase in ("forward", "backward"):
            scenario.at(30).inject(scenario.job.slow, 5, phase, 1.5)
        scenario.want(between(30, 60), fault="fail_slow", suspects=["n05"])
        scenario.run(65).check()
        assert "stage_imbalance" not in _causes(scenario)


class TestLongReplica:
    """Data that are longer on one replica for good: all its stages compute longer, on hosts of their own."""

    @pytest.mark.parametrize(("rank_count", "stage_count"), [(8, 2), (16, 4)])
    def test_a_replica_that_computes_longer_on_all_its_stages_is_no_machine(
        self, rank_count: int, stage_count: int
    ) -> None:
        replica_count = rank_count // stage_count
        scenario = Scenario(JobShape(rank_count, stage_count=stage_count, step_seconds=0.5, tells_replicas=True))
        for stage in range(stage_count):
            for phase in ("forward", "backward"):
                scenario.at(30).inject(scenario.job.slow, 1 + stage * replica_count, phase, 1.6)
        scenario.run(90)
        assert [verdict for verdict in scenario.verdicts if verdict.suspects] == []

    def test_a_machine_of_one_stage_is_named(self) -> None:
        scenario = Scenario(JobShape(16, stage_count=4, step_seconds=0.5, tells_replicas=True))
        for phase in ("forward", "backward"):
            scenario.at(30).inject(scenario.job.slow, 5, phase, 1.6)
        scenario.want(between(30, 60), fault="fail_slow", suspects=["n05"])
        scenario.run(65).check()


def _moving_lengths(replica_count: int, step_count: int) -> Callable[[int, int, str], float]:
    """Longer data of one replica for some steps, then of another one, and so on, after forty equal steps."""

    def longer(rank: int, step: int, phase: str) -> float:
        turn = (step - 40) // step_count
        is_longer = step >= 40 and phase in ("forward", "backward") and rank % replica_count == turn * 3 % replica_count
        return 1.6 if is_longer else 1.0

    return longer


class TestMovingReplica:
    """Data that are longer on one replica for some steps, then on another one; the first turn has no history."""

    @pytest.mark.parametrize("rank_count", [4, 8, 16])
    @pytest.mark.parametrize("step_count", [10, 15, 20])
    @pytest.mark.parametrize("step_seconds", [0.5, 2.0])
    def test_no_second_host_is_named_and_the_first_one_is_taken_back(
        self, rank_count: int, step_count: int, step_seconds: float
    ) -> None:
        scenario = Scenario(JobShape(rank_count, step_seconds=step_seconds, tells_replicas=True))
        scenario.job.load = _moving_lengths(rank_count, step_count)
        scenario.run(int((60 + 5 * step_count) * step_seconds * 1.6))
        assert len({verdict.verdict_id for verdict in scenario.verdicts if verdict.suspects}) <= 1
        assert [(one.cause, one.suspects) for one in scenario.final()] == [("data_imbalance", ())]

    def test_a_confirmed_host_is_taken_back_when_its_slowness_passes_on(self) -> None:
        scenario = Scenario(JobShape(8, step_seconds=2.0, tells_replicas=True))
        scenario.job.load = _moving_lengths(8, 20)
        scenario.run(240)
        named = [verdict for verdict in scenario.verdicts if verdict.suspects]
        assert VerdictState.CONFIRMED in {verdict.state for verdict in named}
        assert (named[-1].state, named[-1].reason) == (VerdictState.CANCELLED, "slowest_rank_changes")

    @pytest.mark.parametrize(("rank_count", "stage_count"), [(8, 2), (16, 4), (32, 4)])
    def test_replicas_of_several_stages_name_nobody(self, rank_count: int, stage_count: int) -> None:
        shape = JobShape(rank_count, stage_count=stage_count, step_seconds=0.5, tells_replicas=True)
        scenario = Scenario(shape)
        scenario.job.load = _moving_lengths(rank_count // stage_count, 15)
        scenario.run(90)
        assert [verdict for verdict in scenario.verdicts if verdict.suspects] == []

    @pytest.mark.parametrize("rank_count", [4, 8])
    def test_a_machine_that_recovers_beside_a_slow_one_stays_blamed(self, rank_count: int) -> None:
        """Its slowness passed on to nobody: the other one was slow before it recovered."""
        scenario = Scenario(JobShape(rank_count, step_seconds=0.5))
        for phase in ("forward", "backward"):
            scenario.at(30).inject(scenario.job.slow, 1, phase, 2.2)
            scenario.at(34).inject(scenario.job.slow, 2, phase, 1.6)
            scenario.at(80).inject(scenario.job.slow, 1, phase, 1.0)
        scenario.run(130)
        first = [
            verdict for verdict in scenario.verdicts if [one.component.name for one in verdict.suspects] == ["n01"]
        ]
        assert first[-1].state is VerdictState.RESOLVED


class TestPauses:
    def test_pauses_of_changing_ranks_are_jitter(self) -> None:
        scenario = Scenario(JobShape(step_seconds=0.5))
        scenario.job.extra_seconds = _pause
        scenario.want(between(30, 65), fault="degraded", cause="software_jitter", suspects=[])
        scenario.run(65).check()

    def test_pauses_of_one_rank_are_not(self) -> None:
        scenario = Scenario(JobShape(step_seconds=0.5))
        scenario.job.extra_seconds = lambda rank, step: 0.4 if rank == 2 and step % 3 == 0 else 0.0
        scenario.run(60).check()
        assert "software_jitter" not in _causes(scenario)

    def test_pauses_of_all_ranks_at_the_same_step_are_not(self) -> None:
        """Garbage that all ranks collect at planned steps makes none of them late."""
        scenario = Scenario(JobShape(step_seconds=0.5))
        scenario.job.extra_seconds = lambda _rank, step: 0.3 if step % 4 == 0 else 0.0
        scenario.run(60).check()
        assert "software_jitter" not in _causes(scenario)


def _random_pauses(seed: int) -> Callable[[int, int], float]:
    """A quarter of all forward passes take a pause of half a step to one and a half."""

    def pause(rank: int, step: int) -> float:
        drawn = random.Random(seed * 1_000_003 + rank * 100_003 + step)
        return 0.2 * drawn.uniform(0.5, 1.5) if step > 60 and drawn.random() < 0.25 else 0.0

    return pause


def _heavy_lengths(seed: int) -> Callable[[int, int, str], float]:
    """New sequence lengths with a heavy tail, for each rank in each step."""

    def longer(rank: int, step: int, phase: str) -> float:
        tail = random.Random(seed * 1_000_003 + rank * 100_003 + step).paretovariate(2.0) - 1.0
        return 1.0 + min(0.4 * tail, 4.0) if step > 60 and phase in ("forward", "backward") else 1.0

    return longer


class TestFewRanks:
    """Of few ranks the same one is the slowest in four of five steps every minute, by luck."""

    @pytest.mark.parametrize("rank_count", [4, 6, 8])
    @pytest.mark.parametrize("seed", [1, 2])
    def test_random_pauses_accuse_nobody(self, rank_count: int, seed: int) -> None:
        scenario = Scenario(JobShape(rank_count, step_seconds=0.2))
        scenario.job.extra_seconds = _random_pauses(seed)
        scenario.run(90)
        assert [verdict for verdict in scenario.verdicts if verdict.suspects] == []

    @pytest.mark.parametrize("rank_count", [4, 6, 8])
    @pytest.mark.parametrize("seed", [1, 2])
    def test_lengths_with_a_heavy_tail_accuse_nobody(self, rank_count: int, seed: int) -> None:
        scenario = Scenario(JobShape(rank_count, step_seconds=0.2))
        scenario.job.load = _heavy_lengths(seed)
        scenario.run(90)
        assert [verdict for verdict in scenario.verdicts if verdict.suspects] == []

    @pytest.mark.parametrize("rank_count", [4, 6, 8])
    def test_a_slow_rank_is_named_all_the_same(self, rank_count: int) -> None:
        scenario = Scenario(JobShape(rank_count, step_seconds=0.2))
        scenario.at(20).inject(scenario.job.slow, 1, "forward", 3.0)
        scenario.want(between(20, 28), suspects=["n01"])
        scenario.run(40).check()


def _long_stage(rank: int, _step: int, phase: str) -> float:
    """A second stage that computes longer on all replicas, of eight ranks."""
    return 1.8 if rank >= 4 and phase != "data" else 1.0


class TestWaits:
    def test_transfers_of_all_groups_that_become_longer_are_communication(self) -> None:
        scenario = Scenario(JobShape(step_seconds=0.5))
        for rank in range(8):
            scenario.at(60).inject(scenario.job.slow_link, rank, 0.1)
        scenario.want(between(60, 115), fault="fail_slow", cause="communication", suspects=[])
        scenario.run(115).check()
        assert not scenario.accused_names()

    def test_the_machine_of_a_slow_link_stands_for_the_long_transfers(self) -> None:
        scenario = Scenario(JobShape(step_seconds=0.5))
        scenario.at(60).inject(scenario.job.slow_link, 3, 0.1)
        scenario.want(between(60, 90), fault="fail_slow", cause="network_slow", suspects=["n03"])
        scenario.run(115).check()
        assert _causes(scenario) == {"network_slow"}

    def test_ranks_that_wait_for_data_longer_than_usual_wait_for_a_service(self) -> None:
        """A quarter of the ranks load from elsewhere, so that not all ranks wait."""
        scenario = Scenario(JobShape(8, step_seconds=0.5))
        scenario.job.load = lambda rank, step, phase: 15.0 if phase == "data" and rank < 6 and step > 114 else 1.0
        scenario.want(between(60, 120), cause="shared_service", suspects=[])
        scenario.run(120).check()
        assert not scenario.accused_names()

    def test_changing_ranks_that_wait_for_their_loaders_are_not_accused(self) -> None:
        scenario = Scenario(JobShape(8, step_seconds=0.5))
        scenario.job.load = lambda rank, step, phase: 15.0 if phase == "data" and (step * 3) % 8 == rank else 1.0
        scenario.want(between(30, 65), fault="degraded", cause="loader_stall", suspects=[], action="none")
        scenario.run(65).check()
        assert not scenario.accused_names()

    def test_a_rank_that_waits_for_its_loader_is_told_once(self) -> None:
        scenario = Scenario(JobShape(8, step_seconds=0.5))
        scenario.at(40).inject(scenario.job.slow, 3, "data", 12.0)
        scenario.want(between(40, 70), fault="fail_slow", cause="loader_stall", suspects=["n03"])
        scenario.run(100).check()
        assert len({verdict.verdict_id for verdict in scenario.verdicts}) == 1


class TestTwoAtOnce:
    def test_a_long_stage_and_uneven_data_are_two_incidents_with_their_shares(self) -> None:
        scenario = Scenario(JobShape(8, stage_count=2, step_seconds=0.5))
        scenario.job.load = lambda rank, step, phase: _lengths(rank, step, phase) * _long_stage(rank, step, phase)
        scenario.want(between(30, 70), fault="degraded", cause="data_imbalance", suspects=[])
        scenario.want(between(30, 70), fault="degraded", cause="stage_imbalance", suspects=[])
        scenario.run(70).check()
        for verdict in scenario.verdicts:
            assert "data_imbalance 2" in verdict.evidence[0].text
            assert "stage_imbalance 1" in verdict.evidence[0].text

    def test_a_cause_that_was_told_goes_on_while_steps_are_longer_for_a_moment(self) -> None:
        scenario = Scenario(JobShape(8, stage_count=2, step_seconds=0.5))
        scenario.job.load = lambda rank, _step, phase: 1.6 if rank >= 4 and phase != "data" else 1.0
        scenario.job.extra_seconds = lambda rank, step: 0.45 if (step * 7) % 8 == rank else 0.0
        scenario.want(between(30, 60), fault="degraded", cause="software_jitter", suspects=[])
        scenario.run(80).check()
        assert VerdictState.CANCELLED not in {verdict.state for verdict in scenario.verdicts}

    def test_a_slow_machine_beside_a_long_stage_is_named(self) -> None:
        scenario = Scenario(JobShape(8, stage_count=2, step_seconds=0.5))
        scenario.job.load = lambda rank, _step, phase: 1.6 if rank >= 4 and phase != "data" else 1.0
        for phase in ("forward", "backward"):
            scenario.at(50).inject(scenario.job.slow, 5, phase, 1.6)
        scenario.want(between(25, 45), fault="degraded", cause="stage_imbalance", suspects=[])
        scenario.want(between(50, 90), fault="fail_slow", suspects=["n05"])
        scenario.run(90).check()
        assert {verdict.cause for verdict in scenario.final() if not verdict.suspects} == {"stage_imbalance"}

    def test_a_slow_machine_beside_pauses_is_named(self) -> None:
        scenario = Scenario(JobShape(step_seconds=0.5))
        scenario.job.extra_seconds = _pause
        for phase in ("forward", "backward"):
            scenario.at(50).inject(scenario.job.slow, 5, phase, 2.0)
        scenario.want(between(30, 60), fault="degraded", cause="software_jitter", suspects=[])
        scenario.want(between(50, 75), fault="fail_slow", suspects=["n05"])
        scenario.run(75).check()

    def test_a_slow_machine_beside_uneven_data_is_named_and_the_data_go_on(self) -> None:
        scenario = Scenario(JobShape(step_seconds=0.5))
        scenario.job.load = _lengths
        for phase in ("forward", "backward"):
            scenario.at(50).inject(scenario.job.slow, 5, phase, 2.5)
        scenario.want(between(30, 50), fault="degraded", cause="data_imbalance", suspects=[])
        scenario.want(between(50, 95), fault="fail_slow", suspects=["n05"])
        scenario.run(95).check()
        data = [verdict.state for verdict in scenario.verdicts if verdict.cause == "data_imbalance"]
        assert VerdictState.CANCELLED not in data


def _congested_port(second: float, *, is_asked: bool = True) -> MetricsScenario:
    """A job whose sequences become uneven after a minute, and one port that is congested and holds up no step.

    Args:
        second: when the port is congested from.
        is_asked: whether the detector of causes may answer.
    """
    config = EngineConfig()
    if not is_asked:
        config = replace(config, job=replace(config.job, detectors=(PEERS, STEPS)))
    scenario = MetricsScenario(JobShape(8, step_seconds=0.5), config, machines=MachineShape(gpu_count=1))
    scenario.job.load = lambda rank, step, phase: _lengths(rank, step, phase) if step > 114 else 1.0
    scenario.at(second).inject(scenario.job.raise_by, 3, "pfc_tx_packets_per_second", 5000.0)
    scenario.at(second).inject(scenario.job.shift, 3, "rdma_bytes_per_second", 0.5)
    return scenario


class TestVeto:
    def test_it_is_asked_before_a_verdict_on_a_machine_opens(self) -> None:
        scenario = _congested_port(80)
        scenario.want(between(85, 100), fault="degraded", cause="data_imbalance", suspects=[])
        scenario.run(100).check()

    def test_without_it_that_machine_is_accused(self) -> None:
        scenario = _congested_port(80, is_asked=False)
        scenario.want(between(85, 95), fault="fail_slow", suspects=["n03"])
        scenario.run(95).check()

    def test_no_answer_yet_is_no_veto_and_a_later_one_cancels(self) -> None:
        scenario = _congested_port(70)
        scenario.want(between(75, 85), fault="fail_slow", suspects=["n03"], state="open")
        scenario.want(between(85, 95), suspects=["n03"], state="cancelled", reason="slowest_rank_changes")
        scenario.want(between(85, 95), fault="degraded", cause="data_imbalance", suspects=[])
        scenario.run(95).check()
        assert not scenario.accused_names()
