"""What became of a drill that acts, and whether it is right. Pure functions."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Final

from tocsin.schemas.printable import json_text, plain

WANTED_STEPS: Final = 50
"""Later steps that must equal those of an undisturbed run."""


@dataclass(frozen=True, slots=True)
class ActOutcome:
    """What became of a drill that acts.

    Attributes:
        struck: host that was struck.
        named: hosts that the verdict named.
        action_id: id of the action that was carried out, "" for none.
        kind: its kind, "" for none.
        left_out: hosts that it left out.
        checkpoint_step: step from which the job went on, -1 if it did not.
        equal_steps: later steps whose losses equal those of an undisturbed run, None: they were not compared.
        seconds: time from the strike until the job trained beyond its checkpoint again, None: it does not train.
    """

    struck: str
    named: tuple[str, ...]
    action_id: str = ""
    kind: str = ""
    left_out: tuple[str, ...] = ()
    checkpoint_step: int = -1
    equal_steps: int | None = None
    seconds: float | None = None


def what_is_wrong(outcome: ActOutcome, wanted_kind: str) -> str:
    """Return one sentence about what is wrong, "" if all is right.

    Args:
        outcome: what became of the drill.
        wanted_kind: kind of the action that is right.
    """
    left_out = (outcome.struck,) if wanted_kind == "evict" else ()
    if outcome.named != (outcome.struck,):
        return f"named: {', '.join(outcome.named) or 'nobody'}, struck: {outcome.struck}"
    if outcome.kind != wanted_kind:
        return f"the action is {outcome.kind or 'none'}, not {wanted_kind}"
    if outcome.left_out != left_out:
        return f"left out: {', '.join(outcome.left_out) or 'nobody'}"
    if outcome.seconds is None:
        return "the job does not train again"
    if outcome.equal_steps is not None and outcome.equal_steps < WANTED_STEPS:
        return f"only {outcome.equal_steps} later steps equal those of an undisturbed run, not {WANTED_STEPS}"
    return ""


def json_line(outcome: ActOutcome) -> str:
    """Return the outcome as one JSON object."""
    found = asdict(outcome)
    found["named"] = outcome.named[0] if len(outcome.named) == 1 else list(outcome.named)
    found["left_out"] = list(outcome.left_out)
    return json_text(found)


def outcome_text(outcome: ActOutcome, wrong: str) -> str:
    """Return the outcome as one line for people."""
    if wrong:
        return plain(f"WRONG  {wrong}")
    without = f" without {', '.join(outcome.left_out)}" if outcome.left_out else ""
    equal = "" if outcome.equal_steps is None else f", {outcome.equal_steps} later steps equal an undisturbed run's"
    text = f"right  {outcome.struck} struck and named; {outcome.kind}{without} (action {outcome.action_id[:12]})"
    again = f"trains again from step {outcome.checkpoint_step} after {outcome.seconds:.1f} s"
    return plain(f"{text}; {again}{equal}")
