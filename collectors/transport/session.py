"""One connection to the engine: from hello to its end. docs/interfaces.md, section 2."""

from __future__ import annotations

import contextlib
import json
import logging
import select
from collections import deque
from collections.abc import Mapping
from typing import Any, Final

from tocsin.collectors.transport.link import (
    LENGTH,
    FrameReader,
    control_frame,
    integer,
    parse_control,
    parse_probe,
)
from tocsin.collectors.transport.outbox import Outbox
from tocsin.collectors.transport.sign_in import SignIn
from tocsin.collectors.transport.sink import Probe, Refused
from tocsin.collectors.transport.spool import Position
from tocsin.schemas.errors import IdentityError, SchemaError, TransportError
from tocsin.schemas.reasons import IdentityRefusal
from tocsin.schemas.tls import Stream

log = logging.getLogger(__name__)

CLOCK_SECONDS: Final = 10.0
SILENCE_SECONDS: Final = 15.0
"""Longest absence of due acknowledgements before the engine counts as dead."""
WINDOW_RECORDS: Final = 512
BUFFER_BYTES: Final = 512 * 1024
WAITING_RECORDS: Final = 4096
"""Most records in memory behind a slow engine before the connection is given up and they go to the spool."""


class Session:
    """Sends the spooled records first, then new ones, and keeps those not acknowledged."""

    def __init__(self, box: Outbox, connection: Stream, sign_in: SignIn) -> None:
        """Prepare to send over a connected, non-blocking stream, after both ends have proven their identity."""
        self._box = box
        self._socket = connection
        self._sign_in = sign_in
        self._has_answered = False
        self._reader = FrameReader()
        self._out = bytearray()
        self._flight: deque[tuple[bytes | None, Position | None]] = deque()
        self._waiting: deque[bytes] = deque()
        self._acked = 0
        self._progress_mono = box.mono()
        self._clock_mono = 0.0
        self._hello_ns = 0
        self._is_live = False
        self.was_welcome = False

    def run(self) -> None:
        """Send records until the engine or the agent closes, or something fails."""
        box = self._box
        box.spool.rewind()
        self._progress_mono = box.mono()
        poller = select.poll()
        poller.register(box.fileno(), select.POLLIN)
        while not self._is_done():
            self._fill()
            events = select.POLLIN | (select.POLLOUT if self._out else 0)
            poller.register(self._socket, events)
            for descriptor, _ in poller.poll(250 if box.closing_mono is not None else 1000):
                if descriptor == box.fileno():
                    box.clear_nudges()
            self._receive()
            self._send()
            if (self._flight or not self.was_welcome) and box.mono() - self._progress_mono > SILENCE_SECONDS:
                what = "acknowledgement" if self.was_welcome else "welcome" if self._has_answered else "challenge"
                raise TransportError(f"no {what} for {SILENCE_SECONDS:.0f} s")
            box.publish(connected=self.was_welcome)

    def put_back(self) -> None:
        """Spool in order the records sent without an acknowledgement and those waiting.

        Records that came from the spool are still there, before all others.
        """
        spool = self._box.spool
        for data, _ in self._flight:
            if data is not None:
                spool.append(data)
        while self._waiting:
            spool.append(self._waiting.popleft())
        self._box.spool_all()
        spool.rewind()

    def _is_done(self) -> bool:
        """Return whether the agent closes and nothing waits, or its time is over."""
        closing = self._box.closing_mono
        if closing is None:
            return False
        idle = not (self._out or self._flight or self._waiting) and self._box.is_empty()
        return idle or self._box.mono() > closing

    def _fill(self) -> None:
        """Move records into the send buffer: spooled ones first, then new ones."""
        box = self._box
        while (data := box.next_encoded()) is not None:
            if not self._waiting and box.spool.has_unread():
                box.spool.append(data)  # behind a long spool it would wait in memory for as long
            else:
                self._waiting.append(data)
        if not self.was_welcome:
            self._check_waiting()
            return
        if box.mono() - self._clock_mono > CLOCK_SECONDS:
            self._ask_clock()
        while len(self._flight) < WINDOW_RECORDS and len(self._out) < BUFFER_BYTES:
            spooled = box.spool.read()
            if spooled is not None:
                self._push(spooled[0], (None, spooled[1]))
            elif self._waiting:
                data = self._waiting.popleft()
                self._push(data, (data, None))
            else:
                self._say_live()
                break
        self._check_waiting()

    def _check_waiting(self) -> None:
        """Raise ``TransportError`` if too many records wait in memory."""
        if len(self._waiting) > WAITING_RECORDS:
            raise TransportError(f"the engine is {len(self._waiting)} records behind")

    def _push(self, data: bytes, entry: tuple[bytes | None, Position | None]) -> None:
        """Send a record's bytes and keep its entry until it is acknowledged."""
        if not self._flight:
            self._progress_mono = self._box.mono()
        self._seal(data)
        self._flight.append(entry)

    def _seal(self, data: bytes) -> None:
        """Add a message with its authentication code to the send buffer."""
        tag = self._sign_in.tag(data)
        self._out += LENGTH.pack(len(data) + len(tag))
        self._out += data
        self._out += tag

    def _send(self) -> None:
        """Write the send buffer, as much as the stream takes."""
        if self._out:
            with contextlib.suppress(BlockingIOError):
                sent = self._socket.send(self._out)
                del self._out[:sent]

    def _receive(self) -> None:
        """Read from the stream and process complete messages."""
        try:
            data = self._socket.recv(65536)
        except BlockingIOError:
            return
        if not data:
            raise TransportError("the engine closed the connection")
        for frame in self._reader.feed(data):
            try:
                if self._has_answered:
                    self._on_control(parse_control(self._opened(frame)))
                else:
                    self._on_challenge(parse_control(frame))
            except SchemaError as error:
                self._box.on_bad_message(str(error))

    def _on_challenge(self, values: dict[str, Any]) -> None:
        """Answer the engine's challenge with the hello."""
        if values["t"] == "refused":
            raise _denied(values)
        self._hello_ns = self._box.clock.host_ns()
        self._out += control_frame(self._sign_in.answer(values, self._hello_ns))
        self._has_answered = True

    def _opened(self, frame: bytes) -> bytes:
        """Return a message's bytes after checking its code; an engine that refuses the agent says so without a code."""
        try:
            return self._sign_in.open(frame)
        except IdentityError:
            if self.was_welcome:
                raise
            if frame[:1] == b"{" and frame[-1:] == b"}":
                values = parse_control(frame)
                if values["t"] == "refused":
                    raise _denied(values) from None
            text = "whoever answers does not know the secret of our key: nothing was sent"
            raise IdentityError(IdentityRefusal.ENGINE_UNPROVEN, text) from None

    def _on_control(self, values: dict[str, Any]) -> None:
        """Process a control message of the engine."""
        kind = values["t"]
        box = self._box
        if kind == "ack":
            self._on_ack(integer(values, "count"))
        elif kind == "clock":
            box.offsets.add(integer(values, "t0"), box.clock.host_ns(), integer(values, "engine_ns"))
        elif kind == "welcome":
            self.was_welcome = True
            log.info("engine connected", extra={"spooled": len(box.spool)})
            box.offsets.add(self._hello_ns, box.clock.host_ns(), integer(values, "engine_ns"))
        elif kind == "refused":
            if not self.was_welcome:
                raise _denied(values)
            self._on_refused(values)
        elif kind == "probe":
            box.say(Probe(*parse_probe(values)))
        else:
            log.debug("unknown control message", extra={"control": kind})

    def _on_ack(self, count: int) -> None:
        """Drop acknowledged records and commit spooled ones."""
        if not self._acked <= count <= self._acked + len(self._flight):
            raise TransportError(f"acknowledgement {count}: sent {self._acked + len(self._flight)}")
        newest: Position | None = None
        for _ in range(count - self._acked):
            _, position = self._flight.popleft()
            newest = position or newest
        self._box.acked_count += count - self._acked
        self._acked = count
        self._progress_mono = self._box.mono()
        if newest is not None:
            self._box.spool.commit(newest)

    def _on_refused(self, values: dict[str, Any]) -> None:
        """Process the refusal of a record."""
        reason, message = str(values.get("reason", "")), str(values.get("message", ""))
        self._box.refused[reason] += 1
        log.warning("record refused", extra={"reason": reason, "error": message})
        ahead_ns = values.get("ahead_ns")
        if reason == "clock_ahead":
            self._ask_clock()
        self._box.say(Refused(reason, ahead_ns if type(ahead_ns) is int else 0))

    def _ask_clock(self) -> None:
        """Ask the engine for its time."""
        self._clock_mono = self._box.mono()
        self._seal(json.dumps({"t": "clock", "t0": self._box.clock.host_ns()}, separators=(",", ":")).encode())

    def _say_live(self) -> None:
        """Report once that all older records were sent.

        An engine that has just started waits for that before it judges.
        """
        if not self._is_live:
            self._is_live = True
            self._seal(b'{"t":"live"}')


def _denied(values: Mapping[str, Any]) -> IdentityError:
    """Return the error for an engine's refusal to let this agent in; the engine has not proven its identity then."""
    return IdentityError(str(values.get("reason", ""))[:80], f"not let in: {str(values.get('message', ''))[:300]}")
