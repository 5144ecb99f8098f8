"""Time after a restart: it stands until those who were known have come back, then runs until it has caught up.

Agents keep what they see while nobody listens, send that first, and say when they have (``live``). Until then, and for
``wait_seconds`` at most, no second is judged: then the seconds in which the engine was away are judged with all their
records, as they would have been. A host that is not back by then may be on its way: that it was not heard while the
engine was away is the engine's own doing, and does not count as its silence.
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
    """Settings.

    Attributes:
        wait_seconds: how long hosts that were known are waited for.
        known_seconds: a host that was heard so shortly before the end was known then: it reports every 5 s.
    """

    wait_seconds: float = 5.0
    known_seconds: int = 15


class CatchUp:
    """Once, after a start that found a state."""

    def __init__(
        self,
        engine: EmbeddedEngine,
        live_hosts: Callable[[], frozenset[str]],
        now_ns: Callable[[], int],
        config: CatchUpConfig | None = None,
    ) -> None:
        """From now on records may be ahead of the ticks.

        Args:
            engine: restored.
            live_hosts: who is connected, and has sent what it had kept.
            now_ns: the clock.
            config: settings.
        """
        self._engine = engine
        self._live_hosts = live_hosts
        self._now_ns = now_ns
        self._config = config or CatchUpConfig()
        self.waited_for = engine.expected_hosts(self._config.known_seconds * NS_PER_SECOND)
        engine.is_catching_up = True

    def run(self, tick: Callable[[int], object], stopping: Event) -> None:
        """Wait, then work off the seconds up to now.

        Args:
            tick: works off a tick.
            stopping: ends it early; what was not worked off is worked off by the next start.
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
        told = {"hosts": len(self.waited_for), "missing": sorted(missing)[:10], "missing_count": len(missing)}
        seconds = (tick_ns - first_ns) / NS_PER_SECOND - 1
        _LOG.info("caught up", extra={**told, "seconds": seconds, "took_seconds": time.monotonic() - begin})
