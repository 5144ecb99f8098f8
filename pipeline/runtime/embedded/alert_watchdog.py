"""The watchdog of the alerts: a notice that comes for as long as the engine lives and judges."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from typing import Any, Final

from tocsin.pipeline.alerts.notice import AlertSeverity, Notice, NoticeKind
from tocsin.pipeline.alerts.routes import AlertWatchdog
from tocsin.pipeline.alerts.sample import empty_notice
from tocsin.pipeline.runtime.embedded.alert_canary import AlertCanary, CanaryReason, EngineWatch
from tocsin.pipeline.runtime.embedded.engine import EngineConfig
from tocsin.pipeline.runtime.embedded.listener_watch import ListenerWatch
from tocsin.schemas.formats.prometheus_text import Family, Sample
from tocsin.schemas.records import NS_PER_SECOND

WATCHDOG_ROUTE: Final = "watchdog"
_LOG = logging.getLogger("tocsin.alerts")


class AlertWatchdogLoop:
    """Makes one notice for each canary that came through, while the real engine listens and works off what it takes."""

    def __init__(
        self,
        watchdog: AlertWatchdog,
        engine: EngineConfig,
        counters: Mapping[str, int] | None,
        listener: ListenerWatch | None = None,
    ) -> None:
        """Prepare the first canary.

        Args:
            watchdog: receiver and distance of the notices.
            engine: settings of the real engine.
            counters: counters of the real engine, None = they are not looked at.
            listener: knocks at the real engine's listener, None = nobody does.
        """
        self._listener = listener
        self._receiver = watchdog.receiver
        self._canary = AlertCanary(engine, watchdog.every_seconds)
        self._watch = None if counters is None else EngineWatch(counters)
        self._trouble: CanaryReason | None = None
        self._sent_ns = 0
        self._now_ns = 0

    def on_second(self, tick_ns: int, now_ns: int) -> list[tuple[Notice, str]]:
        """Go on by one tick; return the notice with its receiver where a canary came through, else nothing.

        Args:
            tick_ns: the tick.
            now_ns: the present time.
        """
        self._now_ns = now_ns
        has_passed = self._canary.on_second(tick_ns)
        trouble = self._canary.trouble
        if has_passed:
            trouble = self._look()
        elif trouble is None:
            trouble = self._trouble
        if trouble is not None and trouble is not self._trouble:
            _LOG.error("the watchdog's notice is withheld", extra={"reason": trouble.value, "why": trouble.meaning})
        self._trouble = trouble
        if not has_passed or trouble is not None:
            return []
        self._sent_ns = now_ns
        notice = empty_notice(WATCHDOG_ROUTE, NoticeKind.WATCHDOG, AlertSeverity.INFORMATION, now_ns)
        return [(notice, self._receiver)]

    def _look(self) -> CanaryReason | None:
        """Return what is wrong with the real engine, None for nothing."""
        if self._listener is not None and self._listener.is_silent():
            return CanaryReason.LISTENER_SILENT
        return None if self._watch is None else self._watch.look()

    def status(self) -> Mapping[str, Any]:
        """Return how old the last notice is, None for none, and why it is withheld, "" for not."""
        age_seconds = (self._now_ns - self._sent_ns) / NS_PER_SECOND if self._sent_ns else None
        return {"age_seconds": age_seconds, "withheld": "" if self._trouble is None else self._trouble.value}

    def families(self) -> list[Family]:
        """Return the metrics: when a canary last came through."""
        stamp = Sample({}, self._canary.passed_ns / NS_PER_SECOND)
        words = "When the alerts' canary was last judged right, Unix time; 0: never."
        return [Family("tocsin_alerts_canary_timestamp_seconds", "gauge", words, (stamp,))]
