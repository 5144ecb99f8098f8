"""Handling of what agents send after their sign-in: records for the engine, and control messages."""

from __future__ import annotations

import json
import logging
from collections import Counter, deque
from collections.abc import Callable
from dataclasses import replace
from typing import Final

from tocsin.pipeline.core.slices import RecordOutcome
from tocsin.pipeline.identity.principal import Principal
from tocsin.pipeline.runtime.embedded.dead_letters import DeadLetter
from tocsin.pipeline.runtime.embedded.engine import EmbeddedEngine
from tocsin.pipeline.runtime.embedded.listener.connection import Connection
from tocsin.pipeline.runtime.embedded.listener.peer_limits import Intake
from tocsin.pipeline.runtime.embedded.listener.readers import ReaderService
from tocsin.schemas.errors import ClockAheadError, FieldError, IdentityError, SchemaError
from tocsin.schemas.records import ModelAnnouncement, Tick
from tocsin.schemas.trouble_log import TroubleLog
from tocsin.schemas.wire.codec import decode
from tocsin.schemas.wire.validate import check_int

_LOG = logging.getLogger("tocsin.server")
KEPT_MESSAGE_CHARACTERS: Final = 500
"""Length up to which a reason is kept and told to the agent."""
_KEPT_DEAD_LETTERS: Final = 1000
_KEPT_DATA_BYTES: Final = 1024


class MessageHandler:
    """Takes the messages of signed-in agents, and makes dead letters of what cannot be used.

    Attributes:
        troubles: the listener's log.
        counters: numbers of bytes, refused records and dead letters.
        dead_letters: the last dead letters, with the first bytes of their records.
    """

    def __init__(
        self,
        engine: EmbeddedEngine,
        intake: Intake,
        readers: ReaderService,
        on_dead_letter: Callable[[str, DeadLetter], None],
        now_ns: Callable[[], int],
        clock: Callable[[], float],
    ) -> None:
        """Take messages for an engine.

        Args:
            engine: takes the records.
            intake: bounds of what peers send.
            readers: takes questions of readers.
            on_dead_letter: gets what could not be used: kind (``dead-letters``, ``late``) and dead letter.
            now_ns: the engine's clock.
            clock: monotonic seconds.
        """
        self._engine = engine
        self._intake = intake
        self._readers = readers
        self._on_dead_letter = on_dead_letter
        self._now_ns = now_ns
        self._clock = clock
        self.troubles = TroubleLog(_LOG)
        self.counters: Counter[str] = Counter()
        self.dead_letters: deque[DeadLetter] = deque(maxlen=_KEPT_DEAD_LETTERS)

    def take(self, connection: Connection, principal: Principal, data: bytes) -> None:
        """Take one message: a record for the engine, or a control message.

        A record that cannot be used is refused: the agent is told, and it becomes a dead letter.

        Args:
            connection: the connection.
            principal: the peer, as its sign-in proved.
            data: the message.
        """
        if data[:1] == b"{":
            self._control(connection, data)
            return
        index = connection.taken_count
        connection.taken_count += 1
        self.counters["bytes"] += len(data)
        now_ns = self._now_ns()
        try:
            record = decode(data, now_ns=now_ns)
            principal.check(record)
            if not isinstance(record, ModelAnnouncement | Tick):
                self._intake.check(principal.share_of(record), record, self._clock())
            taken = self._engine.take_record(record, data, now_ns)
            if taken is RecordOutcome.LATE:
                self._on_dead_letter("late", DeadLetter(now_ns, connection.host, "late", "", data))
        except ClockAheadError as error:
            refused = {"index": index, "reason": error.reason, "message": str(error), "ahead_ns": error.ahead_ns}
            connection.say({"t": "refused", **refused})
            self.counters["refused_clock_ahead"] += 1
        except (SchemaError, IdentityError) as error:
            self.bury(connection, error.reason, str(error), data)
            message = str(error)[:KEPT_MESSAGE_CHARACTERS]
            connection.say({"t": "refused", "index": index, "reason": error.reason, "message": message})

    def _control(self, connection: Connection, data: bytes) -> None:
        """Take a control message; one that cannot be used becomes a dead letter."""
        try:
            message = json.loads(data)
            kind = message["t"]
            if kind == "hello":
                raise FieldError("hello.host", message.get("host"), f"said once, as {connection.host!r}")
            if kind == "clock":
                t0 = check_int(message.get("t0"), "clock.t0", -(1 << 63), (1 << 63) - 1)
                connection.say({"t": "clock", "t0": t0, "engine_ns": self._now_ns()})
            elif kind == "live":
                connection.is_live = True
            elif kind == "ask":
                refusal = self._readers.take(connection, message)
                if refusal is not None:
                    self.bury(connection, refusal.reason, str(refusal), b"")
        except (ValueError, KeyError, TypeError, RecursionError, FieldError) as error:
            self.bury(connection, "bad_control", f"control message: {error}", data)

    def bury(self, connection: Connection, reason: str, message: str, data: bytes) -> None:
        """Make a dead letter of what cannot be used.

        Args:
            connection: where it came from.
            reason: the named reason.
            message: the reason as a sentence.
            data: the bytes of a record; b"": there are none.
        """
        self.counters[f"dead_letters_{reason}"] += 1
        message = message[:KEPT_MESSAGE_CHARACTERS]
        dead_letter = DeadLetter(self._now_ns(), connection.host, reason, message, data)
        self.dead_letters.append(replace(dead_letter, data=data[:_KEPT_DATA_BYTES]))
        self._on_dead_letter("dead-letters", dead_letter)
        self.troubles.warn("dead letter", reason, host=connection.host, reason=reason, detail=message)
