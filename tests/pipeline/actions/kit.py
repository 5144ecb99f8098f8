"""A controller with a scripted policy, and short words for what happens to it."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace

from tocsin.pipeline.actions.config import ControllerConfig
from tocsin.pipeline.actions.controller import ActionController
from tocsin.pipeline.actions.ladder import Proposal
from tocsin.schemas.action_events import (
    Ack,
    AckKind,
    ActionEvent,
    CheckResult,
    EngineHeartbeat,
    EngineWay,
    ExecutorHeard,
    JobFacts,
    MachineFacts,
)
from tocsin.schemas.action_states import ActionState
from tocsin.schemas.actions import Action
from tocsin.schemas.records import NS_PER_SECOND, Event, JobKey
from tocsin.schemas.verdicts import (
    ActionKind,
    Component,
    ComponentKind,
    Evidence,
    FaultKind,
    Suspect,
    Verdict,
    VerdictState,
    Witness,
    WitnessKind,
)

T0 = 1_800_000_000 * NS_PER_SECOND
CLUSTER = "c1"
JOB = JobKey(CLUSTER, "778", 0)
KINDS = tuple(kind for kind in ActionKind if kind not in {ActionKind.NONE, ActionKind.NOTIFY})
LIVE = ControllerConfig(is_dry_run=False)


@dataclass
class ScriptedLadder:
    """Proposes for each open verdict its own action on its suspects; ``answer`` replaces that."""

    answer: Callable[[Verdict], Sequence[Proposal]] | None = None
    after: Callable[[Action], Sequence[Proposal]] | None = None
    ended: list[Action] = field(default_factory=list)

    def on_verdict(self, verdict: Verdict, now_ns: int) -> Sequence[Proposal]:
        if verdict.state not in {VerdictState.OPEN, VerdictState.CONFIRMED}:
            return ()
        return self.answer(verdict) if self.answer is not None else proposals_of(verdict)

    def on_action(self, action: Action, now_ns: int) -> Sequence[Proposal]:
        self.ended.append(action)
        return () if self.after is None else self.after(action)

    def on_hardware(self, event: Event, now_ns: int) -> Sequence[Proposal]:
        return ()

    def on_check(self, check: CheckResult, now_ns: int) -> Sequence[Proposal]:
        return ()

    def on_time(self, now_ns: int) -> Sequence[Proposal]:
        return ()

    def snapshot(self) -> dict[str, bytes]:
        return {}

    def restore(self, parts: Mapping[str, bytes]) -> None:
        assert not parts


def proposals_of(verdict: Verdict) -> list[Proposal]:
    """One proposal for each suspect, or one for the leaf, or one for the job."""
    hosts = tuple(suspect.component.name for suspect in verdict.suspects)
    if verdict.action is ActionKind.NONE:
        return []
    if not hosts:
        return [Proposal(verdict, verdict.action, None, (), "rule", verdict.cause)]
    if verdict.common is not None:
        return [Proposal(verdict, verdict.action, verdict.common, hosts, "rule", verdict.cause)]
    return [
        Proposal(verdict, verdict.action, Component(ComponentKind.HOST, host), (host,), "rule", verdict.cause)
        for host in hosts
    ]


def host(name: str) -> Component:
    """A host as a component."""
    return Component(ComponentKind.HOST, name)


def verdict_on(
    *hosts: str,
    name: str = "v1",
    action: ActionKind = ActionKind.EVICT,
    at_seconds: float = 0.0,
    cause: str = "gpu_ecc",
    job: JobKey = JOB,
    **fields: object,
) -> Verdict:
    """A confirmed verdict on these hosts, seen by an event on each and by two waiting peers."""
    at_ns = T0 + int(at_seconds * NS_PER_SECOND)
    own = [Witness(one, WitnessKind.HARDWARE_EVENT) for one in hosts]
    peers = [Witness(f"peer{index}", WitnessKind.PEERS_WAIT) for index in range(2)]
    found = Verdict(
        verdict_id=name,
        job=job,
        fault=FaultKind.FAIL_STOP,
        cause=cause,
        suspects=tuple(Suspect(host(one)) for one in hosts),
        onset_ns=at_ns,
        detected_ns=at_ns,
        confidence=0.9,
        action=action,
        reason="first_fatal_exit",
        evidence=(Evidence("exits", "process_exit", 2.0, at_ns, at_ns),),
        state=VerdictState.CONFIRMED,
        update=0,
        expires_ns=at_ns + 600 * NS_PER_SECOND,
        witnesses=tuple(own + peers),
    )
    return replace(found, **fields)  # type: ignore[arg-type]


class Stage:
    """A controller, its clock, and all that it published.

    Attributes:
        now_ns: the present time.
        controller: the controller.
        published: all its actions, in order.
        ladder: its policy.
    """

    def __init__(self, config: ControllerConfig = LIVE, ladder: ScriptedLadder | None = None) -> None:
        """A controller whose engine and executors are alive, with a job of 40 hosts on ten leaves and eight spares."""
        self.now_ns = T0
        self.ladder = ladder or ScriptedLadder()
        self.config = config
        self.controller = ActionController(config, self.ladder)
        self.published: list[Action] = []
        self.is_alive = True
        self.is_job_controller_alive = True
        self._capacities: dict[tuple[str, str], JobFacts] = {}
        self._seq = 0
        self.hosts = tuple(f"n{index}" for index in range(40))
        for one in self.hosts:
            self.tell(MachineFacts(CLUSTER, one, T0, boot_id=f"boot-{one}", leaf=f"leaf{one[-1]}"))
        self.tell(JobFacts(JOB, T0, hosts=self.hosts, spare_count=8))
        self.beat()

    def beat(self) -> None:
        """The engine, an executor for everything and the job controller are alive."""
        for one in list(self._capacities.values()) if self.is_job_controller_alive else ():
            self.tell(replace(one, ts_ns=self.now_ns))
        self.tell(EngineHeartbeat(CLUSTER, EngineWay.EMBEDDED, self.now_ns))
        self.tell(ExecutorHeard(CLUSTER, "slurm", KINDS, self.now_ns))

    def at(self, seconds: float) -> Stage:
        """Let time pass until this many seconds after the begin: a tick, with heartbeats before it."""
        self.now_ns = T0 + int(seconds * NS_PER_SECOND)
        if self.is_alive:
            self.beat()
        self.published += self.controller.on_time(self.now_ns)
        return self

    def tell(self, told: ActionEvent) -> list[Action]:
        """Tell it an event; the job controller repeats what it said last of spares and shrinking."""
        if isinstance(told, JobFacts) and (told.spare_count, told.may_shrink) != (None, None):
            bare = JobFacts(told.job, told.ts_ns, spare_count=told.spare_count, may_shrink=told.may_shrink)
            self._capacities[told.job.cluster, told.job.job_id] = bare
        found = self.controller.on_event(told, self.now_ns)
        self.published += found
        return found

    def judge(self, verdict: Verdict) -> list[Action]:
        """Give it an update of a verdict."""
        found = self.controller.on_verdict(verdict, self.now_ns)
        self.published += found
        return found

    def ack(self, action: Action, kind: AckKind, executor: str = "slurm", **fields: object) -> list[Action]:
        """An executor says something of an action."""
        self._seq += 1
        lease_ns = self.now_ns + 30 * NS_PER_SECOND if kind is AckKind.CLAIMED else 0
        ack = Ack(action.action_id, action.target.job, kind, executor, action.epoch, self._seq, self.now_ns, lease_ns)
        found = self.controller.on_ack(replace(ack, **fields), self.now_ns)  # type: ignore[arg-type]
        self.published += found
        return found

    def carry_out(self, action: Action) -> Action:
        """An executor claims an action, begins and ends it; return it as it is then."""
        for kind in (AckKind.CLAIMED, AckKind.STARTED):
            self.ack(action, kind)
        self.ack(action, AckKind.DONE, effects=("cordon",))
        return self.action(action.action_id)

    def action(self, action_id: str) -> Action:
        """The present form of an action."""
        return next(one for one in self.controller.actions() if one.action_id == action_id)

    def on_host(self, name: str, kind: ActionKind = ActionKind.EVICT) -> Action:
        """The newest action of a kind on one host."""
        found = [one for one in self.controller.actions() if one.target.hosts == (name,) and one.kind is kind]
        return found[-1]

    def states(self, kind: ActionKind | None = None) -> list[tuple[ActionState, str]]:
        """State and reason of all actions but pages, oldest first; or of one kind."""
        return [
            (one.state, one.reason)
            for one in self.controller.actions()
            if (one.kind is not ActionKind.NOTIFY if kind is None else one.kind is kind)
        ]

    def pages(self) -> list[str]:
        """Reasons of all pages that were published, in order."""
        return [one.reason for one in self.published if one.kind is ActionKind.NOTIFY]

    def crash(self) -> None:
        """Another process takes the controller's place, with the last state."""
        parts = self.controller.snapshot()
        self.controller = ActionController(self.config, self.ladder)
        self.controller.restore(parts)
        assert self.controller.snapshot() == parts
