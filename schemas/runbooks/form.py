"""The form of a runbook, and what each proposed action means for a person."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final, NamedTuple

from tocsin.schemas.verdicts import ActionKind


class Lookalike(NamedTuple):
    """Something else that shows the same signs.

    Attributes:
        name: a word of ``tocsin.schemas.causes``, or other words for what is no cause.
        difference: how a person tells it apart.
    """

    name: str
    difference: str


class HandStep(NamedTuple):
    """One step that a person takes.

    Attributes:
        text: what to do, and what the answer means.
        command: the command that does it; "" if it takes none. ``HOST``, ``JOB``, ``ID`` stand for the incident's.
    """

    text: str
    command: str = ""


@dataclass(frozen=True, slots=True)
class Runbook:
    """What a person needs who is woken for one cause.

    Attributes:
        cause: the word of ``tocsin.schemas.causes``.
        signs: what it looks like.
        lookalikes: what it is confused with.
        steps: what to do by hand, in this order.
    """

    cause: str
    signs: tuple[str, ...]
    lookalikes: tuple[Lookalike, ...]
    steps: tuple[HandStep, ...]


ACTION_BY_HAND: Final[Mapping[ActionKind, str]] = {
    ActionKind.NONE: "nothing yet: the job does not suffer; look again when its state changes",
    ActionKind.NOTIFY: "look at it: no machine has to be taken away for this",
    ActionKind.PROBE: "check the machine under load while the job goes on, before it is taken away",
    ActionKind.RESTART: "restart the job from its last checkpoint; read the last words of the named processes first",
    ActionKind.DRAIN: "let no new job onto the machine, and move this one away at its next checkpoint",
    ActionKind.EVICT: "take the machine out, restart the job without it, and have its hardware checked",
    ActionKind.REPLAY: "run the same steps on other machines, and compare the numbers",
    ActionKind.ROLLBACK: "stop the job and start it from the last checkpoint before the fault began",
    ActionKind.RESET_GPU: "take the work off the GPU, reset it, and have it checked under load before it works again",
    ActionKind.REBOOT: "take the work off the machine, reboot it, and have it checked under load before it works again",
}
"""Proposed action -> what a person does who carries it out."""


_ANNOUNCE: Final = HandStep(
    "Before you work on the machine, announce it: nobody is paged for it, and it counts as no repeat offence.",
    "tocsin maintenance HOST --for 2h --reason TEXT",
)
_JUDGE: Final = HandStep(
    "Say whether tocsin was right, true or false: only upheld verdicts make a repeat offender.",
    "tocsin feedback ID true --note TEXT",
)
_CLOSE: Final = HandStep("When it is dealt with, close it.", "tocsin incidents close ID --note TEXT")


def telling_steps(blames: str) -> tuple[HandStep, ...]:
    """Return what a person tells tocsin of an incident, in this order.

    Args:
        blames: whom the cause blames: ``machine``, ``program`` or ``nobody``.
    """
    return (_ANNOUNCE, _JUDGE, _CLOSE) if blames == "machine" else (_JUDGE, _CLOSE)
