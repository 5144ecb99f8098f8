"""Health of a running engine: its threads, its ticks, its journal and its database."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from tocsin.pipeline.runtime.embedded.control_socket import OLD_TICK_SECONDS, Message
from tocsin.pipeline.runtime.embedded.recovery import Recovery
from tocsin.pipeline.runtime.embedded.store_writer import StoreWriter
from tocsin.pipeline.runtime.embedded.supervised_thread import SupervisedThread
from tocsin.schemas.records import NS_PER_SECOND


class ServiceHealth:
    """The health of one engine."""

    def __init__(
        self,
        threads: Callable[[], Sequence[SupervisedThread]],
        writer: StoreWriter,
        recovery: Recovery | None,
        steady_ns: Callable[[], int],
    ) -> None:
        """Start to measure the engine's age.

        Args:
            threads: returns the threads that must live.
            writer: writes to the database.
            recovery: keeps the state for a restart; None: no state is kept.
            steady_ns: a monotonic clock.
        """
        self._threads = threads
        self._writer = writer
        self._recovery = recovery
        self._steady_ns = steady_ns
        self._started_ns = self._ticked_ns = steady_ns()

    def ticked(self) -> None:
        """Note that a tick was worked off."""
        self._ticked_ns = self._steady_ns()

    def tick_age_seconds(self) -> float:
        """Return the time since the newest tick was worked off, or since the start where there was none."""
        return (self._steady_ns() - self._ticked_ns) / NS_PER_SECOND

    def age_seconds(self) -> float:
        """Return the time since the engine was made."""
        return (self._steady_ns() - self._started_ns) / NS_PER_SECOND

    def live(self) -> tuple[bool, str]:
        """Return whether threads and ticks go on, and a sentence about it, for ``/healthz``.

        An outage of the database is no reason to restart the engine.
        """
        dead = [thread.name for thread in self._threads() if not thread.is_alive()]
        if dead:
            return False, f"dead threads: {', '.join(dead)}"
        age_seconds = self.tick_age_seconds()
        if age_seconds > OLD_TICK_SECONDS:
            return False, f"newest tick {age_seconds:.0f} s old: nothing is judged"
        return True, f"ok, newest tick {age_seconds:.1f} s old"

    def ready(self) -> tuple[bool, str]:
        """Return whether records are kept and verdicts reach the database, and a sentence about it, for ``/readyz``."""
        if self._recovery is not None and self._recovery.trouble:
            return False, f"the journal cannot be written: {self._recovery.trouble}"
        if not self._writer.is_alive():
            return False, "the database's thread does not run"
        if self._writer.trouble:
            waiting = self._writer.waiting_count
            return False, f"the database takes nothing ({waiting} writes wait): {self._writer.trouble}"
        return True, "ok"

    def answer(self, _request: Message) -> Message:
        """Return what ``incidents`` and ``status`` ask first: an engine that does not tick knows nothing."""
        (is_live, live), (is_ready, ready) = self.live(), self.ready()
        return {
            "tick_age_seconds": self.tick_age_seconds(),
            "is_live": is_live,
            "live": live,
            "is_ready": is_ready,
            "ready": ready,
        }
