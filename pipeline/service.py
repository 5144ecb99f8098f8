"""The embedded engine as a service: listener, ticker, operators, incident database, control.

One process, threads, never forked (chDB hangs in a forked child).
"""

from __future__ import annotations

import logging
import threading
import time
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tocsin.pipeline.control import ControlServer, Message, sql_handler
from tocsin.pipeline.embedded import EmbeddedEngine, EngineConfig, EngineOutput
from tocsin.pipeline.health import HealthMinutes
from tocsin.pipeline.letters import Letter, LetterFile
from tocsin.pipeline.model_shelf import FILE_NAME, ModelShelf
from tocsin.pipeline.proposals import changes_of, proposals_of
from tocsin.pipeline.recording.desk import RecordingDesk
from tocsin.pipeline.server import AgentServer
from tocsin.pipeline.store_writer import StoreWriter, Write
from tocsin.pipeline.stores.base import ActionChange, EvidencePoint, Store
from tocsin.pipeline.stores.rows import summary_of
from tocsin.schemas.prometheus_text import Family, Sample
from tocsin.schemas.records import NS_PER_SECOND
from tocsin.schemas.verdicts import Action, Verdict, VerdictState

_LOG = logging.getLogger("tocsin.service")


@dataclass(frozen=True, slots=True)
class ServiceConfig:
    """Settings.

    Attributes:
        listen: where agents connect: ``unix:PATH`` or ``HOST:PORT``.
        control_path: the control socket.
        letter_folder: where dead letters and late records are kept, None: only counted.
        model_folder: where announced models are remembered over a restart, None: nowhere.
        engine: operators and slices.
        evidence_after_seconds: the series behind a verdict is written again this long after.
        kept_verdict_count: verdict lines kept for clients that come later.
    """

    listen: str
    control_path: Path
    letter_folder: Path | None = None
    model_folder: Path | None = None
    engine: EngineConfig = field(default_factory=EngineConfig)
    evidence_after_seconds: int = 30
    kept_verdict_count: int = 10_000


