"""The embedded engine as a service: listener, ticker, operators, incident database, control.

One process, threads, never forked (chDB hangs in a forked child).
"""

from __future__ import annotations

import contextlib
import logging
import threading
import time
from collections import Counter, defaultdict, deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol

from tocsin.pipeline.incidents.proposals import HoldRules, ProposalBook
from tocsin.pipeline.runtime.embedded.catch_up import CatchUp, CatchUpConfig
from tocsin.pipeline.runtime.embedded.clock_watch import EngineTime
from tocsin.pipeline.runtime.embedded.control_socket import (
    OLD_TICK_SECONDS,
    ControlServer,
    Message,
    sql_handler,
)
from tocsin.pipeline.runtime.embedded.dead_letter_writer import DeadLetterWriter
from tocsin.pipeline.runtime.embedded.dead_letters import DEAD_LETTERS, DeadLetter
from tocsin.pipeline.runtime.embedded.engine import EmbeddedEngine, EngineConfig, EngineOutput
from tocsin.pipeline.runtime.embedded.listener.listener import AgentServer, ServerConfig
from tocsin.pipeline.runtime.embedded.listener.readers import incidents_answerer, jobs_answerer
from tocsin.pipeline.runtime.embedded.model_file import FILE_NAME, ModelFile
from tocsin.pipeline.runtime.embedded.model_handler import model_handler
from tocsin.pipeline.runtime.embedded.recovery import Recovery, RecoveryConfig, ReplayFunctions
from tocsin.pipeline.runtime.embedded.service_memory import ServiceMemory
from tocsin.pipeline.runtime.embedded.store_writer import StoreWriter
from tocsin.pipeline.runtime.embedded.supervised_thread import SupervisedThread, describe_dead
from tocsin.pipeline.runtime.embedded.verdict_output import VerdictOutput
from tocsin.pipeline.runtime.job_failure import JobFailure
from tocsin.pipeline.stores.base import Store
from tocsin.schemas.errors import StoreError
from tocsin.schemas.reasons import Reason, StateLoss
from tocsin.schemas.records import NS_PER_SECOND, JobRecord
from tocsin.schemas.trouble_log import TroubleLog
from tocsin.schemas.wire.codec import encode

_LOG = logging.getLogger("tocsin.service")
_KEPT_EVENTS = 20
_FLOORS_NS = 86_400 * NS_PER_SECOND


@dataclass(frozen=True, slots=True)
class ServiceConfig:
    """Settings.

    Attributes:
        listen: where agents connect: ``unix:PATH`` or ``HOST:PORT``.
        control_path: the control socket.
        letter_folder: where dead letters and late records are kept, None: only counted.
        model_folder: where announced models are remembered over a restart, None: nowhere.
        engine: operators and slices.
        server: bounds of the listener.
        recovery: where the engine's state is kept over a restart, None: nowhere.
        catch_up: how time goes on after one.
        evidence_after_seconds: the series behind a verdict is written again this long after.
        kept_verdict_count: verdict lines kept for clients that come later.
        hold: how long rows of hard actions wait.
    """

    listen: str
    control_path: Path
    letter_folder: Path | None = None
    model_folder: Path | None = None
    engine: EngineConfig = field(default_factory=EngineConfig)
    server: ServerConfig = field(default_factory=ServerConfig)
    recovery: RecoveryConfig | None = None
    catch_up: CatchUpConfig = field(default_factory=CatchUpConfig)
    evidence_after_seconds: int = 30
    kept_verdict_count: int = 10_000
    hold: HoldRules = field(default_factory=HoldRules)


class Recordings(Protocol):
    """Makes recordings of a running engine (``pipeline/recording/live.py``)."""

    def record(self, request: Message) -> Message | Iterator[Message]:
        """Begin one."""

    def record_stop(self, request: Message) -> Message:
        """End one."""

    def close(self) -> None:
        """End all of them."""


