"""A small world for the controller of actions: machines, executors and people, and what must hold of them.

The world keeps books of its own, from what is said and done, and never asks the controller why.
"""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass, field, replace

from tests.pipeline.actions.guard_books import GuardBooks
from tests.pipeline.actions.kit import CLUSTER, KINDS, ScriptedLadder
from tocsin.pipeline.actions.config import BreakerConfig, BudgetLimit, BudgetScope, ControllerConfig
from tocsin.pipeline.actions.controller import ActionController
from tocsin.schemas.action_codec import decode_action, encode_action
from tocsin.schemas.action_events import (
    Ack,
    AckKind,
    ActionEvent,
    Approval,
    AttemptChange,
    AttemptChangeKind,
    Cancel,
    CheckResult,
    Denial,
    EngineHeartbeat,
    EngineWay,
    ExecutorHeard,
    HumanChange,
    HumanChangeKind,
    JobFacts,
    MachineFacts,
    QuietSteps,
)
from tocsin.schemas.action_states import ActionState
from tocsin.schemas.actions import HARD_KINDS, REMOVING_KINDS, Action, action_id_of
from tocsin.schemas.operator_notes import Feedback, Maintenance
from tocsin.schemas.records import NS_PER_SECOND, JobKey
from tocsin.schemas.verdicts import ActionKind, Verdict, VerdictState

S = ActionState
T0 = 1_800_000_000 * NS_PER_SECOND
HOUR = 3600
HOSTS = tuple(f"n{index}" for index in range(8))
JOB_NAMES = ("a", "b")
MOST_COUNT = 3
"""Machines an hour that may be taken away, and machines that may be out at once."""
CONFIG = ControllerConfig(
    is_dry_run=False,
    machine_budgets=(
        BudgetLimit(BudgetScope.FLEET, HOUR, MOST_COUNT),
        BudgetLimit(BudgetScope.FLEET, 0, MOST_COUNT),
    ),
    restart_budgets=(BudgetLimit(BudgetScope.JOB, HOUR, 2),),
    breaker=BreakerConfig(host_count=3),
    quiet_step_count=10,
    veto_seconds=HOUR,
)
RELEASES = frozenset({"check_passed", "quiet_steps", "feedback_false", "cancelled_by_person", "returned_by_person"})


@dataclass
class MachineOfWorld:
    """A machine: its boot, and who keeps new work off it.

    Attributes:
        boot: ordinal of its boot.
        marks: ids of actions that keep new work off it.
        is_kept_by_person: whether a person keeps new work off it.
    """

    boot: int = 0
    marks: set[str] = field(default_factory=set)
    is_kept_by_person: bool = False


@dataclass(frozen=True)
class Effect:
    """Something that an executor changed.

    Attributes:
        action: the action as the executor read it.
        at_ns: when.
    """

    action: Action
    at_ns: int


