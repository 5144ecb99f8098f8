"""Topics, keys, headers and stamps: what all parts that speak over Kafka agree on."""

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.schemas.samples import END_NS, FRAME, JOB, SAMPLES, TICK
from tests.strategies import records
from tocsin.schemas.errors import ConfigError, FieldError
from tocsin.schemas.kafka import topics
from tocsin.schemas.metric_groups import split_frame
from tocsin.schemas.records import JobKey, Record, Tick

NAMES = st.text(min_size=1, max_size=20).filter(lambda text: "\0" not in text)


def test_every_kind_of_record_has_its_topic_and_its_kind() -> None:
    found = {name: (topics.topic_of(r), topics.headers_of(r)[0][1]) for name, r in SAMPLES.items() if r != TICK}

    assert found.pop("frame") == ("tocsin.frames", b"frame")
    assert found.pop("steps") == ("tocsin.steps", b"steps")
    assert found.pop("collectives") == ("tocsin.collectives", b"collectives")
    assert found.pop("model") == ("tocsin.models", b"model")
    assert set(found.values()) == {("tocsin.events", b"record")}


def test_a_tick_has_no_key_and_goes_to_no_single_topic() -> None:
    assert topics.key_of(TICK) is None
    assert topics.headers_of(TICK) == [("kind", b"tick")]
    with pytest.raises(FieldError, match="every partition"):
        topics.topic_of(TICK)


def test_a_job_s_records_share_a_key_whatever_the_attempt() -> None:
    assert topics.key_of(SAMPLES["event"]) == f"{JOB.cluster}/{JOB.job_id}".encode()
    assert topics.key_of(FRAME) == f"{JOB.cluster}/{JOB.job_id}/all".encode()
    network = split_frame(FRAME)[-1]
    assert topics.key_of(network) == f"{JOB.cluster}/{JOB.job_id}/network".encode()
    assert topics.key_of(replace(FRAME, job=replace(JOB, attempt=9))) == topics.key_of(FRAME)


@given(NAMES, NAMES, st.none() | NAMES)
def test_keys_of_different_jobs_differ_and_can_be_read_back(cluster: str, job_id: str, group: str | None) -> None:
    key = topics.job_key(JobKey(cluster, job_id), group)

    assert topics.parse_key(key) == (cluster, job_id, group)


@pytest.mark.parametrize("key", [b"", b"c", b"c/", b"/j", b"a/b/c/d", b"\xff/j"])
def test_what_is_no_key_of_ours_is_refused(key: bytes) -> None:
    with pytest.raises(FieldError, match="key"):
        topics.parse_key(key)


@given(records())
def test_every_record_has_headers_and_a_stamp(record: Record) -> None:
    assert topics.timestamp_ms(record) == record.ts_ns // 1_000_000
    assert topics.headers_of(record)[0][0] == "kind"
    assert (topics.key_of(record) is None) == isinstance(record, Tick)


def test_a_frame_says_how_long_its_slice_is_where_it_is_not_five_seconds() -> None:
    assert topics.headers_of(FRAME) == [("kind", b"frame")]
    assert topics.headers_of(replace(FRAME, tick_ns=5_000_000_000)) == [("kind", b"frame"), ("slice_ms", b"25000")]
    assert topics.timestamp_ms(FRAME) == END_NS // 1_000_000


def test_the_broker_guards_the_clock_of_input_topics_alone() -> None:
    guarded = {t.name for t in topics.topics("p") if "message.timestamp.after.max.ms" in t.config()}

    assert guarded == {"p.frames", "p.steps", "p.collectives", "p.events", "p.models"}
    assert {t.config()["message.timestamp.after.max.ms"] for t in topics.topics("p") if t.name in guarded} == {"2000"}


def test_models_are_compacted_and_kept_for_good() -> None:
    (models,) = (topic for topic in topics.topics() if topic.name == "tocsin.models")

    assert (models.config()["cleanup.policy"], models.config()["retention.ms"]) == ("compact", "-1")
    assert models.partition_count == 1
    assert topics.key_of(SAMPLES["model"]) == b"peers"


def test_a_tick_has_a_key_where_the_topic_is_compacted() -> None:
    assert topics.tick_key("p.models") == b"tick"
    assert {topics.tick_key(f"p.{name}") for name in topics.INPUTS} == {None}


def test_inputs_can_be_kept_for_good() -> None:
    kept = {topic.name: topic.retention_seconds for topic in topics.topics(input_retention_seconds=None)}

    assert [kept[f"tocsin.{name}"] for name in topics.INPUTS] == [None] * 4
    assert kept["tocsin.late"] is not None


def test_for_replays_any_time_is_taken_and_kept() -> None:
    frames = topics.topics(is_for_replays=True)[0].config()

    assert (frames["retention.ms"], frames["message.timestamp.after.max.ms"]) == ("-1", "9223372036854775807")


@pytest.mark.parametrize("prefix", ["", "a b", "tocsin/", "ä", ".", "..", "x" * 201])
def test_a_prefix_that_kafka_does_not_take_is_refused(prefix: str) -> None:
    with pytest.raises(ConfigError, match="topic-prefix"):
        topics.topics(prefix)


def test_a_state_is_kept_until_a_newer_one_and_not_for_ever() -> None:
    [status] = [one.config() for one in topics.topics() if one.name == "tocsin.job-status"]
    [models] = [one.config() for one in topics.topics() if one.name == "tocsin.models"]

    assert (status["cleanup.policy"], status["retention.ms"]) == ("compact,delete", str(7 * 86_400_000))
    assert models["cleanup.policy"] == "compact"


def test_names_and_kinds_are_the_same_for_good() -> None:
    names = [topic.name for topic in topics.topics()]

    assert names == [
        "tocsin.frames",
        "tocsin.steps",
        "tocsin.collectives",
        "tocsin.events",
        "tocsin.models",
        "tocsin.verdicts",
        "tocsin.actions",
        "tocsin.action-acks",
        "tocsin.probes",
        "tocsin.evidence",
        "tocsin.host-health",
        "tocsin.job-status",
        "tocsin.ettr",
        "tocsin.dead-letter",
        "tocsin.late",
        "tocsin.controller-state",
        "tocsin.alerts-state",
        "tocsin.covered",
        "tocsin.alerts-sent",
        "tocsin.operator-notes",
        "tocsin.operator-answers",
        "tocsin.notes-taken",
        "tocsin.clock",
    ]
