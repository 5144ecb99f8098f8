"""Hosts whose faults were upheld again and again, by people or by checks.

Only causes that blame machines count: a program, its data or a shared service fails on whatever machine it runs. What
began under planned work of the host, its leaf switch or its job never counts.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import asdict, dataclass
from typing import Any

from tocsin.pipeline.incidents.fleet.config import DAY_NS, FleetConfig
from tocsin.schemas.causes import CAUSES
from tocsin.schemas.operator_notes import Feedback
from tocsin.schemas.verdicts import ComponentKind, Verdict, WitnessKind


@dataclass(slots=True)
class _Accusation:
    """One verdict about hosts, and whether it was upheld."""

    hosts: list[str]
    job_id: str
    cause: str
    onset_ns: int
    is_upheld: bool = False
    judged_ns: int = 0


@dataclass(frozen=True, slots=True)
class Offender:
    """A host with too many upheld verdicts: its last cause, job and onset, and a sentence with the count."""

    host: str
    job_id: str
    cause: str
    onset_ns: int
    upheld_ns: int
    text: str


def _is_of_machine(cause: str) -> bool:
    """Return whether a cause blames the machine."""
    return cause in CAUSES and CAUSES[cause].blames == "machine"


class Offenders:
    """Verdicts by id and what became of them; the oldest are forgotten first."""

    def __init__(self, config: FleetConfig, is_planned: Callable[[str, str, int], bool]) -> None:
        """Start without verdicts.

        Args:
            config: settings.
            is_planned: function (job, host, time in ns) -> whether work was planned there.
        """
        self._config = config
        self._is_planned = is_planned
        self._all: dict[str, _Accusation] = {}
        self._words: dict[str, Feedback] = {}
        """Verdict id -> a person's word on a verdict that is not known: it may come again after a restart."""

    def take(self, verdict: Verdict) -> None:
        """Remember a verdict about hosts; a failed check on a suspect upholds it."""
        named = [one.component.name for one in verdict.suspects if one.component.kind is ComponentKind.HOST]
        hosts = [host for host in named if not self._is_planned(verdict.job.job_id, host, verdict.onset_ns)]
        if not hosts:
            self._all.pop(verdict.verdict_id, None)
            return
        checked = {one.host for one in verdict.witnesses if one.kind is WitnessKind.CHECK}
        known = self._all.get(verdict.verdict_id)
        fresh = _Accusation(hosts, verdict.job.job_id, verdict.cause, verdict.onset_ns)
        if known is not None:
            fresh.is_upheld, fresh.judged_ns = known.is_upheld, known.judged_ns
        if not fresh.judged_ns and checked & set(hosts):
            fresh.is_upheld, fresh.judged_ns = True, verdict.detected_ns
        self._all[verdict.verdict_id] = fresh
        said = self._words.pop(verdict.verdict_id, None)
        if said is not None:
            self.judge(said)
        while len(self._all) > self._config.max_covered_count:
            del self._all[next(iter(self._all))]

    def judge(self, said: Feedback) -> None:
        """Let a person's word count for a verdict, unless a later one counts already."""
        known = self._all.get(said.verdict_id)
        if known is None:
            self._words.pop(said.verdict_id, None)
            self._words[said.verdict_id] = said
            while len(self._words) > self._config.max_covered_count:
                del self._words[next(iter(self._words))]
        elif said.ts_ns >= known.judged_ns:
            known.is_upheld, known.judged_ns = said.is_true, said.ts_ns

    def found(self, now_ns: int) -> Iterator[Offender]:
        """Yield the hosts with ``repeat_count`` upheld verdicts about machines within ``repeat_ns``."""
        by_host: dict[str, list[_Accusation]] = {}
        for one in self._all.values():
            if one.is_upheld and _is_of_machine(one.cause) and now_ns - one.onset_ns <= self._config.repeat_ns:
                for host in one.hosts:
                    by_host.setdefault(host, []).append(one)
        for host, upheld in sorted(by_host.items()):
            if len(upheld) < self._config.repeat_count:
                continue
            last = max(upheld, key=lambda one: one.onset_ns)
            days = self._config.repeat_ns // DAY_NS
            jobs = ", ".join(sorted({one.job_id for one in upheld})[:4])
            text = f"{host}: {len(upheld)} verdicts were upheld within {days} days (jobs {jobs})"
            judged_ns = max(one.judged_ns for one in upheld)
            yield Offender(host, last.job_id, last.cause, last.onset_ns, judged_ns, text)

    def is_one(self, host: str, now_ns: int) -> bool:
        """Return whether a host is a repeat offender now."""
        return any(one.host == host for one in self.found(now_ns))

    def to_state(self) -> dict[str, Any]:
        """Return the state as a JSON-able object."""
        return {
            "all": [[verdict_id, asdict(one)] for verdict_id, one in self._all.items()],
            "words": [asdict(one) for one in self._words.values()],
        }

    def load_state(self, state: Mapping[str, Any] | list[Any]) -> None:
        """Restore the state that ``to_state`` returned; an older version returned the verdicts only."""
        known = state["all"] if isinstance(state, Mapping) else state
        words = [Feedback(**fields) for fields in state["words"]] if isinstance(state, Mapping) else []
        self._all = {verdict_id: _Accusation(**fields) for verdict_id, fields in known}
        self._words = {one.verdict_id: one for one in words}
