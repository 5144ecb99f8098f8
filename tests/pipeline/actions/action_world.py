"""A small world for the controller of actions: machines, executors and people around it."""

from __future__ import annotations

from dataclasses import replace

from tests.pipeline.actions.kit import CLUSTER, KINDS
from tests.pipeline.actions.world_books import CONFIG, HOSTS, JOB_NAMES, Effect, S, WorldBooks
from tocsin.pipeline.actions.config import ControllerConfig
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
from tocsin.schemas.actions import REMOVING_KINDS, Action
from tocsin.schemas.operator_notes import Feedback
from tocsin.schemas.records import NS_PER_SECOND, JobKey
from tocsin.schemas.verdicts import Verdict


class World(WorldBooks):
    """Everything outside the controller; what it publishes is checked at once."""

    def __init__(self, config: ControllerConfig = CONFIG) -> None:
        """A quiet cluster of two jobs, whose engine and executors are alive."""
        super().__init__(config)
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
            for name in ("ex0", "ex1"):
                self.hear(ExecutorHeard(CLUSTER, name, KINDS, self.now_ns))

    def hear(self, told: ActionEvent) -> None:
        """Tell the controller an event."""
        self.said.append(told)
        self.publish(self.controller.on_event(told, self.now_ns))

    def check_ns(self, host: str) -> int:
        """The time at which a check of a machine ends now, by the machine's clock, which does not go back."""
        key = f"check {host}"
        self.told_ns[key] = max(self.now_ns, self.told_ns.get(key, 0) + 1)
        return self.told_ns[key]

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
