"""Alerts inside the embedded engine: a follower that tells people about the verdicts by the routes of a file."""

from __future__ import annotations

import logging
import sqlite3
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from tocsin.pipeline.alerts.adapters.kinds import AdapterKind
from tocsin.pipeline.alerts.families import alert_families, untold_counts
from tocsin.pipeline.alerts.notice import Adapter, Notice
from tocsin.pipeline.alerts.queue import AlertQueue
from tocsin.pipeline.alerts.router import AlertRouter, RouterConfig
from tocsin.pipeline.alerts.routes import RouteConfig, load_routes
from tocsin.pipeline.alerts.sender import AlertSender, SenderConfig
from tocsin.pipeline.runtime.embedded.alert_watchdog import AlertWatchdogLoop
from tocsin.pipeline.runtime.embedded.control_socket import Handler
from tocsin.pipeline.runtime.embedded.engine import EngineConfig
from tocsin.pipeline.runtime.embedded.listener.knock import knock
from tocsin.pipeline.runtime.embedded.listener_watch import ListenerWatch
from tocsin.pipeline.runtime.embedded.store_writer import Write
from tocsin.pipeline.runtime.embedded.supervised_thread import SupervisedThread
from tocsin.pipeline.stores.alert_sent import AlertSent
from tocsin.schemas.errors import SchemaError
from tocsin.schemas.formats.prometheus_text import Family
from tocsin.schemas.verdicts import Verdict

if TYPE_CHECKING:
    from tocsin.pipeline.runtime.embedded.service import EngineService

_LOG = logging.getLogger("tocsin.alerts")
FILE_NAME: Final = "alerts.db"
_LOOK_SECONDS: Final = 0.5
_CLOSE_SECONDS: Final = 3.0
_MOST_PENDING: Final = 10_000


@dataclass(frozen=True, slots=True)
class AlertHooks:
    """What the alerts ask others.

    Attributes:
        silence: returns the named reason for which a verdict is not told at a time, "" for none.
        covered_by: returns the id of the fleet incident that stands for a verdict, "" for none.
        on_sent: is given each delivery and each final failure, from a sending thread; those of the last day again at
            the start.
        counters: counters of the real engine, for the watchdog; None = they are not looked at.
        released: returns this tick's lines that planned work held until now and covers no more.
        listener: knocks at the engine's listener, for the watchdog; None = nobody does.
    """

    silence: Callable[[Verdict, int], str] = lambda _verdict, _now_ns: ""
    covered_by: Callable[[Verdict], str] = lambda _verdict: ""
    on_sent: Callable[[AlertSent], None] = lambda _row: None
    counters: Mapping[str, int] | None = None
    released: Callable[[], Sequence[Verdict]] = lambda: ()
    listener: ListenerWatch | None = None


