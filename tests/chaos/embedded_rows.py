"""What the embedded service writes of a recording: verdicts, evidence, host health, states and times of its job."""

from __future__ import annotations

import contextlib
from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass, field, replace

from tests.chaos.told_actions import told_changes
from tocsin.pipeline.incidents.ettr.ledger import EttrConfig
from tocsin.pipeline.incidents.proposals import HoldRules, ProposalBook
from tocsin.pipeline.recording.replay import ReplayConfig, seconds_with_models
from tocsin.pipeline.recording.tables import Recording
from tocsin.pipeline.runtime.embedded.engine import EmbeddedEngine, EngineConfig, played
from tocsin.pipeline.runtime.embedded.ettr_follower import EttrFollower
from tocsin.pipeline.runtime.embedded.followers import Followers
from tocsin.pipeline.runtime.embedded.service_memory import ServiceMemory
from tocsin.pipeline.runtime.embedded.store_writer import StoreWriter, Write
from tocsin.pipeline.runtime.embedded.verdict_output import VerdictOutput
from tocsin.pipeline.runtime.flink.reports import EVIDENCE_AFTER_SECONDS, STATUS_SECONDS
from tocsin.pipeline.stores.base import JobStatus
from tocsin.schemas.errors import SchemaError
from tocsin.schemas.events import ACTION_CHANGE
from tocsin.schemas.records import NS_PER_SECOND, Event, JobKey


@dataclass
class EmbeddedRows:
    """The rows of one recording.

    Attributes:
        write: verdicts, evidence, minutes and accounts of time.
        statuses: the engine's answer to ``status``, each time that the distributed engine writes it.
    """

    write: Write = field(default_factory=Write)
    statuses: list[JobStatus] = field(default_factory=list)


class KeepingWriter(StoreWriter):
    """A writer that keeps what it is given.

    Attributes:
        kept: all of it.
    """

    def __init__(self) -> None:
        """Start with nothing; there is no database and no thread."""
        self.kept = Write()

    def put(self, write: Write) -> None:
        """Keep rows."""
        self.kept += write


@contextlib.contextmanager
def unguarded(_: str) -> Iterator[None]:
    """Let every error through."""
    yield


def ledger_into(writer: KeepingWriter) -> EttrFollower:
    """The service's ledger, into a writer."""
    return EttrFollower(EttrConfig(), None, writer.put)


def output_into(engine: EmbeddedEngine, writer: KeepingWriter, ledger: EttrFollower | None = None) -> VerdictOutput:
    """The service's output of an engine and of its ledger, into a writer."""
    ledger, followers = ledger or ledger_into(writer), Followers(unguarded)
    engine.taps.append(ledger.tap)
    followers.add(ledger)
    memory = ServiceMemory(100, ProposalBook(HoldRules(), 0, lambda *_: []))
    return VerdictOutput(engine, memory, writer, unguarded, EVIDENCE_AFTER_SECONDS, followers)


def states_of(engine: EmbeddedEngine, tick_ns: int) -> list[JobStatus]:
    """What the engine answers to ``status``, by attempt."""
    answer = engine.status()
    return [
        JobStatus(JobKey(one["cluster"], one["job_id"], one["attempt"]), tick_ns, True, one, answer["models"])
        for one in answer["jobs"]
    ]


def embedded_rows(recording: Recording, config: ReplayConfig | None = None) -> EmbeddedRows:
    """Play a recording in order through the embedded engine and what follows it in ``tocsin serve``.

    Its ledger hears of actions from the engine's own controller, not among the job's records.
    """
    config = config or ReplayConfig()
    settings = replace(EngineConfig(), job=config.engine.job)
    engine, writer, found = EmbeddedEngine(played(settings)), KeepingWriter(), EmbeddedRows()
    ledger, changes = ledger_into(writer), deque(told_changes(recording))
    output = output_into(engine, writer, ledger)
    for tick_ns, records in seconds_with_models(recording, config):
        while changes and changes[0].changed_ns < tick_ns:
            ledger.take_action(changes.popleft())
        for record in records:
            if isinstance(record, Event) and record.name == ACTION_CHANGE:
                continue
            with contextlib.suppress(SchemaError):
                engine.take_record(record)
        output.follow_up(engine.tick(tick_ns), tick_ns)
        if tick_ns // NS_PER_SECOND % STATUS_SECONDS == 0:
            found.statuses += states_of(engine, tick_ns)
    found.write = writer.kept
    return found
