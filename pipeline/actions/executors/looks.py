"""One look out of those of several machines."""

from __future__ import annotations

from dataclasses import replace
from typing import Final

from tocsin.pipeline.actions.executors.reasons import ExecutorReason
from tocsin.pipeline.actions.executors.target import Look, Stage

_ORDER: Final = (
    Stage.FAILED,
    Stage.REFUSED,
    Stage.EXPIRED,
    Stage.BLOCKED,
    Stage.BEGUN,
    Stage.UNTOUCHED,
    Stage.WAITING,
    Stage.DONE,
)
"""Which machine of several decides: what ends the action first, what is due then, what is there last."""


def joined(looks: list[Look]) -> Look:
    """Return the look of all machines of an action together.

    An action that changed one machine already is begun: what stands against the rest makes it fail.
    """
    if not looks:
        return Look(Stage.REFUSED, ExecutorReason.NO_MACHINE, detail="the action names no machine")
    found = min(looks, key=lambda look: _ORDER.index(look.stage))
    effects = tuple(sorted({effect for look in looks for effect in look.effects}))
    if effects and found.stage in (Stage.REFUSED, Stage.EXPIRED):
        found = replace(found, stage=Stage.FAILED)
    if effects and found.stage is Stage.UNTOUCHED:
        found = replace(found, stage=Stage.BEGUN, reason=ExecutorReason.NEXT_EFFECT_DUE)
    if found.stage is Stage.DONE and any(look.reason is ExecutorReason.DRAINING for look in looks):
        found = replace(found, reason=ExecutorReason.DRAINING)
    return replace(found, effects=effects)