class AlertFollower:
    """Tells people about the verdicts of one engine; attach it after all that adds verdicts.

    Its state lies in the queue's file and not in the engine's snapshots, because it must survive what they do not.

    Attributes:
        name: ``alerts``.
        queue: what waits and what was told.
        sender: sends it.
    """

    name = "alerts"

    def __init__(
        self,
        routes: RouteConfig,
        adapters: Mapping[str, Adapter],
        queue: AlertQueue,
        hooks: AlertHooks | None = None,
        *,
        clock_ns: Callable[[], int] = time.time_ns,
        has_threads: bool = True,
    ) -> None:
        """Load the router's state from the queue's file.

        Args:
            routes: the routes.
            adapters: name of a receiver -> its adapter; the follower closes them.
            queue: the queue; the follower closes it.
            hooks: what it asks others; None: nobody.
            clock_ns: returns the present time.
            has_threads: whether a thread sends for each receiver; tests call ``sender.run_once``.
        """
        hooks = hooks or AlertHooks()
        self._routes = routes
        self._adapters = adapters
        self._clock_ns = clock_ns
        self._receivers = {one.name: one.receiver for one in routes.routes}
        self.queue = queue
        self._on_sent = hooks.on_sent
        self._released = hooks.released
        give_up = {one.name: one.give_up_after_seconds for one in routes.routes}
        self.sender = AlertSender(queue, adapters, SenderConfig(give_up_after_seconds=give_up), hooks.on_sent)
        self._router = AlertRouter(RouterConfig(routes), hooks.silence, hooks.covered_by)
        self._revision = 0
        self._pending: list[tuple[Notice, str]] = []
        self._remarks: list[tuple[str, str]] = []
        self._listener = None if routes.watchdog is None else hooks.listener
        self._watchdog = (
            None
            if routes.watchdog is None
            else AlertWatchdogLoop(routes.watchdog, EngineConfig(), hooks.counters, self._listener)
        )
        self._failures = 0
        self._stop = threading.Event()
        self._threads = [
            SupervisedThread(f"alerts-{name}", lambda name=name: self._serve(name))  # type: ignore[misc]  # bound now
            for name in (sorted(adapters) if has_threads else ())
        ]
        if self._listener is not None and has_threads:
            self._threads.append(SupervisedThread("alerts-knock", partial(self._listener.run, self._stop)))
        self._load()

    def _load(self) -> None:
        """Load the router's state; one that cannot be read is left out."""
        if self.queue.begun_anew is not None:
            _LOG.error("the queue of alerts begins anew", extra={"reason": self.queue.begun_anew.value})
        self.queue.drop_unknown(sorted(self._adapters))
        try:
            state = self.queue.router_state()
            if state is not None:
                self._router.load_state(state)
        except (KeyError, ValueError, TypeError, SchemaError) as error:
            _LOG.error("the state of the alerts cannot be read: they begin anew", extra={"error": str(error)})

    def on_verdicts(self, verdicts: Sequence[Verdict], now_ns: int) -> Sequence[Verdict]:
        """Take the lines of one tick and put what they tell into the queue; return no lines."""
        made_ns = max(now_ns, self._clock_ns())  # after a restart the ticks are behind the time
        notices = self._router.on_verdicts([*verdicts, *self._released()], made_ns)
        remarks, self._remarks = self._remarks, []
        for verdict_id, text in remarks:
            notices += self._router.remark(verdict_id, text, made_ns)
        self._pending += [(one, self._receivers[one.route]) for one in notices]
        if self._watchdog is not None:
            self._pending += self._watchdog.on_second(now_ns, made_ns)
        if not self._pending and self._revision == self._router.revision:
            return ()
        try:
            self.queue.put(self._pending, self._clock_ns(), self._router.to_state())
        except sqlite3.Error as error:  # a full disk: kept in memory until it can be written
            self._failures += 1
            _LOG.error("the queue of alerts cannot be written", extra={"error": str(error)})
            del self._pending[:-_MOST_PENDING]
            return ()
        self._pending.clear()
        self._revision = self._router.revision
        return ()

    def remark(self, verdict_id: str, text: str) -> None:
        """Tell a sentence about an incident where the incident was told, e.g. that its action waits for a person.

        For the ticking thread, before ``on_verdicts``.
        """
        self._remarks.append((verdict_id, text))

    def _serve(self, receiver: str) -> None:
        """Send to one receiver until the follower is closed; an error is logged and tried again."""
        while not self._stop.wait(_LOOK_SECONDS):
            try:
                self.sender.run_receiver(receiver, self._clock_ns)
            except Exception:  # noqa: BLE001  # supervising: a thread that sends must go on
                self._failures += 1
                _LOG.exception("sending alerts failed", extra={"receiver": receiver})
                self._stop.wait(_LOOK_SECONDS * 10)

    def start(self) -> None:
        """Tell again what was sent within a day, as its rows may be lost; start a thread for each receiver."""
        for row in self.queue.kept_sent(self._clock_ns()):
            self._on_sent(row)
        for thread in self._threads:
            thread.start()

    def close(self) -> None:
        """Stop the threads, close the connections and the file; what waits is sent after the next start."""
        self._stop.set()
        end = time.monotonic() + _CLOSE_SECONDS
        for thread in self._threads:
            thread.join(max(0.0, end - time.monotonic()))
        if any(thread.is_alive() for thread in self._threads):
            return  # a receiver that does not answer holds its thread; the process ends it
        for adapter in self._adapters.values():
            adapter.close()
        self.queue.close()

    def threads(self) -> Sequence[SupervisedThread]:
        """Return the sending threads."""
        return self._threads

    def status(self) -> Mapping[str, Any]:
        """Return what waits, what was sent and what stands."""
        sent: dict[str, dict[str, int]] = {}
        for (receiver, outcome), count in sorted(self.sender.outcomes().items()):
            sent.setdefault(receiver, {})[outcome] = count
        anew = self.queue.begun_anew
        return {
            "waiting": self.queue.waiting_counts(),
            "told_count": self.queue.told_count(),
            "sent": sent,
            "troubles": self.sender.troubles(),
            "untold": dict(self._router.untold),
            "untold_incidents": untold_counts(self._router, self.sender, self.queue),
            "queue_begun_anew": "" if anew is None else anew.value,
            "failures": self._failures,
            "watchdog": {} if self._watchdog is None else self._watchdog.status(),
        }

    def families(self) -> Sequence[Family]:
        """Return the metrics: what was sent, what waits, what is told, what is wrong, and the canary's time."""
        watchdog = [] if self._watchdog is None else self._watchdog.families()
        return [*watchdog, *alert_families(self._router, self.sender, self.queue, self._clock_ns())]

    def handlers(self) -> Mapping[str, Handler]:
        """Return no requests of the control socket."""
        return {}

    def snapshot(self) -> dict[str, bytes]:
        """Return no parts: the queue's file holds the state."""
        return {}

    def restore(self, parts: Mapping[str, bytes]) -> None:
        """Keep the state of the queue's file, which is never older than a snapshot's."""


