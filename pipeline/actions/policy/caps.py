"""What no policy may do.

No machine is taken for a program's fault, for words, or for a code that says nothing of a machine. And nothing harder
is done about named suspects than the engine proposes, which knows whether the fault is confirmed and the job suffers.
"""

from __future__ import annotations

from typing import Final

from tocsin.pipeline.actions.policy.codes import CODE_ACTIONS, HARDWARE_RANK
from tocsin.pipeline.actions.policy.config import TAKING
from tocsin.pipeline.actions.policy.matching import VerdictFacts
from tocsin.pipeline.actions.policy.reasons import PolicyReason
from tocsin.schemas.actions import HARD_KINDS
from tocsin.schemas.verdicts import ActionKind, Component, ComponentKind

_MILD: Final = frozenset(ActionKind) - HARD_KINDS - {ActionKind.NONE}
_STOPS_JOB: Final = frozenset({ActionKind.RESTART, ActionKind.ROLLBACK, ActionKind.REPLAY})
_TOUCHES_NOTHING: Final = frozenset({ActionKind.NONE, ActionKind.NOTIFY})
_CHANGES_NOTHING: Final = _TOUCHES_NOTHING | {ActionKind.PROBE}


def capped(kind: ActionKind, by: str, facts: VerdictFacts, target: Component | None) -> tuple[ActionKind, str]:
    """Return what a rule asks for and its reason, or something milder where it must not be done.

    Args:
        kind: the kind that the rule asks for.
        by: the rule's name.
        facts: the verdict.
        target: what would be taken; None: the whole job.
    """
    advice = facts.verdict.action
    if facts.verdict.suspects and (
        (kind in _STOPS_JOB and advice in _CHANGES_NOTHING) or (kind is ActionKind.PROBE and advice in _TOUCHES_NOTHING)
    ):
        return _milder(advice)
    if kind not in TAKING:
        return kind, by
    if facts.blames != "machine":
        return ActionKind.NOTIFY, PolicyReason.PROGRAM_BLAMED.value
    if facts.code is not None and CODE_ACTIONS[facts.code.action] < HARDWARE_RANK:
        return ActionKind.NOTIFY, PolicyReason.CODE_TAKES_NOTHING.value
    if facts.is_words_only:
        return ActionKind.NOTIFY, PolicyReason.WORDS_ONLY.value
    if target is None or target.kind is ComponentKind.JOB:
        return ActionKind.NOTIFY, PolicyReason.NOBODY_NAMED.value
    return (kind, by) if advice in HARD_KINDS else _milder(advice)


def _milder(advice: ActionKind) -> tuple[ActionKind, str]:
    """Return what the engine proposes instead, and the reason."""
    return (advice if advice in _MILD else ActionKind.NOTIFY), PolicyReason.MILDER_ADVICE.value
