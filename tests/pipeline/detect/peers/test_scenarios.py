"""Whole walks with metrics: one machine differs from its peers; who is accused, and who is not.

Steps take two seconds; agents send them every five.
"""

from __future__ import annotations

import re
from collections.abc import Callable

import pytest

from tests.timelines import build_metrics_scenario
from tocsin.pipeline.detect.peers.activity import WORK
from tocsin.pipeline.lab.testing import (
    JobShape,
    MachineShape,
    MetricsJob,
    MetricsScenario,
    between,
)
from tocsin.pipeline.runtime.embedded.engine import EmbeddedEngine, EngineConfig
from tocsin.schemas.verdicts import Verdict
from tocsin.schemas.wire.codec import encode

POWER, CLOCK, CPU = "gpu_power_watts", "gpu_sm_clock_hertz", "cpu_util_ratio"
NO_HOOK = MachineShape(has_hook=False)
HOOKS = pytest.mark.parametrize("machines", [MachineShape(), NO_HOOK], ids=["steps", "no_steps"])


def _opened_seconds(scenario: MetricsScenario) -> float:
    """When the first verdict came, since the scenario's start."""
    return (scenario.verdicts[0].detected_ns - scenario.shape.start_ns) / 1e9


def _abstained(scenario: MetricsScenario) -> dict[str, int]:
    found: dict[str, int] = scenario.engine.status()["jobs"][0]["abstained"]
    return found


