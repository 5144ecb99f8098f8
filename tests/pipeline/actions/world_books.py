"""What a world remembers of machines, actions and people, and what must hold of the controller's actions.

Everything rests on what is said and done; the controller is never asked why.
"""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass, field

from tests.pipeline.actions.guard_books import GuardBooks
from tests.pipeline.actions.kit import ScriptedLadder
from tocsin.pipeline.actions.config import BreakerConfig, BudgetLimit, BudgetScope, ControllerConfig
from tocsin.pipeline.actions.controller import ActionController
from tocsin.pipeline.actions.guards.return_checks import RETURN_RULE
from tocsin.schemas.action_codec import decode_action, encode_action
from tocsin.schemas.action_events import Ack, ActionEvent
from tocsin.schemas.action_states import ActionState
from tocsin.schemas.actions import HARD_KINDS, REMOVING_KINDS, Action, action_id_of
from tocsin.schemas.operator_notes import Maintenance
from tocsin.schemas.records import NS_PER_SECOND, JobKey
from tocsin.schemas.verdicts import ActionKind, FaultKind, Verdict, VerdictState

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


class WorldBooks:
    """What is known outside the controller, and the invariants.

    Attributes:
        now_ns: the present time of everybody.
        log: what the controller published, in order.
        effects: what executors changed, in order.
    """

    def __init__(self, config: ControllerConfig = CONFIG) -> None:
        """Nothing was said or done yet, and everybody is alive."""
        self.config = config
        self.now_ns = T0
        self.heartbeat_ns = T0
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

    # what the world knows of machines and actions

    def boot_id(self, host: str) -> str:
        """The boot id of a machine."""
        return f"{host}-{self.machines[host].boot}"

    def has_begun(self, action: Action) -> bool:
        """Whether an executor changed something, or said so."""
        began = {one.action_id for one in self.log if one.state in {S.STARTED, S.DONE}}
        return action.action_id in began

    def has_failed(self, job: JobKey) -> bool:
        """Whether a verdict that stands says that an attempt has failed."""
        live = {VerdictState.OPEN, VerdictState.CONFIRMED}
        known = [one for one in self.verdicts.values() if (one.job, one.fault) == (job, FaultKind.FAIL_STOP)]
        return any(one.state in live for one in known)

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
        is_own = action.rule == RETURN_RULE
        assert is_own or action.verdict_id in self.verdicts, "an action without a verdict"
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
        what = f"{action.kind} {action.target.hosts}"
        if action.rule == RETURN_RULE:
            self.check_return_check(action, what)
            return
        verdict = self.verdicts[action.verdict_id]
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
        if action.kind is ActionKind.PROBE and action.action_id not in self.approved:
            assert self.has_failed(job := action.target.job), f"{what}: job {job.job_id} goes on"
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

    def check_return_check(self, action: Action, what: str) -> None:
        """Check that a check before a return could be given to an executor at this moment."""
        hosts = action.target.hosts
        assert (action.kind, self.config.is_dry_run) == (ActionKind.PROBE, False), what
        assert self.now_ns < action.deadline_ns, f"{what}: too late"
        assert all(self.taken(host) for host in hosts), f"{what}: no action keeps it out"
        is_worked_on = self.work is not None and self.work.is_on(self.now_ns) and self.work.target.name in hosts
        assert not is_worked_on, f"{what}: under maintenance"

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
        assert action.action_id not in self.stopped, "acted after a cancel"
        assert self.now_ns < action.deadline_ns, "acted after its deadline"
        verdict = self.verdicts.get(action.verdict_id)
        is_live = verdict is not None and verdict.state in {VerdictState.OPEN, VerdictState.CONFIRMED}
        assert is_live or action.rule == RETURN_RULE, "acted on a closed verdict"
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
                if self.latest[mark].reason == "held_by_other_action":
                    others = [one for one in self.latest.values() if name in one.target.hosts and self.is_taken(one)]
                    assert others, f"{name} stays out, and nothing keeps it out"
