"""What is asked of Slurm, and read of it, against a real one."""

from __future__ import annotations

import pytest

from tests.peers.slurm import Slurm, is_ready, user_name
from tocsin.schemas.errors import TargetAwayError, TargetRefusedError

REASON = "[HC] tocsin ecc_error 0123456789abcdef0123456789abcdef"


def test_settings_and_an_idle_node_are_read(slurm: Slurm) -> None:
    settings, node = slurm.cluster.settings(), slurm.node("node1")
    assert (settings.cluster, settings.returns_by_itself) == ("ci", False)
    assert settings.reboot_program.endswith("/reboot")
    assert settings.version.startswith("2")
    assert is_ready(node)
    assert node.boot_seconds > 1_700_000_000
    assert slurm.cluster.node("node99") is None
    assert slurm.cluster.job(4_000_000) is None


def test_a_node_with_a_job_drains_and_is_drained_only_when_the_job_has_ended(slurm: Slurm) -> None:
    job_id = slurm.submit("node1")
    slurm.cluster.drain("node1", REASON)
    node = slurm.node("node1")
    assert (node.takes_no_work, node.is_drained) == (True, False)
    assert (node.reason, node.reason_user) == (REASON, user_name())
    assert slurm.job(job_id).is_running
    slurm.ask("scancel", str(job_id))
    slurm.until(lambda: slurm.node("node1").is_drained)
    slurm.cluster.resume("node1")
    slurm.until(lambda: is_ready(slurm.node("node1")))


@pytest.mark.parametrize("name", ["node2,nodeX", "node[1-2]", "ALL", "all", "", "-node1", "node1 State=DOWN"])
def test_a_name_that_slurm_could_read_as_several_nodes_changes_nothing(slurm: Slurm, name: str) -> None:
    before = [slurm.node(one) for one in ("node1", "node2")]
    with pytest.raises(TargetRefusedError):
        slurm.cluster.drain(name, REASON)
    assert [slurm.node(one) for one in ("node1", "node2")] == before


def test_a_reason_of_two_lines_is_no_other_field(slurm: Slurm) -> None:
    text = f"by hand\n   Reason={REASON}\n   State=IDLE"
    slurm.ask("scontrol", "update", "NodeName=node1", "State=DRAIN", f"Reason={text}")
    node = slurm.node("node1")
    assert node.reason == text
    assert (node.reason_user, node.is_drained) == (user_name(), True)


def test_a_host_is_excluded_only_while_the_job_waits(slurm: Slurm) -> None:
    job_id = slurm.submit(2, "--job-name=x Restarts=9 JobState=COMPLETED")
    left = slurm.hosts_of(job_id)[0]
    with pytest.raises(TargetRefusedError, match="no longer pending"):
        slurm.cluster.exclude(job_id, left)
    slurm.cluster.note(job_id, REASON)
    slurm.cluster.requeue_held(job_id)
    slurm.until(lambda: slurm.job(job_id).is_pending)
    job = slurm.job(job_id)
    assert (job.restart_count, job.is_held, job.admin_comment) == (1, True, REASON)
    slurm.cluster.exclude(job_id, left)
    slurm.cluster.release(job_id)
    job = slurm.job(job_id)
    assert (job.excluded, job.is_held, job.is_pending) == (left, False, True)


def test_a_node_reboots_when_its_job_has_ended_and_stays_down(slurm: Slurm) -> None:
    job_id = slurm.submit("node3")
    before = slurm.node("node3")
    slurm.cluster.reboot("node3", REASON)
    waiting = slurm.node("node3")
    assert waiting.flags >= {"DRAIN", "REBOOT_REQUESTED"}
    assert (waiting.is_rebooting, waiting.next_state, waiting.own_reason) == (True, "DOWN", REASON)
    assert slurm.job(job_id).is_running
    slurm.ask("scancel", str(job_id))
    slurm.until(lambda: slurm.restart_rebooted() == ["node3"])
    slurm.until(lambda: not slurm.node("node3").is_rebooting)
    node = slurm.node("node3")
    assert (node.base, node.own_reason) == ("DOWN", REASON)
    assert node.reason.endswith(" : reboot complete")
    assert node.boot_seconds > before.boot_seconds


def test_a_controller_that_is_away_is_said_so(slurm: Slurm) -> None:
    slurm.cluster.drain("node1", REASON)
    slurm.stop("slurmctld")
    try:
        with pytest.raises(TargetAwayError, match="Unable to contact slurm controller"):
            slurm.cluster.node("node1")
    finally:
        slurm.start_controller()
    assert slurm.node("node1").own_reason == REASON
