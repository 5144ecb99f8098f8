"""The record with which the controller closes a job's incident, in the job's own operators that ask for signatures."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import pytest

from tests.pipeline.kafka.notes_kit import ANN, NotesWorld
from tocsin.pipeline.identity.signed import SignatureConfig
from tocsin.pipeline.incidents.closing import close_event
from tocsin.pipeline.lab.testing import FakeJob, JobShape
from tocsin.pipeline.runtime.flink.driver import DriverConfig, JobDriver
from tocsin.pipeline.runtime.flink.identity import StreamIdentity
from tocsin.pipeline.runtime.flink.memory_state import MemoryState
from tocsin.pipeline.runtime.flink.outputs import Output
from tocsin.pipeline.runtime.flink.reduce import reduce_and_pack
from tocsin.schemas.cloudevents import decode_verdict
from tocsin.schemas.credential_store import write_credentials
from tocsin.schemas.credentials import Role, new_credential
from tocsin.schemas.kafka.topics import DEAD_LETTER, EVENTS, VERDICTS, job_key
from tocsin.schemas.records import NS_PER_SECOND, JobKey
from tocsin.schemas.signatures import sign_record
from tocsin.schemas.verdicts import Verdict, VerdictState
from tocsin.schemas.wire.codec import encode

JOB = JobKey("c1", "job", 0)
SHAPE = JobShape(rank_count=4)
EVE = new_credential(Role.OPERATOR, "eve", 1)


class DyingJob:
    """A job of which a rank is killed, and its operators, which know its hosts' keys and two operators.

    Attributes:
        verdicts: what its operators said.
        refused: reasons of the dead letters.
    """

    def __init__(self, folder: Path) -> None:
        agents = {SHAPE.host_of(rank): new_credential(Role.AGENT, SHAPE.host_of(rank), 1) for rank in range(4)}
        write_credentials(folder / "job.json", (ANN, EVE, *agents.values()))
        identity = StreamIdentity.of_config(SignatureConfig(str(folder / "job.json")), 2)
        self._key = job_key(JOB)
        self._guard = identity.guard
        self._driver = JobDriver(DriverConfig(), self._key, MemoryState(), identity=identity)
        self.verdicts: list[Verdict] = []
        self.refused: list[str] = []
        job = FakeJob(SHAPE, JOB)
        for second in range(20):
            if second == 12:
                job.kill(2)
            self._step(job.now_ns + NS_PER_SECOND, [sign_record(encode(r), agents[r.host]) for r in job.second()])
        self.now_ns = job.now_ns

    def _step(self, end_ns: int, values: Sequence[bytes]) -> None:
        origins = [f"t:0:{number}" for number in range(len(values))]
        packed = reduce_and_pack(values, origins, "", self._key.decode(), end_ns // NS_PER_SECOND, self._guard)
        self._driver.on_window(end_ns, packed)
        self._take(self._driver.on_time(end_ns + 1))

    def _take(self, outputs: Sequence[Output]) -> None:
        self.verdicts += [decode_verdict(one.value) for one in outputs if one.topic == VERDICTS]
        self.refused += [one.headers["reason"].decode() for one in outputs if one.topic == DEAD_LETTER]

    def hear(self, data: bytes) -> None:
        """One more record in the next second, and two seconds without any."""
        for values in ([data], [], []):
            self.now_ns += NS_PER_SECOND
            self._step(self.now_ns, values)


@pytest.fixture
def dying(tmp_path: Path) -> DyingJob:
    made = DyingJob(tmp_path)
    assert made.verdicts[-1].state in (VerdictState.OPEN, VerdictState.CONFIRMED)
    return made


def test_what_the_controller_writes_closes_the_incident(dying: DyingJob, tmp_path: Path) -> None:
    world = NotesWorld(tmp_path)
    world.now_ns = dying.now_ns - 2 * NS_PER_SECOND
    [first, *_] = dying.verdicts
    world.tell_line(dying.verdicts[-1])
    world.run()
    world.ask("incident_close", id=first.verdict_id[:8], note="host replaced", signer=ANN)
    world.run()
    [record] = [one for one in world.sent if one.topic == EVENTS]
    assert record.key == job_key(JOB)
    dying.hear(record.value)
    last = dying.verdicts[-1]
    assert (last.state, last.reason) == (VerdictState.RESOLVED, "closed_by_human")
    assert last.evidence[-1].text == "closed by operator:ann: host replaced"
    assert dying.refused == []


def test_nobody_closes_it_unsigned_or_in_another_s_name(dying: DyingJob) -> None:
    event = close_event(JOB, dying.verdicts[-1].verdict_id, "host replaced", "operator:ann", dying.now_ns)
    dying.hear(encode(event))
    later = close_event(JOB, dying.verdicts[-1].verdict_id, "host replaced", "operator:ann", dying.now_ns)
    dying.hear(sign_record(encode(later), EVE))
    assert dying.refused == ["unsigned", "close_not_allowed"]
    assert dying.verdicts[-1].state in (VerdictState.OPEN, VerdictState.CONFIRMED)
