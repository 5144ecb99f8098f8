"""Whole walks with metrics: evidence that is there for a short time, in one place, or later than its cause."""

from __future__ import annotations

from tests.timelines import build_metrics_scenario
from tocsin.pipeline.lab.testing import (
    MachineShape,
    MetricsJob,
    between,
)

NO_HOOK = MachineShape(has_hook=False)
WAITING = ("nvlink_bytes_per_second", "pcie_bytes_per_second")


def _mark(job: MetricsJob, rank: int, amount: float) -> None:
    for metric in ("ecn_packets_per_second", "cnp_packets_per_second"):
        job.raise_by(rank, metric, amount)


class TestCongestion:
    """Packets of one machine are marked: alone no evidence, with slower steps it is."""

    def test_with_slower_steps_it_names_the_machine(self) -> None:
        scenario, job = build_metrics_scenario(NO_HOOK)
        scenario.at(150).inject(_mark, job, 3, 5000.0)
        scenario.at(150).inject(job.slow_all, "backward", 1.5)
        scenario.want(between(170, 215), fault="fail_slow", suspects=["n03"])
        scenario.run(240).check()

    def test_a_burst_does_not(self) -> None:
        scenario, job = build_metrics_scenario(NO_HOOK)
        scenario.at(150).inject(_mark, job, 3, 5000.0)
        scenario.at(162).inject(_mark, job, 3, 0.0)
        scenario.at(150).inject(job.slow_all, "backward", 1.5)
        scenario.want_nothing(260)

    def test_who_sends_pause_frames_is_to_blame_and_not_its_neighbours(self) -> None:
        scenario, job = build_metrics_scenario(NO_HOOK)
        for rank in (2, 3, 4):
            scenario.at(150).inject(_mark, job, rank, 5000.0)
        scenario.at(150).inject(job.raise_by, 3, "pfc_tx_packets_per_second", 5000.0)
        scenario.at(150).inject(job.slow_all, "backward", 1.5)
        scenario.want(between(155, 190), fault="fail_slow", cause="pcie_downgrade", suspects=["n03"])
        scenario.run(240).check()


class TestStalled:
    def test_a_single_gpu_that_does_not_even_wait(self) -> None:
        """One of eight: what is missing drowns in its host's mean."""
        scenario, job = build_metrics_scenario(MachineShape(has_hook=False, gpu_count=8))

        def waits() -> None:
            job.pause(300, "")
            for rank in range(8):
                for metric in WAITING:
                    job.raise_by(rank, metric, 1e6)
            for metric in WAITING:
                job.raise_by(3, metric, 0.0, 5)
            job.shift(3, "gpu_power_watts", 0.4, 5)

        scenario.at(150).inject(waits)
        scenario.want(between(170, 210), fault="hang", suspects=["n03"], reason="differs_while_job_stands")
        scenario.run(260).check()

    def test_who_fell_first_shows_only_while_the_others_fall(self) -> None:
        """All processes have ended some seconds later, and all machines look alike."""
        scenario, job = build_metrics_scenario(NO_HOOK)
        scenario.at(150).inject(job.freeze, 3, seen=False)
        scenario.at(154).inject(job.pause, 300, "")
        scenario.want(between(170, 200), fault="hang", suspects=["n03"], reason="differs_while_job_stands")
        scenario.run(230).check()

    def test_all_that_fall_together_accuse_nobody(self) -> None:
        scenario, job = build_metrics_scenario(NO_HOOK)
        for rank in (2, 3, 5):
            scenario.at(150).inject(job.freeze, rank, seen=False)
        scenario.at(154).inject(job.pause, 300, "")
        scenario.run(230)
        assert not any(verdict.suspects for verdict in scenario.verdicts)

    def test_its_peers_work_on_until_they_need_the_silent_machine(self) -> None:
        """Nobody knows how long a step is: here they miss it after 25 seconds."""
        scenario, job = build_metrics_scenario(NO_HOOK)
        scenario.at(150).inject(job.kill_agent, 3)
        scenario.at(175).inject(job.pause, 300, "")
        scenario.want(between(195, 240), fault="fail_stop", cause="machine_unreachable", suspects=["n03"])
        scenario.run(260).check()

    def test_a_machine_that_was_silent_for_long_is_not_why(self) -> None:
        scenario, job = build_metrics_scenario(NO_HOOK)
        scenario.at(150).inject(job.kill_agent, 3)
        scenario.at(260).inject(job.pause, 300, "")
        scenario.run(340)
        assert not any(verdict.suspects for verdict in scenario.verdicts)
