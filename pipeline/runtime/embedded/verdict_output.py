"""Publish the results of each tick of the embedded engine: verdict lines for clients, rows for the database."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from dataclasses import replace
from typing import Final

from tocsin.pipeline.incidents.standing import StandingIncidents
from tocsin.pipeline.runtime.embedded.engine import EmbeddedEngine
from tocsin.pipeline.runtime.embedded.engine_output import EngineOutput
from tocsin.pipeline.runtime.embedded.followers import Followers
from tocsin.pipeline.runtime.embedded.service_memory import ServiceMemory
from tocsin.pipeline.runtime.embedded.store_writer import StoreWriter, Write
from tocsin.pipeline.stores.base import ActionChange, EvidencePoint, HostHealth
from tocsin.pipeline.stores.rows import summary_of
from tocsin.schemas.records import NS_PER_SECOND
from tocsin.schemas.verdicts import Verdict, VerdictState

_LOG = logging.getLogger("tocsin.service")
_OVERDUE_NS: Final = 60 * NS_PER_SECOND
"""Interval at which overdue verdicts are looked for, and how long past their expiry they must be."""
Guard = Callable[[str], AbstractContextManager[None]]
"""Function that returns a context manager which catches and counts the errors of a named task."""


class VerdictOutput:
    """Publishes verdict lines and database rows; a failure in one task stops neither the others nor the ticker.

    Attributes:
        added: the standing verdicts among the lines that followers added.
    """

    def __init__(
        self,
        engine: EmbeddedEngine,
        memory: ServiceMemory,
        writer: StoreWriter,
        guard: Guard,
        evidence_after_seconds: int,
        followers: Followers,
    ) -> None:
        """Connect the output to its sources and destinations.

        Args:
            engine: has the metric histories behind verdicts.
            memory: earlier verdict lines and proposed actions.
            writer: writes the rows.
            guard: returns a context manager that catches a task's errors.
            evidence_after_seconds: a verdict's evidence is written again after this time.
            followers: see each line, and may add lines of their own.
        """
        self._engine = engine
        self._memory = memory
        self._writer = writer
        self._guard = guard
        self._followers = followers
        self.added = StandingIncidents()
        self._evidence_after_ns = evidence_after_seconds * NS_PER_SECOND

    def follow_up(self, output: EngineOutput, tick_ns: int) -> None:
        """Publish the verdict lines and queue the database rows of one tick's output."""
        verdicts = tuple(self._above_floor(verdict) for verdict in output.verdicts)
        added = tuple(self._followers.on_verdicts(verdicts, tick_ns))
        self.added.take(added, tick_ns)
        verdicts += added
        for verdict in verdicts:
            with self._guard("speak"):
                self._publish(verdict)
        self._write(replace(output, verdicts=verdicts), tick_ns)

    def _above_floor(self, verdict: Verdict) -> Verdict:
        """Return the verdict with its update number raised above those used before the engine lost its state."""
        floor = self._memory.floors.get(verdict.verdict_id)
        return verdict if floor is None else replace(verdict, update=floor + 1 + verdict.update)

    def _publish(self, verdict: Verdict) -> None:
        """Log a verdict and add it to the lines for clients."""
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
        self._memory.add_line({"verdict": verdict.to_line(), "summary": summary_of(verdict)})

    def _write(self, output: EngineOutput, tick_ns: int) -> None:
        """Queue the rows of one tick; verdicts are written even if their evidence, actions or health fail."""
        evidence: list[EvidencePoint] = []
        actions: list[ActionChange] = []
        health: list[HostHealth] = []
        again, minutes = self._memory.again, self._memory.minutes
        with self._guard("evidence"):
            for verdict in output.verdicts:
                evidence.extend(self._evidence(verdict, tick_ns))
                if verdict.state is VerdictState.OPEN:
                    again.append((tick_ns + self._evidence_after_ns, verdict))
            while again and again[0][0] <= tick_ns:
                evidence.extend(self._evidence(again.popleft()[1], tick_ns))
        with self._guard("actions"):
            proposed = [change for verdict in output.verdicts for change in self._changes_of(verdict)]
            proposed += self._memory.proposals.due(tick_ns)
            actions.extend([] if self._memory.proposals.is_replaced else proposed)
        with self._guard("health"):
            for job, entry in output.health:
                minutes.count(job, entry)
            for anomaly in output.anomalies:
                minutes.score(anomaly)
            health.extend(minutes.finish(tick_ns, self._engine.late_by_host))
        overdue_ns = 0 if tick_ns % _OVERDUE_NS else tick_ns - _OVERDUE_NS
        self._writer.put(Write(output.verdicts, tuple(evidence), tuple(actions), tuple(health), overdue_ns))

    def _changes_of(self, verdict: Verdict) -> Iterator[ActionChange]:
        """Return the action changes that follow from a verdict."""
        return self._memory.proposals.take(verdict)

    def _evidence(self, verdict: Verdict, until_ns: int) -> list[EvidencePoint]:
        """Return the evidence points of a verdict up to ``until_ns``."""
        history = self._engine.history(verdict.job)
        return [] if history is None else history.evidence(verdict, until_ns)

    def finish_minutes(self) -> None:
        """Queue all health minutes, including the unfinished one."""
        with self._guard("health"):
            self._writer.put(Write(health=tuple(self._memory.minutes.finish_all(self._engine.late_by_host))))
