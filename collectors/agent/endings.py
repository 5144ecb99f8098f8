"""Repetition of events about ended ranks, for an engine that was restarted meanwhile.

Each event is repeated every 30 s with a new stamp. The payload's ``ended_ns`` keeps the original time, so that a
repetition changes nothing. A normal end (a goodbye, exit status 0) is repeated while the job is on this host. Any other
end is repeated for an hour, which is how long the engine keeps what explains a death.

A new process of the rank or a newer attempt stops the repetition. It must belong to the same user, so that nobody can
hide the end of another user's rank.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from typing import Final

from tocsin.collectors.api import HostEvent
from tocsin.collectors.clock import Now
from tocsin.schemas.records import NS_PER_SECOND, JobKey, Severity
from tocsin.schemas.wire.event_payloads import ENDED_NS

AGAIN_NS: Final = 30 * NS_PER_SECOND
KEEP_NS: Final = 3600 * NS_PER_SECOND
MAX_ENDINGS: Final = 1024
"""Most endings kept, with 4 kB of error output each; the user with the most loses the oldest."""


@dataclass(slots=True)
class _Ending:
    """The end of one rank."""

    event_of_end: HostEvent
    ended_ns: int
    ended_mono_ns: int
    said_mono_ns: int


class Endings:
    """The ended ranks of a host whose events are repeated."""

    def __init__(self) -> None:
        """Start without any ended rank."""
        self._endings: dict[tuple[JobKey, int, int], _Ending] = {}

    def __len__(self) -> int:
        return len(self._endings)

    def add(self, job: JobKey, rank: int, uid: int, event_of_end: HostEvent, stamp_ns: int, now: Now) -> None:
        """Keep the end of a rank; a later event about the same rank (an exit after a goodbye) replaces the earlier."""
        self._endings.pop((job, rank, uid), None)
        self._endings[job, rank, uid] = _Ending(event_of_end, stamp_ns, now.mono_ns, now.mono_ns)
        if len(self._endings) > MAX_ENDINGS:
            heaviest, _ = Counter(key[2] for key in self._endings).most_common(1)[0]
            del self._endings[next(key for key in self._endings if key[2] == heaviest)]

    def lives(self, job: JobKey, rank: int, uid: int) -> None:
        """Forget a rank's end because it has a new process."""
        self._endings.pop((job, rank, uid), None)

    def begins(self, job: JobKey, uid: int) -> None:
        """Forget the earlier attempts of a job because a newer one is seen on this host."""
        for key in list(self._endings):
            before, _, owner = key
            if (before.cluster, before.job_id, owner) == (
                job.cluster,
                job.job_id,
                uid,
            ) and before.attempt < job.attempt:
                del self._endings[key]

    def leaves(self, job: JobKey, uid: int) -> None:
        """Forget the normal ends of a job that is no longer on this host."""
        for key, ending in list(self._endings.items()):
            if (key[0], key[2]) == (job, uid) and ending.event_of_end.severity is Severity.INFO:
                del self._endings[key]

    def due(self, now: Now) -> list[tuple[JobKey, int, HostEvent]]:
        """Return the events to repeat now as (job, rank, event); expired ones are forgotten."""
        found: list[tuple[JobKey, int, HostEvent]] = []
        for key, ending in list(self._endings.items()):
            if now.mono_ns - ending.ended_mono_ns >= KEEP_NS:
                del self._endings[key]
            elif now.mono_ns - ending.said_mono_ns >= AGAIN_NS:
                ending.said_mono_ns = now.mono_ns
                event = ending.event_of_end
                payload = {**event.payload, ENDED_NS: ending.ended_ns}
                found.append((*key[:2], HostEvent(event.name, event.source, event.severity, payload)))
        return found
