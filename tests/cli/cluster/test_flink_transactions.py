"""Verdicts in transactions: none is lost where Kafka gives a transaction up, or where two jobs stand side by side."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from threading import Thread
from typing import Any

import pytest

from tests.chaos.up import python_workers
from tests.flink_fixtures import Stream, case_of, wanted_lines
from tocsin.cli.main import main
from tocsin.pipeline.runtime.flink.sql import TRANSACTION_SECONDS
from tocsin.schemas.kafka.topics import VERDICTS
from tocsin.schemas.reasons import Reason

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]
SEED = 11
_KAFKA_LOOKS_SECONDS = 10
"""So often a broker looks for transactions whose time is over."""


@contextmanager
def _stopped_workers(job: Stream) -> Iterator[None]:
    pids = [pid for child in job.flink.task_managers for pid in python_workers(child.pid)]
    assert pids
    for pid in pids:
        os.kill(pid, signal.SIGSTOP)
    yield
    for pid in pids:
        with suppress(ProcessLookupError):  # the job that failed has ended them
            os.kill(pid, signal.SIGCONT)


def test_workers_that_stand_for_longer_than_a_transaction_lose_no_verdict(stream: Callable[..., Stream]) -> None:
    recording = case_of(SEED)
    wanted = wanted_lines(recording)
    job = stream(recording)
    job.submit("--exactly-once", "--checkpoint-seconds=10")
    job.play(0, 0.3)
    job.wait_checkpoints(1)
    job.play(0.3, 1)
    # all is said, in a transaction that is open
    job.read(VERDICTS, lambda all_: len(all_) >= len(wanted), isolation_level="read_uncommitted")
    with _stopped_workers(job):
        time.sleep(TRANSACTION_SECONDS + 2 * _KAFKA_LOOKS_SECONDS)

    found = job.wait_messages(len(wanted), 120)
    assert [record.value for record in found] == wanted


def test_two_jobs_of_one_prefix_do_not_fence_each_other_out(stream: Callable[..., Stream]) -> None:
    recording = case_of(SEED)
    wanted = sorted(wanted_lines(recording))
    job = stream(recording)
    # canaries: so that the first job's transaction holds something whenever the second one begins
    job.submit("--exactly-once", "--checkpoint-seconds=10", "--canary-seconds=1")
    where = (f"--rest={job.flink.url}", f"--kafka={job.broker.address}", f"--topic-prefix={job.prefix}")
    flags = ("--start=earliest", "--checkpoint-seconds=10", "--exactly-once", f"--name={job.prefix}-2")
    player = Thread(target=_play_slowly, args=(job, 60.0))
    player.start()
    try:
        assert main(["flink", "submit", *where, *flags]) == 0
        player.join()
        job.read(VERDICTS, lambda all_: len(_said(all_)) >= 2 * len(wanted), 120)
        time.sleep(20)  # and two checkpoints more: what is aborted late would be missing
        found = _said(job.read(VERDICTS, lambda all_: len(_said(all_)) >= 2 * len(wanted)))
        ids = [one.job_id for one in job.flink.rest.jobs() if one.name.startswith(job.prefix)]
        assert [job.flink.rest.failures(job_id) for job_id in ids] == [[], []]
        assert sorted(found) == sorted(2 * wanted)
    finally:
        player.join()
        for one in job.flink.rest.jobs():
            if one.name == f"{job.prefix}-2" and not one.is_over:
                job.flink.rest.cancel(one.job_id)


def _play_slowly(job: Stream, seconds: float, parts_count: int = 60) -> None:
    for number in range(parts_count):
        job.play(number / parts_count, (number + 1) / parts_count)
        time.sleep(seconds / parts_count)


def _said(records: Sequence[Any]) -> list[bytes]:
    """What is no canary."""
    return [one.value for one in records if Reason.CANARY.value.encode() not in one.value]
