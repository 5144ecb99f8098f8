"""The controller of actions inside the embedded engine: a follower that asks it about each verdict."""

from __future__ import annotations

import logging
import sqlite3
import threading
from collections import Counter, deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

from tocsin.pipeline.actions.controller import ActionController
from tocsin.pipeline.actions.life import LeftOutMessage
from tocsin.pipeline.actions.policy.heard_codes import concerns_policy
from tocsin.pipeline.actions.quiet_steps import QuietCounter
from tocsin.pipeline.core.slices import SliceBundle
from tocsin.pipeline.identity.action_signatures import ActionSigner
from tocsin.pipeline.runtime.embedded.actions.action_log import ActionLog, LogLine
from tocsin.pipeline.runtime.embedded.control_socket import Handler
from tocsin.pipeline.runtime.embedded.supervised_thread import SupervisedThread
from tocsin.schemas.action_codec import encode_action
from tocsin.schemas.action_events import Ack, ActionEvent, EngineHeartbeat, EngineWay, QuietSteps
from tocsin.schemas.actions import Action
from tocsin.schemas.formats.prometheus_text import Family, Sample
from tocsin.schemas.records import NS_PER_SECOND, Event, StepBatch
from tocsin.schemas.verdicts import ActionKind, Verdict

_LOG = logging.getLogger("tocsin.actions")
_WRITE_NS: Final = 60 * NS_PER_SECOND
"""Longest distance of two writes of the controller's state."""
_PRUNE_NS: Final = 3600 * NS_PER_SECOND
_KEPT_NS: Final = 30 * 86_400 * NS_PER_SECOND
"""How long the log keeps actions that are over."""
_MOST_WAITING: Final = 10_000


@dataclass(frozen=True, slots=True)
class ActionHooks:
    """What the follower asks and tells others.

    Attributes:
        clusters: returns the clusters that the engine judges.
        facts: returns what became known since the last call, at a time.
        on_changes: is given the changes of actions once they are on the disk.
        on_ack: is given each ack that had an effect.
        on_left_out: is given each message without effect, and why it had none.
        is_settled: returns whether the engine has judged for long enough at a time; until then nothing acts.
    """

    clusters: Callable[[], Iterable[str]] = tuple
    facts: Callable[[int], Iterable[ActionEvent]] = lambda _now_ns: ()
    on_changes: Callable[[Sequence[Action]], None] = lambda _actions: None
    on_ack: Callable[[Ack], None] = lambda _ack: None
    on_left_out: Callable[[Ack | ActionEvent, LeftOutMessage], None] = lambda _message, _why: None
    is_settled: Callable[[int], bool] = lambda _now_ns: True


@dataclass(slots=True)
class _Told:
    """A message for the controller, and who waits until it has taken it."""

    message: Ack | ActionEvent
    is_taken: threading.Event = field(default_factory=threading.Event)


