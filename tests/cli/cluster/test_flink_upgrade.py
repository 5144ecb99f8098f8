"""Savepoint, upgrade and the way back on a real cluster: verdicts go on as if nothing had been."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.flink_fixtures import Stream, case_of, wanted_lines
from tocsin.cli.main import main
from tocsin.pipeline.kafka.topics import WantedTopics

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]
SEED = 11


def test_an_upgrade_and_one_that_fails_change_no_verdict(
    stream: Callable[..., Stream], capsys: pytest.CaptureFixture[str]
) -> None:
    recording = case_of(SEED)
    wanted = wanted_lines(recording)
    job = stream(recording)
    job.submit()
    first_id = job.job_id
    job.play(0, 0.3)
    job.wait_checkpoints(2)

    assert job.tocsin("upgrade", "--parallelism=2") == 0
    second_id = job.job_id
    said = capsys.readouterr().out
    assert "stopped with a savepoint: file:" in said
    assert second_id in said
    assert "what changes:\n  --parallelism: 1 -> 2\nstopped" in said
    shown = job.flink.rest.options(second_id)
    assert all(kept in shown for kept in ('"checkpoint_seconds": 1.0', '"snapshot_seconds": 20', '"start": "earliest"'))
    job.play(0.3, 0.6)

    assert job.tocsin("upgrade", "--parallelism=64", "--wait-seconds=10") == 2
    third_id = job.job_id
    said = capsys.readouterr().err
    assert "not upgraded" in said
    # while it waits for slots, and when Flink has given up waiting: how many there are
    assert re.search(r": 0 of \d+ parts run, \d of 2 slots are free", said)
    assert f"the old job runs again as {third_id}" in said
    assert len({first_id, second_id, third_id}) == 3
    assert '"slot_count": 2' in job.flink.rest.options(third_id)
    job.play(0.6, 1)

    assert job.wait_verdicts(len(wanted)) == wanted


@pytest.mark.parametrize("kept", ["savepoint", "checkpoint"])
def test_a_savepoint_or_the_checkpoint_of_a_cancelled_job_begins_another_job(
    stream: Callable[..., Stream], tmp_path: Path, capsys: pytest.CaptureFixture[str], kept: str
) -> None:
    recording = case_of(SEED)
    wanted = wanted_lines(recording)
    job = stream(recording)
    job.submit("--exactly-once")
    job.play(0, 0.5)
    job.wait_checkpoints(2)
    capsys.readouterr()
    assert job.tocsin("savepoint", f"--to={tmp_path}") == 0
    path = capsys.readouterr().out.strip()
    assert job.tocsin("cancel") == 0
    [checkpoint] = re.findall(r"its last checkpoint: (\S+)", capsys.readouterr().out)
    assert all(Path(one.removeprefix("file:"), "_metadata").is_file() for one in (path, checkpoint))
    assert job.tocsin("status") == 1
    job.submit("--exactly-once", f"--from-savepoint={path if kept == 'savepoint' else checkpoint}")
    job.play(0.5, 1)

    assert job.wait_verdicts(len(wanted)) == wanted


def test_what_stands_in_the_way_is_said_in_a_sentence(
    stream: Callable[..., Stream], capsys: pytest.CaptureFixture[str]
) -> None:
    job = stream(case_of(SEED))
    kafka, rest = f"--kafka={job.broker.address}", f"--rest={job.flink.url}"
    count = len(WantedTopics(f"{job.prefix}x").topics())
    capsys.readouterr()
    for arguments, sentence in (
        ((rest, kafka, f"--topic-prefix={job.prefix}x"), f"{count} topics are missing at {job.broker.address}"),
        ((rest, "--kafka=127.0.0.1:1"), "no broker listens there"),
        (("--rest=http://127.0.0.1:1", kafka), "no answer from Flink at http://127.0.0.1:1"),
        ((rest, kafka, "--python=/no/such/python"), "--python = '/no/such/python'"),
        ((rest, kafka, "--checkpoint-seconds=99", "--exactly-once"), "checkpoint-seconds"),
    ):
        assert main(["flink", "submit", *arguments]) == 2
        said = capsys.readouterr().err
        assert sentence in said
        assert said.count("\n") == 1
    assert job.tocsin("upgrade") == 2
    assert f"no job {job.prefix!r}" in capsys.readouterr().err
    assert job.tocsin("submit", "--from-savepoint=/no/such/savepoint") == 2
    said = capsys.readouterr().err
    assert "/no/such/savepoint" in said
    assert "Caused by" not in said
