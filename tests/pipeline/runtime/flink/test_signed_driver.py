"""A job that asks for signatures: the same verdicts for what hosts signed, dead letters for all else."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Iterable
from pathlib import Path

import pytest

from tocsin.pipeline.identity.message_signatures import public_half
from tocsin.pipeline.identity.signed import SignatureConfig
from tocsin.pipeline.identity.verdict_signatures import VerdictChecker, new_engine_key
from tocsin.pipeline.lab.testing import JobShape, MachineShape, MetricsJob
from tocsin.pipeline.runtime.flink.driver import DriverConfig, JobDriver
from tocsin.pipeline.runtime.flink.identity import StreamIdentity
from tocsin.pipeline.runtime.flink.memory_state import MemoryState
from tocsin.pipeline.runtime.flink.outputs import Output
from tocsin.pipeline.runtime.flink.reduce import reduce_and_pack
from tocsin.schemas.credential_store import write_credentials
from tocsin.schemas.credentials import Role, new_credential
from tocsin.schemas.kafka.topics import DEAD_LETTER, VERDICTS
from tocsin.schemas.metric_groups import group_of, split_frame
from tocsin.schemas.records import NS_PER_SECOND, Frame, JobRecord
from tocsin.schemas.signatures import SIGNATURE_HEADER, sign_record
from tocsin.schemas.wire.codec import encode

KEY = b"test/job"
FAULT_SECOND, END_SECOND = 60, 90
Sender = Callable[[JobRecord, bytes], bytes]


@pytest.fixture(scope="module")
def records() -> list[JobRecord]:
    """A job of four machines whose rank 2 is killed."""
    job = MetricsJob(JobShape(rank_count=4, step_seconds=2.0), MachineShape())
    found: list[JobRecord] = []
    for second in range(END_SECOND):
        if second == FAULT_SECOND:
            job.kill(2)
        found.extend(job.second())
    return found


class Keys:
    """The files of a small fleet."""

    def __init__(self, folder: Path, hosts: Iterable[str]) -> None:
        self.of_host = {host: new_credential(Role.AGENT, host, 1) for host in hosts}
        self.engine = new_engine_key("engine", 1)
        write_credentials(folder / "hosts.json", tuple(self.of_host.values()))
        write_credentials(folder / "engine.json", (self.engine,))
        config = SignatureConfig(str(folder / "hosts.json"), signing_key=str(folder / "engine.json"))
        self.identity = StreamIdentity.of_config(config, 2)

    def sign(self, record: JobRecord, data: bytes) -> bytes:
        return sign_record(data, self.of_host[record.host])


@pytest.fixture
def keys(tmp_path: Path, records: list[JobRecord]) -> Keys:
    """A key for each host, and the engine's."""
    return Keys(tmp_path, sorted({record.host for record in records}))


def played(records: Iterable[JobRecord], sent: Sender, identity: StreamIdentity | None) -> list[Output]:
    """Play records through the windows' packing and the driver."""
    windows: dict[int, dict[str, list[bytes]]] = defaultdict(lambda: defaultdict(list))
    for record in records:
        end = record.ts_ns // NS_PER_SECOND + 1
        for part in split_frame(record) if isinstance(record, Frame) else (record,):
            group = (group_of(part) or "all") if isinstance(part, Frame) else ""
            windows[end][group].append(sent(part, encode(part)))
    driver = JobDriver(DriverConfig(), KEY, MemoryState(), identity=identity)
    guard = identity.guard if identity else None
    found: list[Output] = []
    for second in range(min(windows), max(windows) + 3):
        for group, values in sorted(windows.get(second, {}).items()):
            origins = [f"t:0:{number}" for number in range(len(values))]
            driver.on_window(
                second * NS_PER_SECOND, reduce_and_pack(values, origins, group, KEY.decode(), second, guard)
            )
        found += driver.on_time(second * NS_PER_SECOND + 1)
    return found


def said(outputs: Iterable[Output]) -> list[bytes]:
    return [output.value for output in outputs if output.topic == VERDICTS]


def dead_letters(outputs: Iterable[Output]) -> Counter[str]:
    return Counter(output.headers["reason"].decode() for output in outputs if output.topic == DEAD_LETTER)


def test_signed_records_give_the_verdicts_of_unsigned_ones(records: list[JobRecord], keys: Keys) -> None:
    plain = played(records, lambda _, data: data, None)
    signed = played(records, keys.sign, keys.identity)
    assert said(signed) == said(plain)
    assert said(signed)
    assert dead_letters(signed) == dead_letters(plain)


def test_a_job_that_asks_for_none_takes_signed_records(records: list[JobRecord], keys: Keys) -> None:
    assert said(played(records, keys.sign, None)) == said(played(records, lambda _, data: data, None))


def test_each_verdict_is_signed_and_its_value_is_as_ever(records: list[JobRecord], keys: Keys) -> None:
    checker = VerdictChecker([public_half(keys.engine)])
    outputs = [one for one in played(records, keys.sign, keys.identity) if one.topic == VERDICTS]
    assert outputs
    for output in outputs:
        assert checker.check(output.value, output.headers[SIGNATURE_HEADER], 5) == keys.engine.key_id


def test_unsigned_records_are_dead_letters_and_accuse_nobody(records: list[JobRecord], keys: Keys) -> None:
    outputs = played(records, lambda _, data: data, keys.identity)
    assert said(outputs) == []
    parts = sum(len(split_frame(one)) if isinstance(one, Frame) else 1 for one in records)
    assert dead_letters(outputs) == Counter({"unsigned": parts})


def test_one_host_s_key_speaks_for_no_other(records: list[JobRecord], keys: Keys) -> None:
    """The liar's own records are heard; what it says of the others is not, frames included."""
    liar = min(keys.of_host)
    outputs = played(records, lambda _, data: sign_record(data, keys.of_host[liar]), keys.identity)
    others = [one for one in records if one.host != liar]
    parts = sum(len(split_frame(one)) if isinstance(one, Frame) else 1 for one in others)
    assert dead_letters(outputs)["record_host_mismatch"] == parts
