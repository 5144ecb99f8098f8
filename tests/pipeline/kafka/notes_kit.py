"""A controller over topics in memory, its fleet, and people who ask it."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from tests.pipeline.kafka.fleet_kit import IDLE
from tests.pipeline.stores.samples import verdict
from tocsin.pipeline.identity.operator_check import OperatorChecker
from tocsin.pipeline.kafka.consumer_api import Message
from tocsin.pipeline.kafka.fleet_work import FleetWork
from tocsin.pipeline.lab.testing.seats import MemorySeat, MemorySeats
from tocsin.pipeline.runtime.flink.outputs import Output
from tocsin.schemas import events
from tocsin.schemas.cloudevents import decode_verdict, encode_verdict
from tocsin.schemas.credential_store import CredentialStore, write_credentials
from tocsin.schemas.credentials import Credential, Role, new_credential
from tocsin.schemas.kafka.topics import DEAD_LETTER, EVENTS, NOTES_TAKEN, OPERATOR_ANSWERS, OPERATOR_NOTES, VERDICTS
from tocsin.schemas.operator_requests import (
    NoteTaken,
    OperatorRequest,
    decode_taken,
    encode_request,
    new_request_id,
    request_signature,
)
from tocsin.schemas.records import (
    NS_PER_SECOND,
    Event,
    EventSource,
    HostStatus,
    JobKey,
    JobRecord,
    RankPlace,
    Record,
    Severity,
    Tick,
    Topology,
)
from tocsin.schemas.verdicts import Verdict, VerdictState
from tocsin.schemas.wire.codec import encode

BEGIN_NS = 1_800_000_000 * NS_PER_SECOND
JOB = JobKey("c1", "job-1", 2)
ANN = new_credential(Role.OPERATOR, "ann", 1)


class NotesWorld:
    """The topics and the controllers, one after another.

    Attributes:
        now_ns: time of all clocks.
        sent: all messages that were committed, with their headers and times.
    """

    def __init__(self, folder: Path | None = None) -> None:
        self.seats = MemorySeats((EVENTS, VERDICTS, OPERATOR_NOTES))
        self.now_ns = BEGIN_NS
        self.sent: list[Output] = []
        self.folder = folder
        if folder is not None:
            write_credentials(folder / "all.json", (ANN, new_credential(Role.READER, "rex", 1)))
        self.begin()

    def begin(self) -> None:
        """Another process takes over."""
        seat = self.seat = MemorySeat(self.seats)
        self.seats.holder, seat.poll_count = seat, 10_000
        checker = None if self.folder is None else OperatorChecker(CredentialStore(self.folder / "all.json"))
        self.work = FleetWork(operators=checker, clock_ns=lambda: self.now_ns)
        self.work.begin(*seat.take_over())

    def run(self, seconds: int = 1, *records: Record, has_ticks: bool = True) -> None:
        """Let time pass: records, a tick, and one look of the controller in each second."""
        for _ in range(seconds):
            self.now_ns += NS_PER_SECOND
            for one in (*records, *([Tick(self.now_ns)] if has_ticks else [])):
                self.seats.write(EVENTS, encode(one))
            self.work.take(self.seat.poll(0.0))
            if self.work.is_due():
                changes, outputs = self.work.changes(), self.work.outputs()
                self.sent += outputs
                self.seat.commit(outputs, changes)

    def ask(self, command: str, signer: Credential | None = None, **values: Any) -> bytes:
        """A person asks, with a clock that is right or ``off_ns`` off; return the request's bytes."""
        off_ns = values.pop("off_ns", 0)
        request = OperatorRequest(new_request_id(), command, values, "somebody", self.now_ns + off_ns)
        value = encode_request(request)
        self.send(value, None if signer is None else request_signature(value, signer))
        return value

    def send(self, value: bytes, header: bytes | None = None) -> None:
        self.seats.write(OPERATOR_NOTES, value, b"", self.now_ns, header)

    def asked(self, command: str, **values: Any) -> dict[str, Any]:
        """Ask, let a second pass, and return the answer."""
        before = len(self.answers())
        self.ask(command, **values)
        self.run()
        [answer] = self.answers()[before:]
        return answer

    def log(self, topic: str) -> list[Message]:
        return self.seats.log.get(topic, [])

    def answers(self) -> list[dict[str, Any]]:
        return [json.loads(one.value or b"") for one in self.log(OPERATOR_ANSWERS)]

    def taken(self) -> list[NoteTaken]:
        return [decode_taken(one.value or b"") for one in self.log(NOTES_TAKEN)]

    def dead(self) -> list[str]:
        return [one.headers["reason"].decode() for one in self.sent if one.topic == DEAD_LETTER]

    def lines(self) -> list[Verdict]:
        """The controller's own verdict lines."""
        return [decode_verdict(one.value) for one in self.sent if one.topic == VERDICTS]

    def tell(self, name: str, update: int = 0, state: VerdictState = VerdictState.CONFIRMED) -> None:
        """A job's operators tell a verdict line."""
        times = {"onset_ns": self.now_ns, "detected_ns": self.now_ns, "expires_ns": self.now_ns + 600 * NS_PER_SECOND}
        self.tell_line(verdict(name, update, state=state, **times))

    def tell_line(self, line: Verdict) -> None:
        """This verdict line is told."""
        self.seats.write(VERDICTS, encode_verdict(line))

    def place(self, **leaves: str) -> None:
        """Idle hosts are heard, each behind a leaf switch."""
        self.run(1, *placed_hosts(self.now_ns + NS_PER_SECOND, leaves))


def placed_hosts(ts_ns: int, leaves: dict[str, str]) -> Iterator[JobRecord]:
    """Heartbeats and the places of hosts."""
    for host, leaf in leaves.items():
        yield HostStatus(IDLE, host, ts_ns, 0, 0, (), False, 0, 0)
        yield Topology(IDLE, host, ts_ns, (RankPlace(0, host, leaf=leaf),))


def gpu_lost(host: str, ts_ns: int) -> Event:
    """An idle host loses a GPU."""
    code = {"code": 79, "pci": "0000:c1:00.0"}
    return Event(IDLE, host, ts_ns, -1, EventSource.KERNEL, events.XID, Severity.FATAL, code)
