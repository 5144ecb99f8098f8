"""Incidents that stand now, as gauges for Prometheus: bounded, and gone when an incident ends."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator
from typing import Final, NamedTuple

from tocsin.schemas.formats.prometheus_text import Family, Sample
from tocsin.schemas.reasons import Reason
from tocsin.schemas.verdicts import ComponentKind, FaultKind, Suspect, Verdict, VerdictState

MAX_SERIES_COUNT: Final = 1_000
"""Most series of ``tocsin_incident`` on one page; what is beyond is counted in ``tocsin_incidents_not_shown``."""
MAX_STANDING_COUNT: Final = 10_000
"""Most verdicts that ``StandingIncidents`` keeps."""
MAX_LABEL_CHARACTERS: Final = 200
"""Longest value of a label; longer names are cut."""
_FIRST_HOSTS_COUNT: Final = 8
"""Hosts of one incident that are shown before further hosts of any incident."""
_STANDING: Final = frozenset({VerdictState.OPEN, VerdictState.CONFIRMED})

Labels = tuple[tuple[str, str], ...]
"""Labels of one series, as (name, value) pairs."""


class StandingVerdict(NamedTuple):
    """A verdict that stands, and where it was read.

    Attributes:
        verdict: its newest line.
        partition_index: number of the topic's partition that it came from; -1: from no topic.
    """

    verdict: Verdict
    partition_index: int = -1


class StandingIncidents:
    """The newest line of each verdict that stands, from a stream of verdict lines; bounded.

    A line may come again, and lines of one verdict may come out of order. A verdict that nobody renewed leaves when it
    expires. Beyond the bound the least important are dropped: degraded ones, then open ones, then the newest.
    """

    def __init__(self, max_count: int = MAX_STANDING_COUNT) -> None:
        """Start without verdicts.

        Args:
            max_count: most verdicts that are kept.
        """
        self._max_count = max_count
        self._kept: dict[str, StandingVerdict] = {}
        self.dropped_count = 0

    def take(self, verdicts: Iterable[Verdict], now_ns: int, partition_index: int = -1) -> None:
        """Take verdict lines.

        Args:
            verdicts: the lines.
            now_ns: the present time; a line that expired before it is not kept.
            partition_index: number of the partition that they came from; -1: from no topic.
        """
        for verdict in verdicts:
            known = self._kept.get(verdict.verdict_id)
            if known is not None and known.verdict.update > verdict.update:
                continue
            if is_shown(verdict) and verdict.expires_ns > now_ns:
                self._kept[verdict.verdict_id] = StandingVerdict(verdict, partition_index)
            else:
                self._kept.pop(verdict.verdict_id, None)
        if len(self._kept) > self._max_count:
            self._cut(now_ns)

    def keep_partitions(self, partitions: Collection[int]) -> None:
        """Forget the verdicts of partitions that are not in this collection: another reader shows them now."""
        self._kept = {
            name: one
            for name, one in self._kept.items()
            if one.partition_index < 0 or one.partition_index in partitions
        }

    def verdicts(self, now_ns: int) -> list[Verdict]:
        """Return the verdicts that stand at this time."""
        return [one.verdict for one in list(self._kept.values()) if one.verdict.expires_ns > now_ns]

    def _cut(self, now_ns: int) -> None:
        """Drop what expired, then the least important beyond nine tenths of the bound."""
        standing = {name: one for name, one in self._kept.items() if one.verdict.expires_ns > now_ns}
        if len(standing) > self._max_count:
            ranked = sorted(standing.values(), key=lambda one: _importance(one.verdict))
            kept = ranked[: self._max_count * 9 // 10]
            self.dropped_count += len(standing) - len(kept)
            standing = {one.verdict.verdict_id: one for one in kept}
        self._kept = standing


def _no_silence(_verdict: Verdict) -> str:
    """Return "": nothing is silenced."""
    return ""


def incident_families(
    verdicts: Iterable[Verdict],
    dropped_count: int = 0,
    max_count: int = MAX_SERIES_COUNT,
    silence: Callable[[Verdict], str] = _no_silence,
) -> list[Family]:
    """Return the gauge of standing incidents, and the number of series that the bound left out.

    There is a series for each host of an incident, and one with an empty ``host`` for an incident that names nobody.
    Verdicts with equal labels share a series. Of what nobody is to be told, such as what planned work or a fleet
    incident covers, the label ``silenced`` says why; other series do not have it.

    Args:
        verdicts: verdicts; those that do not stand are left out.
        dropped_count: verdicts that were dropped before, counted beside the series that are left out.
        max_count: most series.
        silence: returns the named reason for which nobody is told of a verdict now, "" for none.
    """
    shown = sorted((one for one in verdicts if is_shown(one)), key=_importance)
    ranked = [
        (position >= _FIRST_HOSTS_COUNT, labels)
        for one in shown
        for position, labels in enumerate(_series(one, silence(one)))
    ]
    ranked.sort(key=lambda pair: pair[0])  # stable: by importance within each half
    series: dict[Labels, None] = dict.fromkeys(labels for _, labels in ranked)
    samples = tuple(Sample(dict(labels), 1) for labels in list(series)[:max_count])
    left_out = max(0, len(series) - max_count) + dropped_count
    text = "1 for each host of an incident that stands now, with its job, fault, cause and state."
    return [
        Family("tocsin_incident", "gauge", text, samples),
        Family(
            "tocsin_incidents_not_shown",
            "gauge",
            "Series of tocsin_incident that are left out because there are too many.",
            (Sample({}, left_out),),
        ),
    ]


def is_shown(verdict: Verdict) -> bool:
    """Return whether a verdict is an incident that stands; a canary is none."""
    return verdict.state in _STANDING and verdict.reason != Reason.CANARY


def _importance(verdict: Verdict) -> tuple[bool, bool, int, str]:
    """Return the sort key of a verdict: confirmed before open, degraded last, older before newer."""
    is_degraded = verdict.fault is FaultKind.DEGRADED
    return is_degraded, verdict.state is VerdictState.OPEN, verdict.onset_ns, verdict.verdict_id


def _series(verdict: Verdict, silenced: str) -> Iterator[Labels]:
    """Yield the labels of a verdict's series, one for each suspect, with why nobody is told of it, if so."""
    for host in [_host_label(suspect) for suspect in verdict.suspects] or [""]:
        labels = {
            "cluster": verdict.job.cluster,
            "job": verdict.job.job_id,
            "host": host,
            "fault": verdict.fault.value,
            "cause": verdict.cause,
            "state": verdict.state.value,
            **({"silenced": silenced} if silenced else {}),
        }
        yield tuple((name, value[:MAX_LABEL_CHARACTERS]) for name, value in labels.items())


def _host_label(suspect: Suspect) -> str:
    """Return a host's name, or kind and name of another component, such as ``rank 3``."""
    component = suspect.component
    is_host = component.kind is ComponentKind.HOST
    return component.name if is_host else f"{component.kind.value} {component.name}"
