"""A host that says nothing: what its peers do decides what that means, by steps or by metrics."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from tocsin.pipeline.job.graph import JobGraph
from tocsin.pipeline.lab.testing.builders import JOB, at_second, build_empty_frame, build_graph, rank_places
from tocsin.pipeline.lab.testing.progress import FakeProgress
from tocsin.pipeline.rca.evidence.silence import SilenceConfig, find_silence, silent_hosts
from tocsin.pipeline.rca.finding import Finding
from tocsin.schemas import events
from tocsin.schemas.job_key import lone_host
from tocsin.schemas.reasons import Reason
from tocsin.schemas.records import NS_PER_SECOND, Event, EventSource, Severity, StepBatch, StepRecord

LOST_SECOND = 60


def find(
    graph: JobGraph, second: int, pace: FakeProgress, emptied: Sequence[str] = ()
) -> tuple[list[Finding], dict[str, Reason]]:
    """As the operator asks."""
    config = SilenceConfig()
    silent = silent_hosts(graph, at_second(second), config)
    return find_silence(graph, at_second(second), pace, config, silent, emptied)


class Job:
    """Eight hosts, a rank on each; some say nothing after ``LOST_SECOND``."""

    def __init__(self, silent: tuple[int, ...] = (3,), *, tick_seconds: int = 1) -> None:
        self.graph = build_graph(rank_places(leaf_hosts_count=4))
        self.silent = silent
        self.beat_seconds = max(5, 5 * tick_seconds)
        self.tick_ns = tick_seconds * NS_PER_SECOND

    def run(self, until: int, steps_until: int = 0) -> Job:
        """Frames of everybody who speaks; steps of everybody until then (0: nobody tells any)."""
        for second in range(self.beat_seconds, until + 1, self.beat_seconds):
            for rank in range(8):
                if rank in self.silent and second > LOST_SECOND:
                    continue
                frame = build_empty_frame(f"n{rank}", at_second(second) - 1, self.tick_ns)
                self.graph.take([frame])
                if second <= steps_until:
                    row = StepRecord(at_second(second) - 1, rank, second, 1.0)
                    self.graph.take([StepBatch(JOB, f"n{rank}", at_second(second) - 1, (row,))])
        return self

    def find(self, second: int, pace: FakeProgress) -> tuple[list[Finding], dict[str, Reason]]:
        return find(self.graph, second, pace)


def test_the_others_stand_since_then_by_their_steps() -> None:
    [finding], _ = Job().run(80, steps_until=LOST_SECOND).find(80, FakeProgress())

    assert (finding.cause, [s.component.name for s in finding.suspects]) == ("machine_unreachable", ["n3"])
    assert finding.onset_ns == at_second(LOST_SECOND) - 1
    assert finding.evidence[-1].text == "its peers finished their last step 20 s ago and stand still since"


def test_the_job_stands_by_the_steps_of_ranks_of_which_nobody_knows_the_host() -> None:
    job = Job()
    job.graph = JobGraph()
    job.run(80)
    for second in range(5, LOST_SECOND + 1, 5):
        for rank in range(8):
            row = StepRecord(at_second(second) - 1, rank, second, 1.0)
            job.graph.take([StepBatch(JOB, lone_host(rank), at_second(second) - 1, (row,))])
    [finding], _ = job.find(80, FakeProgress(work_is_known=False))

    assert [suspect.component.name for suspect in finding.suspects] == ["n3"]


def test_the_others_stand_since_then_by_their_metrics() -> None:
    [finding], _ = Job().run(80).find(80, FakeProgress(median_step_ns=0, stalled_since_ns=at_second(LOST_SECOND)))

    assert [suspect.component.name for suspect in finding.suspects] == ["n3"]
    said = "its peers have stood still for 20 s, their metrics say (no steps are recorded)"
    assert finding.evidence[-1].text == said


@pytest.mark.parametrize(("stood_after", "told_after"), [(5, 15), (12, 57)])
def test_whose_peers_worked_on_for_a_window_must_stand_for_longer_than_a_checkpoint(
    stood_after: int, told_after: int
) -> None:
    """No steps tell how long one is: peers of a dead machine may work on, or only write a checkpoint."""
    pace = FakeProgress(median_step_ns=0, stalled_since_ns=at_second(LOST_SECOND + stood_after))
    reported = [second for second in range(70, 130) if Job().run(second).find(second, pace)[0]]

    assert reported[0] <= LOST_SECOND + told_after
    assert reported[0] > LOST_SECOND + told_after - 7


@pytest.mark.parametrize("seconds", [4, 8])
def test_one_report_that_is_late_is_no_silence(seconds: int) -> None:
    second = LOST_SECOND + seconds

    assert Job().run(second).find(second, FakeProgress(median_step_ns=0, stalled_since_ns=at_second(LOST_SECOND))) == (
        [],
        {},
    )


def test_the_others_work_on() -> None:
    lost = {"n3": Reason.MONITORING_LOST}

    assert Job().run(90).find(90, FakeProgress(median_step_ns=0)) == ([], lost)
    assert Job().run(90, steps_until=90).find(90, FakeProgress()) == ([], lost)


@pytest.mark.parametrize(("second", "is_named"), [(125, False), (150, False), (156, True)])
def test_the_others_worked_on_for_most_of_a_minute_and_stand_since(second: int, is_named: bool) -> None:
    """An agent is lost, and they write a checkpoint then; or they had one long step without it."""
    found, reasons = Job().run(second).find(second, FakeProgress(median_step_ns=0, stalled_since_ns=at_second(110)))

    assert bool(found) is is_named
    assert reasons == ({} if is_named else {"n3": Reason.MONITORING_LOST})


@pytest.mark.parametrize(("second", "is_named"), [(80, False), (91, True)])
def test_nobody_knows_yet_how_long_a_step_takes(second: int, is_named: bool) -> None:
    """A job has begun, and its second step takes thirteen seconds as well."""
    found, _ = Job().run(second, steps_until=LOST_SECOND).find(second, FakeProgress(median_step_ns=0))

    assert bool(found) is is_named


def test_nobody_knows_what_the_others_do() -> None:
    assert Job().run(90).find(90, FakeProgress(median_step_ns=0, work_is_known=False)) == ([], {"n3": Reason.NO_HOOK})


def test_the_others_do_other_work() -> None:
    job = Job().run(200, steps_until=LOST_SECOND)

    assert job.find(200, FakeProgress(work_goes_on=True)) == ([], {"n3": Reason.NON_TRAINING_PHASE})


@pytest.mark.parametrize(("second", "is_named"), [(80, False), (89, False), (91, True)])
def test_one_that_speaks_has_lost_its_processes(second: int, is_named: bool) -> None:
    """An agent that pauses then is no evidence beside that; a silence that lasts is."""
    job = Job().run(second, steps_until=LOST_SECOND)

    found, reasons = find(job.graph, second, FakeProgress(), ["n5"])

    assert bool(found) is is_named
    assert reasons == ({} if is_named else {"n3": Reason.WITHIN_PATIENCE})


def test_the_silent_one_lost_its_processes() -> None:
    job = Job().run(80, steps_until=LOST_SECOND)

    found, _ = find(job.graph, 80, FakeProgress(), ["n3"])

    assert [suspect.component.name for suspect in found[0].suspects] == ["n3"]


def test_it_is_tentative_at_first_and_sure_later() -> None:
    pace = FakeProgress(median_step_ns=0, stalled_since_ns=at_second(LOST_SECOND))
    [early], _ = Job().run(75).find(75, pace)
    [late], _ = Job().run(120).find(120, pace)

    assert (early.tentative, late.tentative) == (True, False)


@pytest.mark.parametrize(("second", "named"), [(80, False), (95, False), (106, True)])
def test_in_a_job_that_stood_before_and_went_on_a_host_must_be_silent_for_longer(second: int, named: bool) -> None:
    """An agent that restarts in one of its checkpoints, which nobody announces."""
    pace = FakeProgress(longest_stall_ns=45 * NS_PER_SECOND)
    findings, reasons = Job().run(second, steps_until=LOST_SECOND).find(second, pace)

    assert [suspect.component.name for finding in findings for suspect in finding.suspects] == ["n3"] * named
    assert reasons == ({} if named else {"n3": Reason.WITHIN_PATIENCE})


def test_the_others_stood_long_before_and_do_not_go_on() -> None:
    """A checkpoint, and a host that died in it: accused when the others would have gone on by now."""
    job = Job().run(200, steps_until=20)

    assert job.find(75, FakeProgress()) == ([], {"n3": Reason.MONITORING_LOST})
    [finding], _ = job.find(200, FakeProgress())
    assert [suspect.component.name for suspect in finding.suspects] == ["n3"]


def test_who_falls_silent_in_a_job_that_stands_because_of_another_is_not_named_beside_it() -> None:
    job = Job().run(250, steps_until=LOST_SECOND)
    job.silent = (3, 5)
    job.run(330, steps_until=LOST_SECOND)

    [finding], reasons = job.find(330, FakeProgress())
    assert [suspect.component.name for suspect in finding.suspects] == ["n3"]
    assert reasons == {"n5": Reason.MONITORING_LOST}


def test_the_others_stopped_long_after_it_fell_silent() -> None:
    job = Job().run(200, steps_until=180)

    assert job.find(200, FakeProgress()) == ([], {"n3": Reason.MONITORING_LOST})


def test_slow_samples_are_waited_for_longer() -> None:
    """One report every 25 s: half a minute without one is nothing."""
    job = Job(tick_seconds=5).run(75)

    assert job.find(85, FakeProgress(median_step_ns=0, stalled_since_ns=at_second(50))) == ([], {})
    assert job.find(120, FakeProgress(median_step_ns=0, stalled_since_ns=at_second(50)))[0]


def test_a_phase_was_announced() -> None:
    job = Job().run(80, steps_until=LOST_SECOND)
    phase = {"phase": "checkpoint", "edge": "begin"}
    job.graph.take([Event(JOB, "n0", at_second(61), 0, EventSource.JOB, events.PHASE, Severity.INFO, phase)])

    assert job.find(80, FakeProgress()) == ([], {"n3": Reason.ANNOUNCED_PHASE})


def test_an_agent_that_said_good_bye_is_not_silent() -> None:
    job = Job().run(80, steps_until=LOST_SECOND)
    job.graph.take(
        [Event(JOB, "n3", at_second(61), -1, EventSource.PROCESS, events.AGENT, Severity.INFO, {"edge": "stop"})]
    )

    assert job.find(80, FakeProgress()) == ([], {})


def test_too_many_fall_silent_to_be_one_machines_fault() -> None:
    found, reasons = Job((1, 2, 3, 4)).run(80, steps_until=LOST_SECOND).find(80, FakeProgress())

    assert found == []
    assert set(reasons.values()) == {Reason.AMBIGUOUS}


def test_two_behind_one_switch_name_it() -> None:
    [finding], _ = Job((1, 2)).run(80, steps_until=LOST_SECOND).find(80, FakeProgress())

    assert finding.common is not None
    assert finding.common.name == "leaf0"


def test_all_fall_silent() -> None:
    [finding], _ = Job(tuple(range(8))).run(80).find(80, FakeProgress(median_step_ns=0))

    assert (finding.suspects, finding.reason) == ((), Reason.JOB_SILENT)


def test_hosts_that_speak_only_when_something_happens_are_never_silent() -> None:
    graph = build_graph()

    assert find(graph, 3600, FakeProgress(median_step_ns=0)) == ([], {})


def test_a_phase_that_is_over_explains_no_standstill() -> None:
    job = Job().run(120, steps_until=LOST_SECOND)
    for second, edge in ((55, "begin"), (61, "end")):
        phase = {"phase": "checkpoint", "edge": edge}
        job.graph.take([Event(JOB, "n0", at_second(second), 0, EventSource.JOB, events.PHASE, Severity.INFO, phase)])

    [finding], _ = job.find(90, FakeProgress())
    assert [suspect.component.name for suspect in finding.suspects] == ["n3"]


class TestProcessesEndedBefore:
    """Machines that are taken out of a job, or fall silent when it is over, lived when its processes were ended."""

    def _ended_by_order(self, hosts: range | tuple[int, ...], second: float) -> Job:
        job = Job()
        for host in hosts:
            end = {"code": -15, "signal": 15, "stderr_tail": ""}
            event = Event(
                JOB, f"n{host}", at_second(second), host, EventSource.PROCESS, events.EXIT, Severity.WARNING, end
            )
            job.graph.take([event])
        return job

    @pytest.mark.parametrize(
        ("pace", "steps_until"),
        [(FakeProgress(), 55), (FakeProgress(median_step_ns=0, stalled_since_ns=at_second(55)), 0)],
    )
    @pytest.mark.parametrize("second", [80, 130])
    def test_who_told_that_it_was_asked_to_end_with_most_of_the_others(
        self, pace: FakeProgress, steps_until: int, second: int
    ) -> None:
        job = self._ended_by_order(range(8), 57).run(second, steps_until=steps_until)

        assert job.find(second, pace) == ([], {"n3": Reason.ENDED_WITH_OTHERS})

    @pytest.mark.parametrize("hosts", [(0, 1, 2, 4, 5, 6, 7), (3,)], ids=["the-others", "it-alone"])
    def test_the_others_are_ended_because_it_died(self, hosts: tuple[int, ...]) -> None:
        """A machine that died tells of no end; one that ends alone is no reason to look elsewhere."""
        [finding], _ = (
            self._ended_by_order(hosts, 58)
            .run(80)
            .find(80, FakeProgress(median_step_ns=0, stalled_since_ns=at_second(58)))
        )

        assert [suspect.component.name for suspect in finding.suspects] == ["n3"]

    def test_an_end_after_which_the_job_went_on_excuses_nobody(self) -> None:
        [finding], _ = (
            self._ended_by_order(range(8), 20)
            .run(80)
            .find(80, FakeProgress(median_step_ns=0, stalled_since_ns=at_second(58)))
        )

        assert [suspect.component.name for suspect in finding.suspects] == ["n3"]

    def test_whose_memory_was_free_with_that_of_the_others(self) -> None:
        pace = FakeProgress(
            median_step_ns=0,
            stalled_since_ns=at_second(55),
            ended_at_once={f"n{host}": at_second(57) for host in range(8)},
        )

        assert Job().run(80).find(80, pace) == ([], {"n3": Reason.ENDED_WITH_OTHERS})

    @pytest.mark.parametrize("second", [20, 62], ids=["long-before", "after-its-silence"])
    def test_not_whose_memory_was_free_at_another_time(self, second: int) -> None:
        ended = {f"n{host}": at_second(second) for host in range(8) if second == 20 or host != 3}
        [finding], _ = (
            Job().run(80).find(80, FakeProgress(median_step_ns=0, stalled_since_ns=at_second(58), ended_at_once=ended))
        )

        assert [suspect.component.name for suspect in finding.suspects] == ["n3"]


@pytest.mark.parametrize(("step_seconds", "second", "is_named"), [(1, 80, False), (2, 80, True), (1, 106, True)])
def test_who_still_spoke_seconds_after_the_step_that_never_came_has_not_stopped_it(
    step_seconds: int, second: int, is_named: bool
) -> None:
    """Two steps and two seconds; where the job does not go on, its long silence tells in the end."""
    job = Job().run(second, steps_until=LOST_SECOND - 5)
    found, reasons = job.find(second, FakeProgress(median_step_ns=step_seconds * NS_PER_SECOND))

    assert bool(found) is is_named
    assert reasons == ({} if is_named else {"n3": Reason.MONITORING_LOST})