class TestSlow:
    @HOOKS
    def test_a_deviation_with_slower_steps_names_its_host(self, machines: MachineShape) -> None:
        scenario, job = build_metrics_scenario(machines)
        scenario.at(150).inject(job.shift, 3, POWER, 0.7)
        scenario.at(150).inject(job.shift, 3, CLOCK, 0.7)
        scenario.at(150).inject(job.slow, 3, "forward", 1.5)
        scenario.want(between(150, 175), fault="fail_slow", cause="power_cap", suspects=["n03"])
        scenario.want(between(160, 230), state="confirmed", suspects=["n03"])
        scenario.run(250).check()
        assert len({verdict.verdict_id for verdict in scenario.verdicts}) == 1

    @HOOKS
    @pytest.mark.parametrize(
        ("raised", "lowered", "cause"),
        [
            ({"gpu_temperature_celsius": 25}, {CLOCK: 0.7}, "thermal_throttle"),
            ({"pfc_tx_packets_per_second": 5000}, {"pcie_bytes_per_second": 0.5}, "pcie_downgrade"),
            ({}, {"nvlink_bytes_per_second": 0.5}, "nvlink_error"),
        ],
    )
    def test_the_pattern_tells_the_cause(
        self, machines: MachineShape, raised: dict[str, float], lowered: dict[str, float], cause: str
    ) -> None:
        scenario, job = build_metrics_scenario(machines)
        for metric, amount in raised.items():
            scenario.at(150).inject(job.raise_by, 3, metric, amount)
        for metric, factor in lowered.items():
            scenario.at(150).inject(job.shift, 3, metric, factor)
        scenario.at(150).inject(job.slow, 3, "forward", 1.5)
        scenario.want(between(150, 200), fault="fail_slow", cause=cause, suspects=["n03"])
        scenario.run(230).check()

    def test_three_hosts_are_enough(self) -> None:
        scenario, job = build_metrics_scenario(NO_HOOK, ranks=4)
        job.ranks[3].agent_alive = False  # a fake job has pairs: three of four are seen
        scenario.at(150).inject(job.shift, 1, CLOCK, 0.7)
        scenario.at(150).inject(job.slow, 1, "forward", 1.5)
        scenario.want(between(150, 200), fault="fail_slow", suspects=["n01"])
        scenario.run(230).check()

    def test_one_gpu_of_many_is_seen(self) -> None:
        scenario, job = build_metrics_scenario(MachineShape(gpu_count=8))
        scenario.at(150).inject(job.shift, 3, CLOCK, 0.6, 5)
        scenario.at(150).inject(job.slow, 3, "forward", 1.5)
        scenario.want(between(150, 175), fault="fail_slow", cause="power_cap", suspects=["n03"])
        scenario.run(200).check()
        [reported] = [one for one in scenario.verdicts[-1].evidence if one.metric == CLOCK]
        gpu = re.search(r", by GPU (\S+) alone \(", reported.text)
        assert gpu is not None, reported.text
        assert gpu[1].endswith("5")

    def test_all_gpus_of_a_machine_are_no_single_one(self) -> None:
        scenario, job = build_metrics_scenario(MachineShape(gpu_count=8))
        scenario.at(150).inject(job.shift, 3, CLOCK, 0.6)
        scenario.at(150).inject(job.slow, 3, "forward", 1.5)
        scenario.want(between(150, 175), fault="fail_slow", cause="power_cap", suspects=["n03"])
        scenario.run(200).check()
        texts = [one.text for one in scenario.verdicts[-1].evidence if one.metric == CLOCK]

        assert len(texts) == 1
        assert "alone" not in texts[0]

    def test_samples_of_five_seconds(self) -> None:
        scenario, job = build_metrics_scenario(MachineShape(has_hook=False, tick_seconds=5))
        scenario.at(400).inject(job.shift, 3, CLOCK, 0.7)
        scenario.at(400).inject(job.slow, 3, "forward", 1.5)
        scenario.want(between(400, 480), fault="fail_slow", suspects=["n03"])
        scenario.run(600).check()

    def test_samples_of_half_a_minute_do_not_make_it_blind_for_an_hour(self) -> None:
        scenario, job = build_metrics_scenario(MachineShape(tick_seconds=30, has_hook=False))
        scenario.at(1200).inject(job.shift, 3, CLOCK, 0.7)
        scenario.at(1200).inject(job.slow, 3, "forward", 1.5)
        scenario.want(between(1200, 1800), fault="fail_slow", suspects=["n03"])
        scenario.run(1800).check()

    def test_a_slowness_that_ends_is_closed(self) -> None:
        scenario, job = build_metrics_scenario()
        scenario.at(150).inject(job.shift, 3, CLOCK, 0.7)
        scenario.at(150).inject(job.slow, 3, "forward", 1.5)
        scenario.at(220).inject(job.shift, 3, CLOCK, 1)
        scenario.at(220).inject(job.slow, 3, "forward", 1)
        scenario.want(between(220, 330), state="resolved", suspects=["n03"])
        scenario.run(340).check()

    def test_two_stages_of_different_load_are_compared_with_themselves(self) -> None:
        scenario, job = build_metrics_scenario(stage_count=2)
        for rank in range(4, 8):
            for metric in (POWER, "gpu_tensor_active_ratio", "rdma_bytes_per_second"):
                job.shift(rank, metric, 0.5)
        scenario.at(150).inject(job.shift, 6, CLOCK, 0.7)
        scenario.at(150).inject(job.slow, 6, "forward", 1.5)
        scenario.want(between(150, 175), fault="fail_slow", suspects=["n06"])
        scenario.run(200).check()

    def test_another_machine_that_stands_out_more_for_a_while_takes_nothing_back(self) -> None:
        scenario, job = build_metrics_scenario()
        scenario.at(150).inject(job.shift, 3, CLOCK, 0.7)
        scenario.at(150).inject(job.slow, 3, "forward", 1.5)
        scenario.at(180).inject(job.raise_by, 5, CPU, 0.6)
        scenario.at(200).inject(job.raise_by, 5, CPU, 0.0)
        scenario.want(between(155, 190), fault="fail_slow", suspects=["n03"])
        scenario.run(260).check()
        assert scenario.accused_names() == ["n03"]
        assert not [verdict for verdict in scenario.verdicts if verdict.state.value in ("cancelled", "resolved")]

    @pytest.mark.parametrize(("seconds", "of_seconds"), [(7, 20), (10, 25)])
    def test_what_shows_in_a_part_of_each_long_step_is_one_verdict(self, seconds: int, of_seconds: int) -> None:
        """Its own part of a step of twenty seconds; in the rest of it all wait alike."""
        scenario, job = build_metrics_scenario(NO_HOOK)
        scenario.at(150).inject(job.slow, 3, "forward", 1.5)
        for begin in range(150, 390, of_seconds):
            for second, factor in ((begin, 0.2), (begin + seconds, 1.0)):
                for metric in ("gpu_util_ratio", "gpu_graphics_active_ratio", CPU):
                    scenario.at(second).inject(job.shift, 3, metric, factor)
        scenario.want(between(160, 240), state="confirmed", fault="fail_slow", suspects=["n03"])
        scenario.run(400).check()
        slow = [verdict for verdict in scenario.verdicts if verdict.fault.value == "fail_slow"]
        assert len({verdict.verdict_id for verdict in slow}) == 1
        assert {verdict.state.value for verdict in slow} <= {"open", "confirmed"}


