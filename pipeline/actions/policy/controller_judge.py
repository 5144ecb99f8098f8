"""The real controller as the judge of a replay: a ladder, all guards, and an executor that does at once what it may.

The replay has no facts about machines and jobs. So jobs are taken to go on with fewer machines, engine and executors
are taken to be alive, checks that an action asks for are never answered, and none is proposed before a machine returns.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Final

from tocsin.pipeline.actions.config import ControllerConfig, ns
from tocsin.pipeline.actions.controller import ActionController
from tocsin.pipeline.actions.ladder import Proposal
from tocsin.pipeline.actions.policy.heard_codes import concerns_policy
from tocsin.pipeline.actions.policy.ladder import PolicyLadder
from tocsin.pipeline.actions.policy.limits import PolicyLimits
from tocsin.pipeline.actions.policy.replay import Decision, DecisionOutcome
from tocsin.pipeline.actions.reasons import ActionReason
from tocsin.schemas.action_events import Ack, AckKind, CheckResult, EngineHeartbeat, EngineWay, ExecutorHeard
from tocsin.schemas.action_states import ActionState
from tocsin.schemas.actions import Action
from tocsin.schemas.job_key import JobKey
from tocsin.schemas.reasons import Reason
from tocsin.schemas.records import NS_PER_SECOND, Event
from tocsin.schemas.verdicts import ActionKind, Verdict

_TICK_NS: Final = 300 * NS_PER_SECOND
"""Distance of ticks. What a guard holds is judged anew at each update of its verdict, and ends ten minutes after it."""
_EXECUTOR: Final = "replay"
_KINDS: Final = tuple(one for one in ActionKind if one not in {ActionKind.NONE, ActionKind.NOTIFY})
_LEASE_SECONDS: Final = 30.0
_OUTCOMES: Final = {
    ActionState.APPROVED: DecisionOutcome.ACT,
    ActionState.WAITING: DecisionOutcome.REFUSED,
    ActionState.WAITING_APPROVAL: DecisionOutcome.WAIT_APPROVAL,
    ActionState.REFUSED: DecisionOutcome.REFUSED,
    ActionState.EXPIRED: DecisionOutcome.REFUSED,
}
_BRIEF: Final = (ActionReason.VERDICT_OPEN, ActionReason.EVIDENCE_GROWS)
"""Reasons that hold an action for seconds: what becomes of it then is the decision."""
_FIRST_ONLY: Final = (ActionState.REFUSED, ActionState.EXPIRED)
"""States that are a decision only if nothing was decided before: else what waited is over."""


def replay_config(limits: PolicyLimits) -> ControllerConfig:
    """Return the settings of a replay: a policy's limits without dry-run.

    Where the policy says neither how many spares there are nor whether jobs can shrink, they can.
    """
    is_silent = limits.spare_count is None and limits.may_shrink is None
    return limits.controller_config(is_dry_run=False, may_shrink=True if is_silent else None)


class ControllerJudge:
    """Drives a controller of actions and tells its decisions."""

    def __init__(self, ladder: PolicyLadder, config: ControllerConfig | None = None) -> None:
        """Start a controller.

        Args:
            ladder: the policy.
            config: settings of the controller, None: those of the policy that ships.
        """
        self._ladder = _ListeningLadder(ladder)
        config = replay_config(PolicyLimits()) if config is None else config
        self._controller = ActionController(replace(config, return_check_seconds=0), self._ladder)
        self._brief_ns = ns(config.evidence_seconds)
        self._brief: dict[str, tuple[int, str]] = {}
        """Action that is held for seconds -> when it is judged anew, and the reason; in order of that time."""
        self._ticked_ns = 0
        self._heard_ns: dict[str, int] = {}
        """Cluster -> when its engine and executor were said to be alive last."""
        self._decided: dict[str, tuple[DecisionOutcome, str]] = {}
        """What was decided last, by action; pages by verdict and target."""

    def on_verdict(self, verdict: Verdict, now_ns: int) -> list[Decision]:
        """Return the new decisions after an update of a verdict."""
        if verdict.reason == Reason.CANARY.value:
            return []
        self._keep_alive(verdict.job.cluster, now_ns)
        actions = self._controller.on_verdict(verdict, now_ns)
        return [*self._told(now_ns), *self._decisions(actions, now_ns)]

    def on_event(self, event: Event, now_ns: int) -> list[Decision]:
        """Return the new decisions after an event; what repeated codes ask for is decided some time later."""
        if not concerns_policy(event):
            return []
        self._keep_alive(event.job.cluster, now_ns)
        actions = self._controller.on_hardware(event, now_ns)
        return [*self._told(now_ns), *self._decisions(actions, now_ns)]

    def on_time(self, now_ns: int) -> Sequence[Decision]:
        """Return the decisions that change because time passed."""
        found = self._settled(now_ns)
        return found if now_ns - self._ticked_ns < _TICK_NS else [*found, *self._tick(now_ns)]

    def end(self) -> Sequence[Decision]:
        """Return the decisions that are due soon after the last record was read."""
        found: list[Decision] = []
        while (due_ns := self._due_ns()) is not None:
            found += self._settled(due_ns)
        return found

    def _due_ns(self) -> int | None:
        """Return when something that is held for seconds, or repeated codes, are to be decided; None: nothing is."""
        brief_ns = next(iter(self._brief.values()))[0] if self._brief else None
        return min((one for one in (brief_ns, self._ladder.policy.due_ns()) if one is not None), default=None)

    def _settled(self, until_ns: int) -> list[Decision]:
        """Return the decisions that were due until a time."""
        found: list[Decision] = []
        while (due_ns := self._due_ns()) is not None and due_ns <= until_ns:
            found += self._tick(due_ns)
            self._brief = {name: one for name, one in self._brief.items() if one[0] > due_ns}
        return found

    def _tick(self, now_ns: int) -> list[Decision]:
        """Let the controller judge anew what is open; return the decisions that change."""
        self._ticked_ns = now_ns
        for cluster in self._heard_ns:
            self._keep_alive(cluster, now_ns)
        actions = self._controller.on_time(now_ns)
        return [*self._told(now_ns), *self._decisions(actions, now_ns)]

    def _keep_alive(self, cluster: str, now_ns: int) -> None:
        """Tell the controller that engine and executor of a cluster are alive."""
        if self._heard_ns.get(cluster) == now_ns:
            return
        self._heard_ns[cluster] = now_ns
        self._controller.on_event(EngineHeartbeat(cluster, EngineWay.EMBEDDED, now_ns), now_ns)
        self._controller.on_event(ExecutorHeard(cluster, _EXECUTOR, _KINDS, now_ns), now_ns)

    def _told(self, now_ns: int) -> Iterable[Decision]:
        """Yield what people are told by the policy since the last call."""
        for proposal in self._ladder.notices():
            verdict, target = proposal.verdict, proposal.component
            name = "" if target is None else f"{target.kind.value} {target.name}"
            key, found = f"{verdict.verdict_id} {name}", (DecisionOutcome.NOTIFY, proposal.rule)
            if self._decided.get(key) != found:
                self._decided[key] = found
                yield Decision(
                    now_ns, verdict.verdict_id, verdict.job.job_id, target, proposal.kind, found[0], proposal.rule
                )

    def _decisions(self, actions: Iterable[Action], now_ns: int) -> Iterable[Decision]:
        """Yield the new decisions among changes of actions, and carry out at once what may be done."""
        for action in actions:
            if self._is_brief(action, now_ns):
                continue
            held = self._brief.pop(action.action_id, None)
            if held is not None and action.state is ActionState.CANCELLED:
                yield self._decision(action, DecisionOutcome.REFUSED, held[1], now_ns)
            outcome = _OUTCOMES.get(action.state)
            if outcome is None or action.kind is ActionKind.NOTIFY:
                continue
            by = action.rule if outcome is DecisionOutcome.ACT else action.reason
            before = self._decided.get(action.action_id)
            if before == (outcome, by) or (before is not None and action.state in _FIRST_ONLY):
                continue
            yield self._decision(action, outcome, by, now_ns)
            if outcome is DecisionOutcome.ACT and action.kind is not ActionKind.PROBE:
                yield from self._decisions(self._carry_out(action, action.target.job, now_ns), now_ns)

    def _is_brief(self, action: Action, now_ns: int) -> bool:
        """Note an action that is held for seconds; return whether it is one, of which nothing was decided before."""
        if action.state is not ActionState.WAITING or action.reason not in _BRIEF or action.action_id in self._decided:
            return False
        self._brief.setdefault(action.action_id, (now_ns + self._brief_ns, action.reason))
        return True

    def _decision(self, action: Action, outcome: DecisionOutcome, by: str, now_ns: int) -> Decision:
        """Return a decision about an action, which is then the last one."""
        self._decided[action.action_id] = (outcome, by)
        job, target = action.target.job, action.target.component
        verdict_id = "" if action.verdict_id in self._ladder.findings else action.verdict_id
        return Decision(now_ns, verdict_id, job.job_id, target, action.kind, outcome, by)

    def _carry_out(self, action: Action, job: JobKey, now_ns: int) -> list[Action]:
        """Do an action; return what the controller says then."""
        found: list[Action] = []
        for seq, kind in enumerate((AckKind.CLAIMED, AckKind.STARTED, AckKind.DONE), 1):
            lease_ns = now_ns + ns(_LEASE_SECONDS) if kind is AckKind.CLAIMED else 0
            effects = ("replayed",) if kind is AckKind.DONE else ()
            ack = Ack(action.action_id, job, kind, _EXECUTOR, action.epoch, seq, now_ns, lease_ns, effects=effects)
            found += self._controller.on_ack(ack, now_ns)
        return [one for one in found if one.action_id != action.action_id]


class _ListeningLadder:
    """The policy's ladder, as the controller asks it; what it only tells people is kept for the replay.

    Attributes:
        policy: the ladder.
        findings: ids of the policy's own findings, of which no verdict tells.
    """

    def __init__(self, policy: PolicyLadder) -> None:
        """Listen to a ladder."""
        self.policy = policy
        self.findings: set[str] = set()
        self._notices: list[Proposal] = []

    def notices(self) -> list[Proposal]:
        """Return what people were told since the last call."""
        found, self._notices = self._notices, []
        return found

    def on_verdict(self, verdict: Verdict, now_ns: int) -> list[Proposal]:
        """See ``Ladder.on_verdict``."""
        return self._acting(self.policy.on_verdict(verdict, now_ns))

    def on_action(self, action: Action, now_ns: int) -> list[Proposal]:
        """See ``Ladder.on_action``."""
        return self._acting(self.policy.on_action(action, now_ns))

    def on_check(self, check: CheckResult, now_ns: int) -> list[Proposal]:
        """See ``Ladder.on_check``."""
        return self._acting(self.policy.on_check(check, now_ns))

    def on_hardware(self, event: Event, now_ns: int) -> list[Proposal]:
        """See ``Ladder.on_hardware``."""
        return self._acting(self.policy.on_hardware(event, now_ns))

    def on_time(self, now_ns: int) -> list[Proposal]:
        """See ``Ladder.on_time``."""
        found = self._acting(self.policy.on_time(now_ns))
        self.findings.update(one.verdict.verdict_id for one in found)
        return found

    def snapshot(self) -> dict[str, bytes]:
        """See ``Ladder.snapshot``."""
        return self.policy.snapshot()

    def restore(self, parts: Mapping[str, bytes]) -> None:
        """See ``Ladder.restore``."""
        self.policy.restore(parts)

    def _acting(self, proposals: Sequence[Proposal]) -> list[Proposal]:
        """Keep the notices among proposals, and return the others."""
        self._notices += [one for one in proposals if one.kind is ActionKind.NOTIFY]
        return [one for one in proposals if one.kind is not ActionKind.NOTIFY]