class ActionFollower:
    """Asks the controller about each verdict, message and second, and keeps what it decides.

    The ticking thread alone calls the controller. Its state lies in the log's file and not in the engine's snapshots:
    an engine that lost its state must still know what was done.

    Attributes:
        name: ``actions``.
        controller: the controller.
        log: its decisions.
        requests: requests of people on the control socket, by name.
        shown: the actions that are remembered, as they are on the disk, oldest first; any thread may read it.
        left_out: reason -> number of messages without effect, at the end of the last tick.
        tellers: each is given verdict id and sentence of what people are to know of an action; none during a dry run.
    """

    name = "actions"

    def __init__(
        self,
        controller: ActionController,
        log: ActionLog,
        signer: ActionSigner,
        clock_ns: Callable[[], int],
        hooks: ActionHooks | None = None,
    ) -> None:
        """Go on with the state of the log, in a new epoch.

        Args:
            controller: the controller, without state.
            log: the log; the follower closes it.
            signer: signs each change.
            clock_ns: returns the present time.
            hooks: what it asks and tells others; None: nobody.

        Raises:
            SnapshotError: the state in the log cannot be read.
        """
        self.controller = controller
        self.log = log
        self._signer = signer
        self._clock_ns = clock_ns
        self._hooks = hooks or ActionHooks()
        self.requests: Mapping[str, Handler] = {}
        self._waiting: deque[_Told] = deque()
        self._events: list[Event] = []
        self._quiet = QuietCounter(controller.config.quiet_step_count)
        self._steps: list[QuietSteps] = []
        self._unwritten: list[Action] = []
        self._written_ns = 0
        self._pruned_ns = 0
        self._failures = 0
        self._kinds: Counter[tuple[str, str]] = Counter()
        parts = log.parts()
        if parts:
            controller.restore(parts)
        self._unwritten = controller.begin_epoch(controller.epoch + 1, clock_ns())
        self.shown: tuple[Action, ...] = ()
        self.left_out: Mapping[str, int] = {}
        self.tellers: list[Callable[[str, str], None]] = []

    def tell(self, message: Ack | ActionEvent) -> threading.Event:
        """Take a message from any thread; return what is set once the controller has taken it and it is on the disk."""
        told = _Told(message)
        if len(self._waiting) < _MOST_WAITING:
            self._waiting.append(told)
        else:
            _LOG.warning(
                "left out: too many messages wait", extra={"reason": "too_many", "what": type(message).__name__}
            )
        return told.is_taken

    def tap(self, bundle: SliceBundle) -> None:
        """Keep what hosts reported in one second, hardware and steps, for the controller; a tap of the engine."""
        events = [one for one in bundle.fast.records if isinstance(one, Event) and concerns_policy(one)]
        self._events += events[: max(0, _MOST_WAITING - len(self._events))]
        for event in events:
            self._quiet.on_sign(event.job.cluster, event.host)
        for batch in (one for one in bundle.fast.records if isinstance(one, StepBatch) and one.rows):
            told = self._quiet.on_step(batch.job, batch.host, max(row.step for row in batch.rows), batch.ts_ns)
            if told is not None:
                self._steps.append(told)

    def on_verdicts(self, verdicts: Sequence[Verdict], now_ns: int) -> Sequence[Verdict]:
        """Take the lines of one tick; return none.

        The controller is given the present time, not the tick's: after a restart the ticks are behind it, and the
        engine's heartbeat, which has the tick's time, keeps everything waiting until they have caught up.
        """
        present_ns = max(now_ns, self._clock_ns())
        controller, found = self.controller, self._unwritten
        clusters = {*self._hooks.clusters(), *(one.job.cluster for one in verdicts)}
        for cluster in sorted(clusters) if self._hooks.is_settled(present_ns) else ():
            found += controller.on_event(EngineHeartbeat(cluster, EngineWay.EMBEDDED, now_ns), present_ns)
        for fact in self._hooks.facts(present_ns):
            found += controller.on_event(fact, present_ns)
        taken = [self._waiting.popleft() for _ in range(len(self._waiting))]
        for told in taken:
            found += self._take(told.message, present_ns)
        events, self._events = self._events, []
        for event in events:
            found += controller.on_hardware(event, present_ns)
        for verdict in verdicts:
            self._quiet.on_verdict(verdict)
            found += controller.on_verdict(verdict, present_ns)
        named = {(one.job.cluster, suspect.component.name) for one in verdicts for suspect in one.suspects}
        steps, self._steps = self._steps, []
        for quiet in steps:  # a machine that this second names is not quiet
            if (quiet.job.cluster, quiet.host) not in named:
                found += controller.on_event(quiet, present_ns)
        found += controller.on_time(present_ns)
        is_due = bool(found or taken or verdicts or events) or present_ns - self._written_ns >= _WRITE_NS
        if is_due and self._write(present_ns):
            for told in taken:
                told.is_taken.set()
        return ()

    def _take(self, message: Ack | ActionEvent, present_ns: int) -> list[Action]:
        """Give a message to the controller; one without effect becomes a dead letter."""
        found, left_out = self.controller.on_told(message, present_ns)
        for one in left_out:
            self._hooks.on_left_out(message, one)
        if isinstance(message, Ack) and not left_out:
            self._hooks.on_ack(message)
        return found

    def _write(self, present_ns: int) -> bool:
        """Put all changes on the disk and show them; return whether the disk took them."""
        lines = [self._line(one) for one in self._unwritten]
        try:
            self.log.write(lines, self.controller.snapshot())
        except sqlite3.Error as error:  # a full disk: nobody sees what a death would make unknown
            self._failures += 1
            _LOG.error("the log of actions cannot be written", extra={"error": str(error)})
            return False
        changes, self._unwritten = self._unwritten, []
        self._written_ns = present_ns
        self.left_out = dict(self.controller.left_out)
        if changes or present_ns - self._pruned_ns >= _PRUNE_NS:
            self.shown = self.controller.actions()
        for one in changes:
            self._kinds[one.kind.value, one.state.value] += 1
        if changes:
            self._hooks.on_changes(changes)
            self._tell_people(changes)
        if present_ns - self._pruned_ns >= _PRUNE_NS:
            self._pruned_ns = present_ns
            known = [one.action_id for one in self.shown]
            self.log.forget_before(present_ns - _KEPT_NS, known)
        return True

    def _tell_people(self, changes: Sequence[Action]) -> None:
        """Give the pages among the changes to those who tell people."""
        if self.controller.config.is_dry_run:
            return
        for one in changes:
            if one.kind is ActionKind.NOTIFY:
                for tell in self.tellers:
                    tell(one.verdict_id, one.detail or one.reason)

    def _line(self, action: Action) -> LogLine:
        value = encode_action(action)
        return LogLine(0, action.action_id, action.changed_ns, value, self._signer.header(value))

    def start(self) -> None:
        """Put the new epoch on the disk, so that executors refuse what an engine before this one might still say."""
        self._write(self._clock_ns())

    def close(self) -> None:
        """Write the state and close the log."""
        self._write(self._clock_ns())
        self.log.close()

    def threads(self) -> Sequence[SupervisedThread]:
        """Return no threads: the ticking thread does all."""
        return ()

    def status(self) -> Mapping[str, Any]:
        """Return how many actions there are by state, and what had no effect."""
        states = Counter(one.state.value for one in self.shown)
        return {
            "is_dry_run": self.controller.config.is_dry_run,
            "epoch": self.controller.epoch,
            "states": dict(sorted(states.items())),
            "left_out": dict(sorted(self.left_out.items())),
            "unwritten": len(self._unwritten),
            "failures": self._failures,
        }

    def families(self) -> Sequence[Family]:
        """Return the metrics: actions by state, their changes, and what had no effect."""
        states = Counter((one.kind.value, one.state.value) for one in self.shown)
        present = tuple(
            Sample({"kind": kind, "state": state}, count) for (kind, state), count in sorted(states.items())
        )
        changes = tuple(
            Sample({"kind": kind, "state": state}, count) for (kind, state), count in sorted(self._kinds.items())
        )
        left_out = tuple(Sample({"reason": name}, count) for name, count in sorted(self.left_out.items()))
        return [
            Family("tocsin_actions", "gauge", "Actions that are remembered, by kind and state.", present),
            Family("tocsin_action_changes_total", "counter", "Changes of actions, by kind and new state.", changes),
            Family("tocsin_action_messages_left_out_total", "counter", "Messages without effect, by reason.", left_out),
        ]

    def handlers(self) -> Mapping[str, Handler]:
        """Return the requests of people."""
        return self.requests

    def snapshot(self) -> dict[str, bytes]:
        """Return no parts: the log holds the state."""
        return {}

    def restore(self, parts: Mapping[str, bytes]) -> None:
        """Keep the state of the log, which is never older than a snapshot's."""
