"""The agent's process: it takes datagrams of hooks and readings of collectors, and sends records to the engine.

The main thread owns the core. Each collector, the sink and the metrics page have a thread of their own, so that
datagrams are received even if one of those hangs.
"""

from __future__ import annotations

import contextlib
import gc
import logging
import os
import select
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from tocsin.collectors.agent.agent_metrics import families, socket_families
from tocsin.collectors.agent.core import AgentCore, CoreConfig
from tocsin.collectors.agent.datagram_socket import DatagramSocket, Unread
from tocsin.collectors.agent.hook_sockets import HookSockets
from tocsin.collectors.agent.metric_slices import Surroundings
from tocsin.collectors.agent.probes import ProbeHandler
from tocsin.collectors.agent.runner import CollectorRunner, Supervision
from tocsin.collectors.api import Collector, Reading
from tocsin.collectors.clock import Now, SteadyClock
from tocsin.collectors.metrics_page import Pages
from tocsin.collectors.owners import LocalSender
from tocsin.collectors.sources.process import ProcessWatcher
from tocsin.collectors.transport.sink import Probe, Refused, Sink
from tocsin.schemas.errors import ConfigError, FieldError, TransportError
from tocsin.schemas.formats.prometheus_text import Family
from tocsin.schemas.records import Record
from tocsin.schemas.wire.validate import MAX_NAME_BYTES, check_name

log = logging.getLogger(__name__)

TURN_SECONDS: Final = 0.25
SOCKET_LOOK_NS: Final = 1_000_000_000
DATAGRAMS_A_TURN: Final = 256
LAST_TURNS: Final = 64
"""Most receive rounds at the end, so that a hook that never pauses cannot keep the agent from stopping."""
FLUSH_SECONDS: Final = 2.0
GARBAGE_THRESHOLD: Final = 20_000
HEALTHY_SECONDS: Final = 5.0
DEADLINE_SECONDS: Final = 2.0
APART_NS: Final = 4_000_000
"""Offset between the collectors' calls within one tick; at the same time they would compete for the interpreter's lock.
"""
AHEAD_NS: Final = 500_000_000
"""Least clock difference at which an engine's refusal "clock_ahead" makes the agent correct its stamps."""


@dataclass(frozen=True, slots=True)
class AgentConfig:
    """Settings of an agent.

    Attributes:
        core: identity and place of the host.
        socket_path: path of the socket to which hooks send.
        dump_folder: folder below which hooks' dumps are read, "" to read only requested ones.
        metrics_listen: ``HOST:PORT`` of the pages for metrics and probes, several separated by commas, "" for none.
        flush_seconds: most time to send the remaining records at the end.
        deadline_seconds: duration after which a collector's call is reported as hung.
    """

    core: CoreConfig
    socket_path: str
    dump_folder: str = ""
    metrics_listen: str = ""
    flush_seconds: float = FLUSH_SECONDS
    deadline_seconds: float = DEADLINE_SECONDS


@dataclass(frozen=True, slots=True)
class Parts:
    """The replaceable parts of an agent; tests pass fakes.

    Attributes:
        sink: destination of records.
        watcher: the process watcher, which is also one of the collectors.
        collectors: all collectors.
    """

    sink: Sink
    watcher: ProcessWatcher
    collectors: Sequence[Collector]


class Wakeup:
    """Wakes the main thread's ``poll`` from any other thread."""

    def __init__(self) -> None:
        """Create the event descriptor."""
        self._descriptor = os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC)

    def __call__(self) -> None:
        """Wake the main thread."""
        with contextlib.suppress(BlockingIOError):
            os.eventfd_write(self._descriptor, 1)

    def fileno(self) -> int:
        """Return the descriptor to poll."""
        return self._descriptor

    def clear(self) -> None:
        """Reset the descriptor until the next wake-up."""
        with contextlib.suppress(BlockingIOError):
            os.eventfd_read(self._descriptor)