class EngineService:
    """Everything that ``tocsin serve`` runs."""

    def __init__(
        self,
        config: ServiceConfig,
        store: Store,
        now_ns: Callable[[], int] = time.time_ns,
        writer: StoreWriter | None = None,
    ) -> None:
        """Wire it; ``start`` begins.

        Args:
            config: settings.
            store: answers users' queries.
            now_ns: the wall clock.
            writer: writes to the store; None: one for a store that is migrated.
        """
        self._config = config
        self._now_ns = now_ns
        self.engine = EmbeddedEngine(config.engine)
        folder = config.model_folder
        self._shelf = None if folder is None else ModelShelf(folder / FILE_NAME, self.engine.models)
        self._letters = {
            kind: LetterFile(config.letter_folder, kind) for kind in ("dead-letters", "late") if config.letter_folder
        }
        self.server = AgentServer(self.engine, config.listen, now_ns, self._keep_letter)
        self._writer = writer or StoreWriter(store)
        self._lines: list[dict[str, Any]] = []
        self._dropped_lines = 0
        self._spoken = threading.Condition()
        self._minutes = HealthMinutes()
        self._detector_seconds: dict[str, float] = defaultdict(float)
        self._proposed: dict[str, tuple[Action, ...]] = {}
        self._again: list[tuple[int, Verdict]] = []
        self._stopping = threading.Event()
        self._recordings = RecordingDesk(self.engine)
        self._started_ns = now_ns()
        self._tick_seconds = 0.0
        self._control = ControlServer(
            config.control_path,
            {
                "sql": sql_handler(store.query),
                "status": self._status,
                "verdicts": self._verdicts,
                "record": self._recordings.record,
                "record_stop": self._recordings.record_stop,
            },
        )
        self._ticker = threading.Thread(target=self._tick_forever, name="ticker", daemon=True)

    def _keep_letter(self, kind: str, letter: Letter) -> None:
        """Keep what could not be used; a full disk must not stop the rest."""
        if kind not in self._letters:
            return
        try:
            self._letters[kind].write(letter)
        except OSError as error:
            _LOG.warning("letter lost", extra={"kind": kind, "error": str(error), "reason": letter.reason})

    def start(self, *, ticking: bool = True) -> None:
        """Listen, write and tick.

        Args:
            ticking: False: somebody else calls ``tick``.
        """
        self._control.start()
        self.server.start()
        self._writer.start()
        if ticking:
            self._ticker.start()

    def stop(self) -> None:
        """Stop in order: no record that was taken loses its verdict's row."""
        self._stopping.set()
        self._recordings.close()
        if self._ticker.is_alive():
            self._ticker.join(5.0)
        self.server.close()
        self._writer.put(Write(health=tuple(self._minutes.finish_all(self.engine.late_by_host))))
        self._writer.stop()
        with self._spoken:
            self._spoken.notify_all()
        self._control.close()

    def _tick_forever(self) -> None:
        """A tick at each full second: slices close one lateness after their end."""
        while not self._stopping.is_set():
            now = self._now_ns()
            due = (now // NS_PER_SECOND + 1) * NS_PER_SECOND
            if self._stopping.wait((due - now) / NS_PER_SECOND):
                return
            begin = time.perf_counter()
            self.tick(due)
            self._tick_seconds = time.perf_counter() - begin

    def tick(self, tick_ns: int) -> None:
        """Move time: work off the job seconds that are complete, speak and write what follows.

        The ticker calls this once a second; a test or a replay may call it instead.
        """
        output = self.engine.tick(tick_ns)
        if self._shelf is not None:
            self._shelf.keep()
        for name, seconds in self.engine.take_detector_seconds().items():
            self._detector_seconds[name] += seconds
        for verdict in output.verdicts:
            self._speak(verdict)
        self._writer.put(self._write_of(output, tick_ns))

    def _speak(self, verdict: Verdict) -> None:
        _LOG.info(
            "verdict",
            extra={
                "job": verdict.job.job_id,
                "verdict_id": verdict.verdict_id,
                "update": verdict.update,
                "state": verdict.state.value,
                "fault": verdict.fault.value,
                "cause": verdict.cause,
                "reason": verdict.reason,
                "suspects": [s.component.name for s in verdict.suspects],
                "action": verdict.action.value,
            },
        )
        with self._spoken:
            self._lines.append({"verdict": verdict.to_line(), "summary": summary_of(verdict)})
            if len(self._lines) > self._config.kept_verdict_count:
                self._dropped_lines += len(self._lines) - self._config.kept_verdict_count
                del self._lines[: -self._config.kept_verdict_count]
            self._spoken.notify_all()

    def _write_of(self, output: EngineOutput, tick_ns: int) -> Write:
        evidence: list[EvidencePoint] = []
        for verdict in output.verdicts:
            evidence.extend(self._evidence(verdict, tick_ns))
            if verdict.state is VerdictState.OPEN:
                self._again.append((tick_ns + self._config.evidence_after_seconds * NS_PER_SECOND, verdict))
        for due in [entry for entry in self._again if entry[0] <= tick_ns]:
            self._again.remove(due)
            evidence.extend(self._evidence(due[1], tick_ns))
        actions = tuple(change for verdict in output.verdicts for change in self._changes_of(verdict))
        for job, entry in output.health:
            self._minutes.count(job, entry)
        for anomaly in output.anomalies:
            self._minutes.score(anomaly)
        health = self._minutes.finish(tick_ns, self.engine.late_by_host)
        return Write(output.verdicts, tuple(evidence), actions, tuple(health))

    def _changes_of(self, verdict: Verdict) -> Iterator[ActionChange]:
        """What becomes of actions."""
        yield from changes_of(verdict, self._proposed.pop(verdict.verdict_id, ()))
        proposed = proposals_of(verdict)
        if proposed:
            self._proposed[verdict.verdict_id] = proposed

    def _evidence(self, verdict: Verdict, until_ns: int) -> list[EvidencePoint]:
        history = self.engine.history(verdict.job)
        return [] if history is None else history.evidence(verdict, until_ns)

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
        return status

    def _verdicts(self, request: Message) -> Iterator[Message]:
        """All lines after the first ``after``, then each new one as it is spoken."""
        after = request.get("after", 0)
        at = after if isinstance(after, int) else 0
        while not self._stopping.is_set():
            with self._spoken:
                first = max(0, at - self._dropped_lines)
                lines = self._lines[first:]
                at = self._dropped_lines + len(self._lines)
                if not lines:
                    self._spoken.wait(0.5)
            yield from lines
            if not lines:
                yield {}

    def health(self) -> tuple[bool, str]:
        """Whether the engine does its work, for ``/healthz``."""
        alive = {"ticker": self._ticker.is_alive(), "store": self._writer.is_alive()}
        dead = [name for name, is_alive in alive.items() if not is_alive]
        if not self.server.is_alive:
            dead.append("agents")
        return (not dead, f"dead threads: {', '.join(dead)}" if dead else "ok")

    def families(self) -> list[Family]:
        """The engine's metrics, for ``/metrics``."""
        engine, server, models = self.engine.counters, self.server.counters, self.engine.models.counters
        return [
            _counter("tocsin_engine_records_total", "Records by what became of them.", "outcome", engine, "records_"),
            _counter("tocsin_engine_dead_letters_total", "Dead letters by reason.", "reason", server, "dead_letters_"),
            _counter("tocsin_engine_refused_total", "Records refused, by reason.", "reason", server, "refused_"),
            _counter("tocsin_engine_connections_total", "Agents' connections.", "outcome", server, "connection"),
            Family(
                "tocsin_engine_verdict_lines_total",
                "counter",
                "Verdict lines by state and reason.",
                tuple(
                    Sample({"state": state, "reason": reason}, count)
                    for (state, reason), count in sorted(self.engine.verdicts_by_reason.items())
                ),
            ),
            Family(
                "tocsin_engine_slices_total",
                "counter",
                "Slices worked off: of a second, and of metrics.",
                (Sample({"kind": "second"}, engine["turns"]), Sample({"kind": "metrics"}, engine["metric_slices"])),
            ),
            Family(
                "tocsin_engine_detector_seconds_total",
                "counter",
                "Time that each detector worked.",
                tuple(Sample({"detector": name}, seconds) for name, seconds in sorted(self._detector_seconds.items())),
            ),
            _counter("tocsin_engine_models_total", "Announced models by what became of them.", "outcome", models, ""),
            _gauge("tocsin_engine_jobs", "Jobs that have a turn each second.", len(self.engine.jobs())),
            _gauge("tocsin_engine_agents", "Connected agents.", len(self.server.connected_hosts)),
            _gauge("tocsin_engine_tick_seconds", "Time the last tick took.", self._tick_seconds),
            _gauge("tocsin_engine_store_queue", "Writes that wait for the database.", self._writer.waiting_count),
            _gauge("tocsin_engine_store_errors", "Failed writes so far.", self._writer.error_count),
            _gauge("tocsin_engine_up_seconds", "Age.", (self._now_ns() - self._started_ns) / NS_PER_SECOND),
        ]


def _counter(name: str, text: str, label: str, counts: Mapping[str, int], prefix: str) -> Family:
    samples = tuple(
        Sample({label: key.removeprefix(prefix)}, value)
        for key, value in sorted(counts.items())
        if key.startswith(prefix)
    )
    return Family(name, "counter", text, samples)


def _gauge(name: str, text: str, value: float) -> Family:
    return Family(name, "gauge", text, (Sample({}, value),))