def attach_alerts(
    service: EngineService,
    path: Path,
    folder: Path,
    registry: Mapping[str, AdapterKind],
    covered_by: Callable[[Verdict], str] = AlertHooks().covered_by,
    released: Callable[[], Sequence[Verdict]] = AlertHooks().released,
) -> AlertFollower:
    """Attach alerts to an engine that has not started, after all that adds verdicts, and return them.

    Args:
        service: the engine.
        path: the routes file.
        folder: folder of the queue's file.
        registry: word of the kind -> kind of receiver.
        covered_by: returns the id of the fleet incident that stands for a verdict, "" for none.
        released: returns this tick's lines that planned work held until now and covers no more.

    Raises:
        ConfigError: the routes file is wrong, or the queue's file cannot be used.
    """
    routes = load_routes(path, registry)
    adapters = {
        name: registry[str(settings["kind"])].make(settings, routes.places[name])
        for name, settings in routes.receivers.items()
    }
    hooks = AlertHooks(
        lambda verdict, now_ns: _planned(service, verdict, now_ns),
        covered_by,
        lambda row: service.writer.put(Write(alerts=(row,))),
        service.engine.counters,
        released,
        ListenerWatch(lambda: knock(service.server.address, has_tls=service.server.has_tls)),
    )
    clock_ns = service.time.now_ns
    queue = AlertQueue(folder / FILE_NAME, clock_ns())
    follower = AlertFollower(routes, adapters, queue, hooks, clock_ns=clock_ns)
    service.attach(follower)
    return follower


def _planned(service: EngineService, verdict: Verdict, now_ns: int) -> str:
    """Return the named reason for which planned work silences a verdict, "" for none."""
    book = service.memory.proposals.maintenance
    return "" if book is None else book.silence(verdict, now_ns)
