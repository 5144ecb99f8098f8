"""An action: what the controller asks the executors to do about a verdict.

An action is named by what it is about: a hash of cluster, verdict, kind and the target's incarnation. The update of the
verdict is no part of it, so a renewed verdict means the same action again. A machine that booted meanwhile, or another
attempt of the job, is another incarnation and another action.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from typing import Final

from tocsin.schemas.action_states import ActionState
from tocsin.schemas.errors import FieldError
from tocsin.schemas.job_key import JobKey
from tocsin.schemas.verdicts import ActionKind, Component, ComponentKind

HARD_KINDS: Final = frozenset(
    {ActionKind.DRAIN, ActionKind.EVICT, ActionKind.REPLAY, ActionKind.RESET_GPU, ActionKind.REBOOT}
)
"""Kinds that take a machine or a part of it away from its users; each needs two witnesses."""
REMOVING_KINDS: Final = frozenset({ActionKind.DRAIN, ActionKind.EVICT, ActionKind.RESET_GPU, ActionKind.REBOOT})
"""Kinds that keep new work off a machine until they are undone, also where the machine works again."""
STOPPING_KINDS: Final = frozenset({ActionKind.RESTART, ActionKind.EVICT, ActionKind.ROLLBACK, ActionKind.REPLAY})
"""Kinds that end the running attempt of a job."""
MAX_MACHINES: Final = 4096
"""Most machines of one action."""


@dataclass(frozen=True, slots=True, order=True)
class Machine:
    """One machine of an action as the evidence knew it; an empty field was not known and is not compared.

    Attributes:
        host: name of the host.
        boot_id: the kernel's boot id.
        node_uid: UID of the Kubernetes node.
        pod_uid: UID of the job's pod on it.
        pod_name: name of that pod, after its namespace and "/" where that is known.
    """

    host: str
    boot_id: str = ""
    node_uid: str = ""
    pod_uid: str = ""
    pod_name: str = ""


@dataclass(frozen=True, slots=True)
class ActionTarget:
    """What an action is applied to, with its incarnation.

    Attributes:
        job: cluster, job and attempt of the evidence.
        component: what the action is about: a host, a GPU, a leaf; None for the whole job.
        machines: the machines that it concerns, by host name; empty for none.
        slurm_job_id: Slurm's id of the job, "" if it is not known or not Slurm's.
        slurm_restart_count: how often Slurm had requeued that job when the attempt began, None if it is not known.
    """

    job: JobKey
    component: Component | None = None
    machines: tuple[Machine, ...] = ()
    slurm_job_id: str = ""
    slurm_restart_count: int | None = None

    @property
    def hosts(self) -> tuple[str, ...]:
        """Names of the machines."""
        return tuple(one.host for one in self.machines)

    def is_leaf(self) -> bool:
        """Return whether the action is about all machines behind one leaf switch."""
        return self.component is not None and self.component.kind in {ComponentKind.LEAF, ComponentKind.MINIPOD}


@dataclass(frozen=True, slots=True, order=True)
class Parameter:
    """One named setting of an action, e.g. the step of a rollback or the groups of a replay.

    Attributes:
        name: its name.
        value: its value as text.
    """

    name: str
    value: str


@dataclass(frozen=True, slots=True)
class Action:
    """An action and its present state; each change is published whole, with the next revision.

    Attributes:
        action_id: its name and idempotency key (``action_id_of``).
        verdict_id: the verdict on which it rests.
        verdict_update: newest update of the verdict that it rests on; no part of the id.
        kind: what to do.
        target: on what, in which incarnation.
        cause: cause of the verdict.
        rule: rule of the policy that proposed it.
        budget_class: class of evidence that budgets and breakers count it in: signal, driver and firmware.
        issued_ns: when it was proposed first.
        deadline_ns: from this time on it must not be begun.
        state: its state.
        reason: named reason of the state.
        changed_ns: when it came into the state.
        revision: number of changes so far; a later change has a higher one.
        epoch: epoch of the controller; executors refuse a lower one than they have seen.
        approval_deadline_ns: until when a person may approve it, 0 = none has to.
        actor: who approved, denied or cancelled it; "" = nobody.
        holder: executor that holds the lease, "" = nobody.
        lease_ns: from this time on another executor may claim it, 0 = nobody holds it.
        parameters: settings of the kind, by name.
        detail: one sentence about the state for people, "" = none.
        spares: free machines that could take the place of an evicted one, the best first; advice that an executor may
            use or leave; empty where spares, their minipods or the job's groups are not known.
    """

    action_id: str
    verdict_id: str
    verdict_update: int
    kind: ActionKind
    target: ActionTarget
    cause: str
    rule: str
    budget_class: str
    issued_ns: int
    deadline_ns: int
    state: ActionState
    reason: str
    changed_ns: int
    revision: int = 0
    epoch: int = 0
    approval_deadline_ns: int = 0
    actor: str = ""
    holder: str = ""
    lease_ns: int = 0
    parameters: tuple[Parameter, ...] = ()
    detail: str = ""
    spares: tuple[str, ...] = ()

    def may_begin(self, executor: str, now_ns: int) -> bool:
        """Return whether an executor may make the first change to the target at this time."""
        return (
            self.state is ActionState.CLAIMED
            and self.holder == executor
            and now_ns < self.lease_ns
            and now_ns < self.deadline_ns
        )


def action_id_of(verdict_id: str, kind: ActionKind, target: ActionTarget) -> str:
    """Return the id of an action: a hash of cluster, verdict, kind and incarnation.

    Returns:
        32 hexadecimal digits.
    """
    job, component = target.job, target.component
    about = "" if component is None else f"{component.kind.value}\t{component.name}"
    machines = (f"{one.host}\t{one.boot_id}\t{one.node_uid}\t{one.pod_uid or one.pod_name}" for one in target.machines)
    parts = (job.cluster, verdict_id, kind.value, job.job_id, str(job.attempt), target.slurm_job_id, about, *machines)
    return hashlib.sha256("\n".join(parts).encode()).hexdigest()[:32]


def check_action(action: Action) -> Action:
    """Return an action after checking what its fields say of one another.

    Raises:
        FieldError: its id is not that of its content, its machines are not in order, or its deadline is before its
            issue.
    """
    if action.kind is ActionKind.NONE:
        raise FieldError("action.kind", action.kind.value, "something to do")
    wanted = action_id_of(action.verdict_id, action.kind, action.target)
    if action.action_id != wanted:
        raise FieldError("action.action_id", action.action_id, f"{wanted}, as verdict, kind and target say")
    hosts = action.target.hosts
    if len(hosts) > MAX_MACHINES or list(hosts) != sorted(set(hosts)):
        raise FieldError("action.target.machines", hosts, f"at most {MAX_MACHINES} hosts, each once, in order")
    if action.deadline_ns < action.issued_ns:
        raise FieldError("action.deadline_ns", action.deadline_ns, f"at least issued_ns, {action.issued_ns}")
    return action
