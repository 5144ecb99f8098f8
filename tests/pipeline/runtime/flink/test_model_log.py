"""The topic of models under a job that is killed anywhere: each slice has the model that it had before."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from functools import cache
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.flink_fixtures import case_of
from tests.model_announcements import announced
from tocsin.pipeline.identity.signed import SignedRecords
from tocsin.pipeline.recording.replay import ReplayConfig, replay
from tocsin.pipeline.recording.stream import records_of
from tocsin.pipeline.runtime.embedded.engine import EmbeddedEngine, EngineConfig
from tocsin.pipeline.runtime.flink.driver import DriverConfig, JobDriver
from tocsin.pipeline.runtime.flink.memory_state import MemoryState
from tocsin.pipeline.runtime.flink.model_log import ModelLog, ModelRow
from tocsin.pipeline.runtime.flink.outputs import Output
from tocsin.pipeline.runtime.flink.packing import pack
from tocsin.schemas.cloudevents import encode_verdict
from tocsin.schemas.credential_store import CredentialStore, write_credentials
from tocsin.schemas.credentials import Credential, Role, new_credential
from tocsin.schemas.kafka.topics import DEAD_LETTER, VERDICTS
from tocsin.schemas.model_announcement import ModelAnnouncement, withdrawal
from tocsin.schemas.records import NS_PER_SECOND, JobRecord, Tick
from tocsin.schemas.signatures import sign_record
from tocsin.schemas.wire.codec import encode

RECORDING = case_of(11)
"""Four machines; the peers detector opens verdicts by the slices that end at 110 and at 125 s."""
START_NS = RECORDING.manifest.start_ns
END_SECOND = 300
CONFIG = DriverConfig(snapshot_seconds=20)
KEY = b"default/" + RECORDING.manifest.job_id.encode()
KEEN, DEAF = announced(START_NS, 60, 105, {"working": {"alarm_sum": 9.0}}, version="keen"), announced(START_NS, 80, 125)
BACK = withdrawal("peers", START_NS + 150 * NS_PER_SECOND)
BAD = announced(START_NS, 84, 105, {"working": {"alarm_sum": 0.0}}, version="bad")
LATE = announced(START_NS, 90, 100, version="late")
TRAINER, HOST = new_credential(Role.TRAINER, "ml", 1), new_credential(Role.AGENT, "n0", 1)


def row(announcement: ModelAnnouncement, offset: int = 0) -> ModelRow:
    """As it stands on the topic."""
    key = announcement.name.encode()
    return ModelRow(b"model", key, encode(announcement), announcement.ts_ns // NS_PER_SECOND, f"p.models:0:{offset}")


def tick_row(ns: int) -> ModelRow:
    """A tick on the topic."""
    return ModelRow(b"tick", b"tick", encode(Tick(ns)), ns // NS_PER_SECOND, "p.models:0:7")


@pytest.fixture(scope="module")
def windows() -> dict[int, list[bytes]]:
    """End of a second -> its records."""
    found: dict[int, list[bytes]] = defaultdict(list)
    for record in records_of(RECORDING):
        if record.ts_ns < START_NS + END_SECOND * NS_PER_SECOND:
            found[_end_ns(record)].append(encode(record))
    return found


def _end_ns(record: JobRecord) -> int:
    return (record.ts_ns // NS_PER_SECOND + 1) * NS_PER_SECOND


@cache
def wanted(*announcements: ModelAnnouncement) -> list[bytes]:
    """What the embedded engine says up to the end."""
    lines = replay(RECORDING, ReplayConfig(announcements=announcements))
    return [encode_verdict(one) for one in lines if one.detected_ns <= START_NS + END_SECOND * NS_PER_SECOND]


@dataclass
class Slot:
    """A slot of the job: both inputs, checkpoints, kills."""

    windows: dict[int, list[bytes]]
    announcements: list[ModelAnnouncement]
    stride: int = 1
    config: DriverConfig = CONFIG
    key: bytes = KEY
    outputs: list[Output] = field(default_factory=list)

    def run(self, kills: list[int], save_every: int = 5) -> Slot:
        """Play both topics; at these seconds the worker dies and goes on from the last checkpoint."""
        self.open(MemoryState(), {})
        saved = self._saved(second := 0)
        for kill in [*sorted(kills), END_SECOND + 10]:
            while second < min(kill, END_SECOND):
                beyond = min(END_SECOND, second + self.stride)
                self.run_seconds(second, beyond)
                if (second := beyond) - saved[2] >= save_every:
                    saved = self._saved(second)
            if second < END_SECOND:
                state, models, second = saved
                self.open(state.saved(), models)
        return self

    def open(self, state: MemoryState, models: dict[str, bytes]) -> None:
        self.state = state
        self.log = ModelLog(self.config.snapshot_seconds)
        self.log.load(models)
        self.driver = JobDriver(self.config, self.key, state, self.log.book)

    def _saved(self, second: int) -> tuple[MemoryState, dict[str, bytes], int]:
        return self.state.saved(), self.log.state(), second

    def run_seconds(self, first: int, beyond: int) -> None:
        begin_ns, end_ns = (START_NS + second * NS_PER_SECOND for second in (first, beyond))
        for ns in range(begin_ns, end_ns, NS_PER_SECOND):  # the models come first, or the watermark would wait for them
            for one in self.announcements:
                if ns <= one.ts_ns < ns + NS_PER_SECOND:
                    self._say(self.log.take(row(one)))
            self._say(self.log.take(tick_row(ns + NS_PER_SECOND)))
        for ns in range(begin_ns, end_ns, NS_PER_SECOND):
            if held := self.windows.get(ns + NS_PER_SECOND):
                self.driver.on_window(ns + NS_PER_SECOND, pack(held, ["t:0:0"] * len(held)))
        while self.driver.next_ns <= end_ns:
            self.outputs += self.driver.on_time(end_ns)
        self.log.forget(end_ns)

    def _say(self, dead_letter: Output | None) -> None:
        self.outputs += [dead_letter] if dead_letter else []

    def verdicts(self) -> list[bytes]:
        """What consumers keep."""
        kept: dict[tuple[bytes, bytes], bytes] = {}
        for output in self.outputs:
            if output.topic == VERDICTS:
                kept.setdefault((output.headers["id"], output.headers["update"]), output.value)
        return list(kept.values())

    def refused(self) -> list[str]:
        """Reasons of the dead letters, each once, in order."""
        found = [o.headers["reason"].decode() for o in self.outputs if o.topic == DEAD_LETTER]
        return list(dict.fromkeys(found))


def test_models_change_what_is_said_and_the_embedded_engine_says_the_same(windows: dict[int, list[bytes]]) -> None:
    slot = Slot(windows, [KEEN, DEAF, BACK, BAD]).run([])

    assert slot.verdicts() == wanted(KEEN, DEAF, BACK, BAD)
    assert slot.refused() == ["out_of_range"]
    assert slot.verdicts() != wanted()


@settings(max_examples=8, deadline=None)
@given(stride=st.integers(1, 40), kills=st.lists(st.integers(6, END_SECOND - 1), min_size=1, max_size=4, unique=True))
def test_killed_anywhere_each_slice_has_its_model(
    windows: dict[int, list[bytes]], stride: int, kills: list[int]
) -> None:
    slot = Slot(windows, [KEEN, DEAF, BACK, BAD], stride).run(kills)

    assert slot.verdicts() == wanted(KEEN, DEAF, BACK, BAD)


def test_a_job_that_appears_later_has_the_model_that_is_in_use(windows: dict[int, list[bytes]]) -> None:
    early = replace(DEAF, ts_ns=START_NS - 3000 * NS_PER_SECOND, effective_ns=START_NS - 2000 * NS_PER_SECOND)
    slot = Slot(windows, [])
    slot.open(MemoryState(), {})
    assert slot.log.take(row(early)) is None
    models = slot.log.state()
    slot.open(MemoryState(), models)
    slot.run_seconds(0, END_SECOND)
    deaf_from_the_start = announced(START_NS, 0, 10)

    assert slot.verdicts() == wanted(deaf_from_the_start)


def test_what_stands_behind_the_tick_of_its_time_is_refused(windows: dict[int, list[bytes]]) -> None:
    log = ModelLog(60)
    assert log.take(tick_row(LATE.effective_ns)) is None
    dead_letter = log.take(row(LATE, 41))

    assert dead_letter is not None
    assert (dead_letter.topic, dead_letter.key, dead_letter.value) == (DEAD_LETTER, b"peers", encode(LATE))
    assert {name: dead_letter.headers[name] for name in ("reason", "topic", "partition", "offset")} == {
        "reason": b"too_late",
        "topic": b"p.models",
        "partition": b"0",
        "offset": b"41",
    }
    restored = ModelLog(60)
    restored.load(log.state())
    assert restored.take(row(LATE)) is not None
    assert log.counters == {"too_late": 1}


def test_a_tombstone_gives_back_the_detectors_own_settings(windows: dict[int, list[bytes]]) -> None:
    log = ModelLog(60)
    log.take(row(DEAF))
    at_second = DEAF.effective_ns // NS_PER_SECOND + 1
    assert log.take(ModelRow(None, b"peers", None, at_second, "p.models:0:3")) is None

    found = log.book.status(START_NS + 10_000 * NS_PER_SECOND)
    assert [(one["version"], one["state"]) for one in found] == [("deaf", "replaced"), ("default", "in use")]
    assert found[1]["effective_ns"] == DEAF.effective_ns + 15 * NS_PER_SECOND


@pytest.mark.parametrize(
    "strange",
    [
        ModelRow(b"model", b"peers", b"poison", 0, "p.models:0:1"),
        ModelRow(b"tick", b"tick", b"poison", 0, "p.models:0:1"),
        ModelRow(b"model", b"peers", encode(Tick(1)), 0, "p.models:0:1"),
        ModelRow(b"tick", b"tick", encode(KEEN), 0, "p.models:0:1"),
        ModelRow(b"model", b"steps", encode(KEEN), 0, "p.models:0:1"),
        ModelRow(b"model", None, encode(KEEN), 0, "p.models:0:1"),
        ModelRow(None, None, None, 0, "p.models:0:1"),
        ModelRow(b"record", b"peers", encode(KEEN), 0, "p.models:0:1"),
        ModelRow(b"model", b"tick", None, 0, "p.models:0:1"),
        ModelRow(None, b"oracle", None, 0, "p.models:0:1"),
    ],
)
def test_whatever_stands_there_the_job_goes_on(strange: ModelRow) -> None:
    log = ModelLog(60)
    dead_letter = log.take(strange)

    assert dead_letter is not None
    assert dead_letter.headers["reason"] in {b"undecodable", b"truncated", b"unknown_detector"}
    assert log.take(row(KEEN)) is None
    assert log.counters.total() == 2


def test_among_a_jobs_records_a_model_is_a_dead_letter(windows: dict[int, list[bytes]]) -> None:
    driver = JobDriver(CONFIG, b"c/j", MemoryState())
    driver.on_window(START_NS, pack([encode(KEEN)], ["p.events:0:5"]))
    [dead_letter] = driver.on_time(START_NS)

    assert (dead_letter.headers["reason"], dead_letter.value) == (b"misplaced", encode(KEEN))


def test_only_the_engine_that_takes_models_keeps_them() -> None:
    log = ModelLog(60)
    log.take(row(KEEN))

    assert "models" not in EmbeddedEngine(EngineConfig(), models=log.book).snapshot()


class TestSigned:
    """A log that asks for signatures."""

    @pytest.fixture
    def log(self, tmp_path: Path) -> ModelLog:
        path = tmp_path / "keys" / "credentials.json"
        write_credentials(path, (TRAINER, HOST))
        return ModelLog(20, SignedRecords(CredentialStore(path)))

    def test_a_trainer_s_model_is_taken(self, log: ModelLog) -> None:
        assert log.take(signed_row(KEEN, TRAINER)) is None
        assert log.counters == {"accepted": 1}

    @pytest.mark.parametrize(
        ("taken", "reason"),
        [
            (lambda: row(KEEN), "unsigned"),
            (lambda: signed_row(KEEN, HOST), "model_not_allowed"),
            (lambda: signed_row(KEEN, new_credential(Role.TRAINER, "ml", 1)), "unknown_key"),
            (lambda: row(KEEN)._replace(value=None), "unsigned"),
        ],
        ids=["unsigned", "host", "stranger", "tombstone"],
    )
    def test_any_other_is_a_dead_letter(self, log: ModelLog, taken: Callable[[], ModelRow], reason: str) -> None:
        dead_letter = log.take(taken())
        assert dead_letter is not None
        assert dead_letter.headers["reason"].decode() == reason
        assert log.counters == {reason: 1}

    def test_ticks_need_none(self, log: ModelLog) -> None:
        assert log.take(tick_row(START_NS)) is None


def signed_row(announcement: ModelAnnouncement, signer: Credential) -> ModelRow:
    """As it stands on the topic, signed."""
    return row(announcement)._replace(value=sign_record(encode(announcement), signer))
