"""The action that a verdict proposes, by its finding's cause, its confirmation and its witnesses.

Actions that take a machine away (drain, evict, replay) need witnesses on other hosts. Without them the verdict
proposes a milder action, and its evidence says why.
"""

from __future__ import annotations

from tocsin.pipeline.job.witnesses import NEEDS_FOLLOWERS, harmed_hosts
from tocsin.pipeline.rca.finding import Finding
from tocsin.schemas.actions import HARD_KINDS
from tocsin.schemas.causes import CAUSES
from tocsin.schemas.reasons import Reason
from tocsin.schemas.verdicts import ActionKind, Evidence, FaultKind, Verdict

DECIDER = "decide"
"""The detector named by evidence that ``decide`` itself adds."""
STANDSTILL = (FaultKind.FAIL_STOP, FaultKind.HANG)
"""Faults with which the job makes no progress."""
_NAMED_COUNT = 4
"""Accused machines that an evidence text lists by name."""


def is_hard(verdict: Verdict) -> bool:
    """Return whether a verdict proposes to take a machine away."""
    return verdict.action in HARD_KINDS


def is_withheld(verdict: Verdict) -> bool:
    """Return whether only the lack of witnesses keeps a verdict from proposing a hard action."""
    return any(evidence.metric == Reason.ONE_WITNESS.value for evidence in verdict.evidence)


def action_of(finding: Finding, *, confirmed: bool, hard: bool) -> tuple[ActionKind, tuple[Evidence, ...]]:
    """Return the action to propose for a finding, and the evidence to show with it.

    An action that takes a machine away needs enough witnesses. An action that stops the whole job needs other hosts
    that stopped, too.

    Args:
        finding: the explanation that holds now.
        confirmed: whether the finding has lasted long enough to be confirmed.
        hard: whether it has lasted long enough to take a machine away.

    Returns:
        The action, and the finding's evidence. Where witnesses lack, one more piece of evidence says so.
    """
    action, evidence = _wished_action(finding, confirmed=confirmed, hard=hard), finding.evidence
    if action in HARD_KINDS and not finding.has_witnesses:
        evidence = (*evidence, _too_few(finding, action))
        action = _milder(finding)
    is_alone = action in NEEDS_FOLLOWERS and finding.is_lone
    return (ActionKind.NOTIFY if is_alone else action), evidence


def repeated_action(finding: Finding, verdict: Verdict) -> tuple[ActionKind, tuple[Evidence, ...]]:
    """Return the action for a finding that repeats a confirmed verdict, and the evidence to show with it.

    Args:
        finding: the finding that repeats the verdict.
        verdict: the verdict; it proposed a hard action, or would have with enough witnesses.

    Returns:
        The verdict's action, or its cause's own action once there are enough witnesses; and the finding's evidence.
    """
    if is_hard(verdict) or not finding.has_witnesses:
        return verdict.action, finding.evidence
    evidence = tuple(one for one in finding.evidence if one.metric != Reason.ONE_WITNESS.value)
    return CAUSES[verdict.cause].action, evidence


def _too_few(finding: Finding, wished: ActionKind) -> Evidence:
    """Return the evidence that says why witnesses do not suffice for the wished action."""
    accused = finding.accused
    others = sorted(harmed_hosts(finding.witnesses, accused))
    who = f"of all others only {', '.join(others)}" if others else f"nobody but {', '.join(accused[:_NAMED_COUNT])}"
    text = f"{who} saw it: not enough to {wished.value} a machine"
    if len(others) > 1 and finding.fault is FaultKind.FAIL_SLOW:
        text = f"it is slower than {', '.join(others)}, and no event tells more: not enough to {wished.value} a machine"
    elif len(others) > 1:
        text = f"only the program's own words tell it: not enough to {wished.value} a machine"
    return Evidence(DECIDER, Reason.ONE_WITNESS.value, 0.0, finding.onset_ns, finding.onset_ns, text)


def _wished_action(finding: Finding, *, confirmed: bool, hard: bool) -> ActionKind:
    """Return the action that ``action_of`` would propose if there were enough witnesses."""
    if finding.fault is FaultKind.DEGRADED:
        return ActionKind.NONE
    if not finding.suspects:
        mild = CAUSES[finding.cause].blames == "nobody"
        return CAUSES[finding.cause].action if mild else ActionKind.NOTIFY
    action = CAUSES[finding.cause].action
    if finding.fault is FaultKind.HANG and action in HARD_KINDS and not (finding.certain or finding.is_by_part):
        # The process lives and is elsewhere (an evaluation of its own, a full disk): no machine is shown to be bad.
        action = ActionKind.RESTART
    if finding.is_soft and action is ActionKind.RESTART:
        action = ActionKind.NOTIFY
    if not confirmed:
        return ActionKind.PROBE if action in HARD_KINDS else ActionKind.NOTIFY
    if action in HARD_KINDS and (finding.is_soft or not hard):
        return ActionKind.NOTIFY if finding.is_soft else ActionKind.PROBE
    return action


def _milder(finding: Finding) -> ActionKind:
    """Return the action in place of a hard one: a restart for a job that stopped, else a probe of the machine."""
    stopped = finding.certain or finding.reason is Reason.SILENT_AND_PEERS_STALLED
    followed = stopped or bool(harmed_hosts(finding.witnesses, finding.accused))
    if finding.fault in STANDSTILL and followed and not finding.is_lone:
        return ActionKind.RESTART
    return ActionKind.PROBE