class World:
    """Everything outside the controller, and the invariants.

    Attributes:
        now_ns: the present time of everybody.
        log: what the controller published, in order.
        effects: what executors changed, in order.
    """

    def __init__(self, config: ControllerConfig = CONFIG) -> None:
        """A quiet cluster of two jobs, whose engine and executors are alive."""
        self.config = config
        self.now_ns = T0
        self.ladder = ScriptedLadder()
        self.controller = ActionController(config, self.ladder, epoch=1)
        self.log: list[Action] = []
        self.latest: dict[str, Action] = {}
        self.effects: list[Effect] = []
        self.machines = {host: MachineOfWorld() for host in HOSTS}
        self.attempts = dict.fromkeys(JOB_NAMES, 0)
        self.verdicts: dict[str, Verdict] = {}
        self.history: list[Verdict] = []
        self.outbox: list[Ack] = []
        self.said: list[Ack | ActionEvent] = []
        self.seqs: dict[tuple[str, str], int] = defaultdict(int)
        self.approved: set[str] = set()
        self.stopped: set[str] = set()
        """Actions that a person denied or cancelled."""
        self.wrong: set[str] = set()
        """Verdicts that a person called wrong."""
        self.vetoed: dict[tuple[str, str], int] = {}
        self.may_return: dict[str, set[str]] = defaultdict(set)
        """Action -> machines of it for which something was said that brings them back."""
        self.known_done: dict[str, int] = {}
        """Action -> when the controller heard that it was done."""
        self.without_place: set[str] = set()
        """Actions on machines that were out already."""
        self.changed: dict[tuple[str, int], int] = {}
        """(machine, attempt) -> when ranks were moved to it last."""
        self.work: Maintenance | None = None
        self.is_alive = self.is_executor_alive = True
        self.books = GuardBooks(config, JOB_NAMES)
        self.told_ns = dict.fromkeys((*JOB_NAMES, *HOSTS), 0)
        """When a job or a machine was told last."""
        for job in JOB_NAMES:
            self.tell_job(job)
        for host in HOSTS:
            self.tell_machine(host)
        self.beat()

    # what is said to the controller

    def beat(self) -> None:
        """Engine and executors say that they are alive, as far as they are."""
        if self.is_alive:
            self.heartbeat_ns = self.now_ns
            self.hear(EngineHeartbeat(CLUSTER, EngineWay.EMBEDDED, self.now_ns))
        if self.is_executor_alive:
            self.books.heard_ns = max(self.books.heard_ns, self.now_ns)
            self.hear(ExecutorHeard(CLUSTER, "ex0", KINDS, self.now_ns))

    def hear(self, told: ActionEvent) -> None:
        """Tell the controller an event."""
        self.said.append(told)
        self.publish(self.controller.on_event(told, self.now_ns))

    def tell_machine(self, host: str) -> None:
        """Tell the controller a machine's present boot."""
        ts_ns = self.told_ns[host] = max(self.now_ns, self.told_ns[host] + 1)  # its own clock does not go back
        self.hear(MachineFacts(CLUSTER, host, ts_ns, boot_id=self.boot_id(host), leaf=f"leaf{int(host[1]) % 2}"))

    def tell_job(self, job: str) -> None:
        """Tell the controller a job's present attempt and means: half of the machines each."""
        hosts = HOSTS[: len(HOSTS) // 2] if job == "a" else HOSTS[len(HOSTS) // 2 :]
        ts_ns = self.told_ns[job] = max(self.now_ns, self.told_ns[job] + 1)
        key, (spare_count, may_shrink) = JobKey(CLUSTER, job, self.attempts[job]), self.books.means[job]
        self.hear(JobFacts(key, ts_ns, hosts=hosts, spare_count=spare_count, may_shrink=may_shrink))

    def tell_change(self, host: str) -> None:
        """The engine tells that ranks of a machine's job were moved to it now."""
        job = "a" if host in HOSTS[: len(HOSTS) // 2] else "b"
        key = JobKey(CLUSTER, job, self.attempts[job])
        self.changed[host, key.attempt] = max(self.now_ns, self.changed.get((host, key.attempt), 0))
        self.hear(
            JobFacts(key, self.told_ns[job], changes=(AttemptChange(AttemptChangeKind.PLACES, self.now_ns, host),))
        )

    def boot_id(self, host: str) -> str:
        """The boot id of a machine."""
        return f"{host}-{self.machines[host].boot}"

    def judge(self, verdict: Verdict) -> None:
        """Give the controller an update of a verdict."""
        known = self.verdicts.get(verdict.verdict_id)
        if known is None or verdict.update > known.update:
            self.verdicts[verdict.verdict_id] = verdict
            self.history.append(verdict)
        self.publish(self.controller.on_verdict(verdict, self.now_ns))

    def tick(self) -> None:
        """Let the controller see the present time."""
        self.books.on_time(self.now_ns)
        self.beat()
        self.publish(self.controller.on_time(self.now_ns))

    def publish(self, actions: list[Action]) -> None:
        """Take what the controller published, and check it."""
        for action in actions:
            self.check_published(action)
            self.log.append(action)
            self.latest[action.action_id] = action

    # people

    def command(self, command: Approval | Denial | Cancel) -> None:
        """A person says something of an action."""
        self.now_ns += 1_000_000
        command = replace(command, ts_ns=self.now_ns)
        before = self.latest[command.action_id]
        is_given_back = isinstance(command, Cancel) and self.is_taken(before)
        if is_given_back:
            self.may_return[command.action_id] |= set(before.target.hosts)
        self.hear(command)
        after = self.latest[command.action_id]
        if isinstance(command, Approval):
            if before.state in {S.PROPOSED, S.WAITING, S.WAITING_APPROVAL, S.BLOCKED, S.APPROVED}:
                self.approved.add(command.action_id)
            return
        if before.state in {S.PROPOSED, S.WAITING, S.WAITING_APPROVAL, S.BLOCKED, S.APPROVED, S.CLAIMED} and not (
            before.state is S.BLOCKED and self.has_begun(before)
        ):
            assert after.state in {S.REFUSED, S.CANCELLED}, f"{command} left {after.state}"
            self.stopped.add(command.action_id)
        if is_given_back:
            assert after.state in {S.UNDOING, S.UNDONE}, f"{command} left {after.state}"
        if after.revision > before.revision:
            for host in before.target.hosts:
                self.vetoed[host, before.cause] = self.now_ns

    def uncordon(self, host: str) -> None:
        """A person gives a machine back."""
        machine = self.machines[host]
        machine.is_kept_by_person = False
        machine.marks.clear()
        for action in self.taken(host):
            if self.known_done.get(action.action_id, self.now_ns + 1) <= self.now_ns:
                self.may_return[action.action_id].add(host)
        before = dict(self.latest)
        self.hear(HumanChange(CLUSTER, host, HumanChangeKind.UNCORDONED, "person", self.now_ns))
        for name, action in before.items():
            if host in action.target.hosts and self.latest[name].revision > action.revision:
                self.vetoed[host, action.cause] = self.now_ns

    def release(self, told: CheckResult | QuietSteps | Feedback, hosts: tuple[str, ...]) -> None:
        """Tell something after which machines come back, and see that they do."""
        standing = [one for host in hosts for one in self.taken(host) if one.action_id in self.known_done]
        ripe = []
        for action in standing:
            if isinstance(told, Feedback) and action.verdict_id != told.verdict_id:
                continue
            if isinstance(told, Feedback) or self.known_done[action.action_id] <= told.ts_ns:
                gone = set(action.target.hosts) if isinstance(told, Feedback) else set(hosts)
                self.may_return[action.action_id] |= gone & set(action.target.hosts)
                ripe.append(action)
        self.hear(told)
        for action in ripe:
            if self.may_return[action.action_id] >= set(action.target.hosts):
                state = self.latest[action.action_id].state
                assert state in {S.UNDOING, S.UNDONE}, f"{action.kind} {action.target.hosts} stays {state} after {told}"

    # executors

    def ack(self, action: Action, kind: AckKind, executor: str, **fields: object) -> None:
        """An executor says something; it arrives when ``deliver`` is called."""
        self.seqs[action.action_id, executor] += 1
        lease_ns = self.now_ns + 30 * NS_PER_SECOND if kind is AckKind.CLAIMED else 0
        seq = self.seqs[action.action_id, executor]
        ack = Ack(action.action_id, action.target.job, kind, executor, action.epoch, seq, self.now_ns, lease_ns)
        self.outbox.append(replace(ack, **fields))  # type: ignore[arg-type]

    def deliver(self, *, again: int | None = None) -> None:
        """Deliver the oldest ack that waits, or one that was delivered before once more."""
        if again is not None:
            old = [one for one in self.said if isinstance(one, Ack)]
            if old:
                before = dict(self.latest)
                self.publish(self.controller.on_ack(old[again % len(old)], self.now_ns))
                assert self.latest == before, "an old ack played again changed something"
            return
        if not self.outbox:
            return
        ack = self.outbox.pop(0)
        self.said.append(ack)
        was = self.latest[ack.action_id].state
        self.publish(self.controller.on_ack(ack, self.now_ns))
        if ack.kind is AckKind.DONE and self.latest[ack.action_id].state is not was:
            self.known_done.setdefault(ack.action_id, self.now_ns)

    def act(self, action: Action, executor: str) -> None:
        """An executor reads its action and its target, and changes the target if it may."""
        action = decode_action(encode_action(self.latest[action.action_id]))
        if action.state is S.UNDOING:
            self.undo(action, executor)
            return
        if not action.may_begin(executor, self.now_ns):
            return
        is_mine = all(
            one.boot_id == self.boot_id(one.host) for one in action.target.machines
        ) and action.target.job.attempt == self.attempts.get(action.target.job.job_id)
        if not is_mine:
            self.ack(action, AckKind.EXPIRED, executor)
            return
        self.ack(action, AckKind.STARTED, executor)
        if not any(one.action.action_id == action.action_id for one in self.effects):
            self.check_effect(action)
            self.effects.append(Effect(action, self.now_ns))
            if action.kind in REMOVING_KINDS:
                for host in action.target.hosts:
                    self.machines[host].marks.add(action.action_id)
        self.ack(action, AckKind.DONE, executor, effects=("cordon",))

    def undo(self, action: Action, executor: str) -> None:
        """An executor takes back what this action changed, and nothing else."""
        self.ack(action, AckKind.CLAIMED, executor)
        for host in action.target.hosts:
            self.machines[host].marks.discard(action.action_id)
        self.ack(action, AckKind.UNDONE, executor)

    # what the world knows of actions

    def has_begun(self, action: Action) -> bool:
        """Whether an executor changed something, or said so."""
        began = {one.action_id for one in self.log if one.state in {S.STARTED, S.DONE}}
        return action.action_id in began

    def is_taken(self, action: Action) -> bool:
        """Whether an action took machines away, as far as the controller was told, and they did not come back."""
        return (
            action.kind in REMOVING_KINDS
            and self.has_begun(action)
            and action.state
            in {
                S.STARTED,
                S.DONE,
                S.BLOCKED,
            }
        )

    def taken(self, host: str) -> list[Action]:
        """The actions that took a machine away."""
        return [one for one in self.latest.values() if host in one.target.hosts and self.is_taken(one)]

    # what must hold

    def check_published(self, action: Action) -> None:
        """Check one change that the controller published."""
        before = self.latest.get(action.action_id)
        assert decode_action(encode_action(action)) == action
        assert action.verdict_id in self.verdicts, "an action without a verdict"
        assert action.action_id == action_id_of(action.verdict_id, action.kind, action.target)
        assert before is None or (action.revision, action.target) == (before.revision + 1, before.target)
        if before is not None and before.state in {S.DONE, S.UNDONE} and action.kind is not ActionKind.NOTIFY:
            assert action.state in {S.DONE, S.UNDOING, S.UNDONE}, f"{before.state} became {action.state}"
        if before is None:
            self.books.on_new(action, self.now_ns)
        is_granted = action.state is S.CLAIMED and (before is None or before.state is not S.CLAIMED)
        if is_granted:
            self.check_granted(action)
        if before is not None and action.state in {S.UNDOING, S.UNDONE} and before.state is not S.UNDOING:
            self.check_released(before, action)

    def check_granted(self, action: Action) -> None:
        """Check that an action could be given to an executor at this moment."""
        verdict = self.verdicts[action.verdict_id]
        what = f"{action.kind} {action.target.hosts}"
        assert self.now_ns < verdict.expires_ns, f"{what}: the verdict is stale"
        assert verdict.state in {VerdictState.OPEN, VerdictState.CONFIRMED}, f"{what}: the verdict is closed"
        assert action.action_id not in self.stopped, f"{what}: a person stopped it"
        assert abs(self.now_ns - self.heartbeat_ns) <= 5 * NS_PER_SECOND, f"{what}: the engine is silent"
        assert not self.config.is_dry_run, f"{what}: during a dry run"
        if action.kind in HARD_KINDS:
            assert verdict.witnesses, f"{what}: without witnesses"
        elif action.kind is ActionKind.RESTART and verdict.state is VerdictState.OPEN:
            age_ns = self.now_ns - action.issued_ns
            assert not 0 <= age_ns < 6 * NS_PER_SECOND, f"{what}: the verdict is open"
        if action.kind in self.config.approval_kinds or action.target.is_leaf():
            assert action.action_id in self.approved, f"{what}: nobody approved it"
        assert (
            self.work is None
            or not self.work.is_on(self.now_ns)
            or not ({one.host for one in action.target.machines} & {self.work.target.name})
        ), f"{what}: under maintenance"
        facts = {one.host: one.boot_id for one in action.target.machines}
        assert all(boot_id == self.boot_id(host) for host, boot_id in facts.items()), f"{what}: rebooted"
        job = action.target.job
        assert job.attempt == self.attempts[job.job_id], f"{what}: another attempt"
        for host in action.target.hosts:
            said_ns = self.vetoed.get((host, action.cause))
            is_vetoed = said_ns is not None and self.now_ns - said_ns < self.config.veto_seconds * NS_PER_SECOND
            assert not (is_vetoed and action.kind in HARD_KINDS), f"{what}: vetoed"
        for host in action.target.hosts if action.kind in HARD_KINDS else ():
            changed_ns = self.changed.get((host, job.attempt), self.now_ns - HOUR * NS_PER_SECOND)
            assert self.now_ns - changed_ns >= 600 * NS_PER_SECOND, f"{what}: its ranks were moved"
        self.check_budget(action)
        done = {one.action.action_id: one.at_ns for one in self.effects}
        self.books.check_granted(action, self.latest, self.now_ns)
        if action.action_id not in self.approved:
            self.books.check_unproven(action, self.latest, done, self.now_ns)

    def check_budget(self, action: Action) -> None:
        """Check that budgets have a place for an action, by what executors did and hold.

        Where all its machines are out by others it needs none.
        """
        if action.kind not in HARD_KINDS or action.target.is_leaf():
            return
        if all({one.action_id for one in self.taken(host)} - {action.action_id} for host in action.target.hosts):
            self.without_place.add(action.action_id)
            return
        held = [
            one
            for one in self.latest.values()
            if one.state is S.CLAIMED and one.kind in HARD_KINDS and one.action_id != action.action_id
        ]
        since_ns = self.now_ns - HOUR * NS_PER_SECOND
        recent = [
            one.action
            for one in self.effects
            if one.at_ns > since_ns and one.action.kind in HARD_KINDS and one.action.action_id != action.action_id
        ]
        names = {one.action_id: self.places(one) for one in (*held, *recent) if one.action_id not in self.without_place}
        assert sum(names.values()) + self.places(action) <= MOST_COUNT, f"{action.target.hosts}: budget exceeded"
        out = {one.action_id: self.places(one) for one in self.latest.values() if self.is_taken(one)}
        out.update({one.action_id: self.places(one) for one in held})
        out = {name: count for name, count in out.items() if name not in self.without_place | {action.action_id}}
        assert sum(out.values()) + self.places(action) <= MOST_COUNT, f"{action.target.hosts}: too many out at once"

    def places(self, action: Action) -> int:
        """How many places of a budget an action takes."""
        return 1 if action.target.is_leaf() else len(action.target.hosts)

    def check_effect(self, action: Action) -> None:
        """Check that something may be changed at this moment."""
        verdict = self.verdicts[action.verdict_id]
        assert action.action_id not in self.stopped, "acted after a cancel"
        assert self.now_ns < action.deadline_ns, "acted after its deadline"
        assert verdict.state in {VerdictState.OPEN, VerdictState.CONFIRMED}, "acted on a closed verdict"
        assert [one for one in self.effects if one.action.action_id == action.action_id] == [], "acted twice"
        assert not action.target.is_leaf() or action.action_id in self.approved, "a leaf without approval"

    def check_released(self, before: Action, after: Action) -> None:
        """Check that a machine comes back for a reason that is told in the documentation."""
        if after.reason == "effect_after_end":
            assert before.state in {S.CANCELLED, S.EXPIRED, S.REFUSED}
            return
        hosts = set(after.target.hosts)
        assert self.may_return[after.action_id] >= hosts, f"{hosts} come back by {after.reason}, and nobody said so"
        assert after.reason in RELEASES or after.reason == "held_by_other_action"

    def check_always(self) -> None:
        """Check what holds after each step."""
        for name, machine in self.machines.items():
            for mark in machine.marks:
                state = self.latest[mark].state
                assert state is not S.UNDONE or self.latest[mark].reason in {
                    "held_by_other_action",
                    "returned_by_person",
                }, f"{name} keeps the mark of an action that was undone"
