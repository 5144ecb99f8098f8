"""Actions on a Slurm cluster: drain, evict, restart, reboot, and their undoing.

Each look reads Slurm anew. A node holds the ids of the actions that took it away in its reason; a job holds the id of
the action that requeued it in its administrators' comment, with the restart count before. Slurm has no conditional
update: between a look and its effect a person may change the node, so the two follow each other at once.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from types import MappingProxyType
from typing import Final

from tocsin.pipeline.actions.executors.looks import joined
from tocsin.pipeline.actions.executors.reasons import ExecutorReason
from tocsin.pipeline.actions.executors.slurm_checks import (
    attempt_over,
    held_by_others,
    job_of,
    rebooted_since,
    with_job_number,
)
from tocsin.pipeline.actions.executors.slurm_cluster import SlurmCluster
from tocsin.pipeline.actions.executors.slurm_marks import actions_of, job_comment, node_reason, reason_with
from tocsin.pipeline.actions.executors.slurm_nodes import NodeNames
from tocsin.pipeline.actions.executors.slurm_requeue import look_at_job
from tocsin.pipeline.actions.executors.slurm_text import JobReading, NodeReading
from tocsin.pipeline.actions.executors.target import Look, Stage
from tocsin.schemas.action_events import CordonOwner
from tocsin.schemas.actions import Action
from tocsin.schemas.errors import TargetRefusedError
from tocsin.schemas.verdicts import ActionKind

_REBOOT_COMPLETE = ": reboot complete"
KINDS: Final = frozenset({ActionKind.DRAIN, ActionKind.EVICT, ActionKind.RESTART, ActionKind.REBOOT})
"""What Slurm can do."""
_JOB_KINDS: Final = frozenset({ActionKind.EVICT, ActionKind.RESTART})
"""Kinds that requeue a job."""


@dataclass(frozen=True, slots=True)
class SlurmTargetConfig:
    """Settings of a Slurm cluster as a target.

    Attributes:
        user: name of the user as whom the commands run, as Slurm shows it in reasons.
        kinds: kinds of actions that may be done here.
        node_of_host: names of nodes by the host's name in verdicts, for those that Slurm cannot tell.
    """

    user: str
    kinds: frozenset[ActionKind] = KINDS
    node_of_host: Mapping[str, str] = field(default_factory=dict)


class SlurmTarget:
    """A Slurm cluster on which actions are done.

    Attributes:
        kinds: kinds of actions that it can do.
    """

    def __init__(self, config: SlurmTargetConfig, cluster: SlurmCluster) -> None:
        """Ask nothing yet.

        Args:
            config: settings.
            cluster: asks Slurm.
        """
        self.kinds = config.kinds
        self._user = config.user
        self._cluster = cluster
        self._names = NodeNames(cluster, config.node_of_host)
        self._looks: Mapping[ActionKind, Callable[[Action], Look]] = MappingProxyType(
            {
                ActionKind.DRAIN: self._look_at_drain,
                ActionKind.EVICT: self._look_at_evict,
                ActionKind.RESTART: self._look_at_restart,
                ActionKind.REBOOT: self._look_at_reboot,
            }
        )
        self._steps: Mapping[str, Callable[[Action, str], None]] = MappingProxyType(
            {
                "drain": lambda action, host: cluster.drain(host, node_reason(action.cause, [action.action_id])),
                "reboot": self._reboot,
                "join": self._join,
                "leave": self._leave,
                "note": self._note,
                "requeue_held": lambda action, _host: cluster.requeue_held(self._job(action).job_id),
                "requeue": lambda action, _host: cluster.requeue(self._job(action).job_id),
                "exclude": self._exclude,
                "release": lambda action, _host: cluster.release(self._job(action).job_id),
                "resume": lambda _action, host: cluster.resume(host),
                "cancel_reboot": lambda _action, host: cluster.cancel_reboot(host),
            }
        )

    def look(self, action: Action) -> Look:
        """See ``TargetSystem.look``."""
        if action.kind not in self.kinds:
            return Look(Stage.REFUSED, ExecutorReason.KIND_NOT_DONE_HERE)
        return self._looks[action.kind](self._in_slurms_names(action))

    def look_back(self, action: Action) -> Look:
        """See ``TargetSystem.look_back``. A job that was requeued stays requeued: its machines are given back."""
        found = Look(Stage.DONE, ExecutorReason.NOTHING_TO_UNDO)
        for host in self._in_slurms_names(action).target.hosts if action.kind is not ActionKind.RESTART else ():
            found = self._look_back_at(action, host)
            if found.stage is not Stage.DONE:
                return found
        return found

    def make(self, action: Action, look: Look) -> None:
        """See ``TargetSystem.make``."""
        self._steps[look.step](self._in_slurms_names(action), look.host)

    def cordon_of(self, host: str) -> CordonOwner | None:
        """See ``CordonReader.cordon_of``: a node with another reason than ours is somebody else's."""
        node = self._cluster.node(self._names.node_of(host))
        if node is None:
            return None
        if not node.takes_no_work:
            return CordonOwner.NOBODY
        return CordonOwner.TOCSIN if actions_of(node, self._user) else CordonOwner.OTHER

    def _in_slurms_names(self, action: Action) -> Action:
        """Return an action with nodes for hosts; where nobody told the job's number, the job's id is taken for it."""
        return self._names.on_nodes(with_job_number(action) if action.kind in _JOB_KINDS else action)

    def _look_at_drain(self, action: Action) -> Look:
        job = job_of(self._cluster, action)
        looks = [self._look_at_node(action, host, job) for host in action.target.hosts]
        return joined(looks)

    def _look_at_node(self, action: Action, host: str, job: JobReading | None) -> Look:
        """Return how far a machine is on its way to be drained by an action."""
        node = self._cluster.node(host)
        if node is None:
            return _unknown(host)
        held = actions_of(node, self._user)
        if action.action_id in held:
            return _held(node)
        found = rebooted_since(action, node) or self._left_job(action, job)
        if found is None and held:
            detail = f"{host} is held by {' '.join(held)}"
            found = Look(Stage.REFUSED, ExecutorReason.HELD_BY_OTHER_ACTION, host=host, detail=detail)
        return (
            found
            or held_by_others(self._cluster, node)
            or Look(Stage.UNTOUCHED, ExecutorReason.FIRST_EFFECT_DUE, "drain", host)
        )

    def _look_at_evict(self, action: Action) -> Look:
        """A machine that somebody took away already stays as it is; the job leaves it all the same.

        One that another action of ours took away gets the id of this one, too, and comes back when both are undone.
        """
        job = job_of(self._cluster, action)
        looks = [self._look_at_node(action, host, job) for host in action.target.hosts]
        taken = (ExecutorReason.DRAINED_BY_SOMEBODY, ExecutorReason.HELD_BY_OTHER_ACTION)
        left = [look for look in map(self._joining, looks) if look.reason not in taken]
        is_begun = any(look.stage is Stage.DONE for look in left)
        return look_at_job(self._cluster, action, job, joined(left) if left else None, is_begun=is_begun)

    def _joining(self, look: Look) -> Look:
        """Return the look of a machine that an evict may join; one that is about to reboot is left alone."""
        if look.reason is not ExecutorReason.HELD_BY_OTHER_ACTION:
            return look
        node = self._cluster.node(look.host)
        if node is None or node.is_rebooting:
            return look
        return Look(Stage.UNTOUCHED, ExecutorReason.FIRST_EFFECT_DUE, "join", look.host)

    def _look_at_restart(self, action: Action) -> Look:
        return look_at_job(self._cluster, action, job_of(self._cluster, action), None, is_begun=False)

    def _look_at_reboot(self, action: Action) -> Look:
        settings = self._cluster.settings()
        if settings.returns_by_itself:
            detail = "ReturnToService=2: the node would take jobs after the reboot before it is validated"
            return Look(Stage.REFUSED, ExecutorReason.RETURNS_BY_ITSELF, detail=detail)
        if not settings.reboot_program:
            return Look(Stage.REFUSED, ExecutorReason.NO_REBOOT_PROGRAM, detail="RebootProgram is not set")
        return joined([self._look_at_rebooting(action, host) for host in action.target.hosts])

    def _look_at_rebooting(self, action: Action, host: str) -> Look:
        """Return how far a machine's reboot is. One that we drained may be rebooted; its job left it then."""
        node = self._cluster.node(host)
        if node is None:
            return _unknown(host)
        held = actions_of(node, self._user)
        if action.action_id in held:
            return _rebooting(node)
        found = rebooted_since(action, node)
        if found is None and not held:
            found = self._left_job(action, job_of(self._cluster, action)) or held_by_others(self._cluster, node)
        return found or Look(Stage.UNTOUCHED, ExecutorReason.FIRST_EFFECT_DUE, "reboot", host)

    def _left_job(self, action: Action, job: JobReading | None) -> Look | None:
        return attempt_over(self._cluster, action, job) if action.target.slurm_job_id else None

    def _look_back_at(self, action: Action, host: str) -> Look:
        """Return how far a machine is on its way back; the last action that its reason names gives it back."""
        node = self._cluster.node(host)
        if node is None or not node.takes_no_work:
            return Look(Stage.DONE, ExecutorReason.GIVEN_BACK, host=host)
        held = actions_of(node, self._user)
        if held and action.action_id not in held:
            return Look(Stage.DONE, ExecutorReason.HELD_BY_OTHER_ACTION, host=host)
        if not held:
            # An evict takes the job from a machine that somebody else took away: then there is nothing of ours on it.
            stage = Stage.DONE if action.kind is ActionKind.EVICT else Stage.FAILED
            detail = f"the reason of {host} is now: {node.reason}"
            return Look(stage, ExecutorReason.CHANGED_BY_SOMEBODY, host=host, detail=detail)
        if "REBOOT_REQUESTED" in node.flags and action.kind is ActionKind.REBOOT:
            return Look(Stage.BEGUN, ExecutorReason.NEXT_EFFECT_DUE, "cancel_reboot", host)
        if node.is_rebooting:
            return Look(Stage.WAITING, ExecutorReason.WAITS_FOR_REBOOT, host=host)
        step = "resume" if held == (action.action_id,) else "leave"
        return Look(Stage.BEGUN, ExecutorReason.NEXT_EFFECT_DUE, step, host)

    def _reboot(self, action: Action, host: str) -> None:
        """Ask for the reboot; the reason keeps the id of the action that drained the node."""
        node = self._cluster.node(host)
        held = () if node is None else actions_of(node, self._user)
        self._cluster.reboot(host, node_reason(action.cause, [*held, action.action_id]))

    def _join(self, action: Action, host: str) -> None:
        """Write an action's id behind those of others of ours."""
        node = self._cluster.node(host)
        held = () if node is None else actions_of(node, self._user)
        if node is not None and held:  # else it changed since the look: the next look says what is to be done
            self._cluster.rewrite_reason(host, reason_with(node, [*held, action.action_id]))

    def _leave(self, action: Action, host: str) -> None:
        """Take an action's id out of a node's reason; the others keep the node out."""
        node = self._cluster.node(host)
        others = () if node is None else [one for one in actions_of(node, self._user) if one != action.action_id]
        if node is not None and others:
            self._cluster.rewrite_reason(host, reason_with(node, others))

    def _note(self, action: Action, _host: str) -> None:
        job = self._job(action)
        self._cluster.note(job.job_id, job_comment(job, action.action_id))

    def _exclude(self, action: Action, _host: str) -> None:
        job = self._job(action)
        hosts = ",".join(action.target.hosts)
        self._cluster.exclude(job.job_id, f"{job.excluded},{hosts}" if job.excluded else hosts)

    def _job(self, action: Action) -> JobReading:
        job = job_of(self._cluster, action)
        if job is None:
            raise TargetRefusedError(f"job {action.target.slurm_job_id!r} is not there any more")
        return job


