"""Hosts whose faults were upheld again and again, by people or by checks.

Only causes that blame machines count: a program, its data or a shared service fails on whatever machine it runs. What
began under planned work of the host, its leaf switch or its job never counts. A word counts for the hosts that the
verdict named when the word was said, as long as the verdict names them; evidence that takes the verdict back takes the
word back with it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import asdict, dataclass, field
from typing import Any, Final

from tocsin.pipeline.incidents.fleet.config import DAY_NS, FleetConfig
from tocsin.schemas.causes import CAUSES
from tocsin.schemas.operator_notes import Feedback
from tocsin.schemas.verdicts import ComponentKind, Verdict, VerdictState, WitnessKind

_MAX_CHANGES: Final = 16
"""Changes of a verdict's hosts that are remembered."""


@dataclass(slots=True)
class _Accusation:
    """One verdict about hosts, and for which of them it was upheld.

    Attributes:
        hosts: hosts that the newest line names.
        job_id: the job.
        cause: word of ``schemas.causes``.
        onset_ns: begin of the fault.
        judged_ns: time of the word that counts, 0: there is none.
        update: number of the newest line.
        named: time and hosts of each line that changed the hosts, oldest first; time 0 for a verdict's first line.
        upheld: hosts for which a person or a check upheld it.
    """

    hosts: list[str]
    job_id: str
    cause: str
    onset_ns: int
    judged_ns: int = 0
    update: int = 0
    named: list[tuple[int, list[str]]] = field(default_factory=list)
    upheld: list[str] = field(default_factory=list)

    def hosts_at(self, ts_ns: int) -> list[str]:
        """Return the hosts that the verdict named at a time; none where no line of then is known."""
        return next((hosts for since_ns, hosts in reversed(self.named) if since_ns <= ts_ns), [])

    def take(self, verdict: Verdict, hosts: list[str]) -> None:
        """Take a line, which names these hosts of the verdict's that were under no planned work."""
        self.hosts, self.cause, self.onset_ns, self.update = hosts, verdict.cause, verdict.onset_ns, verdict.update
        if not self.named or self.named[-1][1] != hosts:
            since_ns = verdict.detected_ns if self.named or verdict.update else 0
            self.named = [*self.named, (since_ns, hosts)][-_MAX_CHANGES:]
        failed = {one.host for one in verdict.witnesses if one.kind is WitnessKind.CHECK} & set(hosts)
        if verdict.state is VerdictState.CANCELLED:
            if verdict.detected_ns > self.judged_ns:
                self.upheld, self.judged_ns = [], verdict.detected_ns
        elif failed and not self.judged_ns:
            self.upheld, self.judged_ns = sorted(failed), verdict.detected_ns


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


def _accusation_of(fields: Mapping[str, Any]) -> _Accusation:
    """Return an accusation of a state; an older version kept one word for all hosts."""
    rest = {key: one for key, one in fields.items() if key not in ("is_upheld", "named")}
    named = [(since_ns, list(hosts)) for since_ns, hosts in fields.get("named", [(0, fields["hosts"])])]
    if fields.get("is_upheld"):
        rest["upheld"] = list(fields["hosts"])
    return _Accusation(**rest, named=named)


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
        """Remember a verdict about hosts; a failed check on a suspect upholds it, a cancellation takes that back."""
        named = [one.component.name for one in verdict.suspects if one.component.kind is ComponentKind.HOST]
        hosts = [host for host in named if not self._is_planned(verdict.job.job_id, host, verdict.onset_ns)]
        known = self._all.get(verdict.verdict_id)
        if known is None and not hosts:
            return
        if known is None:
            known = _Accusation([], verdict.job.job_id, verdict.cause, verdict.onset_ns)
            self._all[verdict.verdict_id] = known
        elif verdict.update < known.update:
            return  # an old line that comes again
        known.take(verdict, hosts)
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
            known.upheld, known.judged_ns = known.hosts_at(said.ts_ns) if said.is_true else [], said.ts_ns

    def found(self, now_ns: int) -> Iterator[Offender]:
        """Yield the hosts with ``repeat_count`` upheld verdicts about machines within ``repeat_ns``."""
        by_host: dict[str, list[_Accusation]] = {}
        for one in self._all.values():
            if _is_of_machine(one.cause) and now_ns - one.onset_ns <= self._config.repeat_ns:
                for host in set(one.upheld).intersection(one.hosts):
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
        self._all = {verdict_id: _accusation_of(fields) for verdict_id, fields in known}
        self._words = {one.verdict_id: one for one in words}
