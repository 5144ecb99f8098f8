"""Actions for the tests of executors, and an executor's way through one without leases."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from tocsin.pipeline.actions.executors.target import Look, Stage, TargetSystem
from tocsin.schemas.action_states import ActionState
from tocsin.schemas.actions import Action, ActionTarget, Machine, action_id_of
from tocsin.schemas.job_key import JobKey
from tocsin.schemas.verdicts import ActionKind

SECOND_NS = 1_000_000_000


def made_action(
    kind: ActionKind, *hosts: str, slurm_job_id: str = "", verdict: str = "v1", now_ns: int = 0, **changes: Any
) -> Action:
    """An approved action of a verdict about hosts."""
    target = ActionTarget(JobKey("ci", "train", 0), None, tuple(Machine(host) for host in sorted(hosts)), slurm_job_id)
    values: dict[str, Any] = {
        "action_id": action_id_of(verdict, kind, target),
        "verdict_id": verdict,
        "verdict_update": 0,
        "kind": kind,
        "target": target,
        "cause": "ecc_error",
        "rule": "machine_fault",
        "budget_class": "ecc",
        "issued_ns": now_ns,
        "deadline_ns": now_ns + 600 * SECOND_NS,
        "state": ActionState.APPROVED,
        "reason": "",
        "changed_ns": now_ns,
    }
    return Action(**(values | changes))


def steps_of(target: TargetSystem, action: Action, *, back: bool = False) -> Iterator[Look]:
    """Each look at the target, made before the effect that it names; ends with the first look that names none."""
    for _ in range(40):
        look = target.look_back(action) if back else target.look(action)
        yield look
        if not look.step:
            return
        target.make(action, look)
    raise AssertionError(f"no end: {look}")


def carried_out(target: TargetSystem, action: Action, *, back: bool = False) -> Look:
    """The last look, after all effects."""
    return list(steps_of(target, action, back=back))[-1]


def is_end(look: Look) -> bool:
    """Whether an action goes no further."""
    return look.stage in (Stage.DONE, Stage.REFUSED, Stage.EXPIRED, Stage.FAILED)
