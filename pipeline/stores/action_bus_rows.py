"""Convert changes of actions, and executors' messages about them, to rows of the incident database."""

from __future__ import annotations

from tocsin.pipeline.stores.rows import Row, TimeNs, one_line
from tocsin.schemas.action_events import Ack
from tocsin.schemas.actions import Action


def action_change_row(action: Action) -> Row:
    """Return one published form of an action as a row of ``action_changes``."""
    target = action.target
    component = target.component
    return {
        "cluster": target.job.cluster,
        "job_id": target.job.job_id,
        "attempt": target.job.attempt,
        "action_id": action.action_id,
        "revision": action.revision,
        "epoch": action.epoch,
        "verdict_id": action.verdict_id,
        "update_number": action.verdict_update,
        "kind": action.kind.value,
        "hosts": list(target.hosts),
        "boot_ids": [one.boot_id for one in target.machines],
        "node_uids": [one.node_uid for one in target.machines],
        "pods": [one.pod_uid or one.pod_name for one in target.machines],
        "slurm_job_id": target.slurm_job_id,
        "slurm_restart_count": -1 if target.slurm_restart_count is None else target.slurm_restart_count,
        "target_kind": "" if component is None else component.kind.value,
        "target": "" if component is None else component.name,
        "cause": action.cause,
        "rule": action.rule,
        "budget_class": action.budget_class,
        "state": action.state.value,
        "reason": action.reason,
        "detail": one_line(action.detail),
        "actor": action.actor,
        "holder": action.holder,
        "issued": TimeNs(action.issued_ns),
        "deadline": TimeNs(action.deadline_ns),
        "changed": TimeNs(action.changed_ns),
    }


def action_ack_row(ack: Ack) -> Row:
    """Return one message of an executor as a row of ``action_acks``."""
    return {
        "cluster": ack.job.cluster,
        "job_id": ack.job.job_id,
        "attempt": ack.job.attempt,
        "action_id": ack.action_id,
        "executor": ack.executor,
        "seq": ack.seq,
        "epoch": ack.epoch,
        "kind": ack.kind.value,
        "reason": ack.reason,
        "detail": one_line(ack.detail),
        "effects": list(ack.effects),
        "said": TimeNs(ack.ts_ns),
    }
