"""Named reasons of executors: why an action is done, refused, let go, failed, or still waits."""

from __future__ import annotations

from enum import StrEnum


class ExecutorReason(StrEnum):
    """Why an executor says what it says of an action; field of acks and logs, and label of metrics."""

    # nothing to do yet, or the next effect is due
    FIRST_EFFECT_DUE = "first_effect_due"
    NEXT_EFFECT_DUE = "next_effect_due"
    JOB_STILL_ENDS = "job_still_ends"
    """The job's last run is not gone from its machines yet."""
    WAITS_FOR_REBOOT = "waits_for_reboot"
    """A reboot was asked for; it comes when the node's jobs have ended."""

    JOB_CONTROLLER_WORKS = "job_controller_works"
    """The site's job controller took the action, and has not finished it."""

    # done
    DONE_BY_JOB_CONTROLLER = "done_by_job_controller"
    """The site's job controller says that the job runs again, without the machines that were to be left out."""
    DRAINING = "draining"
    """New work stays away; what ran there still runs."""
    DRAINED = "drained"
    """New work stays away, and nothing runs there."""
    REQUEUED = "requeued"
    REBOOTED = "rebooted"
    """It booted again, and is down until somebody says that it is well."""
    TOLD_NVSENTINEL = "told_nvsentinel"
    """NVSentinel has the event; what it does with the node is its own."""
    JOB_LEFT_BY_ITSELF = "job_left_by_itself"
    """The job ended or was requeued by somebody else after the machine was drained."""
    GIVEN_BACK = "given_back"
    NOTHING_TO_UNDO = "nothing_to_undo"

    # refused: the target does not allow it
    NO_MACHINE = "no_machine"
    """The action names no machine."""
    NO_SLURM_JOB = "no_slurm_job"
    """The action names no job of Slurm."""
    UNKNOWN_NODE = "unknown_node"
    DRAINED_BY_SOMEBODY = "drained_by_somebody"
    """Somebody else drained it or took it down; draining it again would replace their reason."""
    HELD_BY_OTHER_ACTION = "held_by_other_action"
    """Another action of ours drained it."""
    JOB_CANNOT_REQUEUE = "job_cannot_requeue"
    """It is no batch job, or its user forbids it."""
    HETEROGENEOUS_JOB = "heterogeneous_job"
    """It is a part of a job of several; requeueing one part is not done here."""
    HOST_DEMANDED = "host_demanded"
    """The job's user demands this very host: without it the job would never start."""
    RETURNS_BY_ITSELF = "returns_by_itself"
    """``ReturnToService=2``: after the reboot Slurm would give the node to jobs before anybody looked at it."""
    NO_REBOOT_PROGRAM = "no_reboot_program"
    KIND_NOT_DONE_HERE = "kind_not_done_here"
    TARGET_REFUSED = "target_refused"
    """The system refused, in words of its own."""
    TARGET_ANSWER = "target_answer"
    """The system's answer cannot be read."""

    # let go: not the incarnation of the evidence any more
    DEADLINE_PASSED = "deadline_passed"
    REBOOTED_SINCE = "rebooted_since"
    JOB_OVER = "job_over"
    JOB_NOT_RUNNING = "job_not_running"
    NEW_ATTEMPT = "new_attempt"
    HOST_LEFT_JOB = "host_left_job"

    # failed, blocked
    GIVEN_BACK_BY_SOMEBODY = "given_back_by_somebody"
    """Somebody gave the machine back before the action was complete."""
    CHANGED_BY_SOMEBODY = "changed_by_somebody"
    """Somebody changed the reason that we wrote: the machine is theirs now."""
    RETURNED_TO_HOST = "returned_to_host"
    """The job runs on the machine again: somebody released it before the machine was excluded."""
    REBOOT_FAILED = "reboot_failed"
    """The node is down and did not boot."""
    IN_MAINTENANCE = "in_maintenance"
    """The node is reserved for maintenance."""
    TARGET_AWAY = "target_away"
    """The system does not answer."""
