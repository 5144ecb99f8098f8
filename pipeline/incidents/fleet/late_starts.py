"""Hosts that were late in the same stage of the start in three of their last five starts, in whatever jobs.

A start is an attempt of a job: one in which a rank of the host said hello, or in which the host was late. That a host
was late is what the job's own verdict says (cause ``startup_slow``). One that was cancelled, or that a person called
wrong, counts no more; nor does one under planned work.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any, Final

from tocsin.pipeline.incidents.fleet.book import Opening
from tocsin.pipeline.incidents.fleet.config import FleetConfig, FleetReason
from tocsin.schemas.verdicts import ActionKind, ComponentKind, FaultKind, Verdict, VerdictState

CAUSE: Final = "startup_slow"
KEY: Final = "starts/"
"""Prefix of the keys of these incidents; the host follows."""
_SOURCE: Final = "startup"
"""Name of the detector whose evidence tells the stage."""
_METRIC_SUFFIX: Final = "_seconds"
_LEAST_JOBS: Final = 2
"""A host that was late in one job only is a finding of that job."""


@dataclass(slots=True)
class _Start:
    """One start of a host.

    Attributes:
        job_id: the job.
        attempt: the attempt.
        late: verdict id -> stage in which the host was late.
        onset_ns: begin of the newest of these verdicts.
    """

    job_id: str
    attempt: int
    late: dict[str, str] = field(default_factory=dict)
    onset_ns: int = 0


class LateStarts:
    """The last starts of each host; the host that started longest ago is forgotten first."""

    def __init__(self, config: FleetConfig, is_planned: Callable[[str, str, int], bool]) -> None:
        """Start without starts.

        Args:
            config: settings.
            is_planned: function (job, host, time in ns) -> whether work was planned there.
        """
        self._config = config
        self._is_planned = is_planned
        self._all: dict[str, list[_Start]] = {}

    def heard(self, host: str, job_id: str, attempt: int) -> None:
        """Take that a rank of a host starts; hello is said again and again."""
        self._start(host, job_id, attempt)

    def _start(self, host: str, job_id: str, attempt: int) -> _Start:
        """Return a start of a host; a new one is its newest."""
        starts = self._all.get(host, [])
        known = next((one for one in starts if (one.job_id, one.attempt) == (job_id, attempt)), None)
        if known is None:
            known = _Start(job_id, attempt)
            self._all.pop(host, None)
            self._all[host] = [*starts, known][-self._config.starts_of_count :]
            while len(self._all) > self._config.max_hosts_count:
                del self._all[next(iter(self._all))]
        return known

    def take(self, verdict: Verdict) -> None:
        """Take a line of a job's verdict; those of other causes are left out."""
        stages = [one.metric.removesuffix(_METRIC_SUFFIX) for one in verdict.evidence if one.detector == _SOURCE]
        if verdict.cause != CAUSE or not stages:
            return
        for suspect in verdict.suspects:
            host, job = suspect.component.name, verdict.job
            if suspect.component.kind is not ComponentKind.HOST:
                continue
            if verdict.state is VerdictState.CANCELLED:
                self.denied(verdict.verdict_id)
            elif not self._is_planned(job.job_id, host, verdict.onset_ns):
                start = self._start(host, job.job_id, job.attempt)
                start.late[verdict.verdict_id] = stages[0]
                start.onset_ns = max(start.onset_ns, verdict.onset_ns)

    def denied(self, verdict_id: str) -> None:
        """Take that a verdict was wrong."""
        for starts in self._all.values():
            for start in starts:
                start.late.pop(verdict_id, None)

    def found(self, now_ns: int) -> Iterator[tuple[str, Opening]]:
        """Yield key and contents of the incident of each host that was late again and again, the last start included.

        Args:
            now_ns: the present; what lies longer back than ``repeat_ns`` counts no more.
        """
        for host, starts in self._all.items():
            last = starts[-1]
            if last.late and now_ns - last.onset_ns <= self._config.repeat_ns and (text := self._text(host, starts)):
                fault, why = FaultKind.DEGRADED, FleetReason.LATE_IN_STARTS
                metric = f"{next(iter(last.late.values()))}{_METRIC_SUFFIX}"
                action, onset_ns = ActionKind.NOTIFY, last.onset_ns
                opening = Opening(last.job_id, fault, CAUSE, onset_ns, why, action, (text,), metric, (host,))
                yield f"{KEY}{host}", opening

    def _text(self, host: str, starts: Sequence[_Start]) -> str:
        """Return the sentence about a host that was late again and again, "" if it was not."""
        counts = Counter(stage for start in starts for stage in set(start.late.values()))
        for stage in sorted(set(starts[-1].late.values())):
            jobs = {start.job_id for start in starts if stage in start.late.values()}
            if counts[stage] >= self._config.late_starts_count and len(jobs) >= _LEAST_JOBS:
                return (
                    f"{host} was late in {stage} in {counts[stage]} of its last {len(starts)} starts "
                    f"(jobs {', '.join(sorted(jobs))}): worth a drain and a check by hand"
                )
        return ""

    def to_state(self) -> list[list[Any]]:
        """Return the state as JSON-able values."""
        return [[host, [asdict(one) for one in starts]] for host, starts in self._all.items()]

    def load_state(self, state: Sequence[tuple[str, Sequence[Mapping[str, Any]]]]) -> None:
        """Replace the state by what ``to_state`` returned."""
        self._all = {host: [_Start(**fields) for fields in starts] for host, starts in state}