class TestHarmless:
    @pytest.mark.parametrize("seed", range(2))
    @HOOKS
    def test_healthy_machines_say_nothing(self, machines: MachineShape, seed: int) -> None:
        has_hook = machines.has_hook
        scenario, _ = build_metrics_scenario(MachineShape(has_hook=has_hook, seed=seed, own_ratio=0.1), seed=seed)
        scenario.want_nothing(300)

    def test_a_deviation_without_slower_steps_is_degraded_and_no_accusation(self) -> None:
        scenario, job = build_metrics_scenario()
        scenario.at(150).inject(job.shift, 3, POWER, 0.7)
        scenario.run(300)
        assert not scenario.accused_names()
        assert {verdict.fault.value for verdict in scenario.verdicts} == {"degraded"}
        assert {verdict.action.value for verdict in scenario.verdicts} == {"none"}

    @HOOKS
    @pytest.mark.parametrize("metric", ["gpu_temperature_celsius", "tcp_bytes_per_second", "ecn_packets_per_second"])
    def test_what_differs_for_many_reasons_accuses_nobody_alone(self, machines: MachineShape, metric: str) -> None:
        amount = {"gpu_temperature_celsius": 25.0, "tcp_bytes_per_second": 5e7}.get(metric, 5000.0)
        scenario, job = build_metrics_scenario(machines)
        scenario.at(150).inject(job.raise_by, 3, metric, amount)
        scenario.want_nothing(300)
        assert _abstained(scenario)["no_impact"] > 0

    @HOOKS
    def test_a_daemon_of_ten_seconds_accuses_nobody_in_the_end(self, machines: MachineShape) -> None:
        scenario, job = build_metrics_scenario(machines)
        for amount, factor, second in ((0.5, 1.6, 150), (0.0, 1.0, 160)):
            scenario.at(second).inject(job.raise_by, 3, CPU, amount)
            scenario.at(second).inject(job.slow, 3, "forward", factor)
        scenario.run(260)
        assert not scenario.accused_names()
        assert all(verdict.action.value not in ("drain", "evict") for verdict in scenario.verdicts)

    @pytest.mark.parametrize("windows", [1, 2], ids=["one_window", "both_sides_of_its_end"])
    def test_what_a_window_of_25_seconds_shows_must_show_in_the_next_ones(self, windows: int) -> None:
        """While all steps take longer: by chance, or a daemon that runs as one window ends and the next begins."""
        metric, begin, end = ("rdma_bytes_per_second", 401, 424) if windows == 1 else (CPU, 420, 430)
        scenario, job = build_metrics_scenario(MachineShape(tick_seconds=5))
        scenario.at(400).inject(job.slow_all, "forward", 1.5)
        for second, raised in ((begin, True), (end, False)):
            scenario.at(second).inject(job.slow, 3, "forward", 3.0 if raised else 1.5)
            if windows == 1:
                scenario.at(second).inject(job.shift, 3, metric, 0.7 if raised else 1.0)
            else:
                scenario.at(second).inject(job.raise_by, 3, metric, 0.6 if raised else 0.0)
        scenario.run(500)
        by_metrics = [v for v in scenario.verdicts if any(metric == evidence.metric for evidence in v.evidence)]
        assert {verdict.fault.value for verdict in by_metrics} <= {"degraded"}

    @HOOKS
    def test_one_stall_on_both_sides_of_a_windows_end_names_nobody(self, machines: MachineShape) -> None:
        """Its data came late for five seconds: its GPUs do less, the others wait for it."""
        scenario, job = build_metrics_scenario(machines)
        for second, factor, slow in ((152, 0.3, 2.0), (157, 1.0, 1.0)):
            for metric in ("gpu_util_ratio", POWER, CPU):
                scenario.at(second).inject(job.shift, 3, metric, factor)
            scenario.at(second).inject(job.slow, 3, "forward", slow)
        scenario.run(240)
        assert not [v for v in scenario.verdicts if v.suspects and v.fault.value != "degraded"]

    @HOOKS
    def test_an_announced_checkpoint_is_silent(self, machines: MachineShape) -> None:
        scenario, job = build_metrics_scenario(machines)
        scenario.at(150).inject(job.pause, 40)
        scenario.at(230).inject(job.pause, 12, "evaluation")
        scenario.want_nothing(300)
        assert _abstained(scenario)["announced_phase"] > 0

    @HOOKS
    def test_an_unannounced_checkpoint_accuses_nobody(self, machines: MachineShape) -> None:
        scenario, job = build_metrics_scenario(machines)
        scenario.at(150).inject(job.pause, 20, "")
        scenario.run(240)
        assert not scenario.accused_names()

    @pytest.mark.parametrize(
        "shares",
        [
            {"gpu_util_ratio": 1.1, "gpu_tensor_active_ratio": 0.8, POWER: 0.8},  # an evaluation
            {"pcie_bytes_per_second": 9.0, "gpu_tensor_active_ratio": 0.6, POWER: 0.4},  # a checkpoint through the host
        ],
    )
    def test_other_work_that_nobody_announced_accuses_nobody(self, shares: dict[str, float]) -> None:
        scenario, job = build_metrics_scenario()
        scenario.at(200).inject(job.work_otherwise, 90, shares)
        scenario.at(200).inject(job.shift, 3, POWER, 1.2)  # this one answers to it otherwise
        scenario.at(290).inject(job.shift, 3, POWER, 1.0)
        scenario.run(400)
        assert scenario.accused_names() == []
        assert not any(verdict.suspects and verdict.fault.value != "degraded" for verdict in scenario.verdicts)
        assert _abstained(scenario)["other_work"] > 0

    @HOOKS
    def test_congestion_of_a_minipod_accuses_nobody(self, machines: MachineShape) -> None:
        scenario, job = build_metrics_scenario(machines)
        for rank in range(4):
            scenario.at(150).inject(job.raise_by, rank, "ecn_packets_per_second", 5000)
            scenario.at(150).inject(job.raise_by, rank, "cnp_packets_per_second", 3000)
            scenario.at(150).inject(job.shift, rank, "rdma_bytes_per_second", 0.6)
        scenario.at(150).inject(job.slow_all, "backward", 1.5)
        scenario.run(300)
        assert not scenario.accused_names()

    @HOOKS
    def test_an_agent_that_restarts_while_training_goes_on(self, machines: MachineShape) -> None:
        scenario, job = build_metrics_scenario(machines)
        scenario.at(150).inject(job.kill_agent, 3)
        scenario.at(190).inject(job.revive_agent, 3)
        scenario.want_nothing(300)
        assert _abstained(scenario)["monitoring_lost"] > 0

    def test_a_job_that_slows_down_as_a_whole(self) -> None:
        scenario, job = build_metrics_scenario(NO_HOOK)
        scenario.at(150).inject(job.slow_all, "forward", 2.0)
        scenario.want_nothing(300)


