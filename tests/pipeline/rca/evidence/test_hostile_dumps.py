"""Hostile Flight Recorder dumps at the four doors: engine, Flink driver, replay of a folder, command."""

from __future__ import annotations

import contextlib
import io
import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.hostile_dumps import HOSTILE_DUMPS, ODD_DUMPS, healthy
from tests.pipeline.recording.kit import START_NS, manifest, write_folder
from tocsin.cli.main import main
from tocsin.pipeline.lab.testing import FakeJob, JobShape
from tocsin.pipeline.runtime.embedded.engine import EmbeddedEngine, EngineConfig
from tocsin.pipeline.runtime.flink.driver import DriverConfig, JobDriver
from tocsin.pipeline.runtime.flink.memory_state import MemoryState
from tocsin.pipeline.runtime.flink.packing import pack
from tocsin.schemas.errors import SchemaError
from tocsin.schemas.formats.flight_recorder import parse_dump
from tocsin.schemas.kafka.topics import VERDICTS
from tocsin.schemas.kinds import LEFT_DUMP
from tocsin.schemas.records import NS_PER_SECOND, JobRecord, ProbeAnswer
from tocsin.schemas.verdicts import FaultKind, Verdict
from tocsin.schemas.wire.codec import encode

ALL_DUMPS = {**HOSTILE_DUMPS, **ODD_DUMPS}
MAX_PAYLOAD_BYTES = 15_000_000
KILLED_SECOND, END_SECOND = 30, 60
SHAPE = JobShape(rank_count=4)


@pytest.mark.parametrize("name", HOSTILE_DUMPS)
def test_a_hostile_dump_is_refused(name: str) -> None:
    with pytest.raises(SchemaError) as caught:
        parse_dump(HOSTILE_DUMPS[name]())

    assert len(str(caught.value)) < 1_000  # whatever it shows is short


@pytest.mark.parametrize("name", ODD_DUMPS)
def test_an_odd_dump_is_read_or_refused(name: str) -> None:
    try:
        found = parse_dump(ODD_DUMPS[name]())
    except SchemaError:
        return
    assert found.version == "2.9"
    assert len(found.comm_lib_version) <= 512


def poisoned(job: FakeJob) -> Iterator[list[JobRecord]]:
    """A job whose rank 3 is killed, and to which all hostile dumps come as answers, one or more a second."""
    payloads = [data for make in ALL_DUMPS.values() if len(data := make()) <= MAX_PAYLOAD_BYTES]
    for second in range(END_SECOND):
        if second == KILLED_SECOND:
            job.kill(3)
        records = list(job.second())
        for number, payload in enumerate(payloads[2 * second : 2 * second + 2]):
            host = job.ranks[number].host
            request = LEFT_DUMP if second % 2 else "q"
            records.append(ProbeAnswer(job.job, host, job.now_ns - 1, number, request, "flight_recorder", payload))
        yield records


def test_the_engine_judges_on() -> None:
    job, engine = FakeJob(SHAPE), EmbeddedEngine(EngineConfig())
    verdicts: list[Verdict] = []
    for records in poisoned(job):
        for record in records:
            engine.take(encode(record))
        verdicts += engine.tick(job.now_ns).verdicts

    assert {v.suspects[0].ranks for v in verdicts if v.suspects} == {(3,)}
    assert FaultKind.FAIL_STOP in {v.fault for v in verdicts}


def test_the_flink_driver_judges_on_and_keeps_the_jobs_past() -> None:
    job = FakeJob(SHAPE)
    driver = JobDriver(DriverConfig(), b"test/job", MemoryState())
    outputs = []
    for records in poisoned(job):
        packed = pack(list(map(encode, records)), [f"events:0:{number}" for number in range(len(records))])
        end_ns = -(-job.now_ns // NS_PER_SECOND) * NS_PER_SECOND
        driver.on_window(end_ns, packed)
        outputs += driver.on_time(end_ns)

    assert driver.counters["operator_failed"] == 0
    assert driver.counters["dead_letters"] == 0
    assert any(output.topic == VERDICTS and b"fail_stop" in output.value for output in outputs)


def dump_folder(folder: Path, data: bytes) -> Path:
    """A folder of three healthy dumps and this one."""
    folder.mkdir(parents=True)
    for rank in (0, 1, 2):
        (folder / f"dump_{rank}").write_bytes(healthy(rank))
    (folder / "dump_3").write_bytes(data)
    return folder


@pytest.mark.parametrize("name", ALL_DUMPS)
def test_the_command_says_whose_dump_is_none(name: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = dump_folder(tmp_path / "dumps", ALL_DUMPS[name]())

    assert main(["flight-recorder", str(folder), "--json"]) == 0
    reported = json.loads(capsys.readouterr().out)
    if name in HOSTILE_DUMPS:
        assert any("dump_3 is unreadable" in line for line in reported["evidence"])


def replay_of(folder: Path) -> str:
    """What ``tocsin replay`` says of a recording that holds all of them, a rank each."""
    folder.mkdir(parents=True, exist_ok=True)
    write_folder(folder, {}, reported=manifest(start_ns=START_NS, end_ns=START_NS + 60 * NS_PER_SECOND))
    place = folder / "flight_recorder"
    place.mkdir()
    for rank, make in enumerate(ALL_DUMPS.values()):
        (place / f"dump_{rank}").write_bytes(make())
    said = io.StringIO()
    with contextlib.redirect_stderr(said), contextlib.redirect_stdout(io.StringIO()):
        assert main(["replay", str(folder)]) == 0
    return said.getvalue()


def test_a_replay_goes_on(tmp_path: Path) -> None:
    reported = replay_of(tmp_path)

    assert reported.count("is no whole dump") >= len(HOSTILE_DUMPS)
    assert "Traceback" not in reported
