"""What the controller of actions is told: by executors, by people, and by those who know machines and jobs.

All of them travel on the topic ``action-acks``, whose one partition gives them one order. ``ts_ns`` is the sender's
time; an actor is written as in ``tocsin.schemas.operator_notes``.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

from tocsin.schemas.job_key import JobKey
from tocsin.schemas.kinds import GroupKind
from tocsin.schemas.operator_notes import Feedback, Maintenance
from tocsin.schemas.verdicts import ActionKind


class AckKind(StrEnum):
    """What an executor says of an action."""

    CLAIMED = "claimed"
    """It wants to carry it out, or prolongs its lease; the first claim of a free action wins."""
    STARTED = "started"
    """It is about to make the first change."""
    DONE = "done"
    """Carried out, or found carried out under the same id."""
    FAILED = "failed"
    """Not carried out, and it will not try again; ``effects`` names what was changed all the same."""
    REFUSED = "refused"
    """It will not do that: a right is missing, or the target does not allow it."""
    EXPIRED = "expired"
    """The target is no longer the one of the evidence, or the deadline passed."""
    BLOCKED = "blocked"
    """Something holds it up that may go away, e.g. a disruption budget; it keeps trying."""
    UNDONE = "undone"
    """What the action changed was taken back."""
    UNDO_FAILED = "undo_failed"
    """What the action changed could not be taken back."""


@dataclass(frozen=True, slots=True)
class Ack:
    """One message of an executor about an action.

    Attributes:
        action_id: the action.
        job: cluster, job and attempt of the action's target.
        kind: what is said.
        executor: name of the executor.
        epoch: epoch of the action as the executor read it.
        seq: number of this executor's messages about this action, from 1, ascending over restarts.
        ts_ns: when it was said.
        lease_ns: for a claim: until when it wants to hold the action; else 0.
        reason: named reason, "" = none.
        detail: one sentence for people.
        effects: names of what was changed: ``cordon``, ``taint``, ``evict``, ``requeue`` and others.
    """

    action_id: str
    job: JobKey
    kind: AckKind
    executor: str
    epoch: int
    seq: int
    ts_ns: int
    lease_ns: int = 0
    reason: str = ""
    detail: str = ""
    effects: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Approval:
    """A person lets an action be carried out.

    Attributes:
        cluster: cluster of the action.
        action_id: the action.
        actor: who says so.
        ts_ns: when.
        note: why, in the person's words.
    """

    cluster: str
    action_id: str
    actor: str
    ts_ns: int
    note: str = ""


@dataclass(frozen=True, slots=True)
class Denial:
    """A person decides against an action; hosts and cause of it are vetoed for a time. Fields as in ``Approval``."""

    cluster: str
    action_id: str
    actor: str
    ts_ns: int
    note: str = ""


@dataclass(frozen=True, slots=True)
class Cancel:
    """A person takes an action back: it is not begun, or what it changed is undone. Fields as in ``Approval``."""

    cluster: str
    action_id: str
    actor: str
    ts_ns: int
    note: str = ""


class HumanChangeKind(StrEnum):
    """What a person did to a machine outside tocsin."""

    UNCORDONED = "uncordoned"
    """Gave it back to the scheduler although an action had taken it away."""
    CORDONED = "cordoned"
    """Took it away from the scheduler."""


@dataclass(frozen=True, slots=True)
class HumanChange:
    """A person changed a machine, as an executor saw it.

    Attributes:
        cluster: cluster of the machine.
        host: the machine.
        kind: what was done.
        actor: who did it, as far as it is known.
        ts_ns: when it was seen.
    """

    cluster: str
    host: str
    kind: HumanChangeKind
    actor: str
    ts_ns: int


@dataclass(frozen=True, slots=True)
class MachineFacts:
    """What is known of a machine. "" = the sender does not know it, and what another sender said stays.

    Attributes:
        cluster: cluster of the machine.
        host: its name.
        ts_ns: when it was read.
        boot_id: the kernel's boot id (agent).
        driver: version of the GPU's driver (agent).
        firmware: version of its firmware (agent).
        node_uid: UID of the Kubernetes node (executor).
        leaf: leaf switch that it hangs on.
        minipod: minipod that it belongs to.
        booted_ns: when it booted, 0 if it is not known (agent).
    """

    cluster: str
    host: str
    ts_ns: int
    boot_id: str = ""
    driver: str = ""
    firmware: str = ""
    node_uid: str = ""
    leaf: str = ""
    minipod: str = ""
    booted_ns: int = 0


class CordonOwner(StrEnum):
    """Who keeps new work off a machine."""

    NOBODY = "nobody"
    TOCSIN = "tocsin"
    OTHER = "other"


@dataclass(frozen=True, slots=True)
class CordonSeen:
    """Who keeps new work off a machine, as an executor read it from the scheduler.

    Attributes:
        cluster: cluster of the machine.
        host: its name.
        owner: who took it away.
        ts_ns: when it was read.
    """

    cluster: str
    host: str
    owner: CordonOwner
    ts_ns: int


@dataclass(frozen=True, slots=True)
class Pod:
    """A pod of a job.

    Attributes:
        host: the machine on which it runs.
        uid: its UID, "" if it is not known.
        name: its name, after its namespace and "/" where that is known; "" if it is not known.
    """

    host: str
    uid: str = ""
    name: str = ""


class AttemptChangeKind(StrEnum):
    """What was changed about a job that may explain what its machines show."""

    PLACES = "places_changed"
    """Ranks were moved to a machine or away from it."""
    MODEL = "model_changed"
    """The job's detectors were given another model."""


