"""A fleet on which the shipped policy acts: controller, executors and a Slurm in memory, for timelines of days."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from tests.pipeline.actions.executors.fake_slurm import USER, FakeSlurm
from tests.pipeline.actions.policy.samples import JOB, at, ladder, verdict
from tocsin.pipeline.actions.config import ControllerConfig
from tocsin.pipeline.actions.controller import ActionController
from tocsin.pipeline.actions.executors.check_runs import CheckRun
from tocsin.pipeline.actions.executors.core import ExecutorConfig, ExecutorCore
from tocsin.pipeline.actions.executors.preflight import PreflightTarget, PreflightTargetConfig
from tocsin.pipeline.actions.executors.slurm import SlurmTarget, SlurmTargetConfig
from tocsin.pipeline.actions.executors.slurm_cluster import SlurmCluster
from tocsin.pipeline.actions.executors.worker import ExecutorWorker
from tocsin.pipeline.actions.ladder import Ladder
from tocsin.schemas.action_events import (
    Ack,
    ActionEvent,
    CheckResult,
    EngineHeartbeat,
    EngineWay,
    ExecutorHeard,
    HumanChange,
    HumanChangeKind,
    JobFacts,
    MachineFacts,
)
from tocsin.schemas.actions import Action
from tocsin.schemas.preflight import CheckName, CheckReason, HostAnswer, failed, passed
from tocsin.schemas.records import NS_PER_SECOND, JobKey
from tocsin.schemas.verdicts import ActionKind, Verdict

MINUTE, HOUR, DAY = 60.0, 3600.0, 86400.0
LIVE = ControllerConfig(is_dry_run=False, may_shrink=True)
KINDS = frozenset({ActionKind.RESTART, ActionKind.DRAIN, ActionKind.EVICT, ActionKind.REBOOT})
_TOLD_KINDS = tuple(one for one in ActionKind if one not in {ActionKind.NONE, ActionKind.NOTIFY})
_EFFECT_ROUNDS = 6
GOOD = tuple(passed(name, CheckReason.EXACT) for name in (CheckName.MEMORY_BANDWIDTH, CheckName.COMPUTATION))
BAD = (failed(CheckName.COMPUTATION, CheckReason.WRONG_RESULT, "core 5: 12 of 2901"),)


class InstantRuns:
    """Checks that end as soon as they begin."""

    def __init__(self, fleet: ActingFleet, broken: frozenset[str]) -> None:
        self._fleet, self._broken = fleet, broken
        self._runs: dict[str, CheckRun] = {}
        self.begun: list[tuple[str, ...]] = []

    def begin(self, action: Action, nodes: Sequence[str]) -> None:
        self.begun.append(tuple(nodes))
        if "*" in self._broken:
            self._runs[action.action_id] = CheckRun(False, (), self._fleet.now_ns)
            return
        answers = tuple(
            HostAnswer(one, BAD if one in self._broken else GOOD, 60.0, f"boot-{one}", gpu_count=8) for one in nodes
        )
        self._runs[action.action_id] = CheckRun(False, answers, self._fleet.now_ns)

    def read(self, action_id: str) -> CheckRun | None:
        return self._runs.get(action_id)


class ActingFleet:
    """Machines ``n000`` and so on, with jobs on them, that the shipped policy watches over.

    Attributes:
        seconds: the present time.
        slurm: the cluster; its ``effects`` are all that was ever done.
        published: all that the controller published, in order.
        judged: all updates of verdicts that the controller was given.
        is_engine_alive: whether the engine's heartbeat comes.
        heard_kinds: kinds that the executors say they do.
    """

    def __init__(self, host_count: int = 24, job_hosts_count: int = 24, policy: Ladder | None = None) -> None:
        """Start with one executor, and one job on each ``job_hosts_count`` machines, sixteen machines a leaf."""
        self.seconds = 0.0
        self.hosts = [f"n{row:03d}" for row in range(host_count)]
        self.slurm = FakeSlurm(*self.hosts)
        self.policy = policy or ladder()
        self.controller = ActionController(LIVE, self.policy, epoch=1)
        self.published: list[Action] = []
        self.judged: list[Verdict] = []
        self.is_engine_alive = True
        self._workers: dict[str, tuple[ExecutorCore, ExecutorWorker]] = {}
        self._read: dict[str, int] = {}
        self._checks: PreflightTarget | None = None
        self.heard_kinds = _TOLD_KINDS
        for row, name in enumerate(self.hosts):
            self.tell(MachineFacts(JOB.cluster, name, self.now_ns, f"boot-{name}", leaf=f"leaf{row // 16}"))
        for number, first in enumerate(range(0, host_count, job_hosts_count), 1):
            self.place(number, *self.hosts[first : first + job_hosts_count])
        self.start("e1")
        self.run(1)

    @property
    def now_ns(self) -> int:
        """The present time in Unix ns."""
        return at(self.seconds)

    def place(self, number: int, *hosts: str, attempt: int = 0) -> JobKey:
        """Let a job ``j1`` and so on run on machines, in an attempt."""
        job = JobKey(JOB.cluster, f"j{number}", attempt)
        self.slurm.add_job(number, *hosts)
        self.tell(JobFacts(job, self.now_ns, hosts, str(number), may_shrink=True))
        return job

    def start_checks(self, *broken: str, name: str = "checks") -> list[tuple[str, ...]]:
        """Start an executor that checks machines at once; return where it notes its checks.

        The broken ones fail; with ``*`` among them no machine answers.
        """
        runs = InstantRuns(self, frozenset(broken))
        target = PreflightTarget(PreflightTargetConfig(), runs)
        core = ExecutorCore(ExecutorConfig(JOB.cluster, name, target.kinds))
        self._workers[name] = core, ExecutorWorker(core, target, lambda: self.now_ns, self._say)
        self._read[name] = 0
        self._checks = target
        return runs.begun

    def start(self, name: str) -> None:
        """Start an executor, or another process in its place: it reads all messages from the first one."""
        core = ExecutorCore(ExecutorConfig(JOB.cluster, name, KINDS))
        target = SlurmTarget(SlurmTargetConfig(USER, KINDS), SlurmCluster(self.slurm))
        self._workers[name] = core, ExecutorWorker(core, target, lambda: self.now_ns, self._say)
        self._read[name] = 0

    def stop(self, name: str) -> None:
        """Stop an executor."""
        del self._workers[name]

    def claim(self, name: str) -> None:
        """Let an executor read what is new and claim what is free, and go no further."""
        core, _ = self._workers[name]
        self._tell_new(name, core)
        self._say(core.on_time(self.now_ns))

    def restart_controller(self) -> None:
        """Another process takes the controller's place, with its state and the next epoch."""
        parts = self.controller.snapshot()
        self.policy = ladder()
        self.controller = ActionController(LIVE, self.policy)
        self.controller.restore(parts)
        self.published += self.controller.begin_epoch(self.controller.epoch + 1, self.now_ns)

    def forget_everything(self) -> None:
        """Another process takes the controller's place without any state, and reads all verdicts again."""
        self.policy = ladder()
        self.controller = ActionController(LIVE, self.policy, self.controller.epoch + 1)
        self._beat()
        for one in self.judged:
            self.published += self.controller.on_verdict(one, self.now_ns)

    def run(self, seconds: float, step: float = 1.0) -> None:
        """Let the time pass in steps; in each the executors read what is new, and work."""
        end = self.seconds + seconds
        while self.seconds < end:
            self.seconds = min(end, self.seconds + step)
            self._beat()
            self.published += self.controller.on_time(self.now_ns)
            for told in self._checks.facts(JOB.cluster) if self._checks is not None else ():
                self.tell(told)
            for name, (core, worker) in self._workers.items():
                for _ in range(_EFFECT_ROUNDS):
                    self._tell_new(name, core)
                    if not worker.work() and self._read[name] == len(self.published):
                        break

    def judge(self, one: Verdict) -> Verdict:
        """Give the controller an update of a verdict, and return it."""
        self.judged.append(one)
        self.published += self.controller.on_verdict(one, self.now_ns)
        return one

    def accuse(self, cause: str, *hosts: str, name: str = "", **fields: object) -> Verdict:
        """Let a verdict of now accuse machines of the first job, or of ``job``."""
        made = verdict(cause, hosts, self.seconds - 2, name=name or f"{cause}-{hosts}-{self.seconds:.0f}", **fields)
        return self.judge(made)

    def renew(self, before: Verdict, **fields: object) -> Verdict:
        """Give the controller the next update of a verdict, of now."""
        times = {"detected_ns": self.now_ns, "expires_ns": at(self.seconds + 600)}
        return self.judge(replace(before, update=before.update + 1, **(times | fields)))  # type: ignore[arg-type]

    def tell(self, told: ActionEvent) -> None:
        """Tell the controller an event."""
        self.published += self.controller.on_event(told, self.now_ns)

    def check(self, host: str, *, is_passed: bool, is_under_load: bool = True, boot: str = "") -> None:
        """A check of a machine ends now."""
        boot_id = boot or f"boot-{host}"
        told = CheckResult(JOB.cluster, host, boot_id, "burn", is_passed, is_under_load, self.now_ns, gpu_count=8)
        self.tell(told)

    def reboot(self, host: str) -> None:
        """A machine is booted by somebody; what Slurm keeps of it stays."""
        self.slurm.nodes[host].boot_seconds = self.now_ns // NS_PER_SECOND
        self.tell(MachineFacts(JOB.cluster, host, self.now_ns, f"boot2-{host}"))

    def give_back_by_hand(self, host: str) -> None:
        """A person gives a machine back to Slurm; the executor sees it."""
        node = self.slurm.nodes[host]
        node.flags, node.is_down, node.reason = set(), False, ""
        self.tell(HumanChange(JOB.cluster, host, HumanChangeKind.UNCORDONED, "alice", self.now_ns))

    def of(self, *kinds: ActionKind) -> list[Action]:
        """Actions of some kinds as they are now, oldest first."""
        return [one for one in self.controller.actions() if one.kind in kinds]

    def on(self, host: str, kind: ActionKind = ActionKind.EVICT) -> Action:
        """The newest action of a kind on one machine."""
        return [one for one in self.of(kind) if one.target.hosts == (host,)][-1]

    def out(self) -> list[str]:
        """Machines that take no work."""
        return [name for name in self.hosts if self.slurm.takes_no_work(name)]

    def pages(self) -> list[str]:
        """Reasons of all pages of the controller that are about an action, oldest first."""
        found = [one for one in self.published if one.kind is ActionKind.NOTIFY]
        return [one.reason for one in found if one.reason != "allowed"]

    def _tell_new(self, name: str, core: ExecutorCore) -> None:
        """Let an executor read what it has not read."""
        for action in self.published[self._read[name] :]:
            self._read[name] += 1
            self._say(core.on_action(action, self.now_ns))

    def _say(self, acks: list[Ack]) -> None:
        for ack in acks:
            self.published += self.controller.on_ack(ack, self.now_ns)

    def _beat(self) -> None:
        if self.is_engine_alive:
            self.tell(EngineHeartbeat(JOB.cluster, EngineWay.EMBEDDED, self.now_ns))
        for name in self._workers:
            kinds = (ActionKind.PROBE,) if name == "checks" else self.heard_kinds
            self.tell(ExecutorHeard(JOB.cluster, name, kinds, self.now_ns))
