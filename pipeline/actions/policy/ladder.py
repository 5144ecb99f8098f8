"""The ladder: which actions verdicts, events and results of checks lead to, by the rules of a policy.

In the manner of ByteRobust (SOSP'25, arXiv 2509.16293): a machine fault of high confidence takes the machine out, a
network alert is tolerated once, and a failure without a culprit goes up the steps of its rule each time the job fails
again. The ladder proposes; guards decide. It reads no clock.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

from tocsin.pipeline.actions.ladder import Proposal
from tocsin.pipeline.actions.policy.caps import capped
from tocsin.pipeline.actions.policy.config import Policy, PolicyRule, ProposalTarget, Repetition, Tolerance
from tocsin.pipeline.actions.policy.heard_codes import HeardCodes, code_of_event
from tocsin.pipeline.actions.policy.matching import VerdictFacts, facts_of, fits
from tocsin.pipeline.actions.policy.port_states import PORT_EVENTS, PortStates
from tocsin.pipeline.actions.policy.proposal import RepeatedCode, hosts_of, signal_of
from tocsin.pipeline.actions.policy.proven import proven_fault
from tocsin.pipeline.actions.policy.reasons import PolicyReason
from tocsin.pipeline.actions.policy.repeats import Repeats
from tocsin.pipeline.actions.policy.steps import FailureSteps
from tocsin.pipeline.actions.policy.unexplained import UnexplainedCodes, finding_of
from tocsin.schemas.action_events import CheckResult
from tocsin.schemas.action_states import ActionState
from tocsin.schemas.actions import Action
from tocsin.schemas.cloudevents import decode_verdict, encode_verdict
from tocsin.schemas.errors import SchemaError, SnapshotError
from tocsin.schemas.hardware import cause_of_event
from tocsin.schemas.records import NS_PER_SECOND, Event, JobKey
from tocsin.schemas.verdicts import ActionKind, Component, ComponentKind, Verdict, VerdictState
from tocsin.schemas.wire.validate import dump_json, load_json

STATE_VERSION: Final = 1
_PART: Final = "ladder"
NEXT_STEP_SECONDS: Final = 600.0
"""How long what follows a step that is over may be begun."""
_LIVE: Final = (VerdictState.OPEN, VerdictState.CONFIRMED)
_SAME_ALERT_SECONDS: Final = 5.0
"""Distance up to which an event and a verdict are about one network alert; flaps lie further apart."""
_SAME_FAILURE_SECONDS: Final = 60.0
"""Distance up to which codes of one host are about one failure: its processes die one after the other."""
_USER_CODE: Final = "RESTART_APP"
_NOT_DONE: Final = (ActionState.FAILED, ActionState.REFUSED)
_MOST_JOBS: Final = 10_000
_MOST_CLIMBERS: Final = 1_000


@dataclass(slots=True)
class _Climber:
    """A verdict whose job climbs the steps of a rule, and whether a machine failed the checks that were made for it."""

    verdict: Verdict
    has_failed_check: bool = False


class PolicyLadder:
    """Proposes actions by the rules of a policy; an operator (``tocsin.pipeline.actions.ladder.Ladder``).

    Proposals are repeated with every update of a verdict: (verdict, kind, component) is the same action.
    """

    def __init__(self, policy: Policy) -> None:
        """Start without history."""
        self._policy = policy
        self._alerts = Repeats(_SAME_ALERT_SECONDS)
        self._ports = PortStates(_SAME_ALERT_SECONDS)
        self._failures = Repeats(_SAME_FAILURE_SECONDS)
        self._steps = FailureSteps(policy.forget_seconds)
        self._heard = HeardCodes()
        self._unexplained = UnexplainedCodes()
        self._evicted_ns: dict[str, int] = {}
        self._climbers: dict[str, _Climber] = {}
        """Verdict id -> the verdict whose job climbs the steps of a rule."""
        self._stepped = {one.name: one for one in policy.rules if len(one.kinds) > 1}
        self._repeating = tuple(one for one in policy.rules if one.again is not None)
        self._tolerant = tuple(one for one in policy.rules if one.tolerate is not None)

    def on_verdict(self, verdict: Verdict, now_ns: int) -> tuple[Proposal, ...]:
        """Return the actions that a verdict's update asks for; none where it is closed.

        Args:
            verdict: the update.
            now_ns: the present time.
        """
        if verdict.state not in _LIVE:
            if verdict.state is VerdictState.CANCELLED:
                self._take_back(verdict)
            return ()
        verdict = proven_fault(verdict, self._heard.timed(verdict)) or verdict
        evicted_ns = self._evicted_ns.get(_job_name(verdict.job), 0)
        facts = facts_of(verdict, self._heard.of(verdict), evicted_ns)
        rule = next((one for one in self._policy.rules if fits(one.match, facts)), None)
        if rule is None:
            return (_proposal(verdict, ActionKind.NOTIFY, None, PolicyReason.NO_RULE.value),)
        if len(rule.kinds) > 1:
            key = _key(rule, verdict.job.cluster, verdict.job.job_id)
            index = self._steps.of(key, verdict.verdict_id, verdict.onset_ns, now_ns)
            self._climbers.setdefault(verdict.verdict_id, _Climber(verdict)).verdict = verdict
            _bound(self._climbers, _MOST_CLIMBERS)
            return (_step(rule, facts, index),)
        return tuple(self._ask(rule, facts, target) for target in _targets(rule, verdict))

    def on_event(self, event: Event) -> tuple[RepeatedCode, ...]:
        """Count an event of a host, and return what repetitions ask for.

        No event takes a machine: that needs a verdict. Codes of user programs that come again and again ask people for
        diagnostics.
        """
        meaning = cause_of_event(event)
        alert_ns = self._ports.note(event) if event.name in PORT_EVENTS else None
        for rule in self._tolerant if meaning is not None and meaning.accuses else ():
            key = _key(rule, event.job.cluster, event.host)
            if meaning is None or meaning.cause not in rule.match.cause:
                continue
            if alert_ns is None:
                self._alerts.note_event(key, event.ts_ns)
            else:
                self._alerts.note_port(key, alert_ns, event.ts_ns)
        code = code_of_event(event)
        if code is None or not event.host:
            return ()
        self._heard.hear(event, code)
        found = []
        for rule in self._repeating:
            is_by_code = code.action in rule.match.code
            is_by_cause = code.action == _USER_CODE and meaning is not None and meaning.cause in rule.match.cause
            if rule.again is None or not (is_by_code or is_by_cause):
                continue
            key = _key(rule, event.job.cluster, event.host)
            is_new = self._failures.note_event(key, event.ts_ns)
            is_again = self._failures.count(key, rule.again.within_seconds) >= rule.again.count
            if is_new and is_again and is_by_code:
                found.append(RepeatedCode(event.job, event.host, rule.again.kind, rule.name, event.ts_ns))
        return tuple(found)

    def on_hardware(self, event: Event, now_ns: int) -> tuple[Proposal, ...]:
        """Count an event of a host; what repetitions ask for is proposed by ``on_time`` unless a verdict does.

        Args:
            event: the event.
            now_ns: the present time.
        """
        for repeated in self.on_event(event):
            self._unexplained.add(repeated, now_ns)
        return ()

    def on_action(self, action: Action, now_ns: int) -> tuple[Proposal, ...]:
        """Return what is to be done after an action ended: the next step, where a step is over and helped nobody.

        Checks that ended without a failed machine lead to the next step, and so does a step that was not carried out.
        A step that was carried out is over when the job fails again, which is another verdict.

        Args:
            action: the action in its new state.
            now_ns: the present time.
        """
        if action.kind is ActionKind.EVICT and action.state is ActionState.DONE:
            self.note_eviction(action.target.job, now_ns)
        is_over = action.state in _NOT_DONE or (action.kind is ActionKind.PROBE and action.state is ActionState.DONE)
        rule = self._stepped.get(action.rule)
        climber = self._climbers.get(action.verdict_id)
        if not is_over or rule is None or climber is None or climber.has_failed_check or action.kind not in rule.kinds:
            return ()
        job = climber.verdict.job
        over = rule.kinds.index(action.kind)
        index = self._steps.go_on(_key(rule, job.cluster, job.job_id), action.verdict_id, over, now_ns)
        return () if index is None else (_step(rule, facts_of(climber.verdict), index, NEXT_STEP_SECONDS),)

    def on_check(self, check: CheckResult, now_ns: int) -> tuple[Proposal, ...]:  # noqa: ARG002 - the protocol has it
        """Return what is to be done after a check ended: a machine that fails the checks of a step is evicted.

        Args:
            check: the result; one without a verdict of ours leads to nothing.
            now_ns: the present time.
        """
        climber = self._climbers.get(check.verdict_id)
        if climber is None or check.is_passed:
            return ()
        climber.has_failed_check = True
        target = Component(ComponentKind.HOST, check.host)
        by = PolicyReason.CHECKS_FAILED.value
        return (_proposal(climber.verdict, ActionKind.EVICT, target, by, seconds=NEXT_STEP_SECONDS),)

    def note_eviction(self, job: JobKey, now_ns: int) -> None:
        """Note that a job lost a machine by an eviction."""
        _keep(self._evicted_ns, _job_name(job), now_ns, _MOST_JOBS)

    def on_time(self, now_ns: int) -> tuple[Proposal, ...]:
        """Forget what is too old to count, and return what repeated codes ask for that no verdict told of meanwhile."""
        self._steps.forget(now_ns)
        return tuple(
            _proposal(finding_of(one, now_ns), one.kind, one.target, one.rule)
            for one in self._unexplained.due(now_ns)
            if not self._failures.is_told(f"{one.rule}/{one.job.cluster}/{one.host}", one.at_ns)
        )

    def due_ns(self) -> int | None:
        """Return when ``on_time`` has something to say of repeated codes, None if it has nothing."""
        return self._unexplained.due_ns()

    def snapshot(self) -> dict[str, bytes]:
        """Return the state as named parts; equal states give equal bytes."""
        climbers = [[encode_verdict(one.verdict).decode(), one.has_failed_check] for one in self._climbers.values()]
        state = {
            "version": STATE_VERSION,
            "alerts": self._alerts.to_state(),
            "ports": self._ports.to_state(),
            "failures": self._failures.to_state(),
            "steps": self._steps.to_state(),
            "heard": self._heard.to_state(),
            "evicted_ns": self._evicted_ns,
            "climbers": climbers,
            "unexplained": self._unexplained.to_state(),
        }
        return {_PART: dump_json(state, _PART, sort=False)}

    def restore(self, parts: Mapping[str, bytes]) -> None:
        """Replace the state by the parts that ``snapshot`` returned.

        Raises:
            SnapshotError: the part is missing, damaged or of another version.
        """
        try:
            state: Any = load_json(parts[_PART], _PART)
            if state["version"] != STATE_VERSION:
                raise SnapshotError(f"{_PART}: version {state['version']}, this program reads {STATE_VERSION}")
            self._alerts.load_state(state["alerts"])
            self._ports.load_state(state.get("ports", {}))  # a state of before has none
            self._failures.load_state(state["failures"])
            self._steps.load_state(state["steps"])
            self._heard.load_state(state["heard"])
            self._evicted_ns = dict(state["evicted_ns"])
            climbers = [_Climber(decode_verdict(text.encode()), failed) for text, failed in state["climbers"]]
            self._climbers = {one.verdict.verdict_id: one for one in climbers}
            self._unexplained.load_state(state.get("unexplained", {}))
        except (AttributeError, KeyError, SchemaError, TypeError, ValueError) as error:
            raise SnapshotError(f"{_PART}: {error}") from error

    def _ask(self, rule: PolicyRule, facts: VerdictFacts, target: Component | None) -> Proposal:
        """Return what a rule without steps asks for on one target."""
        verdict, kind, by = facts.verdict, rule.kinds[0], rule.name
        if target is not None:
            key = _key(rule, verdict.job.cluster, target.name)
            if rule.again is not None and self._is_again(rule.again, key, verdict):
                kind = rule.again.kind
            if rule.tolerate is not None and self._is_tolerated(rule.tolerate, key, verdict):
                return _proposal(verdict, ActionKind.NOTIFY, target, PolicyReason.TOLERATED.value)
        kind, by = capped(kind, by, facts, target)
        return _proposal(verdict, kind, target, by, approval=rule.needs_approval)

    def _is_again(self, rule: Repetition, key: str, verdict: Verdict) -> bool:
        """Note a failure and return whether it happened before, as often as a rule counts."""
        failure = self._failures.note_verdict(key, verdict.verdict_id, verdict.onset_ns, verdict.detected_ns)
        return self._failures.count(key, rule.within_seconds, failure.first_ns) >= rule.count

    def _is_tolerated(self, rule: Tolerance, key: str, verdict: Verdict) -> bool:
        """Note an alert and return whether it has neither come again nor stood for long."""
        alert = self._alerts.note_verdict(key, verdict.verdict_id, verdict.onset_ns, verdict.detected_ns)
        is_short = alert.last_ns - alert.first_ns < rule.stands_seconds * NS_PER_SECOND
        return is_short and self._alerts.count(key, rule.within_seconds) < rule.count

    def _take_back(self, verdict: Verdict) -> None:
        """Forget what a withdrawn verdict was counted as."""
        for suspect in verdict.suspects:
            for rules, repeats in ((self._tolerant, self._alerts), (self._repeating, self._failures)):
                for rule in rules:
                    repeats.take_back(_key(rule, verdict.job.cluster, suspect.component.name), verdict.verdict_id)


def _step(rule: PolicyRule, facts: VerdictFacts, index: int, seconds: float | None = None) -> Proposal:
    """Return the step of a rule with this index; beyond the last one people are told."""
    verdict = facts.verdict
    if index < len(rule.kinds):
        kind, by = capped(rule.kinds[index], rule.name, facts, None)
        return _proposal(verdict, kind, None, by, approval=rule.needs_approval, seconds=seconds)
    return _proposal(verdict, ActionKind.NOTIFY, None, PolicyReason.STEPS_EXHAUSTED.value, seconds=seconds)


def _targets(rule: PolicyRule, verdict: Verdict) -> list[Component | None]:
    """Return what a rule acts on; [None]: the whole job."""
    if rule.target is ProposalTarget.COMMON and verdict.common is not None:
        return [verdict.common]
    if rule.target is ProposalTarget.SUSPECTS and verdict.suspects:
        return [one.component for one in verdict.suspects]
    return [None]


def _proposal(
    verdict: Verdict,
    kind: ActionKind,
    target: Component | None,
    by: str,
    *,
    approval: bool = False,
    seconds: float | None = None,
) -> Proposal:
    """Return a proposal for a verdict; what only tells people needs no approval."""
    concerned = hosts_of(verdict, target)
    is_asked = approval and kind is not ActionKind.NOTIFY
    return Proposal(verdict, kind, target, concerned, by, signal_of(verdict), is_asked, seconds)


def _key(rule: PolicyRule, cluster: str, name: str) -> str:
    """Return the key of what a rule remembers of a host or a job."""
    return f"{rule.name}/{cluster}/{name}"


def _job_name(job: JobKey) -> str:
    """Return the name of a job over all its attempts."""
    return f"{job.cluster}/{job.job_id}"


def _keep(values: dict[str, int], key: str, value: int, most_count: int) -> None:
    """Set a value, which becomes the newest; the oldest goes where there are too many."""
    values.pop(key, None)
    values[key] = value
    _bound(values, most_count)


def _bound(values: dict[str, Any], most_count: int) -> None:
    """Forget the oldest value where there is one too many."""
    if len(values) > most_count:
        del values[next(iter(values))]