class TestWithoutPeers:
    def test_two_hosts_abstain_by_name_and_an_exit_still_speaks(self) -> None:
        scenario, job = build_metrics_scenario(ranks=2)
        scenario.at(120).inject(job.shift, 1, POWER, 0.5)
        scenario.at(120).inject(job.slow, 1, "forward", 1.5)
        scenario.at(200).inject(job.kill, 1)
        scenario.want(between(200, 204), fault="fail_stop", cause="process_exit", suspects=["n01"])
        scenario.run(220).check()
        assert _opened_seconds(scenario) >= 200
        assert _abstained(scenario)["too_few_peers"] > 0

    def test_only_metrics_and_nothing_of_work_must_last_longer(self) -> None:
        """No step and no metric of work: only time tells a fault from a spell."""
        known, blind = build_metrics_scenario(NO_HOOK), build_metrics_scenario(NO_HOOK)
        works = [name for name in blind[1].metric_names if name.endswith(("_bytes_per_second", "_active_ratio"))]
        for rank in range(8):
            for metric in (*works, POWER, CPU, "gpu_util_ratio"):
                blind[1].raise_by(rank, metric, float("nan"))
        for scenario, job in (known, blind):
            scenario.at(150).inject(job.shift, 3, CLOCK, 0.7)
            scenario.at(150).inject(job.slow, 3, "forward", 1.5)
            scenario.want(between(150, 260), fault="fail_slow", suspects=["n03"])
            scenario.run(260).check()

        assert _opened_seconds(blind[0]) >= _opened_seconds(known[0]) + 15


