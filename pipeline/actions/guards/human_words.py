"""What people said stays said: vetoes on a machine and cause, and detectors that were proved wrong."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from tocsin.pipeline.actions.config import ns
from tocsin.pipeline.actions.guards.guard import ActionCase, GuardOutcome, Ruling
from tocsin.pipeline.actions.reasons import ActionReason
from tocsin.pipeline.actions.tracked import TrackedAction
from tocsin.schemas.actions import HARD_KINDS
from tocsin.schemas.job_key import FLEET_JOB_ID, IDLE_JOB_ID

_MOST_COUNT = 10_000


class VetoGuard:
    """Holds a hard action on a machine that a person gave back, or denied, for the same cause.

    It holds until evidence of another kind comes, or the veto is over.
    """

    name = "vetoes"

    def __init__(self) -> None:
        """Start without vetoes."""
        self._vetoes: dict[tuple[str, str, str], tuple[int, str]] = {}
        """(cluster, host, cause) -> when it was said, and the signals that were known then, one a line."""

    def veto(self, tracked: TrackedAction, hosts: Sequence[str], now_ns: int) -> None:
        """Veto the cause of an action on some of its machines."""
        cluster, cause = tracked.action.target.job.cluster, tracked.action.cause
        for host in hosts:
            _, signals = self._vetoes.pop((cluster, host, cause), (0, ""))
            known = sorted({*signals.split("\n"), tracked.signal} - {""})
            self._vetoes[cluster, host, cause] = now_ns, "\n".join(known)
        while len(self._vetoes) > _MOST_COUNT:
            del self._vetoes[next(iter(self._vetoes))]

    def judge(self, case: ActionCase) -> Ruling | None:
        """See ``Guard.judge``."""
        if case.action.kind not in HARD_KINDS:
            return None
        for host in case.tracked.hosts:
            said_ns, signals = self._vetoes.get((case.cluster, host, case.action.cause), (0, ""))
            is_over = case.now_ns - said_ns >= ns(case.config.veto_seconds)
            if said_ns and not is_over and case.tracked.signal in signals.split("\n"):
                return Ruling(GuardOutcome.HOLD, ActionReason.VETOED, f"{host}: {case.action.cause}")
        return None

    def to_state(self) -> list[Any]:
        """Return the state as JSON-able values."""
        return [[list(key), list(value)] for key, value in self._vetoes.items()]

    def load_state(self, state: Sequence[Any]) -> None:
        """Replace the state by what ``to_state`` returned."""
        self._vetoes = {(key[0], key[1], key[2]): (value[0], value[1]) for key, value in state}


class WrongDetectorGuard:
    """Refuses proposals of a detector that was proved wrong several times on one attempt of a job.

    Machines without a job have no attempt: there each machine counts by itself, until it boots.
    """

    name = "wrong_detectors"

    def __init__(self) -> None:
        """Start with trust in all detectors."""
        self._wrong: dict[tuple[str, str, int, str], list[str]] = {}
        """(cluster, job or machine, attempt, detector) -> verdicts that were wrong."""

    def proved_wrong(self, tracked: TrackedAction) -> None:
        """Note that a person or a check proved the verdict of an action wrong."""
        for place in _places(tracked):
            known = self._wrong.setdefault(place, [])
            if tracked.action.verdict_id not in known and len(known) < _KEPT_COUNT:
                known.append(tracked.action.verdict_id)
        while len(self._wrong) > _MOST_COUNT:
            del self._wrong[next(iter(self._wrong))]

    def judge(self, case: ActionCase) -> Ruling | None:
        """See ``Guard.judge``."""
        known = max((self._wrong.get(place, []) for place in _places(case.tracked)), key=len, default=[])
        if len(known) < case.config.wrong_count:
            return None
        detail = f"{case.tracked.detector} was wrong with {' '.join(known)}"
        return Ruling(GuardOutcome.REFUSE, ActionReason.DETECTOR_WRONG, detail)

    def to_state(self) -> list[Any]:
        """Return the state as JSON-able values."""
        return [[list(key), list(names)] for key, names in self._wrong.items()]

    def load_state(self, state: Sequence[Any]) -> None:
        """Replace the state by what ``to_state`` returned."""
        self._wrong = {(key[0], key[1], key[2], key[3]): list(names) for key, names in state}


def _places(tracked: TrackedAction) -> list[tuple[str, str, int, str]]:
    """Return where a detector's mistakes count for an action: its job's attempt, or each machine without a job."""
    target = tracked.action.target
    job = target.job
    if job.job_id not in {IDLE_JOB_ID, FLEET_JOB_ID}:
        return [(job.cluster, job.job_id, job.attempt, tracked.detector)]
    return [(job.cluster, f"{one.host} {one.boot_id}", 0, tracked.detector) for one in target.machines]


_KEPT_COUNT = 16
"""Most wrong verdicts of one detector and attempt that are remembered."""
