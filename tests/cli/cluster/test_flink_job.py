"""The real job on a real Flink cluster: what the embedded engine says, whatever comes and whatever dies."""

from __future__ import annotations

import random
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.collectors.peer import wait_until
from tests.flink_fixtures import Stream, case_of, wanted_lines
from tocsin.schemas.kafka.topics import (
    DEAD_LETTER,
    LATE,
    RECORD_BYTES,
    STEPS,
    topic_name,
)

pytestmark = pytest.mark.timeout(400)
SEED = 11
"""Four machines, 645 s, ten verdict lines from the second minute to the last."""


def test_it_says_what_the_embedded_engine_says_and_puts_the_rest_aside(
    stream: Callable[..., Stream], capsys: pytest.CaptureFixture[str]
) -> None:
    recording = case_of(SEED)
    wanted = wanted_lines(recording)
    job = stream(recording)
    job.submit()
    job.play(0, 1, shuffle_seed=1, repeat_count=2)
    found = job.wait_verdicts(len(wanted))
    key = b"default/" + recording.manifest.job_id.encode()
    large = random.Random(1).randbytes(RECORD_BYTES - 4096)
    bad = ((b"poison", key, b"steps"), (b"no kind", key, b""), (b"no key", None, b"steps"), (large, key, b"steps"))
    for value, name, kind in bad:
        job.send_now(name, value, kind)
    # what is small on its way: beyond Flink's buffer for windows, beyond what its client sends
    huge, long_key = bytes(40 << 20), b"k" * (7 << 20)
    for name, kind in ((key, b"steps"), (None, b"")):
        job.send_now(name, huge, kind)
    job.send_now(key, bytes(150 << 20), b"frame")  # a text of it and that text's bytes would be the heap's end
    job.send_now(long_key, random.Random(2).randbytes(3 << 20), b"zz")
    again = job.send_again()
    job.tick(3)
    records = job.read(DEAD_LETTER, lambda all_: len(all_) >= 8)
    dead_letters = {record.value: dict(record.headers) for record in records}
    [late] = job.read(LATE, bool)

    assert found == wanted
    assert dead_letters.keys() == {
        b"poison",
        b"no kind",
        b"no key",
        large,
        huge[:65536],
        random.Random(2).randbytes(3 << 20),
    }
    assert [dict(one.headers)["reason"] for one in records if len(one.value) > 1000] == [b"too_large"] * 5
    assert dead_letters[huge[:65536]]["detail"].startswith(
        b"value of more than 16777216 bytes, at most 4194304 are judged"
    )
    assert max(len(one.key or b"") for one in records) == 32768
    assert dead_letters[b"no key"]["reason"] == dead_letters[b"no kind"]["reason"] == b"bad_header"
    assert dead_letters[b"poison"]["reason"] == b"undecodable"
    for dead_letter in dead_letters.values():
        assert dead_letter["topic"] == topic_name(STEPS, job.prefix).encode()
        assert dead_letter["offset"].isdigit()
    assert (late.value, dict(late.headers)["reason"]) == (again, b"late")
    assert job.flink.rest.failures(job.job_id) == []
    capsys.readouterr()
    assert job.tocsin("status", "--job", "c/a") == 0
    assert "  slot 0       c/a\n" in capsys.readouterr().out


@pytest.mark.parametrize("flags", [(), pytest.param(("--exactly-once",), marks=pytest.mark.slow)])
def test_a_task_manager_that_is_killed_changes_no_verdict_and_leaves_nobody_behind(
    stream: Callable[..., Stream], flags: tuple[str, ...]
) -> None:
    recording = case_of(SEED)
    wanted = wanted_lines(recording)
    job = stream(recording)
    job.submit(*flags)
    job.play(0, 0.3)
    job.wait_checkpoints(2)
    job.play(0.3, 0.6)
    worker = job.flink.task_managers[0]
    members = set(worker.members())
    worker.crash()
    job.play(0.6, 1)
    job.flink.start_task_manager(0)
    job.flink.wait_ready()
    messages = [record.value for record in job.wait_messages(len(wanted), 120)]

    assert job.wait_verdicts(len(wanted)) == wanted
    if flags:
        assert messages == wanted
    assert len(members) > 1
    wait_until(lambda: not any(Path(f"/proc/{pid}").exists() for pid in members))  # the killed may take a moment