class TestStalled:
    def test_a_job_that_stands_and_one_host_that_differs(self) -> None:
        scenario, job = build_metrics_scenario(NO_HOOK)
        scenario.at(150).inject(job.freeze, 3, seen=False)
        scenario.want(between(165, 200), fault="hang", suspects=["n03"], reason="differs_while_job_stands")
        scenario.want(between(320, 345), fault="hang", state="confirmed", suspects=["n03"])
        scenario.run(360).check()
        assert all(verdict.action.value not in ("drain", "evict") for verdict in scenario.verdicts)

    def test_a_restart_is_proposed_when_a_watchdog_would_end_the_job(self) -> None:
        """Metrics alone tell: who is not where the others are may have loaded its data first, and waits."""
        scenario, job = build_metrics_scenario(NO_HOOK)
        scenario.at(150).inject(job.freeze, 3, seen=False)
        scenario.run(745)
        assert {verdict.action.value for verdict in scenario.verdicts} == {"notify"}

        scenario.run(775)
        assert scenario.verdicts[-1].action.value == "restart"

    def test_training_that_goes_on_after_a_while(self) -> None:
        scenario, job = build_metrics_scenario(NO_HOOK)
        scenario.at(150).inject(job.freeze, 3, seen=False)
        scenario.at(170).inject(job.thaw, 3)
        scenario.run(260)
        assert not scenario.accused_names()

    def test_a_checkpoint_of_two_minutes_that_nobody_announced_is_not_ended(self) -> None:
        scenario, job = build_metrics_scenario(NO_HOOK)
        scenario.at(150).inject(job.freeze, 3, seen=False)
        scenario.at(270).inject(job.thaw, 3)
        scenario.run(330)

        assert {verdict.action.value for verdict in scenario.verdicts} <= {"none", "notify"}
        assert not scenario.accused_names()

    def test_a_card_that_drops_while_the_job_stands(self) -> None:
        scenario, job = build_metrics_scenario(MachineShape(has_hook=False, gpu_count=8))
        scenario.at(150).inject(job.lose_gpu, 3)
        scenario.at(150).inject(job.freeze, 3, seen=False)
        scenario.want(between(160, 220), fault="hang", cause="gpu_card_drop", suspects=["n03"])
        scenario.run(220).check()

    def test_a_standstill_that_nothing_explains_is_told_after_five_minutes(self) -> None:
        scenario, job = build_metrics_scenario(NO_HOOK)
        scenario.at(150).inject(job.pause, 500, "")
        scenario.want(between(450, 475), fault="hang", suspects=[], reason="job_stalled_unexplained", action="notify")
        scenario.run(480).check()

        assert [verdict.reason for verdict in scenario.verdicts] == ["job_stalled_unexplained"] * 2  # open, confirmed

    @pytest.mark.parametrize(
        ("metric", "change", "told_after"),
        [("tcp_bytes_per_second", 4e7, 180), ("memory_used_ratio", -0.2, 90), ("disk_used_ratio", 0.2, 180)],
    )
    def test_the_only_one_that_differs_since_then_is_a_notice_and_no_more(
        self, metric: str, change: float, told_after: int
    ) -> None:
        scenario, job = build_metrics_scenario(NO_HOOK)
        scenario.at(150).inject(job.pause, 500, "")
        scenario.at(152).inject(job.raise_by, 3, metric, change)
        scenario.run(490)

        assert scenario.accused_names() == ["n03"]
        assert told_after - 10 <= _opened_seconds(scenario) - 150 <= told_after + 20
        reported = [(verdict.reason, verdict.state.value, verdict.action.value) for verdict in scenario.verdicts]
        assert reported == [("differs_while_job_stands", "open", "notify")]

    @pytest.mark.parametrize(
        ("signal", "words", "is_reported"),
        [
            (6, "Watchdog caught collective operation timeout: WorkNCCL(SeqNum=9) ran for 40000 ms", True),
            (6, "RuntimeError: Connection reset by peer", False),
            (15, "Watchdog caught collective operation timeout: WorkNCCL(SeqNum=9) ran for 40000 ms", False),
        ],
        ids=["waited-too-long", "lost-a-peer", "was-asked-to-end"],
    )
    def test_ranks_that_waited_too_long_tell_that_it_was_no_pause(
        self, signal: int, words: str, is_reported: bool
    ) -> None:
        scenario, job = build_metrics_scenario(NO_HOOK)
        scenario.at(150).inject(job.pause, 500, "")
        scenario.at(152).inject(job.raise_by, 3, "memory_used_ratio", -0.2)
        scenario.at(190).inject(job.kill, 1, signal, 0, words)
        scenario.run(210)

        assert scenario.accused_names() == (["n03"] if is_reported else [])
        if is_reported:
            assert 190 <= _opened_seconds(scenario) <= 200
            assert {verdict.action.value for verdict in scenario.verdicts if verdict.suspects} == {"notify"}

    def test_the_only_one_that_differed_before_then_is_named_too(self) -> None:
        scenario, job = build_metrics_scenario(NO_HOOK)
        scenario.at(150).inject(job.shift, 3, CPU, 0.3)
        scenario.at(250).inject(job.pause, 500, "")
        scenario.want(between(330, 370), fault="hang", suspects=["n03"], reason="differs_while_job_stands")
        scenario.run(375).check()

    @pytest.mark.parametrize("begun", [152, 260])
    def test_two_that_differ_are_nobody_and_who_begins_later_is_not_why(self, begun: int) -> None:
        scenario, job = build_metrics_scenario(NO_HOOK)
        scenario.at(150).inject(job.pause, 500, "")
        for rank in (3, 5) if begun < 200 else (3,):
            scenario.at(begun).inject(job.raise_by, rank, "memory_used_ratio", -0.2)

        scenario.run(400)
        assert not scenario.accused_names()

    @pytest.mark.parametrize("pause_seconds", [40, 150])
    def test_a_pause_in_which_one_writes_is_over_before_anybody_is_sure(self, pause_seconds: int) -> None:
        scenario, job = build_metrics_scenario(NO_HOOK)
        scenario.at(150).inject(job.pause, pause_seconds, "")
        scenario.at(150).inject(job.raise_by, 0, "tcp_bytes_per_second", 4e8)
        scenario.at(150 + pause_seconds).inject(job.raise_by, 0, "tcp_bytes_per_second", 0.0)

        scenario.run(330)
        assert not scenario.accused_names()
        assert {verdict.action.value for verdict in scenario.verdicts} <= {"none", "notify"}

    def test_a_job_whose_processes_ended_does_not_stand(self) -> None:
        scenario, job = build_metrics_scenario(NO_HOOK)
        scenario.at(150).inject(job.pause, 500, "")
        for rank in range(8):
            scenario.at(160).inject(job.shift, rank, "gpu_memory_used_bytes", 0.01)

        assert not scenario.run(520).verdicts

    def test_an_announced_phase_may_be_longer(self) -> None:
        scenario, job = build_metrics_scenario(NO_HOOK)
        scenario.at(150).inject(job.pause, 500, "checkpoint")

        assert not scenario.run(520).verdicts

    def test_all_rest_alike_and_one_has_freed_its_memory(self) -> None:
        """Its process is gone; the others' wait in a kernel that does not spin."""
        scenario, job = build_metrics_scenario(NO_HOOK)
        scenario.at(150).inject(job.pause, 300, "")
        scenario.at(150).inject(job.shift, 3, "gpu_memory_used_bytes", 0.01)
        scenario.want(between(170, 210), fault="hang", suspects=["n03"], reason="differs_while_job_stands")
        scenario.run(260).check()

    def test_all_wait_and_one_does_not_even_that(self) -> None:
        """What a waiting kernel costs is little, but everywhere the same."""
        scenario, job = build_metrics_scenario(NO_HOOK)
        scenario.at(150).inject(job.pause, 300, "")
        for rank in range(8):
            for metric in ("rdma_bytes_per_second", "nvlink_bytes_per_second", "pcie_bytes_per_second"):
                scenario.at(150).inject(job.raise_by, rank, metric, 0.0 if rank == 3 else 1e6)
        scenario.want(between(170, 210), fault="hang", suspects=["n03"], reason="differs_while_job_stands")
        scenario.run(260).check()

    def test_all_load_data_and_one_is_done_first(self) -> None:
        """The others' CPUs and network do more than while they train: whoever does less of both has nothing to do."""
        scenario, job = build_metrics_scenario(NO_HOOK)
        scenario.at(150).inject(job.pause, 260, "")
        for rank in range(8):
            for metric, change in ((CPU, 0.5), ("tcp_bytes_per_second", 5e8)):
                scenario.at(150).inject(job.raise_by, rank, metric, change)
                scenario.at(180 if rank == 3 else 410).inject(job.raise_by, rank, metric, 0.0)

        scenario.run(480)
        reported = [(verdict.state.value, verdict.action.value) for verdict in scenario.verdicts if verdict.suspects]
        assert reported in ([], [("open", "notify"), ("cancelled", "none")])

    def test_one_that_is_busy_meanwhile_has_longer(self) -> None:
        """A writer of an unannounced checkpoint, or a process that went astray: only time tells."""
        scenario, job = build_metrics_scenario(NO_HOOK)
        scenario.at(150).inject(job.pause, 300, "")
        scenario.at(150).inject(job.raise_by, 3, CPU, 0.3)
        scenario.want(between(205, 235), fault="hang", suspects=["n03"], reason="differs_while_job_stands")
        scenario.run(260).check()

    @pytest.mark.parametrize("ranks", [(3,), (3, 5)])
    def test_the_only_one_that_logged_something_as_the_job_came_to_stand(self, ranks: tuple[int, ...]) -> None:
        """XID 31 alone accuses nobody; with a standstill it names the machine, unless two logged it."""
        scenario, job = build_metrics_scenario(NO_HOOK)
        scenario.at(150).inject(job.pause, 300, "")
        for rank in ranks:
            scenario.at(152).inject(job.event, rank, "xid", code=31)
        if len(ranks) == 1:
            cause = "cuda_execution_error"
            scenario.want(between(175, 200), fault="hang", cause=cause, suspects=["n03"], reason="hardware_event")
            scenario.run(260).check()
        else:
            scenario.run(260)
            assert not scenario.accused_names()

    @HOOKS
    def test_a_host_falls_silent_and_the_others_stop_working(self, machines: MachineShape) -> None:
        scenario, job = build_metrics_scenario(machines)
        scenario.at(150).inject(job.lose_host, 3)
        scenario.want(between(155, 185), fault="fail_stop", cause="machine_unreachable", suspects=["n03"])
        scenario.want(between(165, 230), state="confirmed", action="evict", suspects=["n03"])
        scenario.run(240).check()

    @HOOKS
    def test_a_job_is_taken_down_host_by_host_and_nobody_said_so(self, machines: MachineShape) -> None:
        """The first one to fall silent, as the last step ended, is no machine that stopped the others."""
        scenario, job = build_metrics_scenario(machines)
        scenario.at(150).inject(job.pause, 500, "")
        for rank, second in ((2, 150), (5, 167), (0, 172), (7, 180), (1, 184), (3, 190), (4, 192), (6, 194)):
            scenario.at(second).inject(job.kill_agent, rank)
        scenario.run(260)

        assert not scenario.accused_names()
        assert {verdict.action.value for verdict in scenario.verdicts} <= {"none", "probe", "notify"}

    @HOOKS
    def test_all_hosts_fall_silent(self, machines: MachineShape) -> None:
        scenario, job = build_metrics_scenario(machines)
        for rank in range(8):
            scenario.at(150).inject(job.kill_agent, rank)
        scenario.want(between(155, 185), fault="hang", suspects=[], reason="job_silent")
        scenario.run(200).check()