def _unknown(host: str) -> Look:
    return Look(Stage.REFUSED, ExecutorReason.UNKNOWN_NODE, host=host, detail=f"Slurm has no node {host}")


def _held(node: NodeReading) -> Look:
    """Return the look of a node that holds the action's id."""
    if not node.takes_no_work:
        detail = f"{node.name} takes work again"
        return Look(Stage.FAILED, ExecutorReason.GIVEN_BACK_BY_SOMEBODY, host=node.name, detail=detail)
    reason = ExecutorReason.DRAINED if node.is_drained or node.base == "DOWN" else ExecutorReason.DRAINING
    return Look(Stage.DONE, reason, host=node.name, effects=("drain",))


def _rebooting(node: NodeReading) -> Look:
    """Return the look of a node whose reboot the action asked for."""
    look = Look(Stage.WAITING, ExecutorReason.WAITS_FOR_REBOOT, host=node.name, effects=("reboot",))
    if node.is_rebooting:
        return look
    if node.base == "DOWN" and node.reason.endswith(_REBOOT_COMPLETE):
        return replace(look, stage=Stage.DONE, reason=ExecutorReason.REBOOTED)
    detail = f"{node.name} is {node.base}: {node.reason}"
    return replace(look, stage=Stage.FAILED, reason=ExecutorReason.REBOOT_FAILED, detail=detail)
