"""What a submission chooses goes to the job whole, and shows no password on the way."""

from dataclasses import replace

import pytest

from tocsin.pipeline.runtime.flink.options import JobOptions, options_from
from tocsin.pipeline.runtime.flink.sql import TRANSACTION_SECONDS, StreamOptions
from tocsin.schemas.errors import ConfigError

STREAM = StreamOptions(
    "a:1,b:2", "p", {"sasl.jaas.config": 'password="secret";'}, "g", "earliest", is_exactly_once=True
)
OPTIONS = JobOptions(STREAM, "job one", 2.5, 3, 20, 5, {"version": "1"})


def test_they_come_back_as_they_were() -> None:
    assert options_from(OPTIONS.to_json()) == OPTIONS


def test_a_running_job_shows_all_but_the_clients_properties() -> None:
    assert "secret" not in OPTIONS.shown()
    assert options_from(OPTIONS.shown()) == replace(OPTIONS, stream=replace(STREAM, properties={}))


@pytest.mark.parametrize("text", ["", "{}", "[]", '{"stream": 1}', '{"stream": {"servers": "a:1"}, "flavour": 1}'])
def test_what_is_something_else_is_refused(text: str) -> None:
    with pytest.raises(ConfigError, match="TOCSIN_FLINK_JOB"):
        options_from(text)


@pytest.mark.parametrize(
    ("field", "value", "setting"),
    [
        ("name", " ", "name"),
        ("checkpoint_seconds", 0.0, "checkpoint-seconds"),
        ("checkpoint_seconds", float("nan"), "checkpoint-seconds"),
        ("checkpoint_seconds", 20.1, "checkpoint-seconds"),
        ("slot_count", 0, "parallelism"),
        ("slot_count", 129, "parallelism"),
        ("snapshot_seconds", 0, "snapshot-seconds"),
        ("canary_seconds", -1, "canary-seconds"),
    ],
)
def test_a_wrong_setting_is_named(field: str, value: object, setting: str) -> None:
    with pytest.raises(ConfigError, match=setting):
        replace(OPTIONS, **{field: value})  # type: ignore[arg-type]


@pytest.mark.parametrize("checkpoint_seconds", [0.1, 10.0, 15.0, 20.0])
def test_with_transactions_a_checkpoint_that_hangs_fails_the_job_in_time(checkpoint_seconds: float) -> None:
    timeout_seconds = replace(OPTIONS, checkpoint_seconds=checkpoint_seconds).checkpoint_timeout_seconds

    assert timeout_seconds is not None
    assert timeout_seconds >= 5
    # opened two intervals before the one that hangs, and fifteen seconds are left to come back
    assert 2 * checkpoint_seconds + timeout_seconds + 15 <= TRANSACTION_SECONDS


def test_without_transactions_no_checkpoint_fails_the_job() -> None:
    plain = replace(OPTIONS, stream=replace(STREAM, is_exactly_once=False), checkpoint_seconds=600.0)
    assert plain.checkpoint_timeout_seconds is None