@dataclass(frozen=True, slots=True)
class AttemptChange:
    """Something about a running attempt was changed.

    Attributes:
        kind: what.
        at_ns: when it was changed last.
        host: the machine that it concerns, "" = all machines of the job.
    """

    kind: AttemptChangeKind
    at_ns: int
    host: str = ""


@dataclass(frozen=True, slots=True)
class GroupHosts:
    """The hosts of one communication group.

    Attributes:
        kind: kind of the group.
        hosts: its hosts.
    """

    kind: GroupKind
    hosts: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class JobFacts:
    """What is known of the running attempt of a job.

    Attributes:
        job: cluster, job and attempt.
        ts_ns: when it was read.
        hosts: the machines of this attempt; empty if the sender does not know them.
        slurm_job_id: Slurm's id of the job, "" if it is not known.
        pods: the job's pods.
        spare_count: number of machines that can take the place of another, None if the sender does not know.
        may_shrink: whether the job can go on with fewer machines, None if the sender does not know.
        changes: what was changed about the attempt (engine); of one kind and machine the latest time counts.
        slurm_restart_count: how often Slurm had requeued the job when this attempt began, None if it is not known.
        is_over: whether this attempt has ended: it uses no machine any more.
        spare_hosts: names of machines that can take the place of another, empty if the sender does not know them.
        groups: the data- and pipeline-parallel groups of this attempt (engine), empty if they are not known.
    """

    job: JobKey
    ts_ns: int
    hosts: tuple[str, ...] = ()
    slurm_job_id: str = ""
    pods: tuple[Pod, ...] = ()
    spare_count: int | None = None
    may_shrink: bool | None = None
    changes: tuple[AttemptChange, ...] = ()
    slurm_restart_count: int | None = None
    is_over: bool = False
    spare_hosts: tuple[str, ...] = ()
    groups: tuple[GroupHosts, ...] = ()


@dataclass(frozen=True, slots=True)
class ExecutorHeard:
    """An executor is alive.

    Attributes:
        cluster: cluster that it acts in.
        executor: its name.
        kinds: kinds of actions that it carries out.
        ts_ns: when it said so.
        hosts: the only machines on which it acts, none = on all of the cluster.
    """

    cluster: str
    executor: str
    kinds: tuple[ActionKind, ...]
    ts_ns: int
    hosts: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class CheckResult:
    """A check of a machine ended.

    Attributes:
        cluster: cluster of the machine.
        host: its name.
        boot_id: boot id during the check, "" if it is not known.
        check: name of the check.
        is_passed: whether the machine passed.
        is_under_load: whether the machine worked meanwhile; a check at rest proves nothing.
        ts_ns: when it ended.
        verdict_id: verdict for which it was made, "" = none.
        detail: one sentence for people.
        gpu_count: number of GPUs that worked under load, 0 = none, or not said.
        known_gpu_count: number of GPUs that the machine shows in any way, 0 = none, or not said.
    """

    cluster: str
    host: str
    boot_id: str
    check: str
    is_passed: bool
    is_under_load: bool
    ts_ns: int
    verdict_id: str = ""
    detail: str = ""
    gpu_count: int = 0
    known_gpu_count: int = 0


@dataclass(frozen=True, slots=True)
class QuietSteps:
    """A job made steps on a machine and nothing was seen there.

    Attributes:
        job: cluster, job and attempt.
        host: the machine.
        step_count: number of steps without a sign of a fault, since its last one.
        ts_ns: when the last of them ended.
    """

    job: JobKey
    host: str
    step_count: int
    ts_ns: int


class EngineWay(StrEnum):
    """How an engine's verdicts come."""

    EMBEDDED = "embedded"
    FLINK = "flink"


@dataclass(frozen=True, slots=True)
class EngineHeartbeat:
    """An engine judges: its watermark moves.

    Attributes:
        cluster: cluster that it judges.
        way: how its verdicts come.
        ts_ns: stream time that it has judged.
        checkpoint_seconds: interval of its checkpoints if verdicts come with them (exactly-once), else 0.
    """

    cluster: str
    way: EngineWay
    ts_ns: int
    checkpoint_seconds: float = 0.0


Command = Approval | Denial | Cancel
"""What a person says of an action."""
ActionEvent = (
    Command
    | HumanChange
    | MachineFacts
    | CordonSeen
    | JobFacts
    | ExecutorHeard
    | CheckResult
    | QuietSteps
    | EngineHeartbeat
    | Feedback
    | Maintenance
)
"""Everything that the controller is told, except verdicts and acks."""
