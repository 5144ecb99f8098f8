"""Verdicts for the tests of alerts."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from tocsin.schemas.records import NS_PER_SECOND, JobKey
from tocsin.schemas.verdicts import (
    ActionKind,
    Component,
    ComponentKind,
    Evidence,
    FaultKind,
    Suspect,
    Verdict,
    VerdictState,
)

START_NS = 1_800_000_000 * NS_PER_SECOND


def at(second: float) -> int:
    """Return an instant of the tests in Unix nanoseconds."""
    return START_NS + int(second * NS_PER_SECOND)


def verdict(
    number: int = 1, second: float = 0.0, *, host: str = "n1", metric: str = "gpu_util_ratio", **fields: Any
) -> Verdict:
    """Return a confirmed fail-stop verdict of one host.

    Args:
        number: its id.
        second: stream time of the update.
        host: the suspect.
        metric: metric of its evidence.
        fields: other fields of the verdict.
    """
    plain = Verdict(
        f"{number:016x}",
        JobKey("c", "j"),
        FaultKind.FAIL_STOP,
        "gpu_lost",
        (Suspect(Component(ComponentKind.HOST, host)),),
        at(0),
        at(second),
        0.9,
        ActionKind.EVICT,
        "first_fatal_exit",
        (Evidence("d", metric, 2.0, at(0), at(second)),),
        VerdictState.CONFIRMED,
        0,
        at(second + 600),
    )
    return replace(plain, **fields)
