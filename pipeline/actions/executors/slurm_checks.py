"""Whether an action's target in Slurm is still the one of the evidence, before its first effect."""

from __future__ import annotations

from dataclasses import replace

from tocsin.pipeline.actions.executors.reasons import ExecutorReason
from tocsin.pipeline.actions.executors.slurm_cluster import SlurmCluster
from tocsin.pipeline.actions.executors.slurm_text import JobReading, NodeReading
from tocsin.pipeline.actions.executors.target import Look, Stage
from tocsin.schemas.actions import Action
from tocsin.schemas.records import NS_PER_SECOND

_NOT_RESPONDING = "Not responding"
"""Reason that Slurm itself writes when it takes a silent node down."""


def with_job_number(action: Action) -> Action:
    """Return an action whose job has Slurm's number.

    Where it is not known, a job id that is a number counts, as where ``TOCSIN_JOB_ID`` is ``SLURM_JOB_ID``. Its attempt
    and its hosts are compared all the same (``attempt_over``).
    """
    name = action.target.job.job_id
    if action.target.slurm_job_id or not (name.isascii() and name.isdigit()):
        return action
    return replace(action, target=replace(action.target, slurm_job_id=name))


def job_of(cluster: SlurmCluster, action: Action) -> JobReading | None:
    """Return the action's job, None where it names none or Slurm knows it no more.

    Raises:
        TargetError: Slurm is away, or its answer cannot be read.
    """
    name = action.target.slurm_job_id
    return cluster.job(int(name)) if name.isascii() and name.isdigit() else None


def rebooted_since(action: Action, node: NodeReading) -> Look | None:
    """Return the look of a node that booted after the action was proposed, None for all others.

    A boot time that Slurm does not know is not compared.
    """
    if node.boot_seconds * NS_PER_SECOND <= action.issued_ns:
        return None
    detail = f"{node.name} booted after the action was proposed"
    return Look(Stage.EXPIRED, ExecutorReason.REBOOTED_SINCE, host=node.name, detail=detail)


def attempt_over(cluster: SlurmCluster, action: Action, job: JobReading | None) -> Look | None:
    """Return the look of a job whose attempt is over or is on other hosts, None where all is as in the evidence.

    Args:
        cluster: for the names of the job's hosts.
        action: the action; its job's attempt began before it was proposed.
        job: its job.

    Raises:
        TargetError: Slurm is away, or its answer cannot be read.
    """
    name = action.target.slurm_job_id
    if job is None or job.is_over:
        return Look(Stage.EXPIRED, ExecutorReason.JOB_OVER, detail=f"job {name} is over")
    if not job.is_running:
        states = "+".join(sorted(job.states))
        return Look(Stage.EXPIRED, ExecutorReason.JOB_NOT_RUNNING, detail=f"job {name} is {states}")
    before = action.target.slurm_restart_count
    if before is not None and job.restart_count != before:
        detail = f"job {name} was requeued {job.restart_count} times, {before} when the attempt began"
        return Look(Stage.EXPIRED, ExecutorReason.NEW_ATTEMPT, detail=detail)
    if job.start_seconds * NS_PER_SECOND > action.issued_ns:
        return Look(Stage.EXPIRED, ExecutorReason.NEW_ATTEMPT, detail=f"job {name} started anew since")
    hosts = cluster.hosts(job.nodes)
    for host in action.target.hosts:
        if host not in hosts:
            detail = f"{host} is no host of job {name} now"
            return Look(Stage.EXPIRED, ExecutorReason.HOST_LEFT_JOB, host=host, detail=detail)
    return None


def cannot_requeue(cluster: SlurmCluster, action: Action, job: JobReading, *, without_hosts: bool) -> Look | None:
    """Return the look of a job that must not be requeued, None where it may be.

    Args:
        cluster: for the names of the hosts that its user demands.
        action: the action.
        job: its job.
        without_hosts: whether it is to run without the action's hosts.

    Raises:
        TargetError: Slurm is away, or its answer cannot be read.
    """
    if job.het_job_id:
        detail = f"job {job.job_id} is a part of job {job.het_job_id}"
        return Look(Stage.REFUSED, ExecutorReason.HETEROGENEOUS_JOB, detail=detail)
    if not job.is_batch or not job.can_requeue:
        why = "was not submitted with --requeue" if job.is_batch else "is no batch job"
        return Look(Stage.REFUSED, ExecutorReason.JOB_CANNOT_REQUEUE, detail=f"job {job.job_id} {why}")
    demanded = sorted(set(cluster.hosts(job.required)) & set(action.target.hosts)) if without_hosts else []
    if demanded:
        detail = f"job {job.job_id} demands {', '.join(demanded)}"
        return Look(Stage.REFUSED, ExecutorReason.HOST_DEMANDED, host=demanded[0], detail=detail)
    return None


def held_by_others(cluster: SlurmCluster, node: NodeReading) -> Look | None:
    """Return the look of a node that somebody else took away, or is to reboot, None where it is free to be taken.

    A node that Slurm itself took down because it is silent is free where it comes back when it speaks again. With
    ``ReturnToService=0`` a person has to bring it back, and our undo must not.

    Raises:
        TargetError: Slurm is away, or its answer cannot be read.
    """
    if node.flags & {"MAINT", "MAINTENANCE"}:
        detail = f"{node.name} is reserved for maintenance"
        return Look(Stage.BLOCKED, ExecutorReason.IN_MAINTENANCE, host=node.name, detail=detail)
    is_silent = node.base == "DOWN" and "DRAIN" not in node.flags and node.reason in ("", _NOT_RESPONDING)
    is_free = not node.takes_no_work or (is_silent and cluster.settings().returns_silent)
    if is_free and not node.is_rebooting:
        return None
    detail = f"{node.name} is {'+'.join((node.base, *sorted(node.flags)))}: {node.reason}"
    return Look(Stage.REFUSED, ExecutorReason.DRAINED_BY_SOMEBODY, host=node.name, detail=detail)
