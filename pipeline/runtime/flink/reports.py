"""Reports of one job's driver beyond verdicts: evidence series, host health by minute, states for ``tocsin status``.

All of it follows from the operators' outputs and from event time. After a restart the same seconds give the same
messages, so their rows replace equal rows.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Collection, Iterator, Mapping
from typing import Any, Final

from tocsin.pipeline.core.operator import pack_state, unpack_state
from tocsin.pipeline.runtime.embedded.engine import EmbeddedEngine
from tocsin.pipeline.runtime.embedded.engine_output import EngineOutput
from tocsin.pipeline.runtime.embedded.engine_parts import of_prefix, prefix_of
from tocsin.pipeline.runtime.flink.outputs import Output
from tocsin.pipeline.runtime.health import HealthMinutes
from tocsin.pipeline.stores.base import EvidencePoint, JobStatus
from tocsin.pipeline.stores.report_codec import (
    MAX_REPORT_BYTES,
    encode_evidence,
    encode_health,
    encode_status,
)
from tocsin.schemas.cloudevents import decode_verdict, encode_verdict
from tocsin.schemas.kafka.topics import EVIDENCE, HOST_HEALTH, JOB_STATUS, job_key
from tocsin.schemas.records import NS_PER_SECOND, JobKey
from tocsin.schemas.verdicts import Verdict, VerdictState

STATUS_SECONDS: Final = 10
"""Event time between two states of an attempt."""
EVIDENCE_AFTER_SECONDS: Final = 30
"""Time after which an open verdict's evidence is sent again, as the embedded engine writes it again."""
PREFIX: Final = "reports/"
"""Prefix of the names of these parts in a driver's state."""
_MEMORY: Final = f"{PREFIX}memory"
_KEPT_AGAIN: Final = 10_000
_MAX_LISTED: Final = 2_048
"""Most hosts, and most ranks, that a state lists by name; the silent ones first."""
_MAX_VERDICTS: Final = 64
"""Most open verdicts that a state lists."""


class JobReports:
    """The reports of one job, all its attempts."""

    def __init__(self) -> None:
        """Start without anything to tell."""
        self._again: deque[tuple[int, Verdict]] = deque(maxlen=_KEPT_AGAIN)
        self._minutes = HealthMinutes()
        self._reported: set[JobKey] = set()
        """Attempts whose state was sent."""

    def on_output(self, engine: EmbeddedEngine, output: EngineOutput, tick_ns: int) -> list[Output]:
        """Return the messages that follow from the outputs of one second.

        Args:
            engine: the engine, after this second.
            output: its output.
            tick_ns: the engine's time.
        """
        points = self._evidence(engine, output, tick_ns)
        said = [self._message(EVIDENCE, key, value) for key, value in points]
        for job, entry in output.health:
            self._minutes.count(job, entry)
        for anomaly in output.anomalies:
            self._minutes.score(anomaly)
        minutes = list(self._minutes.finish(tick_ns, engine.late_by_host))
        if minutes:
            key = job_key(minutes[0].job)
            said += [self._message(HOST_HEALTH, key, value) for value in encode_health(minutes)]
        return [*said, *self._states(engine, tick_ns)]

    def _evidence(self, engine: EmbeddedEngine, output: EngineOutput, tick_ns: int) -> Iterator[tuple[bytes, bytes]]:
        """Yield key and value of each message with evidence: of new verdict lines, and of those that are due again."""
        due = list(output.verdicts)
        for verdict in output.verdicts:
            if verdict.state is VerdictState.OPEN:
                self._again.append((tick_ns + EVIDENCE_AFTER_SECONDS * NS_PER_SECOND, verdict))
        while self._again and self._again[0][0] <= tick_ns:
            due.append(self._again.popleft()[1])
        for verdict in due:
            for value in encode_evidence(_points(engine, verdict, tick_ns)):
                yield job_key(verdict.job), value

    def _states(self, engine: EmbeddedEngine, tick_ns: int) -> Iterator[Output]:
        """Yield the state of each attempt where it is due, and the last one of attempts that are forgotten."""
        known = set(engine.jobs())
        for job in sorted(self._reported - known):
            yield self._message(JOB_STATUS, status_key(job), encode_status(JobStatus(job, tick_ns, False, {})))
        self._reported &= known
        if tick_ns // NS_PER_SECOND % STATUS_SECONDS:
            return
        answer = engine.status()
        for state in answer["jobs"]:
            job = JobKey(state["cluster"], state["job_id"], state["attempt"])
            self._reported.add(job)
            yield self._message(
                JOB_STATUS, status_key(job), _fitting(JobStatus(job, tick_ns, True, state, answer["models"]))
            )

    @staticmethod
    def _message(topic: str, key: bytes, value: bytes) -> Output:
        """Return a message for a topic."""
        return Output(topic, key, value, {})

    def snapshot(self, engine: EmbeddedEngine, known: Collection[str] = ()) -> dict[str, bytes]:
        """Return the state as named parts; unchanged ones named in ``known`` are given as ``UNCHANGED``.

        Args:
            engine: has the histories, and the counts of late records.
            known: names of parts that the caller has.
        """
        late = sorted(engine.late_by_host.items())
        state = {
            "again": [[due_ns, encode_verdict(verdict).decode()] for due_ns, verdict in self._again],
            "minutes": self._minutes.to_state(),
            "late_before": self._minutes.late_before(),
            "late": [[_fields(job), host, count] for (job, host), count in late],
            "told": [_fields(job) for job in sorted(self._reported)],
        }
        parts = {_MEMORY: pack_state(state)}
        for job in engine.jobs():
            history, prefix = engine.history(job), history_prefix(job)
            if history is not None:
                own = history.snapshot(of_prefix(known, prefix))
                parts.update({f"{prefix}{name}": data for name, data in own.items()})
        return parts

    def restore(self, engine: EmbeddedEngine, parts: Mapping[str, bytes]) -> None:
        """Replace the state, and the engine's histories and counts of late records, by a snapshot's.

        Args:
            engine: the engine, already restored.
            parts: the driver's parts; without those of reports, as an older version wrote them, nothing is replaced.
        """
        if _MEMORY not in parts:
            return
        state = unpack_state(parts, _MEMORY)
        self._again.clear()
        self._again.extend((due_ns, decode_verdict(text.encode())) for due_ns, text in state["again"])
        self._minutes.load_state(state["minutes"])
        self._minutes.load_late_before(state["late_before"])
        self._reported = {JobKey(*fields) for fields in state["told"]}
        engine.late_by_host.update({(JobKey(*job), host): count for job, host, count in state["late"]})
        for job in engine.jobs():
            history, prefix = engine.history(job), history_prefix(job)
            own = {name.removeprefix(prefix): data for name, data in parts.items() if name.startswith(prefix)}
            if history is not None and own:
                history.restore(own)