def _slow_machine(job: MetricsJob) -> None:
    job.shift(3, CLOCK, 0.7)
    job.slow(3, "forward", 1.5)


FAULTS: dict[str, tuple[bool, Callable[[MetricsJob], None]]] = {
    "slow": (True, _slow_machine),
    "slow without steps": (False, _slow_machine),
    "hang": (False, lambda job: job.freeze(3, seen=False)),
    "silence": (False, lambda job: job.lose_host(3)),
}
SECONDS, FAULT_SECOND = 150, 100
Seconds = list[tuple[int, list[bytes]]]


def _recording(fault: str, names: dict[str, str] | None = None) -> Seconds:
    """(tick, records that arrive before it)."""
    has_hook, inject = FAULTS[fault]
    job = MetricsJob(JobShape(step_seconds=2.0), MachineShape(has_hook=has_hook))
    for rank in job.ranks:
        rank.host = (names or {}).get(rank.host, rank.host)
    seconds = []
    for second in range(SECONDS):
        if second == FAULT_SECOND:
            inject(job)
        data = [encode(record) for record in job.second()]
        seconds.append((job.now_ns, data))
    return seconds


def _play(seconds: Seconds, break_at: int = -1) -> list[Verdict]:
    engine = EmbeddedEngine(EngineConfig(history=None))
    verdicts: list[Verdict] = []
    for index, (tick_ns, data) in enumerate(seconds):
        for record in data:
            engine.take(record)
        verdicts += engine.tick(tick_ns).verdicts
        if index == break_at:
            parts = engine.snapshot()
            engine = EmbeddedEngine(EngineConfig(history=None))
            engine.restore(parts)
            assert engine.snapshot() == parts
    return verdicts


