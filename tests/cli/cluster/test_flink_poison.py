"""Messages that raised something in the job's functions, on a real Flink: dead letters, and no restart."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from tests.flink_fixtures import Stream, case_of, wanted_lines
from tests.hostile_dumps import HOSTILE_DUMPS
from tests.hostile_records import exit_of_400_digits
from tests.schemas import samples
from tocsin.schemas.kafka.topics import DEAD_LETTER, headers_of, key_of
from tocsin.schemas.records import ProbeAnswer
from tocsin.schemas.wire.codec import encode

pytestmark = [pytest.mark.timeout(400), pytest.mark.slow]
SEED = 11


def test_poison_restarts_nobody_and_the_job_is_judged(stream: Callable[..., Stream]) -> None:
    recording = case_of(SEED)
    wanted = wanted_lines(recording)
    job = stream(recording)
    job.submit()
    job.play(0, 0.2)
    poison = exit_of_400_digits()
    for key, kind in ((b"evil/x/all", b"frame"), (b"evil/x", headers_of(samples.EVENT)[0][1])):
        job.send_now(key, poison, kind)
    for number, name in enumerate(HOSTILE_DUMPS):
        data = HOSTILE_DUMPS[name]()
        if len(data) < 100_000:
            answer = ProbeAnswer(samples.JOB, "h", job.now_ns, number % 4, f"q{number}", "flight_recorder", data)
            job.send_now(key_of(answer), encode(answer), headers_of(answer)[0][1])
    job.play(0.2, 1)
    found = [line for line in job.wait_verdicts(len(wanted)) if recording.manifest.job_id.encode() in line]
    dead_letters = job.read(DEAD_LETTER, lambda all_: sum(one.value == poison for one in all_) >= 2)

    assert found == wanted
    assert [(one.value, dict(one.headers)["reason"]) for one in dead_letters] == [(poison, b"undecodable")] * 2
    assert job.flink.rest.failures(job.job_id) == []
