"""Incidents of jobs that people close over Kafka: each becomes a record among the events of its job.

The record is stamped a second ahead, so that it is not late when the job's operators read it, and less than the two
seconds that the broker allows. While the topic of events has no fresh ticks, the closings wait.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import asdict, dataclass
from typing import Any, Final

from tocsin.pipeline.incidents.closing import close_event
from tocsin.pipeline.runtime.flink.outputs import Output
from tocsin.schemas.credentials import Credential
from tocsin.schemas.kafka.topics import EVENTS, headers_of, job_key
from tocsin.schemas.records import NS_PER_SECOND, JobKey
from tocsin.schemas.signatures import sign_record
from tocsin.schemas.wire.codec import encode

_NS_PER_MS: Final = 1_000_000
_LIVE_NS: Final = 5 * NS_PER_SECOND
"""Age of the newest tick from which on a record would come too late."""
_LEAD_NS: Final = NS_PER_SECOND
_MOST_AFTER_TICK_NS: Final = 1_700_000_000
"""How far a record is stamped after the newest tick at most, whatever the clock of this machine says."""
_PATIENCE_NS: Final = 600 * NS_PER_SECOND
MOST_WAITING: Final = 1000


@dataclass(frozen=True, slots=True)
class Closing:
    """A person's wish that an incident of a job be closed.

    Attributes:
        request_id: the request that asks for it.
        verdict_id: the incident.
        cluster: cluster of its job.
        job_id: its job.
        attempt: the job's attempt.
        note: why it is closed.
        actor: who closes it.
        key_id: key of the credential that signed the request, "": nobody has to sign.
        asked_ns: when it was asked.
    """

    request_id: str
    verdict_id: str
    cluster: str
    job_id: str
    attempt: int
    note: str
    actor: str
    key_id: str
    asked_ns: int


def stamp_of(newest_tick_ns: int, wall_ns: int) -> int | None:
    """Return the stamp of a record that the controller writes among a job's events; None: it would come too late.

    Args:
        newest_tick_ns: the newest tick of the topic of events.
        wall_ns: the present time.
    """
    if wall_ns - newest_tick_ns > _LIVE_NS:
        return None
    return min(wall_ns + _LEAD_NS, newest_tick_ns + _MOST_AFTER_TICK_NS)


class Closings:
    """The closings that wait for a fresh tick."""

    def __init__(self, credential_of: Callable[[str], Credential | None]) -> None:
        """Start with nothing that waits.

        Args:
            credential_of: returns the credential of a key id, None: there is none, and the record is not signed.
        """
        self._credential_of = credential_of
        self._waiting: list[Closing] = []

    def __len__(self) -> int:
        """Return how many wait."""
        return len(self._waiting)

    def add(self, closing: Closing) -> None:
        """Let a closing wait for the next fresh tick."""
        self._waiting.append(closing)

    def due(self, newest_tick_ns: int, wall_ns: int) -> Iterator[tuple[Closing, Output | None]]:
        """Yield each closing that waits no more, with its record; None: there was no fresh tick for ten minutes.

        Args:
            newest_tick_ns: the newest tick of the topic of events.
            wall_ns: the present time.
        """
        waiting, self._waiting = self._waiting, []
        ts_ns = stamp_of(newest_tick_ns, wall_ns)
        for one in waiting:
            if ts_ns is not None:
                yield one, self._record(one, ts_ns)
            elif wall_ns - one.asked_ns > _PATIENCE_NS:
                yield one, None
            else:
                self._waiting.append(one)

    def _record(self, one: Closing, ts_ns: int) -> Output:
        """Return the message of the record that closes an incident."""
        job = JobKey(one.cluster, one.job_id, one.attempt)
        event = close_event(job, one.verdict_id, one.note, one.actor, ts_ns)
        data, credential = encode(event), self._credential_of(one.key_id)
        signed = data if credential is None else sign_record(data, credential)
        return Output(EVENTS, job_key(job), signed, dict(headers_of(event)), ts_ns // _NS_PER_MS)

    def to_state(self) -> list[dict[str, Any]]:
        """Return what waits as JSON-able values."""
        return [asdict(one) for one in self._waiting]

    def load_state(self, state: Iterable[Mapping[str, Any]]) -> None:
        """Replace what waits by what ``to_state`` returned."""
        self._waiting = [Closing(**fields) for fields in state]
