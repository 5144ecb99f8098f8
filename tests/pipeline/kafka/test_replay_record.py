"""Recordings into Kafka and out of it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

import pytest
from kafka import KafkaProducer

from tests.kafka_kit import headers, read_count
from tests.pipeline.recording.kit import START_NS, good_tables, manifest, write_folder
from tests.schemas.samples import FRAME
from tocsin.cli.cluster.broker import Broker
from tocsin.cli.main import main
from tocsin.cli.record import when_ns
from tocsin.pipeline.kafka.client import Writer, producer
from tocsin.pipeline.kafka.record import RecordCounts, RecordRequest, record
from tocsin.pipeline.kafka.replay import PlayCounts, play
from tocsin.pipeline.kafka.topics import WantedTopics, apply
from tocsin.pipeline.lab.simulation.case import draw_case
from tocsin.pipeline.recording.reader import read_recording
from tocsin.pipeline.recording.replay import ReplayConfig, replay, verdict_lines
from tocsin.pipeline.recording.tables import Recording
from tocsin.schemas.errors import ConfigError, EngineError
from tocsin.schemas.kafka.settings import KafkaSettings, kafka_settings
from tocsin.schemas.kafka.topics import INPUTS, topic_name, topic_of
from tocsin.schemas.metric_groups import split_frame
from tocsin.schemas.records import Event, EventSource, JobKey, Record, Severity, Tick
from tocsin.schemas.wire.codec import decode, encode

SECOND_NS = 1_000_000_000


@pytest.fixture
def settings(kafka_broker: Broker) -> KafkaSettings:
    return kafka_settings(kafka_broker.address)


@pytest.fixture
def prefix(settings: KafkaSettings, topic_prefix: str) -> str:
    """Topics for replays, two partitions each."""
    apply(settings, WantedTopics(topic_prefix, 2, is_for_replays=True))
    return topic_prefix


@cache
def case() -> Recording:
    return draw_case(2, 5, "machine_unreachable", duration_seconds=400.0).recording()


def inputs(settings: KafkaSettings, prefix: str, count: int) -> dict[tuple[str, int], list[Any]]:
    """What stands in each partition of the input topics."""
    places: dict[tuple[str, int], list[Any]] = {}
    for found in read_count(settings.servers[0], [topic_name(name, prefix) for name in INPUTS], count):
        places.setdefault((found.topic, found.partition), []).append(found)
    return places


def send(settings: KafkaSettings, prefix: str, *records: Record, partition: int | None = None) -> None:
    with producer(settings) as client:
        writer = Writer(client)
        for one in records:
            if isinstance(one, Tick):
                for name in INPUTS:
                    for number in range(2):
                        writer.send(topic_name(name, prefix), one, encode(one), number)
            else:
                writer.send(topic_of(one, prefix), one, encode(one), partition)
        writer.finish()


def event(second: int, job: JobKey | None = None, number: int = 0) -> Event:
    ts_ns = START_NS + second * SECOND_NS + number
    return Event(job or JobKey("c", "j"), "h", ts_ns, -1, EventSource.JOB, "bye", Severity.INFO, {"n": number})


def test_a_recording_that_went_through_kafka_gives_the_same_verdicts(
    settings: KafkaSettings, prefix: str, tmp_path: Path
) -> None:
    played = play(case(), settings, prefix, ReplayConfig(shuffle_seed=5, repeat_count=2))
    manifest = case().manifest
    reported = record(settings, prefix, tmp_path / "out", RecordRequest(manifest.job_id))
    lines = verdict_lines(replay(case(), ReplayConfig()))

    assert lines
    assert verdict_lines(replay(read_recording(tmp_path / "out"), ReplayConfig())) == lines
    assert (reported.late_count, reported.record_count, reported.duplicate_count) == (
        0,
        played.record_count / 2,
        played.record_count / 2,
    )


def test_ticks_stand_behind_their_second_in_every_partition(
    settings: KafkaSettings, prefix: str, tmp_path: Path
) -> None:
    recording = read_recording(write_folder(tmp_path / "in", good_tables(), reported=manifest(60)))
    played = play(recording, settings, prefix)
    places = inputs(settings, prefix, played.record_count + 8 * played.tick_count)

    assert played == PlayCounts(played.record_count, 61, 0)
    assert len(places) == 8
    for found in places.values():
        ticks = [r.timestamp for r in found if headers(r)["kind"] == b"tick"]
        assert ticks == [(START_NS // SECOND_NS + second) * 1000 for second in range(1, 62)]
        newest = 0
        for one in found:
            assert one.timestamp >= newest
            newest = max(newest, one.timestamp if headers(one)["kind"] == b"tick" else 0)
            assert decode(one.value).ts_ns // 1_000_000 == one.timestamp


def test_late_records_are_kept_or_left_out_as_one_wishes(settings: KafkaSettings, prefix: str, tmp_path: Path) -> None:
    send(settings, prefix, event(0), event(1), Tick(START_NS + 5 * SECOND_NS), event(2), event(2), event(6))
    kept = record(settings, prefix, tmp_path / "kept", RecordRequest("j"))
    dropped = record(settings, prefix, tmp_path / "dropped", RecordRequest("j", has_late=False))

    assert (kept.record_count, kept.late_count) == (dropped.record_count, dropped.late_count) == (3, 1)
    assert times(tmp_path / "kept") == [0, 1, 2, 6]
    assert times(tmp_path / "dropped") == [0, 1, 6]


def times(folder: Path) -> list[int]:
    """Seconds of a recording's events."""
    column: Any = read_recording(folder).tables["events"]["ts_ns"]
    return [(int(ts_ns) - START_NS) // SECOND_NS for ts_ns in column]


def test_a_span_of_time_is_recorded(settings: KafkaSettings, prefix: str, tmp_path: Path) -> None:
    send(settings, prefix, *(event(second) for second in range(60)), Tick(START_NS + 70 * SECOND_NS))
    wanted = RecordRequest("j", "c", START_NS + 10 * SECOND_NS, START_NS + 20 * SECOND_NS)
    record(settings, prefix, tmp_path / "out", wanted)

    assert times(tmp_path / "out") == list(range(10, 20))


def test_frames_that_were_cut_by_metric_group_are_whole_again(
    settings: KafkaSettings, prefix: str, tmp_path: Path
) -> None:
    job = JobKey("c", "j")
    frames = [replace(FRAME, job=job, host=host) for host in ("a", "b")]
    send(settings, prefix, *split_frame(frames[0]), frames[1], *split_frame(frames[1])[:0])
    reported = record(settings, prefix, tmp_path / "out", RecordRequest("j"))
    table: Any = read_recording(tmp_path / "out").tables["host_metrics"]
    hosts = table["host"].to_list()
    rows = {host: [row for row, name in enumerate(hosts) if name == host] for host in ("a", "b")}

    assert reported.record_count == 4
    for name in ("gpu_util_ratio", "gpu_memory_used_bytes", "rdma_bytes_per_second", "cpu_util_ratio"):
        column = table[name]
        assert column[rows["a"]].tobytes() == column[rows["b"]].tobytes()


def test_what_cannot_be_read_is_counted_and_other_jobs_are_let_be(
    settings: KafkaSettings, prefix: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    send(settings, prefix, event(1), event(2, JobKey("c", "other")))
    client = KafkaProducer(bootstrap_servers=list(settings.servers))
    stamp_ms = START_NS // 1_000_000
    client.send(f"{prefix}.events", b"nonsense", key=b"c/j", headers=[("kind", b"record")], timestamp_ms=stamp_ms)
    client.send(f"{prefix}.events", b"nonsense", headers=[("kind", b"song")], timestamp_ms=stamp_ms)
    client.send(f"{prefix}.frames", b"nonsense", key=b"/", timestamp_ms=stamp_ms)
    client.close()
    reported = record(settings, prefix, tmp_path / "out", RecordRequest("j"))

    assert (reported.record_count, reported.undecodable.total()) == (1, 1)
    assert reported.jobs == {"c/j", "c/other"}
    assert times(tmp_path / "out") == [1]


def test_a_message_without_a_value_and_a_time_of_its_own_are_left_out(
    settings: KafkaSettings, prefix: str, tmp_path: Path
) -> None:
    send(settings, prefix, event(1))
    client = KafkaProducer(bootstrap_servers=list(settings.servers))
    stamp_ms = START_NS // 1_000_000
    named = {"key": b"c/j", "headers": [("kind", b"record")], "timestamp_ms": stamp_ms}
    client.send(f"{prefix}.events", None, **named)
    client.send(f"{prefix}.events", encode(event(30 * 365 * 86_400)), **named)
    client.close()
    reported = record(settings, prefix, tmp_path / "out", RecordRequest("j"))

    assert reported.undecodable == {"no value": 1, "its own stamp lies after Kafka's": 1}
    assert times(tmp_path / "out") == [1]


def test_a_job_that_is_not_there_or_is_there_twice_is_told(
    settings: KafkaSettings, prefix: str, tmp_path: Path
) -> None:
    others = (JobKey("c2", "j"), JobKey("c", "k/2"), JobKey("c", "l" * 500))
    send(settings, prefix, event(1), *(event(1, other) for other in others))
    shown = f"c/j, c/k/2, c/{'l' * 75}..., c2/j"
    with pytest.raises(EngineError, match=rf"no record of job x in that time; there are records of: {shown}$"):
        record(settings, prefix, tmp_path / "a", RecordRequest("x"))
    with pytest.raises(EngineError, match=r"several clusters have a job j: name one of c/j, c2/j"):
        record(settings, prefix, tmp_path / "b", RecordRequest("j"))

    assert record(settings, prefix, tmp_path / "c", RecordRequest("j", "c2")).record_count == 1


Refuse = Callable[[str], None]


def refused(recording: Recording, settings: KafkaSettings, prefix: str, reported: str) -> None:
    with pytest.raises(EngineError, match=reported):
        play(recording, settings, prefix)
    assert inputs(settings, prefix, 0) == {}


def test_topics_that_would_lose_a_recording_are_refused_before_anything_is_sent(
    settings: KafkaSettings, topic_prefix: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tocsin.pipeline.kafka.client.CONNECT_SECONDS", 2.0)
    old = read_recording(write_folder(tmp_path / "in", good_tables(), reported=manifest(60)))
    future = replace(old, manifest=replace(old.manifest, start_ns=4 * 10**18, end_ns=4 * 10**18 + 60 * SECOND_NS))
    with pytest.raises(EngineError, match=r"topics apply"):
        play(old, settings, topic_prefix)
    apply(settings, WantedTopics(topic_prefix, 2))
    refused(old, settings, topic_prefix, r"keeps records for 12 hours .* topics apply --retain-forever")
    apply(settings, WantedTopics(topic_prefix, 2, keep_seconds=0))
    refused(future, settings, topic_prefix, r"ends in the future.*--retain-forever")
    apply(settings, WantedTopics(topic_prefix, 2, is_for_replays=True))
    send(settings, topic_prefix, Tick(START_NS + 100 * SECOND_NS))
    with pytest.raises(EngineError, match=r"all of it would be late.*--topic-prefix"):
        play(old, settings, topic_prefix)


def test_the_commands_play_and_record(
    settings: KafkaSettings, prefix: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = write_folder(tmp_path / "in", good_tables(), reported=manifest(60))
    flags = ["--topic-prefix", prefix]
    assert main(["replay", str(folder), "--to-kafka", settings.servers[0], "--speed", "1000", *flags]) == 0
    assert f"61 s of ticks sent to {prefix}.*" in capsys.readouterr().out
    out = ["record", str(tmp_path / "out"), "--from-kafka", "job", "--kafka", settings.servers[0], *flags]
    assert main([*out, "--since", "2023-11-14T22:13:20"]) == 0

    assert capsys.readouterr().out.endswith(f" of job: tocsin replay {tmp_path / 'out'}\n")
    assert read_recording(tmp_path / "out").manifest.job_id == "job"
    assert not (folder / "verdicts.jsonl").exists()


@pytest.mark.parametrize(
    "flags",
    [
        ["--from-kafka", "c/"],
        ["--from-kafka", "j", "--seconds", "5"],
        ["--from-kafka", "j", "--since", "yesterday"],
        ["--from-kafka", "j", "--since", "1h", "--until", "2h"],
        ["--since", "1h"],
    ],
)
def test_wrong_flags_are_refused(flags: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["record", str(tmp_path / "out"), "--kafka", "127.0.0.1:1", *flags]) == 2
    assert "must be" in capsys.readouterr().err


def test_points_in_time() -> None:
    now_ns = 1_800_000_000 * SECOND_NS

    assert when_ns("x", "90m", now_ns) == now_ns - 5400 * SECOND_NS
    assert when_ns("x", "2027-01-15T08:00", 0) == now_ns
    assert when_ns("x", "2027-01-15T10:00+02:00", 0) == now_ns
    with pytest.raises(ConfigError, match="how long ago"):
        when_ns("--since", "soon", now_ns)
    assert RecordCounts().record_count == 0