def status_key(job: JobKey) -> bytes:
    """Return the Kafka key of an attempt's states: cluster, job id, attempt."""
    return job_key(job, str(job.attempt))


def history_prefix(job: JobKey) -> str:
    """Return the prefix of the names of the parts of an attempt's history."""
    return f"{PREFIX}history/{prefix_of(job)}"


def _points(engine: EmbeddedEngine, verdict: Verdict, until_ns: int) -> list[EvidencePoint]:
    """Return the evidence of a verdict up to a time."""
    history = engine.history(verdict.job)
    return [] if history is None else history.evidence(verdict, until_ns)


def _fitting(status: JobStatus) -> bytes:
    """Return the message with a state.

    Where it is too large it is without places; then it lists fewer ranks, hosts and verdicts.
    """
    listed, verdicts, places = _MAX_LISTED, status.state["verdicts"][:_MAX_VERDICTS], status.state["places"]
    while True:
        lists = {name: _silent_first(status.state[name], listed) for name in ("ranks", "hosts")}
        state = {**status.state, **lists, "verdicts": verdicts, "places": places}
        value = encode_status(JobStatus(status.job, status.ts_ns, True, state, status.models))
        if len(value) <= MAX_REPORT_BYTES * 3 // 4 or not (listed or verdicts):
            return value
        if places:
            places = None
            continue
        listed, verdicts = listed // 2, verdicts[: len(verdicts) // 2] if listed < _MAX_VERDICTS else verdicts


def _silent_first(facts: Mapping[str, Mapping[str, Any]], count: int) -> dict[str, Mapping[str, Any]]:
    """Return at most so many ranks or hosts, those that were silent for the longest time."""
    if len(facts) <= count:
        return dict(facts)
    order = sorted(facts, key=lambda name: (-(facts[name]["last_seen_seconds"] or 0.0), name))
    return {name: facts[name] for name in sorted(order[:count])}


def _fields(job: JobKey) -> list[Any]:
    """Return an attempt as JSON values."""
    return [job.cluster, job.job_id, job.attempt]
