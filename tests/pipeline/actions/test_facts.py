"""Which boot of a machine an action is for: that of the evidence."""

from __future__ import annotations

import pytest

from tests.pipeline.actions.kit import CLUSTER, JOB, T0, Stage, verdict_on
from tocsin.pipeline.actions.facts import FactBook
from tocsin.schemas.action_events import AckKind, AttemptChange, AttemptChangeKind, JobFacts, MachineFacts, Pod
from tocsin.schemas.action_states import ActionState
from tocsin.schemas.actions import Machine
from tocsin.schemas.job_key import JobKey
from tocsin.schemas.records import NS_PER_SECOND


def booted(stage: Stage, seconds: int, boot_id: str = "second", *, told_after: int = 3) -> None:
    """Boot n1; its agent says so a few seconds later, in an engine that knows when."""
    at_ns = T0 + seconds * NS_PER_SECOND
    stage.tell(MachineFacts(CLUSTER, "n1", at_ns + told_after * NS_PER_SECOND, boot_id=boot_id, booted_ns=at_ns))


@pytest.mark.parametrize("is_restarted", [False, True], ids=["same controller", "another controller"])
def test_a_late_verdict_from_before_a_boot_acts_on_nothing(is_restarted: bool) -> None:
    stage = Stage()
    booted(stage, 20)
    if is_restarted:
        stage.crash()
    stage.at(30).judge(verdict_on("n1", at_seconds=15))
    action = stage.on_host("n1")
    assert action.target.machines[0].boot_id == "boot-n1"
    assert (action.state, action.reason) == (ActionState.EXPIRED, "rebooted")


def test_evidence_from_after_a_boot_is_about_the_new_one() -> None:
    stage = Stage()
    booted(stage, 20)
    stage.at(40).judge(verdict_on("n1", at_seconds=35))
    action = stage.on_host("n1")
    assert (action.target.machines[0].boot_id, action.state) == ("second", ActionState.APPROVED)


def test_a_machine_that_boots_before_the_claim_is_not_acted_on() -> None:
    stage = Stage()
    stage.judge(verdict_on("n1"))
    booted(stage, 5)
    stage.at(9).ack(stage.on_host("n1"), AckKind.CLAIMED)
    assert stage.states() == [(ActionState.EXPIRED, "rebooted")]


def test_a_boot_whose_predecessor_nobody_told_is_another_incarnation_than_older_evidence() -> None:
    stage = Stage()
    told = MachineFacts(CLUSTER, "spare", T0 + 30 * NS_PER_SECOND, boot_id="x", booted_ns=T0 + 20 * NS_PER_SECOND)
    stage.tell(told)
    target = stage.controller._desk.facts.target  # noqa: SLF001  # the book has no other way in
    before, after = (target(verdict_on().job, None, ("spare",), T0 + s * NS_PER_SECOND) for s in (10, 25))
    assert before.machines[0].boot_id not in {"", "x"}
    assert after.machines[0].boot_id == "x"


def test_the_same_boot_told_again_with_a_corrected_clock_is_the_same_incarnation() -> None:
    stage = Stage()
    booted(stage, -600, "boot-n1")
    booted(stage, 1, "boot-n1")
    stage.at(5).judge(verdict_on("n1"))
    assert stage.on_host("n1").state is ActionState.APPROVED


def test_of_the_changes_of_a_job_the_latest_of_each_kind_and_machine_counts_whoever_tells_it_last() -> None:
    book, places = FactBook(10), AttemptChangeKind.PLACES
    told = [AttemptChange(places, 5, "n1"), AttemptChange(AttemptChangeKind.MODEL, 7), AttemptChange(places, 4, "n1")]
    assert all(book.take_job(JobFacts(JOB, 10 - n, changes=(one,))) is (n < 2) for n, one in enumerate(told))
    book.take_job(JobFacts(JOB, 11, hosts=("n1",)))
    known = book.job(CLUSTER, JOB.job_id)
    assert known is not None
    assert known == JobFacts(JOB, 11, ("n1",), changes=(told[0], told[1]))
    again = FactBook(10)
    again.load_state(book.to_state())
    assert again.job(CLUSTER, JOB.job_id) == known


def test_changes_of_very_many_machines_are_one_of_all() -> None:
    book = FactBook(10)
    book.take_job(
        JobFacts(JOB, 1, changes=tuple(AttemptChange(AttemptChangeKind.PLACES, n, f"n{n}") for n in range(600)))
    )
    known = book.job(CLUSTER, JOB.job_id)
    assert known is not None
    assert known.changes == (AttemptChange(AttemptChangeKind.PLACES, 599),)


def test_a_target_has_what_slurm_and_kubernetes_call_the_attempt() -> None:
    book = FactBook(10)
    job = JobKey("c", "alice-train-77", 3)
    book.take_job(JobFacts(job, T0, slurm_job_id="77", slurm_restart_count=3, pods=(Pod("n1", "", "ml/p"),)))
    book.take_job(JobFacts(job, T0 + 1, hosts=("n1",)))  # who does not know it leaves it as it is
    target = book.target(job, None, ["n1"], T0)
    assert (target.slurm_job_id, target.slurm_restart_count) == ("77", 3)
    assert target.machines == (Machine("n1", pod_name="ml/p"),)
    before = book.target(JobKey("c", "alice-train-77", 2), None, ["n1"], T0)
    assert (before.slurm_job_id, before.slurm_restart_count, before.machines) == ("", None, (Machine("n1"),))
