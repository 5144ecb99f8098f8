"""The states of a verdict and the transitions between them, in one table; ``docs/incidents.md`` shows the same table.

Whoever writes verdict lines obeys it: a line that it does not allow is a defect. ``LifeCheck`` finds such lines.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from enum import StrEnum
from typing import Final

from tocsin.schemas.reasons import Reason
from tocsin.schemas.verdicts import ActionKind, Verdict, VerdictState

OPEN, CONFIRMED = VerdictState.OPEN, VerdictState.CONFIRMED
CANCELLED, EXPIRED, RESOLVED = VerdictState.CANCELLED, VerdictState.EXPIRED, VerdictState.RESOLVED
LIVE: Final = (OPEN, CONFIRMED)
"""States of an incident that stands."""
CLOSED: Final = (CANCELLED, EXPIRED, RESOLVED)
"""States of an incident that is over."""


class Actor(StrEnum):
    """Who causes a transition."""

    ENGINE = "engine"
    JOB_END = "job's end"
    PERSON = "person"


class ActionEffect(StrEnum):
    """What a transition does to the action that the verdict proposed before."""

    REPLACES = "the action of the new line is proposed; another one that was proposed before is cancelled"
    PROLONGS = "the same action, with a later deadline"
    SOFTENS = "a hard action is cancelled, and a probe is proposed"
    CANCELS = "cancelled; what was carried out stays"
    EXPIRES = "expired; what was carried out stays"


@dataclass(frozen=True, slots=True)
class Transition:
    """One kind of change in a verdict's life.

    Attributes:
        before: states from which it leads; empty: the verdict has no line yet.
        after: states to which it leads.
        reasons: reasons that its line may carry; empty: any reason of evidence (``is_evidence``).
        actor: who causes it.
        effect: what it does to the proposed action.
        meaning: when it happens, as one sentence.
        keeps_state: whether state, fault and suspects are as before.
    """

    before: tuple[VerdictState, ...]
    after: tuple[VerdictState, ...]
    reasons: tuple[Reason, ...]
    actor: Actor
    effect: ActionEffect
    meaning: str
    keeps_state: bool = False


_LOST: Final = (Reason.ENGINE_RESTARTED, Reason.OPERATOR_FAILED, Reason.CLOCK_JUMPED)

TRANSITIONS: Final = (
    Transition(
        (),
        (OPEN,),
        (),
        Actor.ENGINE,
        ActionEffect.REPLACES,
        "Evidence shows a fault that no open incident explains.",
    ),
    Transition(
        CLOSED,
        (OPEN,),
        (),
        Actor.ENGINE,
        ActionEffect.REPLACES,
        "Newer evidence shows the same fault of the same onset again: the incident goes on under its id.",
    ),
    Transition(
        LIVE,
        (OPEN,),
        (),
        Actor.ENGINE,
        ActionEffect.REPLACES,
        "The evidence names other suspects, another cause or another action, and has not held for long enough yet.",
    ),
    Transition(
        LIVE,
        (CONFIRMED,),
        (),
        Actor.ENGINE,
        ActionEffect.REPLACES,
        "The evidence has held for as long as this fault must hold; or it changes what is confirmed.",
    ),
    Transition(
        LIVE,
        LIVE,
        (Reason.STILL_TRUE,),
        Actor.ENGINE,
        ActionEffect.PROLONGS,
        "A renewal: it holds as before when its action would have expired. It is news to nobody.",
        keeps_state=True,
    ),
    Transition(
        (CONFIRMED,),
        (CONFIRMED,),
        (Reason.FLAPPING,),
        Actor.ENGINE,
        ActionEffect.SOFTENS,
        "A fault that comes and goes is away at present.",
        keeps_state=True,
    ),
    Transition(
        LIVE,
        (CANCELLED,),
        (),
        Actor.ENGINE,
        ActionEffect.CANCELS,
        "Contradicting evidence frees all suspects: the reason is that of the finding which explains it otherwise.",
    ),
    Transition(
        LIVE,
        (CANCELLED,),
        (Reason.MONITORING_LOST,),
        Actor.ENGINE,
        ActionEffect.CANCELS,
        "Named for its silence, it speaks again; or, never confirmed, the hosts that showed it fell silent.",
    ),
    Transition(
        (OPEN,),
        (CANCELLED,),
        (Reason.RECOVERED,),
        Actor.ENGINE,
        ActionEffect.CANCELS,
        "What was seen has gone before it was ever confirmed.",
    ),
    Transition(
        LIVE,
        (RESOLVED,),
        (Reason.RECOVERED,),
        Actor.ENGINE,
        ActionEffect.CANCELS,
        "What was confirmed has gone, and the hosts that showed it still speak.",
    ),
    Transition(
        LIVE,
        (RESOLVED,),
        (Reason.NEW_NORMAL,),
        Actor.ENGINE,
        ActionEffect.CANCELS,
        "The slower pace has lasted for so long that it counts as the job's normal pace now.",
    ),
    Transition(
        LIVE,
        (EXPIRED,),
        (Reason.EXPIRED,),
        Actor.ENGINE,
        ActionEffect.EXPIRES,
        "Its deadline passed without newer evidence: the source fell silent, or nothing can show it now.",
    ),
    Transition(
        LIVE,
        (EXPIRED,),
        _LOST,
        Actor.ENGINE,
        ActionEffect.EXPIRES,
        "The engine lost the state behind it; what still holds is told again.",
    ),
    Transition(
        LIVE,
        (RESOLVED,),
        (Reason.JOB_ENDED, Reason.NEW_ATTEMPT),
        Actor.JOB_END,
        ActionEffect.CANCELS,
        "The job ended, or goes on in another attempt.",
    ),
    Transition(
        (OPEN,),
        (CANCELLED,),
        (Reason.JOB_ENDED, Reason.NEW_ATTEMPT),
        Actor.JOB_END,
        ActionEffect.CANCELS,
        "As before, for a slowdown or a standstill that was never confirmed: the job's end explains it.",
    ),
    Transition(
        LIVE,
        (RESOLVED,),
        (Reason.CLOSED_BY_HUMAN,),
        Actor.PERSON,
        ActionEffect.CANCELS,
        "A person closed it (`tocsin incidents close`); actor and note are its first evidence.",
    ),
)
"""All transitions. Planned work has none: an incident during it lives as any other, and is paged to nobody."""

_NAMED: Final = frozenset(reason.value for one in TRANSITIONS for reason in one.reasons)


def is_evidence(reason: str) -> bool:
    """Return whether a reason tells what evidence shows, and not what became of the verdict."""
    return reason not in _NAMED


def transition_of(before: VerdictState | None, after: VerdictState, reason: str) -> Transition | None:
    """Return the transition between two lines of one verdict; None: the table does not allow it.

    Args:
        before: state of the line before; None: there is none.
        after: state of the new line.
        reason: reason of the new line.
    """
    for one in TRANSITIONS:
        starts = before in one.before if before is not None else not one.before
        speaks = reason in one.reasons if one.reasons else is_evidence(reason)
        if starts and speaks and after in one.after and (not one.keeps_state or after is before):
            return one
    return None


def actor_of(reason: str) -> Actor:
    """Return who causes the transitions with this reason."""
    return next((one.actor for one in TRANSITIONS if reason in one.reasons), Actor.ENGINE)


class LifeCheck:
    """Follows verdict lines, and says which of them the table does not allow."""

    def __init__(self) -> None:
        """Start without lines."""
        self._last: dict[str, Verdict] = {}

    def see(self, line: Verdict) -> str:
        """Take the next line of its verdict; return what is wrong with it as a sentence, "" for nothing."""
        before = self._last.get(line.verdict_id)
        self._last[line.verdict_id] = line
        told = f"{line.verdict_id}.{line.update}: {'none' if before is None else before.state} -> {line.state}"
        found = transition_of(None if before is None else before.state, line.state, line.reason)
        if found is None:
            return f"{told} with reason {line.reason}: no such transition"
        if before is not None and line.update <= before.update:
            return f"{told}: its update follows update {before.update}"
        if before is not None and line.detected_ns < before.detected_ns:
            return f"{told}: it is {before.detected_ns - line.detected_ns} ns older than the line before"
        return _wrong_action(found, before, line, told)

    def see_all(self, lines: Iterable[Verdict]) -> list[str]:
        """Take lines in their order; return a sentence for each that is wrong."""
        return [wrong for line in lines if (wrong := self.see(line))]


def _wrong_action(found: Transition, before: Verdict | None, line: Verdict, told: str) -> str:
    """Return what is wrong with the action of a line, "" for nothing.

    Args:
        found: the line's transition.
        before: the line before it.
        line: the line.
        told: the beginning of the sentence.
    """
    if found.effect in (ActionEffect.CANCELS, ActionEffect.EXPIRES) and line.action is not ActionKind.NONE:
        return f"{told}: a closed verdict proposes {line.action}"
    if found.effect is ActionEffect.SOFTENS and line.action is not ActionKind.PROBE:
        return f"{told}: {line.action} where a probe is due"
    if before is None or not found.keeps_state:
        return ""
    if (before.fault, before.suspects, before.cause) != (line.fault, line.suspects, line.cause):
        return f"{told}: {line.reason} changes what is told"
    if found.effect is ActionEffect.PROLONGS and (before.action is not line.action):
        return f"{told}: a renewal changes {before.action} to {line.action}"
    return ""


def markdown_table() -> str:
    """Return the table of transitions as Markdown, for ``docs/incidents.md``."""
    head = ["from", "to", "reasons", "who", "what becomes of the proposed action", "when"]
    rows = [
        [
            _states(one.before) or "(nothing)",
            "the same" if one.keeps_state else _states(one.after),
            ", ".join(f"`{reason.value}`" for reason in one.reasons) or "of the evidence",
            one.actor.value,
            one.effect.value,
            one.meaning,
        ]
        for one in TRANSITIONS
    ]
    lines = [head, ["---"] * len(head), *rows]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def _states(states: Iterable[VerdictState]) -> str:
    """Return states as text."""
    return ", ".join(state.value for state in states)
