"""The controller of actions: a plain operator that turns verdicts into actions, and watches over what is done.

It reads no clock, no disk and no network: each call is given the present time. Everything that it decides is an
``Action`` that it returns; whoever runs it publishes them in order, together with the state, or not at all.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from typing import Final

from tocsin.pipeline.actions.acks import AckHandler
from tocsin.pipeline.actions.book import ActionBook
from tocsin.pipeline.actions.chain import GuardChain
from tocsin.pipeline.actions.commands import CommandHandler
from tocsin.pipeline.actions.config import ControllerConfig, ns
from tocsin.pipeline.actions.desk import Desk
from tocsin.pipeline.actions.facts import FactBook
from tocsin.pipeline.actions.intake import ProposalIntake
from tocsin.pipeline.actions.ladder import Ladder
from tocsin.pipeline.actions.life import ActionLife, LeftOutMessage
from tocsin.pipeline.actions.reasons import ActionReason
from tocsin.pipeline.actions.releases import Releases
from tocsin.pipeline.actions.return_checks import ReturnChecks
from tocsin.pipeline.actions.tracked import TrackedAction
from tocsin.pipeline.core.operator import pack_state, unpack_state
from tocsin.pipeline.incidents.maintenance import MaintenanceBook
from tocsin.schemas.action_events import (
    Ack,
    ActionEvent,
    Approval,
    Cancel,
    CheckResult,
    CordonSeen,
    Denial,
    EngineHeartbeat,
    ExecutorHeard,
    HumanChange,
    JobFacts,
    MachineFacts,
    QuietSteps,
)
from tocsin.schemas.action_states import ActionState
from tocsin.schemas.actions import Action
from tocsin.schemas.operator_notes import Feedback, Maintenance, note_from, note_object
from tocsin.schemas.records import Event
from tocsin.schemas.verdicts import Verdict

PART: Final = "controller"
"""Name of the part of a snapshot with epoch, guards, verdicts and planned work."""
FACTS: Final = "facts"
"""Name of the part with what is known of machines, jobs, executors and engines."""
_ACTION: Final = "action/"
_POLICY: Final = "policy/"
_MAX_ROUNDS: Final = 8
"""How often in a row the policy may answer the end of an action by another action that ends at once."""


class ActionController:
    """Verdicts, acks and events in, actions out.

    Attributes:
        config: settings.
    """

    def __init__(self, config: ControllerConfig, ladder: Ladder, epoch: int = 0) -> None:
        """Start without actions.

        Args:
            config: settings.
            ladder: the policy.
            epoch: epoch of this process, which every action carries.
        """
        self.config = config
        self._ladder = ladder
        facts, book = FactBook(config.fact_count), ActionBook()
        maintenance = MaintenanceBook(facts.leaf_of)
        life = ActionLife(book)
        life.epoch = epoch
        self._desk = Desk(config, book, facts, maintenance, GuardChain(maintenance), life)
        self._intake = ProposalIntake(self._desk)
        self._return_checks = ReturnChecks(self._desk, self._intake)
        self._releases = Releases(self._desk)
        self._commands = CommandHandler(self._desk, self._releases)
        self._acks = AckHandler(self._desk)

    @property
    def epoch(self) -> int:
        """Epoch of this controller."""
        return self._desk.life.epoch

    @property
    def left_out(self) -> Counter[str]:
        """Reason -> number of messages that had no effect."""
        return self._desk.life.left_out

    def take_left_out(self) -> list[LeftOutMessage]:
        """Return the messages without effect since the last call, for the dead letters."""
        found, self._desk.life.letters = self._desk.life.letters, []
        return found

    def actions(self) -> tuple[Action, ...]:
        """Return all actions that are remembered, oldest first."""
        return tuple(one.action for one in self._sorted())

    def on_told(self, told: Ack | ActionEvent, now_ns: int) -> tuple[list[Action], list[LeftOutMessage]]:
        """Take a message that somebody sent.

        Returns:
            The changes of actions, and why the message had no effect: empty for one that had, and for facts, of which
            an old one is nothing to keep. An old signed ack that is played again has a reason here.
        """
        self.take_left_out()
        found = self.on_ack(told, now_ns) if isinstance(told, Ack) else self.on_event(told, now_ns)
        is_kept = isinstance(told, Ack | Approval | Denial | Cancel)
        return found, self.take_left_out() if is_kept else []

    def begin_epoch(self, epoch: int, now_ns: int) -> list[Action]:
        """Begin a new epoch, after this process became the active one, and publish all live actions in it.

        Executors refuse a lower epoch than they have seen, so what a former process published no longer counts.
        """
        self._desk.life.epoch = epoch
        for tracked in self._sorted():
            if not tracked.is_final and tracked.state is not ActionState.DONE:
                self._desk.life.publish(tracked, now_ns)
        return self._desk.life.collect()

    def on_verdict(self, verdict: Verdict, now_ns: int) -> list[Action]:
        """Take one update of a verdict; an update that was seen, or is older than one that was, changes nothing."""
        if not self._intake.is_news(verdict):
            return []
        self._desk.chain.running_jobs.take_verdict(verdict)
        proposals = self._ladder.on_verdict(verdict, now_ns)
        self._intake.take_verdict(verdict, proposals, now_ns)
        return self._published(now_ns)

    def on_ack(self, ack: Ack, now_ns: int) -> list[Action]:
        """Take one message of an executor; one that was seen changes nothing."""
        self._acks.take(ack, now_ns)
        return self._published(now_ns)

    def on_event(self, told: ActionEvent, now_ns: int) -> list[Action]:
        """Take a command, a fact or a note."""
        match told:
            case Approval() | Denial() | Cancel():
                self._commands.take(told, now_ns)
            case CheckResult():
                self._releases.take_check(told, now_ns)
                self._intake.take_proposals(self._ladder.on_check(told, now_ns), now_ns)
            case QuietSteps():
                self._releases.take_quiet_steps(told, now_ns)
            case Feedback():
                self._releases.take_feedback(told, now_ns)
            case HumanChange():
                if self._desk.facts.take_human_change(told):
                    self._releases.take_human_change(told, now_ns)
                else:
                    self._desk.life.leave_out(ActionReason.FACT_OLD, f"{told.kind.value} of {told.host}")
            case Maintenance():
                self._desk.maintenance.take(told)
            case _:
                self._take_fact(told)
        return self._published(now_ns)

    def on_hardware(self, event: Event, now_ns: int) -> list[Action]:
        """Take what a host reported of its hardware: the policy counts codes and network alerts."""
        self._intake.take_proposals(self._ladder.on_hardware(event, now_ns), now_ns)
        return self._published(now_ns)

    def on_time(self, now_ns: int) -> list[Action]:
        """Judge anew what waits, end what is over, and page what is held up; called about once a second."""
        self._desk.chain.breaker.on_time(self.config.breaker, now_ns)
        for tracked in self._desk.book.live():
            self._tick(tracked, now_ns)
        self._intake.take_proposals(self._ladder.on_time(now_ns), now_ns)
        self._return_checks.on_time(now_ns)
        found = self._published(now_ns)
        self._prune(now_ns)
        return found

    def snapshot(self) -> dict[str, bytes]:
        """Return the state as named parts, canonical: equal states give equal bytes.

        Each action is a part of its own (``action/ID``), so that a runtime that writes changed parts writes little. The
        policy's parts follow after ``policy/``.
        """
        state = {
            "epoch": self.epoch,
            "forgotten": self._desk.book.forgotten_state(),
            "guards": self._desk.chain.to_state(),
            "verdicts": self._intake.to_state(),
            "return_checks": self._return_checks.to_state(),
            "maintenance": [note_object(one) for one in self._desk.maintenance.works()],
        }
        policy = {f"{_POLICY}{name}": part for name, part in self._ladder.snapshot().items()}
        actions = {f"{_ACTION}{name}": pack_state(one) for name, one in self._desk.book.to_state().items()}
        return {PART: pack_state(state), FACTS: pack_state(self._desk.facts.to_state()), **actions, **policy}

    def restore(self, parts: Mapping[str, bytes]) -> None:
        """Replace the state by parts that ``snapshot`` returned; the epoch is the restored one.

        Raises:
            SnapshotError: a part is missing, damaged or of another version.
        """
        state = unpack_state(parts, PART)
        self._desk.life.epoch = state["epoch"]
        actions = [unpack_state(parts, name) for name in parts if name.startswith(_ACTION)]
        self._desk.book.load_state(actions, state["forgotten"])
        self._desk.facts.load_state(unpack_state(parts, FACTS))
        self._desk.chain.load_state(state["guards"])
        self._intake.load_state(state["verdicts"])
        self._return_checks.load_state(state.get("return_checks", ()))
        works = [one for one in map(note_from, state["maintenance"]) if isinstance(one, Maintenance)]
        self._desk.maintenance.replace(works)
        self._ladder.restore({name.removeprefix(_POLICY): parts[name] for name in parts if name.startswith(_POLICY)})

    def _take_fact(self, told: MachineFacts | CordonSeen | JobFacts | ExecutorHeard | EngineHeartbeat) -> None:
        """Remember a fact; one that is older than what is known changes nothing."""
        facts = self._desk.facts
        match told:
            case MachineFacts():
                is_taken = facts.take_machine(told)
            case CordonSeen():
                is_taken = facts.take_cordon(told)
            case JobFacts():
                is_taken = facts.take_job(told)
            case ExecutorHeard():
                is_taken = facts.take_executor(told)
            case EngineHeartbeat():
                is_taken = facts.take_heartbeat(told)
        if not is_taken:
            self._desk.life.leave_out(ActionReason.FACT_OLD, type(told).__name__)

    def _tick(self, tracked: TrackedAction, now_ns: int) -> None:
        """Apply the passing of time to one action."""
        life, action = self._desk.life, tracked.action
        if tracked.state is ActionState.CLAIMED:
            if now_ns >= action.deadline_ns:
                self._desk.end(tracked, ActionState.EXPIRED, ActionReason.DEADLINE, now_ns)
                return
            if now_ns >= action.lease_ns:
                life.move(tracked, ActionState.APPROVED, ActionReason.LEASE_OVER, now_ns)
        if tracked.is_open:
            self._desk.judge(tracked, now_ns)
            self._block_if_held(tracked, now_ns)
        elif self._is_stuck(tracked, now_ns):
            if tracked.state is ActionState.STARTED:
                life.move(tracked, ActionState.BLOCKED, ActionReason.BLOCKED_BY_TARGET, now_ns, action.detail)
            life.page(tracked, ActionReason.BLOCKED_BY_TARGET, now_ns, action.detail)

    def _block_if_held(self, tracked: TrackedAction, now_ns: int) -> None:
        """Block and page an open action that nobody approved in time, or that is held for long."""
        life, action = self._desk.life, tracked.action
        until_ns = action.approval_deadline_ns
        if tracked.state is ActionState.WAITING_APPROVAL and now_ns >= until_ns:
            life.move(tracked, ActionState.BLOCKED, ActionReason.NO_APPROVER, now_ns, action.detail)
            life.page(tracked, ActionReason.NO_APPROVER, now_ns, action.detail)
        is_long = tracked.held_ns and now_ns - tracked.held_ns >= ns(self.config.blocked_seconds)
        if tracked.state is ActionState.WAITING and is_long:
            life.move(tracked, ActionState.BLOCKED, ActionReason.HELD_FOR_LONG, now_ns, action.reason)
            life.page(tracked, ActionReason.HELD_FOR_LONG, now_ns, action.reason)

    def _is_stuck(self, tracked: TrackedAction, now_ns: int) -> bool:
        """Return whether an action was begun, or is to be undone, and its executor is held up or silent for long."""
        limit_ns = ns(self.config.blocked_seconds)
        if tracked.state is ActionState.UNDOING:
            return now_ns - tracked.action.changed_ns >= limit_ns
        if tracked.state is not ActionState.STARTED:
            return False
        is_held_up = tracked.blocked_ns and now_ns - tracked.blocked_ns >= limit_ns
        is_silent = now_ns - max(tracked.begun_ns, tracked.action.lease_ns) >= limit_ns
        return bool(is_held_up) or is_silent

    def _published(self, now_ns: int) -> list[Action]:
        """Give back what nothing keeps out any more, ask the policy about what ended, and return all changes."""
        self._releases.release_left(now_ns)
        for _ in range(_MAX_ROUNDS):
            ended, self._desk.ended = self._desk.ended, []
            if not ended:
                break
            for tracked in ended:
                self._intake.take_proposals(self._ladder.on_action(tracked.action, now_ns), now_ns)
        self._desk.ended = []
        return self._desk.life.collect()

    def _sorted(self) -> Iterable[TrackedAction]:
        """Return all actions, oldest first, in the same order before and after a restore."""
        return sorted(self._desk.book, key=lambda one: (one.action.issued_ns, one.action.action_id))

    def _prune(self, now_ns: int) -> None:
        """Forget finished actions that no budget counts and no late message can mean any more."""
        final_ns = now_ns - ns(self.config.final_kept_seconds)
        lapsed_ns = now_ns - ns(self.config.lapsed_kept_seconds)
        for tracked in self._desk.book.outdated(lapsed_ns, final_ns):
            self._desk.book.forget(tracked)