class EngineService:
    """Everything that ``tocsin serve`` runs."""

    def __init__(
        self,
        config: ServiceConfig,
        store: Store,
        now_ns: Callable[[], int] = time.time_ns,
        writer: StoreWriter | None = None,
        steady_ns: Callable[[], int] = time.monotonic_ns,
    ) -> None:
        """Wire it; ``start`` begins.

        Args:
            config: settings.
            store: answers users' queries.
            now_ns: the wall clock.
            writer: writes to the store; None: one for a store that is migrated.
            steady_ns: a clock that nobody sets: it tells when the wall clock was.
        """
        self._config = config
        self._steady_ns = steady_ns
        self.time = EngineTime(now_ns, steady_ns)
        self.engine = EmbeddedEngine(config.engine)
        folder = config.model_folder
        self._shelf = None if folder is None else ModelFile(folder / FILE_NAME, self.engine.models)
        self.letters = DeadLetterWriter(config.letter_folder)
        self.writer = writer or StoreWriter(store)
        self.clock = self.time.watch
        proposals = ProposalBook(config.hold, now_ns(), self.engine.changes_of)
        self.memory = ServiceMemory(config.kept_verdict_count, proposals)
        self._output = VerdictOutput(
            self.engine, self.memory, self.writer, self._supervised, config.evidence_after_seconds
        )
        self.detector_seconds: dict[str, float] = defaultdict(float)
        self.failures: Counter[str] = Counter()
        """What raised and was caught, by part."""
        self.pages: list[str] = []
        """Where the pages for metrics and probes are, or why they are not there."""
        self.recovery = self._recovery(config)
        self.server = AgentServer(self.engine, config.listen, now_ns, self.letters.put, config.server)
        self.server.readers.answerers = {
            "status": self._status,
            "health": self._health,
            "incidents": incidents_answerer(store.query),
            "jobs": jobs_answerer(store.query, lambda: {job.job_id for job in self.engine.jobs()}),
        }
        if self.recovery is not None:
            self.server.commit = self.recovery.ledger.commit
        self._store = store
        self._catch_up: CatchUp | None = None
        self._troubles = TroubleLog(_LOG)
        self._events: deque[dict[str, Any]] = deque(maxlen=_KEPT_EVENTS)
        self._stopping = threading.Event()
        self._recordings: Recordings | None = None
        self._started_ns = self._ticked_ns = steady_ns()
        self.tick_seconds = 0.0
        self._control = ControlServer(
            config.control_path,
            {
                "sql": sql_handler(store.query),
                "status": self._status,
                "health": self._health,
                "verdicts": self._verdicts,
                "model": model_handler(self.engine.take_record, now_ns),
            },
        )
        self._ticker = SupervisedThread("ticker", self._tick_forever)

    def attach_recordings(self, recordings: Recordings) -> None:
        """Take requests for recordings on the control socket. Call it before ``start``; ``stop`` closes them."""
        self._recordings = recordings
        self._control.add({"record": recordings.record, "record_stop": recordings.record_stop})

    def _recovery(self, config: ServiceConfig) -> Recovery | None:
        if config.recovery is None:
            return None
        return Recovery(config.recovery, self.engine, self.memory, self._keep_isolated)

    def _keep_isolated(self, record: JobRecord) -> None:
        """A record with which the engine ended twice."""
        reason = StateLoss.JUDGED_AT_TWO_ENDS.value
        self.failures[reason] += 1
        text = f"job {record.job.job_id}: the engine ended twice in a row while it judged it"
        self.letters.put(DEAD_LETTERS, DeadLetter(self.time.now_ns(), record.host, reason, text, encode(record)))

    def start(self, *, ticking: bool = True) -> None:
        """Take up what is kept, then listen, write and tick.

        Args:
            ticking: False: somebody else calls ``tick``, after ``catch_up`` where a state was found.
        """
        self.letters.start()
        self.writer.start()
        if self.recovery is not None:
            self._take_up(self.recovery)
        self._control.start()
        self.server.start()
        self._ticked_ns = self._steady_ns()
        if ticking:
            self._ticker.start()

    def _take_up(self, recovery: Recovery) -> None:
        now_ns = self.time.now_ns()
        found = recovery.restore(now_ns, ReplayFunctions(self.tick, self._begin_jobs_anew), self._floors)
        for loss in found.losses:
            self._events.append({"ts_ns": now_ns, "name": loss.value})
        if found.is_restored:
            self._catch_up = CatchUp(
                self.engine, lambda: self.server.live_hosts, self.time.now_ns, self._config.catch_up
            )

    def _floors(self) -> dict[str, int]:
        """The newest updates of the verdicts that the database holds of the last day; none where it is away."""
        try:
            return self._store.newest_updates(self.time.now_ns() - _FLOORS_NS) if self.writer.is_prepared else {}
        except StoreError as error:
            _LOG.warning("verdicts of before are not known: their updates may begin anew", extra={"error": str(error)})
            return {}

    def catch_up(self) -> None:
        """After a start that found a state: wait for known hosts, then work off the seconds up to now."""
        if self._catch_up is not None:
            self._catch_up.run(self.tick, self._stopping)
            self._catch_up = None

    def stop(self) -> None:
        """Stop in order: no record that was taken loses its verdict's row."""
        self._stopping.set()
        if self._recordings is not None:
            self._recordings.close()
        self._ticker.join(5.0)
        self.server.close()
        self.letters.close()
        if self.recovery is not None:
            self.recovery.stop()
        self._output.finish_minutes()
        self.writer.stop()
        with self.memory.line_added:
            self.memory.line_added.notify_all()
        self._control.close()

    def _tick_forever(self) -> None:
        """A tick at each full second: slices close one lateness after their end."""
        self.catch_up()
        while not self._stopping.is_set():
            now = self.time.now_ns()
            due = (now // NS_PER_SECOND + 1) * NS_PER_SECOND
            if self._stopping.wait((due - now) / NS_PER_SECOND):
                return
            begin = time.perf_counter()
            self.on_second(due)
            self.tick_seconds = time.perf_counter() - begin

    def on_second(self, due_ns: int) -> None:
        """Tick, unless the wall clock was set since the last time: then all jobs begin anew at the new time.

        Args:
            due_ns: the full second that the clock was expected to show by now.
        """
        change_ns = self.time.look(self.engine.host_times)
        now_ns = self.time.now_ns()
        if change_ns:
            self._begin_anew(change_ns)
        elif abs(now_ns - due_ns) < NS_PER_SECOND:
            self.tick(due_ns)  # a wait may end a moment before its time
        else:
            self.tick(now_ns // NS_PER_SECOND * NS_PER_SECOND)

    def _begin_anew(self, change_ns: int) -> None:
        tick_ns = self.time.now_ns() // NS_PER_SECOND * NS_PER_SECOND
        told = {"jump_seconds": change_ns / NS_PER_SECOND, "follows_hosts": bool(self.time.correction_ns)}
        _LOG.error("the engine's clock was set: all jobs begin anew", extra=told)
        self._events.append({"ts_ns": tick_ns, "name": Reason.CLOCK_JUMPED.value, **told})
        self._begin_jobs_anew(tick_ns, Reason.CLOCK_JUMPED)

    def _begin_jobs_anew(self, tick_ns: int, reason: Reason) -> None:
        output = self.engine.begin_anew(tick_ns, reason)
        self.memory.again.clear()
        self._output.finish_minutes()
        self._follow_up(output, tick_ns)

    def tick(self, tick_ns: int) -> None:
        """Move time: work off the job seconds that are complete, speak and write what follows.

        The ticker calls this once a second; a test or a replay may call it instead.
        """
        output = self.engine.tick(tick_ns)
        if self._shelf is not None:
            with self._supervised("model_shelf"):
                self._shelf.keep()
        for name, seconds in self.engine.take_detector_seconds().items():
            self.detector_seconds[name] += seconds
        self._follow_up(output, tick_ns)
        if self.recovery is not None:
            with self._supervised("snapshot"):
                self.recovery.keep(tick_ns)

    def _follow_up(self, output: EngineOutput, tick_ns: int) -> None:
        """Speak and write what a tick led to; a part that fails ends neither the others nor the ticker."""
        for failure in output.failures:
            self._keep_failure(failure, tick_ns)
        for _, entry in output.refused:
            letter = DeadLetter(tick_ns, entry.host, entry.reason.value, entry.sentence, entry.data)
            self.letters.put(DEAD_LETTERS, letter)
        self._output.follow_up(output, tick_ns)
        self._ticked_ns = self._steady_ns()
        self._troubles.flush()

    @contextlib.contextmanager
    def _supervised(self, part: str) -> Iterator[None]:
        """What is raised inside costs this part one turn: it is counted, and said in the log."""
        try:
            yield
        except Exception:  # noqa: BLE001  # supervising: one part must not end the ticker
            self._troubles.exception("part failed", part, part=part)
            self.failures[part] += 1

    def _keep_failure(self, failure: JobFailure, tick_ns: int) -> None:
        """A job whose operators raised: its turn's records become dead letters."""
        self.failures[Reason.OPERATOR_FAILED.value] += 1
        event = {"ts_ns": tick_ns, "name": Reason.OPERATOR_FAILED.value, "job": failure.job.job_id}
        self._events.append({**event, "error": failure.text})
        for data in failure.records or (b"",):
            letter = DeadLetter(
                tick_ns, "", Reason.OPERATOR_FAILED.value, f"job {failure.job.job_id}: {failure.text}", data
            )
            self.letters.put(DEAD_LETTERS, letter)

    def _status(self, request: Message) -> Message:
        job_id = request.get("job_id")
        status = self.engine.status(job_id if isinstance(job_id, str) else None)
        status["connected_hosts"] = list(self.server.connected_hosts)
        status["server"] = dict(self.server.counters)
        status["dead_letters"] = [
            {"host": letter.host, "reason": letter.reason, "message": letter.message}
            for letter in list(self.server.dead_letters)[-10:]
        ]
        status["ranks"] = status["jobs"][-1]["ranks"] if status["jobs"] else {}
        status["events"] = list(self._events)
        status["pages"] = list(self.pages)
        status["state"] = {} if self.recovery is None else self.recovery.figures
        status["letters_dropped"] = sum(self.letters.dropped.values())
        return {**status, **self._health(request)}

    def _health(self, _request: Message) -> Message:
        """What ``incidents`` and ``status`` ask first: an engine that does not tick knows nothing."""
        (is_live, live), (is_ready, ready) = self.health(), self.ready()
        return {
            "tick_age_seconds": self.tick_age_seconds(),
            "is_live": is_live,
            "live": live,
            "is_ready": is_ready,
            "ready": ready,
        }

    def _verdicts(self, request: Message) -> Iterator[Message]:
        """All lines after the first ``after``, then each new one as it is spoken."""
        after, memory = request.get("after", 0), self.memory
        at = after if isinstance(after, int) else 0
        while not self._stopping.is_set():
            with memory.line_added:
                first = max(0, at - memory.dropped_count)
                lines = memory.lines[first:]
                at = memory.dropped_count + len(memory.lines)
                if not lines:
                    memory.line_added.wait(0.5)
            yield from lines
            if not lines:
                yield {}

    def tick_age_seconds(self) -> float:
        """How long ago the newest tick was worked off (the start, where there is none)."""
        return (self._steady_ns() - self._ticked_ns) / NS_PER_SECOND

    def age_seconds(self) -> float:
        """How long ago it was made."""
        return (self._steady_ns() - self._started_ns) / NS_PER_SECOND

    def _threads(self) -> list[SupervisedThread]:
        threads = [self._ticker, self.server.thread, self.letters.thread, self.writer.thread, self._control.thread]
        threads += [self.recovery.thread] if self.recovery is not None else []
        return [thread for thread in threads if thread is not None]

    def death(self) -> str:
        """Which threads have died, "" = none: a process in which one did must end, so that somebody starts it anew."""
        return "" if self._stopping.is_set() else describe_dead(self._threads())

    def health(self) -> tuple[bool, str]:
        """Whether the engine does its work, for ``/healthz``: threads and ticks only.

        An outage of the database is no reason to start the engine anew.
        """
        dead = [thread.name for thread in self._threads() if not thread.is_alive()]
        if dead:
            return False, f"dead threads: {', '.join(dead)}"
        age_seconds = self.tick_age_seconds()
        if age_seconds > OLD_TICK_SECONDS:
            return False, f"newest tick {age_seconds:.0f} s old: nothing is judged"
        return True, f"ok, newest tick {age_seconds:.1f} s old"

    def ready(self) -> tuple[bool, str]:
        """Whether what it takes is kept and what it says reaches the database, for ``/readyz``."""
        if self.recovery is not None and self.recovery.trouble:
            return False, f"the journal cannot be written: {self.recovery.trouble}"
        if not self.writer.is_alive():
            return False, "the database's thread does not run"
        if self.writer.trouble:
            waiting = self.writer.waiting_count
            return False, f"the database takes nothing ({waiting} writes wait): {self.writer.trouble}"
        return True, "ok"