@pytest.fixture(scope="module", params=FAULTS)
def fault(request: pytest.FixtureRequest) -> tuple[str, Seconds, list[Verdict]]:
    """A name, what arrives each second, and the verdict lines of an engine that is never interrupted."""
    name: str = request.param
    seconds = _recording(name)
    return name, seconds, _play(seconds)


class TestWholeEngine:
    def test_the_fault_is_found(self, fault: tuple[str, Seconds, list[Verdict]]) -> None:
        """The properties below are worth nothing on recordings without verdicts."""
        assert {suspect.component.name for verdict in fault[2] for suspect in verdict.suspects} == {"n03"}

    @pytest.mark.parametrize("break_at", [0, 4, 62, 99, 104, 109, 119, 124, 148])
    def test_killed_and_restored_anywhere(self, fault: tuple[str, Seconds, list[Verdict]], break_at: int) -> None:
        assert _play(fault[1], break_at) == fault[2]

    def test_relabelled_hosts_change_nothing_else(self, fault: tuple[str, Seconds, list[Verdict]]) -> None:
        names = {f"n{rank:02d}": f"zz{7 - rank}" for rank in range(8)}
        reported = [
            [
                (v.fault, v.cause, v.detected_ns, v.onset_ns, v.state, v.action, [s.component.name for s in v.suspects])
                for v in verdicts
            ]
            for verdicts in (fault[2], _play(_recording(fault[0], names)))
        ]

        assert [(*line[:-1], [names[name] for name in line[-1]]) for line in reported[0]] == reported[1]