class Agent:
    """The agent's main loop; runs until ``stop``."""

    def __init__(self, config: AgentConfig, parts: Parts, clock: SteadyClock, wake: Wakeup) -> None:
        """Bind the sockets; no thread is started.

        Args:
            config: settings.
            parts: sink, process watcher and collectors.
            clock: the agent's clock.
            wake: wakes the main loop.

        Raises:
            ConfigError: a name, a path or an address cannot be used.
        """
        self._config = config
        self._sink = parts.sink
        self._clock = clock
        self._wake = wake
        _check_names(config.core)
        now, _ = clock.read()
        self.core = AgentCore(config.core, parts.watcher, now)
        self._probes = ProbeHandler(self.core, wake, config.dump_folder)
        self.unread = Unread()
        self._readings: deque[tuple[int, Reading]] = deque()
        supervision = Supervision(clock.stamp_ns, clock.mono_ns, self._deliver, config.deadline_seconds)
        self._runners = [
            CollectorRunner(collector, supervision, number * APART_NS)
            for number, collector in enumerate(parts.collectors)
        ]
        self._records: dict[str, int] = {}
        self._spool_dropped = 0
        self._stopping = False
        self._turned_mono_ns = now.mono_ns
        self._socket = DatagramSocket(config.socket_path)
        self._socket_looked_mono_ns = now.mono_ns
        self._hook_sockets = HookSockets(config.socket_path)
        self._pages = Pages(config.metrics_listen, self.families, self.health, self.ready)

    def run(self) -> None:
        """Serve until ``stop`` is called, then send the remaining records.

        Raises:
            TransportError: the sink's thread has died.
        """
        self._sink.start()
        for runner in self._runners:
            runner.start()
        self._pages.start()
        log.info("agent started", extra={"host": self._config.core.place.host, "socket": self._socket.path})
        # What was imported lives as long as the process, and records hold no cycles:
        # look for garbage seldom, and not among the modules.
        gc.freeze()
        gc.set_threshold(GARBAGE_THRESHOLD, 20, 20)
        poller = select.poll()
        poller.register(self._socket, select.POLLIN)
        poller.register(self._wake, select.POLLIN)
        try:
            while not self._stopping:
                self._turn(poller)
                if not self._sink.is_alive():
                    raise TransportError("the thread that sends has died: the agent ends, to be started anew")
        finally:
            self._end()

    def stop(self) -> None:
        """Ask the main loop to end; may be called from a signal handler or another thread."""
        self._stopping = True
        self._wake()

    def families(self) -> list[Family]:
        """Return the agent's own metrics for the metrics page."""
        reports = {runner.name: runner.report() for runner in self._runners}
        skipped = {runner.name: runner.skipped() for runner in self._runners}
        late_count = self.core.slices.frames.late_count
        own = families(self.core.tally, dict(self._records), reports, self._sink.status(), late_count, skipped)
        return own + socket_families(self._socket.renewed_count, is_reached=not self._socket.trouble)

    def health(self) -> tuple[bool, str]:
        """Return whether the agent works, and a sentence, for ``/healthz``; a missing engine is no failure."""
        age_seconds = (self._clock.mono_ns() - self._turned_mono_ns) / 1e9
        if age_seconds > HEALTHY_SECONDS:
            return False, f"main loop stands for {age_seconds:.1f} s"
        if not self._sink.is_alive():
            return False, "the sink's thread is dead"
        return True, "ok"

    def ready(self) -> tuple[bool, str]:
        """Return whether collectors, hooks' socket and engine connection all work, and a sentence, for ``/readyz``."""
        failing = sorted(runner.name for runner in self._runners if not runner.report().ok)
        if failing:
            return False, f"collectors fail: {', '.join(failing)}"
        if self._socket.trouble:
            return False, f"hooks do not reach {self._socket.path}: {self._socket.trouble}"
        status = self._sink.status()
        if not status.is_connected:
            return False, f"no engine is connected, {status.spooled_count} records wait in the spool"
        return True, "ok"

    def _turn(self, poller: select.poll) -> None:
        """Run one round of the main loop: receive, process readings and messages of the engine, send records."""
        wait = min(TURN_SECONDS, self.core.wait_seconds(Now(0, self._clock.stamp_ns(), 0)))
        ready = [descriptor for descriptor, _ in poller.poll(wait * 1000 + 1)]
        if self._wake.fileno() in ready:
            self._wake.clear()
        now = self._read_clock()
        if self._socket.fileno() in ready:
            self._receive(now)
        if now.mono_ns - self._socket_looked_mono_ns >= SOCKET_LOOK_NS:
            self._socket_looked_mono_ns = now.mono_ns
            self._keep_socket(now)
        from_engine = self._sink.poll()
        readings = [self._readings.popleft() for _ in range(len(self._readings))]
        if from_engine or self.unread.is_urgent or any(reading.events for _, reading in readings):
            self._catch_up()
        for tick_ns, reading in readings:
            self.core.on_reading(tick_ns, reading, now)
        for item in from_engine:
            now = self._on_engine(item, now)
        self._follow_engine_clock()
        self._probes.on_time(now)
        self._hook_sockets.on_time(now.mono_ns)
        self.core.on_time(now, self._surroundings, self._catch_up)
        self.ship()
        self._turned_mono_ns = now.mono_ns

    def _read_clock(self) -> Now:
        """Return the time; a jump of the wall clock is passed to the sink and the core."""
        now, jump_ns = self._clock.read()
        if jump_ns:
            log.warning("wall clock jumped", extra={"step_seconds": jump_ns / 1e9})
            self._sink.clock_jumped()
            self.core.on_clock_jump(jump_ns, now)
        return now

    def _receive(self, now: Now) -> bool:
        """Receive waiting datagrams, up to the limit of one round; return whether there may be more."""
        for _ in range(DATAGRAMS_A_TURN):
            received = self._socket.receive()
            if received is None:
                return False
            self.unread.put(received, now)
        return True

    def _keep_socket(self, now: Now) -> None:
        """Create the hooks' socket again if its file has vanished, after receiving what the old one holds."""
        one = self._socket
        if one.look():
            one.trouble = ""
            return
        for _ in range(LAST_TURNS):
            if not self._receive(now):
                break
        renewed_count, trouble = one.renewed_count, one.trouble
        one.renew()
        if one.renewed_count > renewed_count:
            log.warning("the hooks' socket had vanished and was made again", extra={"socket": one.path})
        elif one.trouble != trouble:
            log.error("hooks do not reach this agent", extra={"socket": one.path, "error": one.trouble})

    def _catch_up(self) -> None:
        """Look into the datagrams that were received."""
        for received, now in self.unread.take():
            if received.is_too_large:
                self.core.dead_letter("too_large", f"datagram larger than allowed from pid {received.pid}")
                continue
            self.core.on_datagram(received.data, LocalSender(received.pid, received.uid), now)
            while self.core.dumps:
                datagram, dump = self.core.dumps.pop()
                self._probes.on_dump(datagram, dump, received.uid)

    def _on_engine(self, from_engine: Refused | Probe, now: Now) -> Now:
        """Process a refusal or a probe of the engine; return the time, which a refusal may have corrected."""
        if isinstance(from_engine, Probe):
            self._probes.on_probe(from_engine, now)
            return now
        offset = self._sink.status().offset
        if from_engine.reason != "clock_ahead" or not offset.is_known:
            return now
        if offset.offset_ns - self._clock.correction_ns < AHEAD_NS:
            return now  # corrected since that record was sent
        self._clock.correction_ns = offset.offset_ns
        log.warning("stamps corrected", extra={"offset_seconds": offset.offset_ns / 1e9})
        now, _ = self._clock.read()
        self.core.on_clock_ahead(offset.offset_ns, now)
        return now

    def _follow_engine_clock(self) -> None:
        """Update the stamp correction, if there is one, to the present clock offset from the engine."""
        if self._clock.correction_ns:
            offset = self._sink.status().offset
            if offset.is_known:
                self._clock.correction_ns = offset.offset_ns

    def _surroundings(self) -> Surroundings:
        """Return what a heartbeat reports about the sink and the collectors."""
        status = self._sink.status()
        return Surroundings(
            clock_offset_ns=status.offset.offset_ns,
            clock_error_ns=status.offset.error_ns,
            spooled_count=status.spooled_count,
            collectors={runner.name: runner.report().as_json() for runner in self._runners},
        )

    def ship(self, *, is_last: bool = False) -> None:
        """Hand all records that are ready to the sink; ``is_last``: nothing comes after them."""
        status = self._sink.status()
        # said behind a full spool it would come late, and nobody would hear of it
        can_be_heard = is_last or (status.is_connected and not status.spooled_count)
        if status.dropped_count > self._spool_dropped and can_be_heard:
            now, _ = self._clock.read()
            self.core.on_spool_overflow(status.dropped_count - self._spool_dropped, now)
            self._spool_dropped = status.dropped_count
        records: list[Record] = [*self.core.take(), *self._probes.take()]
        for record in records:
            kind = type(record).__name__
            self._records[kind] = self._records.get(kind, 0) + 1
            self._sink.put(record)

    def _deliver(self, name: str, tick_ns: int, reading: Reading) -> None:
        """Queue a reading for the main loop; called in its collector's thread."""
        del name
        self._readings.append((tick_ns, reading))
        if reading.events:
            self._wake()

    def _end(self) -> None:
        """Stop collectors, process the last datagrams, send the last records and close everything."""
        for runner in self._runners:
            runner.stop()
        now = self._read_clock()
        for _ in range(LAST_TURNS):  # what the socket took is sent
            if not self._receive(now):
                break
            self._catch_up()
        self._catch_up()
        now = self._read_clock()
        self.core.on_stop(now)
        self.ship(is_last=True)
        self._socket.close()
        self._pages.close()
        self._probes.close()
        self._sink.close(self._config.flush_seconds)
        log.info("agent stopped", extra={"host": self._config.core.place.host})


def _check_names(core: CoreConfig) -> None:
    """Raise ``ConfigError`` for a name that the codec would refuse in every record."""
    place = core.place
    names = {"host": place.host, "cluster": core.cluster, "leaf": place.leaf, "minipod": place.minipod}
    for name, value in names.items():
        try:
            check_name(value, name, empty=name != "host")
        except FieldError as error:
            least = 1 if name == "host" else 0
            raise ConfigError(name, value[:80], f"a text of {least} to {MAX_NAME_BYTES} bytes, without NUL") from error
