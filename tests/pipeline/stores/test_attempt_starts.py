"""Starts of attempts: as messages, as rows of which the newest stay, and as shares of a cluster's days."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest

from tests.clickhouse_fixtures import opened_store
from tests.pipeline.stores.test_attempt_times import ask
from tocsin.pipeline.stores.attempt_start_codec import attempt_start_key, decode_account, encode_attempt_start
from tocsin.pipeline.stores.attempt_starts import AttemptStart, StartStage
from tocsin.pipeline.stores.attempt_time_codec import encode_attempt_time
from tocsin.pipeline.stores.attempt_times import AttemptTime, TimePart
from tocsin.pipeline.stores.startup_queries import DAYS_QUERY, startup_query
from tocsin.schemas.errors import SchemaError
from tocsin.schemas.records import NS_PER_SECOND as NS
from tocsin.schemas.records import JobKey

DAY_NS = 86_400 * NS
MIDNIGHT_NS = 1_700_006_400 * NS  # 2023-11-15 00:00 UTC
BEGAN_NS = MIDNIGHT_NS - 60 * NS
JOB = JobKey("c", "it's", 0)
ENV = StartStage(
    *("full", "env_setup", BEGAN_NS, BEGAN_NS + 90 * NS, 2, 0, 0, 40.0, "n2", BEGAN_NS, BEGAN_NS + 90 * NS, "n2"),
    saved_gpu_ns=50 * 16 * NS,
    own_gpu_ns=(40 + 90) * 8 * NS,
    waiting_gpu_ns=50 * 8 * NS,
    cache_hit_ratio=0.5,
)
STARTED = AttemptStart(JOB, BEGAN_NS, BEGAN_NS + 120 * NS, BEGAN_NS + 121 * NS, 2, 16, (ENV,))
"""A start of two minutes over midnight, on 16 GPUs."""
FAILED = replace(STARTED, train_ns=0, over_ns=STARTED.train_ns, is_failed=True)
"""The same start, which failed."""
WORDS = ("over", "fail")
"""Begins of the words that messages of older engines lack."""


def test_a_start_comes_back_from_its_message_and_an_account_of_time_does_too() -> None:
    open_stage = replace(ENV, own_gpu_ns=0, waiting_gpu_ns=0, median_seconds=None, cache_hit_ratio=None, open_count=1)
    running = replace(STARTED, train_ns=0, stages=(open_stage,))
    account = AttemptTime(JOB, 0, 10, 10, False, {TimePart.IDLE: 5}, gpu_count=16)

    told = [STARTED, running, FAILED]
    assert [decode_account(encode_attempt_start(one)) for one in told] == told
    older = {name: value for name, value in json.loads(encode_attempt_start(STARTED)).items() if name[:4] not in WORDS}
    assert decode_account(json.dumps(older).encode()) == STARTED
    assert decode_account(encode_attempt_time(account)) == account
    assert attempt_start_key(STARTED) == f"c/it's/0/{BEGAN_NS}/startup".encode()
    assert (running.gpu_ns, STARTED.untold_gpu_ns) == (0, 30 * 16 * NS)


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("gpus", -1),
        ("train_ns", "x"),
        ("over_ns", -1),
        ("failed", 1),
        ("stages", 1),
        ("stages", [{}]),
        ("gpus", 1),
        ("attempt", None),
    ],
)
def test_what_is_wrong_is_named(field: str, value: object) -> None:
    fields = json.loads(encode_attempt_start(STARTED))

    with pytest.raises(SchemaError, match=r"startup\."):
        decode_account(json.dumps({**fields, field: value}).encode())


@pytest.mark.parametrize(
    ("field", "value"),
    [("slowest", []), ("slowest", [1, 2, 3]), ("gpu_ns", [1]), ("cache_hit_ratio", 2), ("open", -1), ("stage", "")],
)
def test_what_is_wrong_with_a_stage_is_named(field: str, value: object) -> None:
    fields = json.loads(encode_attempt_start(STARTED))
    fields["stages"][0][field] = value

    with pytest.raises(SchemaError, match=rf"startup\.stages\[0\]\.{field}"):
        decode_account(json.dumps(fields).encode())


def test_the_rows_told_last_stay_and_a_start_over_midnight_counts_on_both_days(tmp_path: Path) -> None:
    with opened_store("chdb", tmp_path) as store:
        assert ask(store, DAYS_QUERY) == []
        store.write_attempt_starts([replace(STARTED, train_ns=0, told_ns=BEGAN_NS + NS, stages=())])
        store.write_attempt_starts([STARTED, replace(STARTED, job=JobKey("c", "other"), train_ns=0)])
        parts = {TimePart.START_UP: 120 * NS}
        until_ns = MIDNIGHT_NS + DAY_NS // 2
        store.write_attempt_times([AttemptTime(JOB, BEGAN_NS, until_ns, until_ns, False, parts, gpu_count=16)])
        whole, stage = ask(store, startup_query("it's"))
        days = {one["day"]: one for one in ask(store, DAYS_QUERY)}
        [both] = ask(store, "SELECT gpus, start_up_seconds FROM tocsin.ettr FINAL")

    assert (whole["stage"], whole["own_gpu_seconds"], whole["start_up_seconds"]) == ("", 30 * 16.0, 120.0)
    assert both == {"gpus": 16, "start_up_seconds": 120.0}
    assert (stage["slowest_host"], stage["median_seconds"], stage["cache_hit_ratio"]) == ("n2", 40.0, 0.5)
    spent = sum(row[name] for row in (whole, stage) for name in ("own_gpu_seconds", "waiting_gpu_seconds"))
    assert spent == whole["start_up_seconds"] * whole["gpus"]
    assert list(days) == ["2023-11-15", "2023-11-14"]
    assert [int(one["starts"]) for one in days.values()] == [0, 1]
    assert [one["start_up_gpu_hours"] * 3600 for one in days.values()] == pytest.approx([60 * 16, 60 * 16])
    assert days["2023-11-14"]["start_up_ratio"] == pytest.approx(1.0)
    assert days["2023-11-15"]["start_up_ratio"] == pytest.approx(60 / 43_200)


def test_a_start_that_failed_counts_like_another(tmp_path: Path) -> None:
    with opened_store("chdb", tmp_path) as store:
        store.write_attempt_starts([FAILED])
        until_ns = BEGAN_NS + NS
        store.write_attempt_times([AttemptTime(JOB, BEGAN_NS, until_ns, until_ns, True, {}, gpu_count=16)])
        whole, _ = ask(store, startup_query("it's"))
        days = ask(store, DAYS_QUERY)

    assert (whole["is_failed"], int(whole["over_ns"]), int(whole["trained_ns"])) == (True, FAILED.over_ns, 0)
    assert (whole["start_up_seconds"], whole["own_gpu_seconds"]) == (120.0, 30 * 16.0)
    assert [one["start_up_gpu_hours"] * 3600 for one in days] == pytest.approx([60 * 16, 60 * 16])
    assert [one["start_up_ratio"] for one in days] == pytest.approx([1.0, 1.0])
    assert [int(one["failed_starts"]) for one in days] == [0, 1]
    assert [one["failed_gpu_hours"] for one in days] == [one["start_up_gpu_hours"] for one in days]


def test_starts_that_failed_are_told_apart_from_those_that_trained(tmp_path: Path) -> None:
    with opened_store("chdb", tmp_path) as store:
        last_ns = MIDNIGHT_NS - 1
        failed = replace(FAILED, job=JobKey("c", "failed"), gpu_count=8, over_ns=last_ns, stages=())
        store.write_attempt_starts([replace(STARTED, train_ns=last_ns, stages=()), failed])
        unclear = replace(failed, job=JobKey("c", "mute"), is_failed=False)
        store.write_attempt_starts([unclear, replace(failed, job=JobKey("other", "failed"))])
        days = {one["cluster"]: one for one in ask(store, DAYS_QUERY)}

    assert [(int(days[one]["starts"]), int(days[one]["failed_starts"])) for one in ("c", "other")] == [(3, 1), (1, 1)]
    assert days["c"]["start_up_gpu_hours"] * 60 == pytest.approx(16 + 8 + 8)
    assert days["c"]["failed_gpu_hours"] * 60 == pytest.approx(8)


def test_an_attempt_whose_times_were_told_before_its_training_began_lasted_until_then(tmp_path: Path) -> None:
    with opened_store("chdb", tmp_path) as store:
        store.write_attempt_starts([STARTED])
        until_ns = BEGAN_NS + NS
        store.write_attempt_times([AttemptTime(JOB, BEGAN_NS, until_ns, until_ns, True, {}, gpu_count=16)])
        days = ask(store, DAYS_QUERY)

    assert [one["start_up_ratio"] for one in days] == pytest.approx([1.0, 1.0])
