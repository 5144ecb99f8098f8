"""The embedded engine as a service: listener, ticker, operators, incident database, control socket.

One process with threads, never forked: chDB hangs in a forked child.
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
from typing import Any

from tocsin.pipeline.incidents.proposals import HoldRules, ProposalBook
from tocsin.pipeline.runtime.embedded.catch_up import CatchUp, CatchUpConfig
from tocsin.pipeline.runtime.embedded.clock_watch import EngineTime
from tocsin.pipeline.runtime.embedded.close_handler import close_handler
from tocsin.pipeline.runtime.embedded.control_socket import (
    ControlServer,
    Handler,
    Message,
    sql_handler,
)
from tocsin.pipeline.runtime.embedded.dead_letter_writer import DeadLetterWriter
from tocsin.pipeline.runtime.embedded.dead_letters import DEAD_LETTERS, DeadLetter
from tocsin.pipeline.runtime.embedded.engine import EmbeddedEngine, EngineConfig
from tocsin.pipeline.runtime.embedded.engine_output import EngineOutput
from tocsin.pipeline.runtime.embedded.followers import Follower, Followers
from tocsin.pipeline.runtime.embedded.listener.listener import AgentServer, ServerConfig
from tocsin.pipeline.runtime.embedded.listener.readers import Answerer, incidents_answerer, jobs_answerer, page_answerer
from tocsin.pipeline.runtime.embedded.model_file import FILE_NAME, ModelFile
from tocsin.pipeline.runtime.embedded.model_handler import model_handler
from tocsin.pipeline.runtime.embedded.places_handler import places_handler
from tocsin.pipeline.runtime.embedded.recordings import Recordings
from tocsin.pipeline.runtime.embedded.recovery import Recovery, RecoveryConfig, ReplayFunctions
from tocsin.pipeline.runtime.embedded.service_health import ServiceHealth
from tocsin.pipeline.runtime.embedded.service_memory import ServiceMemory, marked
from tocsin.pipeline.runtime.embedded.store_writer import StoreWriter
from tocsin.pipeline.runtime.embedded.supervised_thread import SupervisedThread, describe_dead
from tocsin.pipeline.runtime.embedded.verdict_output import VerdictOutput
from tocsin.pipeline.runtime.job_failure import JobFailure
from tocsin.pipeline.stores.base import Store
from tocsin.schemas.errors import StoreError
from tocsin.schemas.reasons import Reason, StateLoss
from tocsin.schemas.records import NS_PER_SECOND, JobRecord
from tocsin.schemas.trouble_log import TroubleLog
from tocsin.schemas.verdicts import Verdict
from tocsin.schemas.wire.codec import encode

_LOG = logging.getLogger("tocsin.service")
_KEPT_EVENTS = 20
_FLOORS_NS = 86_400 * NS_PER_SECOND
"""Age up to which verdicts in the database go on with their numbers after a lost state."""


@dataclass(frozen=True, slots=True)
class ServiceConfig:
    """Settings.

    Attributes:
        listen: address for agents: ``unix:PATH`` or ``HOST:PORT``.
        control_path: path of the control socket.
        dead_letter_folder: folder of dead letters and late records; None: they are only counted.
        model_folder: folder that keeps announced models over a restart; None: they are not kept.
        engine: settings of operators and slices.
        server: settings of the listener.
        recovery: settings of the state that is kept over a restart; None: no state is kept.
        catch_up: settings of the time after a restart.
        evidence_after_seconds: time after which the series behind a verdict is written again.
        kept_verdict_count: verdict lines kept for clients that connect later.
        hold: settings of how long rows of hard actions wait.
    """

    listen: str
    control_path: Path
    dead_letter_folder: Path | None = None
    model_folder: Path | None = None
    engine: EngineConfig = field(default_factory=EngineConfig)
    server: ServerConfig = field(default_factory=ServerConfig)
    recovery: RecoveryConfig | None = None
    catch_up: CatchUpConfig = field(default_factory=CatchUpConfig)
    evidence_after_seconds: int = 30
    kept_verdict_count: int = 10_000
    hold: HoldRules = field(default_factory=HoldRules)


class EngineService:
    """Everything that ``tocsin serve`` runs.

    Attributes:
        time: the engine's time, and the watch on its clock.
        clock: the watch on the engine's clock.
        engine: the operators of all jobs.
        dead_letters: writes dead letters and late records.
        writer: writes to the database.
        memory: verdict lines for clients, proposed actions, minutes of health.
        recovery: keeps the state for a restart; None: no state is kept.
        server: the listener for agents.
        health: whether the engine does its work.
        detector_seconds: detector -> seconds that it worked.
        failures: part -> how often it raised and was caught.
        followers: parts that see each verdict line.
        pages: addresses of the pages for metrics and probes, or why they are missing.
        tick_seconds: time that the last tick took.
    """

    def __init__(
        self,
        config: ServiceConfig,
        store: Store,
        now_ns: Callable[[], int] = time.time_ns,
        writer: StoreWriter | None = None,
        steady_ns: Callable[[], int] = time.monotonic_ns,
    ) -> None:
        """Make all parts; ``start`` starts them.

        Args:
            config: settings.
            store: answers queries of users.
            now_ns: the wall clock.
            writer: writes to the store; None: one for a store that is migrated.
            steady_ns: a clock that nobody sets; it tells when the wall clock was set.
        """
        self._config = config
        self.time = EngineTime(now_ns, steady_ns)
        self.clock = self.time.watch
        self.engine = EmbeddedEngine(config.engine)
        folder = config.model_folder
        self._model_file = None if folder is None else ModelFile(folder / FILE_NAME, self.engine.models)
        self.dead_letters = DeadLetterWriter(config.dead_letter_folder)
        self.writer = writer or StoreWriter(store)
        proposals = ProposalBook(config.hold, now_ns(), self.engine.changes_of)
        self.followers = Followers(self._supervised)
        self.memory = ServiceMemory(config.kept_verdict_count, proposals, self.followers)
        self._output = VerdictOutput(
            self.engine, self.memory, self.writer, self._supervised, config.evidence_after_seconds, self.followers
        )
        self.detector_seconds: dict[str, float] = defaultdict(float)
        self.failures: Counter[str] = Counter()
        self.pages: list[str] = []
        self.recovery = self._recovery(config)
        self.health = ServiceHealth(self._threads, self.writer, self.recovery, steady_ns)
        self.server = AgentServer(self.engine, config.listen, now_ns, self.dead_letters.put, config.server)
        self.server.readers.answerers = self._reader_answers(store)
        if self.recovery is not None:
            self.server.commit = self.recovery.ledger.commit
        self._store = store
        self._catch_up: CatchUp | None = None
        self._troubles = TroubleLog(_LOG)
        self._events: deque[dict[str, Any]] = deque(maxlen=_KEPT_EVENTS)
        self._stopping = threading.Event()
        self._recordings: Recordings | None = None
        self.tick_seconds = 0.0
        self._control = ControlServer(config.control_path, self._control_answers(store, now_ns))
        self._ticker = SupervisedThread("ticker", self._tick_forever)

    def _reader_answers(self, store: Store) -> dict[str, Answerer]:
        """Return the questions that readers may ask on the listener, each with what answers it."""
        return {
            "status": self._status,
            "health": self.health.answer,
            "incidents": incidents_answerer(store.query),
            "incident_page": page_answerer(store.query),
            "jobs": jobs_answerer(store.query, lambda: {job.job_id for job in self.engine.jobs()}),
        }

    def _control_answers(self, store: Store, now_ns: Callable[[], int]) -> dict[str, Handler]:
        """Return the requests of the control socket, each with what answers it."""
        return {
            "sql": sql_handler(store.query),
            "status": self._status,
            "health": self.health.answer,
            "verdicts": self._verdicts,
            "places": places_handler(self.engine.places),
            "model": model_handler(self.engine.take_record, now_ns),
            "incident_close": close_handler(
                self.engine.live_verdicts, self.engine.take_record, self.time.now_ns, self.server.commit
            ),
        }

    def attach(self, follower: Follower) -> None:
        """Let a part see each verdict line and answer its requests on the control socket; call it before ``start``."""
        self.followers.add(follower)
        self._control.add(follower.handlers())

    def attach_recordings(self, recordings: Recordings) -> None:
        """Answer requests for recordings on the control socket, from ``start`` on; ``stop`` closes them."""
        self._recordings = recordings
        self._control.add({"record": recordings.record, "record_stop": recordings.record_stop})

    def _recovery(self, config: ServiceConfig) -> Recovery | None:
        """Return what keeps the state for a restart, where the settings ask for it."""
        if config.recovery is None:
            return None
        return Recovery(config.recovery, self.engine, self.memory, self._keep_isolated)

    def _keep_isolated(self, record: JobRecord) -> None:
        """Make a dead letter of a record whose slice the engine was judging when it ended twice."""
        reason = StateLoss.JUDGED_AT_TWO_ENDS.value
        self.failures[reason] += 1
        text = f"job {record.job.job_id}: the engine ended twice in a row while it judged it"
        self.dead_letters.put(DEAD_LETTERS, DeadLetter(self.time.now_ns(), record.host, reason, text, encode(record)))

    def start(self, *, ticking: bool = True) -> None:
        """Restore the state that is kept, then listen, write and tick.

        Args:
            ticking: whether the engine ticks by itself. Else the caller calls ``catch_up`` and then ``tick``.
        """
        self.dead_letters.start()
        self.writer.start()
        if self.recovery is not None:
            self._take_up(self.recovery)
        self.followers.start()
        self._control.start()
        self.server.start()
        self.health.ticked()
        if ticking:
            self._ticker.start()

    def _take_up(self, recovery: Recovery) -> None:
        """Restore the state that is kept, and note what of it was lost."""
        now_ns = self.time.now_ns()
        found = recovery.restore(now_ns, ReplayFunctions(self.tick, self._begin_jobs_anew), self._floors)
        for loss in found.losses:
            self._events.append({"ts_ns": now_ns, "name": loss.value})
        if found.is_restored:
            self._catch_up = CatchUp(
                self.engine, lambda: self.server.live_hosts, self.time.now_ns, self._config.catch_up
            )

    def _floors(self) -> dict[str, int]:
        """Return verdict id -> its newest update in the database, of the last day; empty where the database is away."""
        try:
            return self._store.newest_updates(self.time.now_ns() - _FLOORS_NS) if self.writer.is_prepared else {}
        except StoreError as error:
            _LOG.warning("verdicts of before are not known: their updates may begin anew", extra={"error": str(error)})
            return {}

    def catch_up(self) -> None:
        """Wait for known hosts and work off the seconds up to now, after a start that restored a state."""
        if self._catch_up is not None:
            self._catch_up.run(self.tick, self._stopping)
            self._catch_up = None

    def stop(self) -> None:
        """Stop all parts in an order that loses no row of a verdict on records that were taken."""
        self._stopping.set()
        if self._recordings is not None:
            self._recordings.close()
        self._ticker.join(5.0)
        self.server.close()
        self.dead_letters.close()
        if self.recovery is not None:
            self.recovery.stop()
        self.followers.close()
        self._output.finish_minutes()
        self.writer.stop()
        with self.memory.line_added:
            self.memory.line_added.notify_all()
        self._control.close()

    def _tick_forever(self) -> None:
        """Tick at each full second until the service stops."""
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
        """Tick; when the wall clock was set since the last call, let all jobs start without state at the new time.

        Args:
            due_ns: the full second that the clock is expected to show.
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
        """Let all jobs start without state, because the clock was set by so many nanoseconds."""
        tick_ns = self.time.now_ns() // NS_PER_SECOND * NS_PER_SECOND
        fields = {"jump_seconds": change_ns / NS_PER_SECOND, "follows_hosts": bool(self.time.correction_ns)}
        _LOG.error("the engine's clock was set: all jobs begin anew", extra=fields)
        self._events.append({"ts_ns": tick_ns, "name": Reason.CLOCK_JUMPED.value, **fields})
        self._begin_jobs_anew(tick_ns, Reason.CLOCK_JUMPED)

    def _begin_jobs_anew(self, tick_ns: int, reason: Reason) -> None:
        """Let all jobs start without state at a time, and write the closing lines of their verdicts."""
        output = self.engine.begin_anew(tick_ns, reason)
        self.memory.again.clear()
        self._output.finish_minutes()
        self._follow_up(output, tick_ns)

    def tick(self, tick_ns: int) -> None:
        """Move time, work off the job seconds that are complete, and write the verdicts.

        The ticker calls this once a second; a test or a replay may call it instead.

        Args:
            tick_ns: the time from now on.
        """
        output = self.engine.tick(tick_ns)
        if self._model_file is not None:
            with self._supervised("model_shelf"):
                self._model_file.keep()
        for name, seconds in self.engine.take_detector_seconds().items():
            self.detector_seconds[name] += seconds
        self._follow_up(output, tick_ns)
        if self.recovery is not None:
            with self._supervised("snapshot"):
                self.recovery.keep(tick_ns)

    def _follow_up(self, output: EngineOutput, tick_ns: int) -> None:
        """Write the result of a tick; a part that fails ends neither the others nor the ticker."""
        for failure in output.failures:
            self._keep_failure(failure, tick_ns)
        for _, entry in output.refused:
            dead_letter = DeadLetter(tick_ns, entry.host, entry.reason.value, entry.sentence, entry.data)
            self.dead_letters.put(DEAD_LETTERS, dead_letter)
        self._output.follow_up(output, tick_ns)
        self.health.ticked()
        self._troubles.flush()

    @contextlib.contextmanager
    def _supervised(self, part: str) -> Iterator[None]:
        """Catch, count and log what a part raises; the part loses one turn."""
        try:
            yield
        except Exception:  # noqa: BLE001  # supervising: one part must not end the ticker
            self._troubles.exception("part failed", part, part=part)
            self.failures[part] += 1

    def _keep_failure(self, failure: JobFailure, tick_ns: int) -> None:
        """Note that a job's operators raised; the records of the failed slice become dead letters."""
        self.failures[Reason.OPERATOR_FAILED.value] += 1
        event = {"ts_ns": tick_ns, "name": Reason.OPERATOR_FAILED.value, "job": failure.job.job_id}
        self._events.append({**event, "error": failure.text})
        for data in failure.records or (b"",):
            dead_letter = DeadLetter(
                tick_ns, "", Reason.OPERATOR_FAILED.value, f"job {failure.job.job_id}: {failure.text}", data
            )
            self.dead_letters.put(DEAD_LETTERS, dead_letter)

    def _status(self, request: Message) -> Message:
        """Return the state of the engine, its jobs and its parts, for ``tocsin status``."""
        job_id = request.get("job_id")
        status = self.engine.status(job_id if isinstance(job_id, str) else None)
        status["connected_hosts"] = list(self.server.connected_hosts)
        status["server"] = dict(self.server.counters)
        status["dead_letters"] = [
            {"host": dead_letter.host, "reason": dead_letter.reason, "message": dead_letter.message}
            for dead_letter in list(self.server.dead_letters)[-10:]
        ]
        status["ranks"] = status["jobs"][-1]["ranks"] if status["jobs"] else {}
        status["events"] = list(self._events)
        status["pages"] = list(self.pages)
        status["state"] = {} if self.recovery is None else self.recovery.figures
        status["letters_dropped"] = sum(self.dead_letters.dropped.values())
        status.update(self.followers.status())
        return {**status, **self.health.answer(request)}

    def standing_verdicts(self) -> list[Verdict]:
        """Return the verdicts that stand: those of all jobs, and those that followers added."""
        return self.engine.live_verdicts() + self._output.added.verdicts(self.time.now_ns())

    def _threads(self) -> list[SupervisedThread]:
        """Return the threads that must live."""
        threads = [self._ticker, self.server.thread, self.dead_letters.thread, self.writer.thread, self._control.thread]
        threads += [self.recovery.thread] if self.recovery is not None else []
        threads += self.followers.threads()
        return [thread for thread in threads if thread is not None]

    def _verdicts(self, request: Message) -> Iterator[Message]:
        """Yield all verdict lines after the first ``after``, then each new one; ``mark`` asks for signs of life."""
        after = request.get("after", 0)
        lines = self.memory.follow(after if isinstance(after, int) else 0, self._stopping)
        return marked(lines) if request.get("mark") is True else lines

    def death(self) -> str:
        """Return a sentence about the threads that died; "": none. A process with a dead thread must end."""
        return "" if self._stopping.is_set() else describe_dead(self._threads())
