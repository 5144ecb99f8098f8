"""How far a job of Slurm is on its way to run again, without a machine (evict) or on any (restart).

The steps: note the action and the restart count in the job's comment, end the run and hold the job, exclude the
machines (Slurm takes this of waiting jobs only), release it. A restart needs no hold.
"""

from __future__ import annotations

from dataclasses import replace

from tocsin.pipeline.actions.executors.reasons import ExecutorReason
from tocsin.pipeline.actions.executors.slurm_checks import attempt_over, cannot_requeue
from tocsin.pipeline.actions.executors.slurm_cluster import SlurmCluster
from tocsin.pipeline.actions.executors.slurm_marks import restarts_before
from tocsin.pipeline.actions.executors.slurm_text import JobReading
from tocsin.pipeline.actions.executors.target import Look, Stage
from tocsin.schemas.actions import Action
from tocsin.schemas.verdicts import ActionKind


def look_at_job(
    cluster: SlurmCluster, action: Action, job: JobReading | None, machines: Look | None, *, is_begun: bool
) -> Look:
    """Return how far an evict or a restart is.

    Args:
        cluster: asks Slurm.
        action: the action.
        job: its job, None where Slurm knows none.
        machines: how far the draining of its machines is, None where none is to be drained.
        is_begun: whether a machine was drained for it.

    Raises:
        TargetError: Slurm is away, or its answer cannot be read.
    """
    if not action.target.slurm_job_id:
        return Look(Stage.REFUSED, ExecutorReason.NO_SLURM_JOB, detail="the action names no job of Slurm")
    is_evict = action.kind is ActionKind.EVICT
    if is_evict and not action.target.hosts:
        return Look(Stage.REFUSED, ExecutorReason.NO_MACHINE, detail="the action names no machine")
    effects = () if machines is None else machines.effects
    before = None if job is None else restarts_before(job, action.action_id)
    if job is not None and before is not None:
        look = _after_note(cluster, action, job, before)
        return replace(look, effects=tuple(sorted({*effects, *look.effects})))
    over = attempt_over(cluster, action, job)
    if over is not None and is_begun:
        return replace(over, stage=Stage.DONE, reason=ExecutorReason.JOB_LEFT_BY_ITSELF, effects=effects)
    if over is not None or job is None:
        return over or Look(Stage.EXPIRED, ExecutorReason.JOB_OVER)
    refused = cannot_requeue(cluster, action, job, without_hosts=is_evict)
    if refused is not None:
        return replace(refused, stage=Stage.FAILED if is_begun else refused.stage, effects=effects)
    if machines is not None and machines.stage is not Stage.DONE:
        return machines
    stage, reason = (Stage.BEGUN, ExecutorReason.NEXT_EFFECT_DUE)
    if not is_begun:
        stage, reason = (Stage.UNTOUCHED, ExecutorReason.FIRST_EFFECT_DUE)
    return Look(stage, reason, "note", effects=effects)


def _after_note(cluster: SlurmCluster, action: Action, job: JobReading, before: int) -> Look:
    """Return how far a job is whose comment names the action.

    Args:
        cluster: asks Slurm.
        action: the action.
        job: the job.
        before: its restart count when it was noted.
    """
    is_evict = action.kind is ActionKind.EVICT
    if job.is_over:
        return Look(Stage.DONE, ExecutorReason.JOB_LEFT_BY_ITSELF, effects=("note",))
    if job.restart_count <= before:
        step = "requeue_held" if is_evict else "requeue"
        if job.is_running:
            return Look(Stage.BEGUN, ExecutorReason.NEXT_EFFECT_DUE, step, effects=("note",))
        return Look(Stage.WAITING, ExecutorReason.JOB_STILL_ENDS, effects=("note",))
    done = Look(Stage.DONE, ExecutorReason.REQUEUED, effects=("note", "requeue"))
    if not is_evict:
        return done
    if not job.is_pending:
        return _after_requeue(cluster, action, job, done)
    if not set(action.target.hosts) <= set(cluster.hosts(job.excluded)):
        return replace(done, stage=Stage.BEGUN, reason=ExecutorReason.NEXT_EFFECT_DUE, step="exclude")
    done = replace(done, effects=("exclude", "note", "requeue"))
    if job.is_held:
        return replace(done, stage=Stage.BEGUN, reason=ExecutorReason.NEXT_EFFECT_DUE, step="release")
    return done


def _after_requeue(cluster: SlurmCluster, action: Action, job: JobReading, done: Look) -> Look:
    """Return the look of a job that was requeued and does not wait: its old run still ends, or it runs again."""
    if not job.is_running:
        return replace(done, stage=Stage.WAITING, reason=ExecutorReason.JOB_STILL_ENDS)
    back = sorted(set(action.target.hosts) & set(cluster.hosts(job.nodes)))
    if not back:
        return done
    detail = f"job {job.job_id} runs on {', '.join(back)} again"
    return replace(done, stage=Stage.FAILED, reason=ExecutorReason.RETURNED_TO_HOST, host=back[0], detail=detail)
