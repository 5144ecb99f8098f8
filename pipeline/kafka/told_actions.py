"""Changes of actions that the operators of their jobs are told, as records among the events of each job."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

from tocsin.pipeline.identity.action_records import ActionRecordSigner
from tocsin.pipeline.kafka.closings import stamp_of
from tocsin.pipeline.runtime.flink.outputs import Output
from tocsin.schemas.action_records import RESTARTING, action_event
from tocsin.schemas.actions import Action
from tocsin.schemas.kafka.topics import EVENTS, headers_of, job_key
from tocsin.schemas.wire.codec import encode

_NS_PER_MS: Final = 1_000_000
_MOST_WAITING: Final = 10_000


class ToldActions:
    """The changes that wait for a fresh tick; they outlive no controller, and each begin of one tells what is live."""

    def __init__(self, signer: ActionRecordSigner | None) -> None:
        """Start with nothing that waits.

        Args:
            signer: signs the records; None: they are not signed, and jobs that ask for signatures refuse them.
        """
        self._signer = signer
        self._waiting: list[Action] = []

    def add(self, actions: Iterable[Action]) -> None:
        """Let changes of actions that start a job again wait for the next fresh tick; of too many the oldest go."""
        self._waiting += [one for one in actions if one.kind in RESTARTING]
        del self._waiting[:-_MOST_WAITING]

    def due(self, newest_tick_ns: int, wall_ns: int) -> list[Output]:
        """Return the records of the changes that wait, none where there is no fresh tick.

        Args:
            newest_tick_ns: the newest tick of the topic of events.
            wall_ns: the present time.
        """
        ts_ns = stamp_of(newest_tick_ns, wall_ns)
        if ts_ns is None or not self._waiting:
            return []
        waiting, self._waiting = self._waiting, []
        return [self._record(one, ts_ns) for one in waiting]

    def _record(self, action: Action, ts_ns: int) -> Output:
        """Return the message of the record that tells of a change."""
        event = action_event(action, ts_ns)
        if self._signer is not None:
            event = self._signer.signed(event)
        return Output(EVENTS, job_key(event.job), encode(event), dict(headers_of(event)), ts_ns // _NS_PER_MS)
