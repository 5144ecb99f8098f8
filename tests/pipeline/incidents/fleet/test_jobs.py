"""What the fleet view keeps of the scheduler's names of jobs."""

from __future__ import annotations

from tocsin.pipeline.incidents.fleet.config import FleetConfig
from tocsin.pipeline.incidents.fleet.intake import tell_records
from tocsin.pipeline.incidents.fleet.jobs import FleetJobs
from tocsin.pipeline.incidents.fleet.view import FleetView
from tocsin.schemas import events
from tocsin.schemas.action_events import JobFacts, Pod
from tocsin.schemas.records import NS_PER_SECOND, Event, EventSource, JobKey, Severity

NOW_NS = 1_800_000_000 * NS_PER_SECOND


def told(*hellos: tuple[int, str, dict[str, str]]) -> FleetView:
    view = FleetView(FleetConfig(), "c")
    for attempt, host, names in hellos:
        job = JobKey("c", "j", attempt)
        said = Event(job, host, NOW_NS, 0, EventSource.JOB, events.HELLO, Severity.INFO, {"pid": 1, **names})
        tell_records(view, [said], NOW_NS)
    return view


def test_slurms_id_and_the_pods_of_an_attempt_are_its_facts() -> None:
    view = told((1, "n2", {"slurm_job_id": "77", "pod_uid": "u2"}), (1, "n1", {"pod_uid": "u1"}))
    assert list(view.facts()) == [
        JobFacts(JobKey("c", "j", 1), 0, slurm_job_id="77", pods=(Pod("n1", "u1"), Pod("n2", "u2")))
    ]


def test_how_often_slurm_requeued_it_and_the_pods_names_are_told_too() -> None:
    names = {"slurm_job_id": "77", "slurm_restart_count": "2", "pod_name": "p", "pod_namespace": "ml"}
    view = told((1, "n1", names), (1, "n2", {"slurm_job_id": "77", "slurm_restart_count": "9" * 99}))
    facts = JobFacts(JobKey("c", "j", 1), 0, (), "77", (Pod("n1", "", "ml/p"),), slurm_restart_count=2)
    assert list(view.facts()) == [facts]
    again = FleetView(FleetConfig(), "c")
    again.restore(view.snapshot())
    assert list(again.facts()) == [facts]


def test_a_state_of_before_has_neither_restart_counts_nor_names() -> None:
    jobs = FleetJobs("c")
    jobs.load_state([["j", 1, "77", {"n1": "u1"}]])
    assert list(jobs.facts()) == [JobFacts(JobKey("c", "j", 1), 0, slurm_job_id="77", pods=(Pod("n1", "u1"),))]


def test_a_new_attempt_begins_anew_and_an_earlier_one_is_not_heard() -> None:
    view = told((1, "n1", {"pod_uid": "u1"}), (2, "n2", {"pod_uid": "u2"}), (1, "n3", {"pod_uid": "u3"}))
    assert [(one.job.attempt, one.pods) for one in view.jobs.facts()] == [(2, (Pod("n2", "u2"),))]


def test_a_job_without_a_scheduler_has_no_facts() -> None:
    assert list(told((0, "n1", {})).facts()) == []


def test_they_are_part_of_the_view_s_state() -> None:
    view = told((1, "n1", {"pod_uid": "u1", "slurm_job_id": "7"}))
    again = FleetView(FleetConfig(), "c")
    again.restore(view.snapshot())
    assert list(again.facts()) == list(view.facts())
