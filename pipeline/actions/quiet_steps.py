"""Counts the steps that were made on each machine since the last sign of a fault there."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from tocsin.schemas.action_events import QuietSteps
from tocsin.schemas.records import JobKey
from tocsin.schemas.verdicts import Verdict, VerdictState

_MOST_HOSTS: Final = 100_000
_SIGNS: Final = frozenset({VerdictState.OPEN, VerdictState.CONFIRMED})


@dataclass(slots=True)
class _Quiet:
    """Steps of one machine: the attempt, the step before the first one that counts, and how often they were told."""

    job: JobKey
    base_step: int
    told_count: int = 0


class QuietCounter:
    """Counts on one machine from its last sign of a fault, or from its first step in an attempt, whichever is later.

    It is not kept over a restart: counting begins anew, and a machine comes back later, never earlier.
    """

    def __init__(self, step_count: int) -> None:
        """Count nothing yet.

        Args:
            step_count: after so many quiet steps, and each time after as many more, it is told.
        """
        self._step_count = step_count
        self._hosts: dict[tuple[str, str], _Quiet] = {}
        self._accused: dict[tuple[str, str], dict[str, int]] = {}
        """Machine -> the verdicts that name it and stand, each with its expiry."""

    def on_step(self, job: JobKey, host: str, step: int, ts_ns: int) -> QuietSteps | None:
        """Take that a step ended on a machine; return what is to be told, None for nothing.

        Args:
            job: the attempt.
            host: the machine.
            step: number of its newest step.
            ts_ns: when it ended.
        """
        key = job.cluster, host
        known = None if self._is_accused(key, ts_ns) else self._hosts.get(key)
        if known is None or known.job != job or step < known.base_step:
            self._hosts.pop(key, None)
            self._hosts[key] = _Quiet(job, step)
            if len(self._hosts) > _MOST_HOSTS:
                del self._hosts[next(iter(self._hosts))]
            return None
        count = step - known.base_step
        if count // self._step_count <= known.told_count // self._step_count:
            return None
        known.told_count = count
        return QuietSteps(job, host, count, ts_ns)

    def on_sign(self, cluster: str, host: str) -> None:
        """Take that something was seen on a machine: its next step is the first that may count."""
        self._hosts.pop((cluster, host), None)

    def on_verdict(self, verdict: Verdict) -> None:
        """Take an update of a verdict: as long as it stands, every machine that it names shows a sign."""
        for suspect in verdict.suspects:
            key = verdict.job.cluster, suspect.component.name
            self.on_sign(*key)
            if verdict.state in _SIGNS:
                self._accused.setdefault(key, {})[verdict.verdict_id] = verdict.expires_ns
            elif key in self._accused:
                self._accused[key].pop(verdict.verdict_id, None)
        if len(self._accused) > _MOST_HOSTS:
            del self._accused[next(iter(self._accused))]

    def _is_accused(self, key: tuple[str, str], ts_ns: int) -> bool:
        """Return whether a verdict that stands at a time names a machine."""
        accused = self._accused.get(key)
        if accused is None:
            return False
        standing = {name: expires_ns for name, expires_ns in accused.items() if expires_ns > ts_ns}
        if standing:
            self._accused[key] = standing
        else:
            del self._accused[key]
        return bool(standing)
