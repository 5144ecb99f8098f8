"""Alerts whose whole state is kept elsewhere: router, queue and sender, begun from parts and mirrored as parts."""

from __future__ import annotations

import logging
import sqlite3
import tempfile
import threading
import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Final

from tocsin.pipeline.alerts.committed_queue import CommitGate, CommittedQueue
from tocsin.pipeline.alerts.families import alert_families
from tocsin.pipeline.alerts.notice import Adapter, AlertSeverity, Notice, NoticeKind
from tocsin.pipeline.alerts.queue_mirror import QueueMirror
from tocsin.pipeline.alerts.router import AlertRouter, RouterConfig
from tocsin.pipeline.alerts.routes import RouteConfig
from tocsin.pipeline.alerts.sample import empty_notice
from tocsin.pipeline.alerts.sender import AlertSender, SenderConfig
from tocsin.pipeline.stores.alert_sent import AlertSent
from tocsin.schemas.errors import EngineError, SchemaError
from tocsin.schemas.formats.prometheus_text import Family
from tocsin.schemas.records import NS_PER_SECOND
from tocsin.schemas.verdicts import Verdict

_LOG = logging.getLogger("tocsin.alerts")
_WATCHDOG_ROUTE: Final = "watchdog"
_LOOK_SECONDS: Final = 0.2
_FAILED_SECONDS: Final = 5.0
_JOIN_SECONDS: Final = 20.0


class MirroredAlerts:
    """One active time of the alerts; one thread calls all but the sending, which has a thread for each receiver.

    The queue lies in a temporary file, which is only this process's working copy.

    Attributes:
        gate: tells when changes are stored; the caller drives it.
        mirror: the rows that changed.
        sender: sends what waits.
        sent: rows of what was sent, to be taken by the caller.
    """

    def __init__(
        self,
        routes: RouteConfig,
        adapters: Mapping[str, Adapter],
        state: Mapping[str, bytes],
        now_ns: int,
        covered_by: Callable[[Verdict], str],
        silence: Callable[[Verdict, int], str] = lambda _verdict, _now_ns: "",
    ) -> None:
        """Begin from a state.

        Args:
            routes: the routes.
            adapters: name of a receiver -> its adapter; closed at the end.
            state: parts of ``QueueMirror``, and others, which are left out.
            now_ns: the present time.
            covered_by: returns the id of the fleet incident that stands for a verdict, "" for none.
            silence: returns the named reason for which a verdict is not told at a time, "" for none.

        Raises:
            SnapshotError: a part of the state is damaged.
        """
        self._routes = routes
        self._adapters = adapters
        self._receivers = {one.name: one.receiver for one in routes.routes}
        self._folder = tempfile.TemporaryDirectory(prefix="tocsin-alerts-")
        self.gate = CommitGate()
        path = Path(self._folder.name) / "alerts.db"
        self._queue = CommittedQueue(path, now_ns, self.gate)
        self.mirror = QueueMirror(path)
        self.mirror.load(state)
        self._queue.drop_unknown(sorted(adapters))
        self.sent: deque[AlertSent] = deque()
        give_up = {one.name: one.give_up_after_seconds for one in routes.routes}
        self.sender = AlertSender(self._queue, adapters, SenderConfig(give_up_after_seconds=give_up), self.sent.append)
        self._router = AlertRouter(RouterConfig(routes), silence, covered_by)
        self._revision = 0
        self._watchdog_ns = 0
        self._stop = threading.Event()
        self._threads: list[threading.Thread] = []
        self._load()

    def _load(self) -> None:
        """Load the router's state; one that cannot be read is left out."""
        try:
            state = self._queue.router_state()
            if state is not None:
                self._router.load_state(state)
        except (KeyError, ValueError, TypeError, SchemaError) as error:
            _LOG.error("the state of the alerts cannot be read: they begin anew", extra={"error": str(error)})
        self._revision = self._router.revision

    def tell(
        self,
        verdicts: Sequence[Verdict],
        now_ns: int,
        *,
        has_watchdog: bool,
        remarks: Sequence[tuple[str, str]] = (),
    ) -> None:
        """Take verdict lines, also where there are none, and put what they tell into the queue.

        Args:
            verdicts: the lines, in stream order.
            now_ns: the present time.
            remarks: verdict ids, each with a sentence that is told where its incident was told.
            has_watchdog: whether the watchdog's notice may go out.

        Raises:
            EngineError: the working copy cannot be written; begin again from the state.
        """
        told = [(one, self._receivers[one.route]) for one in self._router.on_verdicts(verdicts, now_ns)]
        for verdict_id, text in remarks:
            told += [(one, self._receivers[one.route]) for one in self._router.remark(verdict_id, text, now_ns)]
        told += self._watchdog(now_ns) if has_watchdog else []
        if not told and self._revision == self._router.revision:
            return
        try:
            self._queue.put(told, now_ns, self._router.to_state())
        except sqlite3.Error as error:
            raise EngineError(f"the queue of alerts in {self._folder.name} cannot be written: {error}") from error
        self._revision = self._router.revision

    def _watchdog(self, now_ns: int) -> list[tuple[Notice, str]]:
        """Return the watchdog's notice where it is due."""
        watchdog = self._routes.watchdog
        if watchdog is None or now_ns - self._watchdog_ns < watchdog.every_seconds * NS_PER_SECOND:
            return []
        self._watchdog_ns = now_ns
        notice = empty_notice(_WATCHDOG_ROUTE, NoticeKind.WATCHDOG, AlertSeverity.INFORMATION, now_ns)
        return [(notice, watchdog.receiver)]

    def start(self, clock_ns: Callable[[], int]) -> None:
        """Start a sending thread for each receiver.

        Args:
            clock_ns: returns the present time.
        """
        for name in sorted(self._adapters):
            thread = threading.Thread(target=self._serve, args=(name, clock_ns), name=f"alerts-{name}", daemon=True)
            self._threads.append(thread)
            thread.start()

    def _serve(self, receiver: str, clock_ns: Callable[[], int]) -> None:
        """Send to one receiver until stopped; an error is logged and tried again."""
        while not self._stop.wait(_LOOK_SECONDS):
            try:
                self.sender.run_receiver(receiver, clock_ns)
            except Exception:  # noqa: BLE001  # supervising: a thread that sends must go on
                _LOG.exception("sending alerts failed", extra={"receiver": receiver})
                self._stop.wait(_FAILED_SECONDS)

    def stop(self) -> None:
        """Begin to send nothing more, and wait for what is being sent."""
        self._stop.set()
        self.gate.close()
        until = time.monotonic() + _JOIN_SECONDS
        for thread in self._threads:
            thread.join(max(0.0, until - time.monotonic()))

    def close(self) -> None:
        """Stop, and remove the working copy."""
        self.stop()
        if not any(thread.is_alive() for thread in self._threads):
            for adapter in self._adapters.values():
                adapter.close()
            self._queue.close()
        self.mirror.close()
        self._folder.cleanup()

    def families(self, now_ns: int) -> list[Family]:
        """Return the metrics at a time: what was sent, what waits, what is told, what is wrong."""
        return alert_families(self._router, self.sender, self._queue, now_ns)
