"""Catch up after a restart: wait for the known hosts to return, then process the missed seconds.

Agents store records while no engine listens, send those first, and then report that they are live. The engine waits for
that, at most ``wait_seconds``, before it processes a tick. So the seconds of the outage are judged with all their
records. A host that is not back by then may still return; its silence during the outage does not count against it.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from dataclasses import dataclass
from threading import Event

from tocsin.pipeline.runtime.embedded.engine import EmbeddedEngine
from tocsin.schemas.records import NS_PER_SECOND

_LOG = logging.getLogger("tocsin.service")
_LOOK_SECONDS = 0.05


@dataclass(frozen=True, slots=True)
class CatchUpConfig:
    """Settings of the catch-up.

    Attributes:
        wait_seconds: maximum time to wait for known hosts.
        known_seconds: a host is waited for if it was heard within this time before the outage (hosts report every 5 s).
    """

    wait_seconds: float = 5.0
    known_seconds: int = 15


class CatchUp:
    """Catches up once, after a start with restored state."""

    def __init__(
        self,
        engine: EmbeddedEngine,
        live_hosts: Callable[[], frozenset[str]],
        now_ns: Callable[[], int],
        config: CatchUpConfig | None = None,
    ) -> None:
        """Allow records ahead of the ticks from now on.

        Args:
            engine: the restored engine.
            live_hosts: returns the hosts that are connected and have sent what they had stored.
            now_ns: returns the current time.
            config: settings.
        """
        self._engine = engine
        self._live_hosts = live_hosts
        self._now_ns = now_ns
        self._config = config or CatchUpConfig()
        self.waited_for = engine.expected_hosts(self._config.known_seconds * NS_PER_SECOND)
        engine.is_catching_up = True

    def run(self, tick: Callable[[int], object], stopping: Event) -> None:
        """Wait for the known hosts, then process one tick for each second up to now.

        Args:
            tick: processes a tick.
            stopping: ends the catch-up early; the next start processes the rest.
        """
        begin = time.monotonic()
        while self.waited_for - self._live_hosts() and time.monotonic() - begin < self._config.wait_seconds:
            if stopping.wait(_LOOK_SECONDS):
                return
        missing = self.waited_for - self._live_hosts()
        first_ns = self._engine.now_ns or self._now_ns()
        if missing:
            self._engine.excuse(missing, self._now_ns())
        tick_ns = first_ns
        while (tick_ns := tick_ns + NS_PER_SECOND) <= self._now_ns() and not stopping.is_set():
            tick(tick_ns)
        self._engine.is_catching_up = False
        fields = {"hosts": len(self.waited_for), "missing": sorted(missing)[:10], "missing_count": len(missing)}
        seconds = (tick_ns - first_ns) / NS_PER_SECOND - 1
        _LOG.info("caught up", extra={**fields, "seconds": seconds, "took_seconds": time.monotonic() - begin})
