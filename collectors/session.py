"""One connection to the engine: from hello to its end. docs/interfaces.md, section 2."""

from __future__ import annotations

import contextlib
import logging
import select
import socket
from collections import deque
from collections.abc import Mapping
from typing import Any, Final

from tocsin.collectors.link import LENGTH, FrameReader, control_frame, integer, parse_control, parse_probe
from tocsin.collectors.outbox import Outbox
from tocsin.collectors.sink import Probe, Refused
from tocsin.collectors.spool import Position
from tocsin.schemas.errors import SchemaError, TransportError

log = logging.getLogger(__name__)

CLOCK_SECONDS: Final = 10.0
SILENCE_SECONDS: Final = 15.0
"""Without an acknowledgement for so long, while some are due, the engine counts as dead."""
WINDOW_RECORDS: Final = 512
BUFFER_BYTES: Final = 512 * 1024
WAITING_RECORDS: Final = 4096
"""Records in memory behind a slow engine before the connection is given up for the spool."""


class Session:
    """Sends the spooled records first, then the new ones; keeps what is not acknowledged."""

    def __init__(self, box: Outbox, connection: socket.socket, hello: Mapping[str, str]) -> None:
        """Speak over ``connection`` (connected, not blocking), beginning with ``hello``."""
        self._box = box
        self._socket = connection
        self._hello = hello
        self._reader = FrameReader()
        self._out = bytearray()
        self._flight: deque[tuple[bytes | None, Position | None]] = deque()
        self._waiting: deque[bytes] = deque()
        self._acked = 0
        self._progress_mono = box.mono()
        self._clock_mono = 0.0
        self._hello_ns = 0
        self.was_welcome = False

    def run(self) -> None:
        """Speak until the engine goes or the agent closes."""
        box = self._box
        box.spool.rewind()
        self._hello_ns = box.clock.host_ns()
        self._out += control_frame(self._hello)
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
            if self._flight and box.mono() - self._progress_mono > SILENCE_SECONDS:
                raise TransportError(f"no acknowledgement for {SILENCE_SECONDS:.0f} s")
            box.publish(connected=self.was_welcome)

    def put_back(self) -> None:
        """Spool what was sent without an answer, and what waits, in its order.

        What came from the spool is still there; it stands before what never was in it.
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
        closing = self._box.closing_mono
        if closing is None:
            return False
        idle = not (self._out or self._flight or self._waiting) and self._box.is_empty()
        return idle or self._box.mono() > closing

    def _fill(self) -> None:
        """Move records into the send buffer: the spooled first, then the new ones."""
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
                break
        self._check_waiting()

    def _check_waiting(self) -> None:
        if len(self._waiting) > WAITING_RECORDS:
            raise TransportError(f"the engine is {len(self._waiting)} records behind")

    def _push(self, data: bytes, entry: tuple[bytes | None, Position | None]) -> None:
        if not self._flight:
            self._progress_mono = self._box.mono()
        self._out += LENGTH.pack(len(data))
        self._out += data
        self._flight.append(entry)

    def _send(self) -> None:
        if self._out:
            with contextlib.suppress(BlockingIOError):
                sent = self._socket.send(self._out)
                del self._out[:sent]

    def _receive(self) -> None:
        try:
            data = self._socket.recv(65536)
        except BlockingIOError:
            return
        if not data:
            raise TransportError("the engine closed the connection")
        for frame in self._reader.feed(data):
            try:
                self._on_control(parse_control(frame))
            except SchemaError as error:
                self._box.on_bad_message(str(error))

    def _on_control(self, values: dict[str, Any]) -> None:
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
            self._on_refused(values)
        elif kind == "probe":
            box.say(Probe(*parse_probe(values)))
        else:
            log.debug("unknown control message", extra={"control": kind})

    def _on_ack(self, count: int) -> None:
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
        reason, message = str(values.get("reason", "")), str(values.get("message", ""))
        self._box.refused[reason] += 1
        log.warning("record refused", extra={"reason": reason, "error": message})
        ahead_ns = values.get("ahead_ns")
        if reason == "clock_ahead":
            self._ask_clock()
        self._box.say(Refused(reason, ahead_ns if type(ahead_ns) is int else 0))

    def _ask_clock(self) -> None:
        self._clock_mono = self._box.mono()
        self._out += control_frame({"t": "clock", "t0": self._box.clock.host_ns()})