class TestWhatHurtNobody:
    """Found by a review: what was harmless is not why the job is slower later; short steps are not overdue."""

    @HOOKS
    def test_an_old_deviation_is_not_why_everybody_is_slower_later(self, machines: MachineShape) -> None:
        scenario, job = build_metrics_scenario(machines)
        scenario.at(120).inject(job.shift, 5, POWER, 0.75)
        scenario.at(230).inject(job.slow_all, "forward", 1.6)
        scenario.run(340)
        assert scenario.accused_names() == []

    def test_an_old_deviation_does_not_hide_the_machine_that_is_slow(self) -> None:
        scenario, job = build_metrics_scenario()
        scenario.at(120).inject(job.shift, 5, POWER, 0.75)
        scenario.at(230).inject(job.shift, 3, CLOCK, 0.7)
        scenario.at(230).inject(job.slow, 3, "forward", 2.0)
        scenario.run(330)
        assert scenario.accused_names() == ["n03"]

    @pytest.mark.parametrize(("is_work", "named"), [(False, ["n03"]), (True, [])], ids=["all-wait", "all-work"])
    def test_timers_of_all_that_hold_what_they_wait_for(self, is_work: bool, named: list[str]) -> None:
        """One machine's GPUs idle, and all ranks' own time is longer: it is why, unless all have more to compute."""
        scenario, job = build_metrics_scenario(ranks=12)
        scenario.at(230).inject(job.slow_all, "forward", 2.0)
        for rank in range(12) if is_work else ():
            for metric in WORK:
                scenario.at(230).inject(job.shift, rank, metric, 2.0)
        for metric in ("gpu_util_ratio", "gpu_graphics_active_ratio", POWER):
            scenario.at(230).inject(job.shift, 3, metric, 0.6)
        scenario.run(330)
        assert scenario.accused_names() == named
        assert ("workload_change" in {verdict.cause for verdict in scenario.verdicts}) is is_work

    @pytest.mark.parametrize(("is_work", "named"), [(False, ["n03"]), (True, [])], ids=["all-wait", "all-work"])
    def test_a_cpu_that_another_program_takes_while_all_wait_within_their_own_time(
        self, is_work: bool, named: list[str]
    ) -> None:
        """Before windows tell that the machines do less work, its own time seems measured, and as ever."""
        scenario, job = build_metrics_scenario(ranks=12)
        scenario.at(230).inject(job.slow_all, "forward", 2.0)
        for rank in range(12) if is_work else ():
            for metric in WORK:
                scenario.at(230).inject(job.shift, rank, metric, 2.0)
        scenario.at(230).inject(job.shift, 3, "cpu_util_ratio", 2.5)
        scenario.run(400)
        assert scenario.accused_names() == named
        assert ("job_wide_slowdown" in {verdict.reason for verdict in scenario.verdicts}) is is_work

    def test_steps_of_a_fifth_of_a_second_are_not_overdue_between_two_batches(self) -> None:
        scenario = MetricsScenario(JobShape(), machines=MachineShape())
        scenario.at(120).inject(scenario.job.shift, 3, POWER, 0.7)
        scenario.run(240)
        assert scenario.accused_names() == []

    def test_a_fatal_xid_on_a_job_that_goes_on_evicts_nobody(self) -> None:
        scenario = MetricsScenario(JobShape(), machines=MachineShape())
        scenario.at(60).inject(scenario.job.event, 3, "xid", code=79)
        scenario.run(120)
        assert scenario.accused_names() == []
        assert "evict" not in {verdict.action.value for verdict in scenario.verdicts}
