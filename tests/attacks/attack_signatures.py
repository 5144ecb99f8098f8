"""C4 over Kafka: one host's credential, or none, says anything about anybody; forged verdicts and models."""

from __future__ import annotations

import tempfile
from dataclasses import replace
from pathlib import Path

from tests.attacks.registry import Outcome, attack
from tests.model_announcements import announced
from tests.pipeline.kafka.kit import FaultyStore, topic
from tests.pipeline.stores.samples import verdict
from tocsin.pipeline.identity.message_signatures import public_half
from tocsin.pipeline.identity.signed import SignedRecords
from tocsin.pipeline.identity.verdict_signatures import VerdictChecker, VerdictSigner, new_engine_key
from tocsin.pipeline.kafka.topic_sink import TopicSinkConfig
from tocsin.pipeline.kafka.verdict_sink import VerdictSink
from tocsin.pipeline.lab.testing import JobShape, MachineShape, MetricsJob
from tocsin.pipeline.lab.testing.messages import MemoryBox, MemorySource
from tocsin.pipeline.runtime.flink.model_log import ModelLog, ModelRow
from tocsin.schemas.credential_store import CredentialStore, write_credentials
from tocsin.schemas.credentials import ANY_NAME, Role, new_credential
from tocsin.schemas.errors import IdentityError, SchemaError
from tocsin.schemas.records import JobRecord
from tocsin.schemas.signatures import sign_record
from tocsin.schemas.wire.codec import encode

NOW = 1_700_000_000 * 10**9


def _records() -> list[JobRecord]:
    job = MetricsJob(JobShape(rank_count=4, step_seconds=2.0), MachineShape())
    return [record for _ in range(12) for record in job.second()]


@attack("C4", "records of other hosts over Kafka")
def records() -> Outcome:
    liar, owner = new_credential(Role.AGENT, "n0", NOW), new_credential(Role.AGENT, "n1", NOW)
    every = new_credential(Role.AGENT, ANY_NAME, NOW)
    player = new_credential(Role.PLAYER, ANY_NAME, NOW)
    with tempfile.TemporaryDirectory() as name:
        path = Path(name) / "credentials.json"
        write_credentials(path, (liar, owner, every, player))
        guard = SignedRecords(CredentialStore(path))
    tries, heard = 0, 0
    for record in _records():
        if record.host == "n0":
            continue
        data = encode(record)
        stolen = replace(liar, key_id=owner.key_id)
        old = sign_record(encode(replace(record, ts_ns=record.ts_ns - 1)), owner)
        moved = sign_record(data, owner)[: len(data)] + old[len(data) :]
        for forged in (data, *(sign_record(data, key) for key in (liar, stolen, every, player)), moved):
            tries += 1
            try:
                guard.check(record, forged)
            except (IdentityError, SchemaError):
                continue
            heard += 1
    return Outcome(tries, f"{heard} forged records were heard", heard == 0)


@attack("C4", "models that nobody signed")
def models() -> Outcome:
    host, trainer = new_credential(Role.AGENT, "n0", NOW), new_credential(Role.TRAINER, "ml", NOW)
    with tempfile.TemporaryDirectory() as name:
        path = Path(name) / "credentials.json"
        write_credentials(path, (host, trainer))
        log = ModelLog(20, SignedRecords(CredentialStore(path)))
    model = announced(NOW, 60, 105, {})
    stranger = new_credential(Role.TRAINER, "ml", NOW)
    values = [encode(model), *(sign_record(encode(model), key) for key in (host, stranger)), None]
    dead_letters = [log.take(ModelRow(b"model", b"peers", value, NOW // 10**9, "t:0:1")) for value in values]
    refused = sum(dead_letter is not None for dead_letter in dead_letters)
    return Outcome(len(values), f"{len(values) - refused} were taken", refused == len(values))


@attack("C4", "verdicts that no engine said")
def verdicts() -> Outcome:
    import threading

    engine, other = new_engine_key("engine", NOW), new_engine_key("engine", NOW)
    (message,) = topic(verdict("forged"))
    value = message.value or b""
    stolen = VerdictSigner(replace(other, key_id=engine.key_id)).header(value)
    headers = (None, b"", b"x", VerdictSigner(other).header(value), stolen, VerdictSigner(engine).header(value + b" "))
    stop, store, box = threading.Event(), FaultyStore(), MemoryBox()
    forged = [replace(message, signature=header, offset_count=place) for place, header in enumerate(headers)]
    check = VerdictChecker([public_half(engine)]).check
    VerdictSink(MemorySource(forged, when_empty=stop.set), store, box, TopicSinkConfig(check=check)).run(stop)
    held = not store.verdicts and len(box.dead_letters) == len(headers)
    return Outcome(len(headers), f"{len(store.verdicts)} became incidents, {len(box.dead_letters)} dead letters", held)
