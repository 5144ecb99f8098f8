"""``tocsin flink upgrade | submit`` against a cluster that only notes what it is told."""

from __future__ import annotations

import json
import os
import signal
import sys
from collections.abc import Callable, Iterator
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest

from tocsin.cli import flink
from tocsin.cli.cluster import submit as submitting
from tocsin.cli.cluster.submit import Submission
from tocsin.cli.flink_options import running_options
from tocsin.cli.main import main
from tocsin.pipeline.runtime.flink.options import JobOptions
from tocsin.pipeline.runtime.flink.rest import Checkpoints, FlinkJob
from tocsin.pipeline.runtime.flink.sql import StreamOptions
from tocsin.schemas.errors import EngineError
from tocsin.schemas.kafka.settings import KafkaSettings, kafka_settings

RUNNING = JobOptions(
    StreamOptions("broker:9092", "play1", {}, "play1.flink", "earliest", is_exactly_once=True),
    "play1",
    checkpoint_seconds=2.5,
    slot_count=3,
    snapshot_seconds=20,
    canary_seconds=30,
    origin={"client_python": "/old/python", "worker_python": "/old/python", "python_path": "", "version": "0.0"},
)
PATH = "file:/savepoints/1"


class Cluster:
    """Takes the place of ``FlinkRest`` and of ``flink run``."""

    def __init__(self) -> None:
        self.url = "http://flink:8081"
        self.jobs_by_id = {"old": RUNNING.shown()}
        self.submitted: list[Submission] = []
        self.cancelled: list[str] = []
        self.failures_seen: list[str] = []
        self.done_count = 2
        self.is_keeping = True
        self.on_stop: Callable[[], None] = lambda: None
        self.on_submit: Callable[[str], None] = lambda _: None

    def jobs(self) -> list[FlinkJob]:
        return [FlinkJob(job_id, "play1", "RUNNING", 1.0, 4, 4) for job_id in self.jobs_by_id]

    def options(self, job_id: str) -> str:
        return self.jobs_by_id[job_id]

    def overview(self) -> Any:
        return SimpleNamespace(free_slot_count=0, slot_count=2)

    def failures(self, job_id: str) -> list[str]:
        return self.failures_seen if job_id == "new1" else []

    def checkpoints(self, job_id: str) -> Checkpoints:
        number = 2 if job_id in self.cancelled else 1
        return Checkpoints(done_count=self.done_count, last_path=f"file:/chk-{number}")

    def keeps_checkpoints(self, job_id: str) -> bool:
        return job_id == "old" and self.is_keeping

    def stale_seconds(self) -> float:
        return 0.0

    def stop(self, job_id: str, folder: str) -> str:
        del folder
        del self.jobs_by_id[job_id]
        self.on_stop()
        return PATH

    def cancel(self, job_id: str) -> None:
        self.cancelled.append(job_id)
        del self.jobs_by_id[job_id]

    def submit(self, submission: Submission) -> str:
        self.submitted.append(submission)
        job_id = f"new{len(self.submitted)}"
        self.jobs_by_id[job_id] = submission.options_text
        self.on_submit(job_id)
        return job_id

    @property
    def options_submitted(self) -> list[dict[str, Any]]:
        return [json.loads(one.options_text) for one in self.submitted]


@pytest.fixture
def cluster(monkeypatch: pytest.MonkeyPatch) -> Cluster:
    made = Cluster()
    monkeypatch.setattr(flink, "FlinkRest", lambda _: made)
    monkeypatch.setattr(flink, "check_topics", lambda *_: None)
    monkeypatch.setattr(submitting, "submit", made.submit)
    monkeypatch.setenv("TOCSIN_KAFKA", "elsewhere:9092")
    monkeypatch.setenv("TOCSIN_TOPIC_PREFIX", "elsewhere")
    return made


def upgrade(*flags: str) -> int:
    return main(["flink", "upgrade", "--rest=http://flink:8081", "--name=play1", *flags])


def without_origin(options: JobOptions) -> dict[str, Any]:
    return {name: value for name, value in json.loads(options.to_json()).items() if name != "origin"}


def submitted_options(cluster: Cluster) -> dict[str, Any]:
    return {name: value for name, value in cluster.options_submitted[-1].items() if name != "origin"}


def test_an_upgrade_keeps_what_is_not_named(cluster: Cluster, capsys: pytest.CaptureFixture[str]) -> None:
    assert upgrade() == 0

    assert submitted_options(cluster) == without_origin(RUNNING)
    assert cluster.submitted[-1].restore == PATH
    assert cluster.submitted[-1].origin.worker_python == sys.executable
    said = capsys.readouterr().out
    assert "--topic-prefix" not in said
    assert f"  --python: /old/python -> {sys.executable}\n" in said


def test_an_upgrade_changes_what_is_named_and_says_so(cluster: Cluster, capsys: pytest.CaptureFixture[str]) -> None:
    flags = ("--kafka=b:1", "--parallelism=1", "--no-exactly-once", "--checkpoint-seconds=10", "--canary-seconds=0")
    assert upgrade(*flags, "--topic-prefix=play2", "--start=committed", "--snapshot-seconds=60") == 0

    stream = StreamOptions("b:1", "play2", {}, "play2.flink", "committed")
    assert submitted_options(cluster) == without_origin(JobOptions(stream, "play1"))
    lines = capsys.readouterr().out.splitlines()
    assert lines[0] == "what changes:"
    assert lines[1:10] == [
        "  --kafka: broker:9092 -> b:1",
        "  --topic-prefix: play1 -> play2",
        "  --group: play1.flink -> play2.flink",
        "  --start: earliest -> committed",
        "  --exactly-once: yes -> no",
        "  --checkpoint-seconds: 2.5 -> 10.0",
        "  --parallelism: 3 -> 1",
        "  --snapshot-seconds: 20 -> 60",
        "  --canary-seconds: 30 -> 0",
    ]


def test_an_upgrade_keeps_a_python_and_a_group_that_were_chosen(cluster: Cluster) -> None:
    origin = {"client_python": "/old/python", "worker_python": sys.executable}
    chosen = replace(RUNNING, origin=origin, stream=replace(RUNNING.stream, group="mine", lateness_seconds=3))
    cluster.jobs_by_id["old"] = chosen.shown()
    assert upgrade("--topic-prefix=play2") == 0

    stream = cluster.options_submitted[-1]["stream"]
    assert (stream["group"], stream["prefix"], stream["lateness_seconds"]) == ("mine", "play2", 3)
    assert cluster.submitted[-1].origin.worker_python == sys.executable


def test_an_upgrade_leaves_out_what_another_version_chose(cluster: Cluster, capsys: pytest.CaptureFixture[str]) -> None:
    shown = json.loads(RUNNING.shown())
    del shown["canary_seconds"]
    cluster.jobs_by_id["old"] = json.dumps({**shown, "moon_phase": 1})
    assert upgrade() == 0

    assert submitted_options(cluster) == without_origin(replace(RUNNING, canary_seconds=0))
    assert "  moon_phase: left out, this version does not know it\n" in capsys.readouterr().out


@pytest.fixture
def number(request: pytest.FixtureRequest) -> Iterator[signal.Signals]:
    """A signal that is not ignored: in a shell's background job, or under nohup, some are."""
    reported: signal.Signals = request.param
    before = signal.signal(reported, signal.default_int_handler if reported is signal.SIGINT else signal.SIG_DFL)
    yield reported
    signal.signal(reported, before)


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGHUP, signal.SIGINT], indirect=True)
@pytest.mark.parametrize("when", ["stop", "submit", "both"])
def test_an_upgrade_that_is_ended_goes_back(
    cluster: Cluster, capsys: pytest.CaptureFixture[str], number: signal.Signals, when: str
) -> None:
    before = signal.getsignal(number)

    def end(job_id: str = "new1") -> None:
        if job_id == "new1" or when == "both":  # also while it goes back
            os.kill(os.getpid(), number)

    if when != "submit":
        cluster.on_stop = end
    if when != "stop":
        cluster.on_submit = end
    assert upgrade("--parallelism=1") == 2

    assert list(cluster.jobs_by_id) == [f"new{len(cluster.submitted)}"]
    assert cluster.options_submitted[-1] == json.loads(RUNNING.to_json())
    assert cluster.submitted[-1].restore == PATH
    assert cluster.cancelled == ([] if when != "submit" else ["new1"])
    assert "not upgraded: interrupted; the old job runs again" in capsys.readouterr().err
    assert signal.getsignal(number) == before


def test_where_the_way_back_fails_the_savepoint_is_named(cluster: Cluster, capsys: pytest.CaptureFixture[str]) -> None:
    def fail(_: str) -> None:
        raise EngineError("no slots")

    cluster.on_submit = fail
    assert upgrade() == 2
    assert f"submit --from-savepoint {PATH}" in capsys.readouterr().err


@pytest.mark.parametrize("flags", [(), ("--from-savepoint=file:/old",)])
def test_a_submission_from_a_savepoint_fails_where_its_state_cannot_be_read(
    cluster: Cluster, capsys: pytest.CaptureFixture[str], flags: tuple[str, ...]
) -> None:
    del cluster.jobs_by_id["old"]
    cluster.done_count = 0
    cluster.failures_seen = ["the state of job a cannot be taken over"]
    status = main(["flink", "submit", "--rest=http://flink:8081", "--name=play1", *flags])

    said = capsys.readouterr()
    assert status == (2 if flags else 0)
    assert ("the state of job a cannot be taken over" in said.err) == bool(flags)
    assert ("running as new1" in said.out) == (not flags)


@pytest.mark.parametrize("is_keeping", [True, False])
def test_a_cancelled_job_names_the_checkpoint_that_stays(
    cluster: Cluster, capsys: pytest.CaptureFixture[str], *, is_keeping: bool
) -> None:
    cluster.is_keeping = is_keeping
    assert main(["flink", "cancel", "--rest=http://flink:8081", "--name=play1"]) == 0

    said = capsys.readouterr().out
    assert ("its last checkpoint: file:/chk-2 (" in said) == is_keeping
    assert ("checkpoint" in said) == is_keeping


@pytest.mark.parametrize(
    ("plain", "replays", "reported"),
    [
        (2, 0, ""),
        (2, 1, "tocsin topics apply --retain-forever --kafka b:1 --topic-prefix p"),
        (1, 2, "tocsin topics apply --kafka b:1 --topic-prefix p"),
        (0, 2, ""),
    ],
)
def test_the_advice_on_topics_that_differ_leaves_those_for_replays_as_they_are(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], plain: int, replays: int, reported: str
) -> None:
    from tocsin.pipeline.kafka import topics

    def check(_: KafkaSettings, wish: topics.WantedTopics) -> list[topics.Difference]:
        return [topics.Difference("p.steps", "x", "1", "2")] * (replays if wish.is_for_replays else plain)

    monkeypatch.setattr(topics, "check", check)
    flink.check_topics(kafka_settings("b:1", ""), "p")

    lines = capsys.readouterr().err.splitlines()
    assert bool(lines) == bool(reported)
    assert all(line.endswith(f": '{reported}' mends it") for line in lines)


def test_checkpoints_further_apart_than_transactions_allow_can_be_upgraded_from() -> None:
    """An earlier version took them."""
    shown = json.loads(RUNNING.shown())
    shown["checkpoint_seconds"] = 30.0

    assert running_options(json.dumps(shown)).checkpoint_seconds == 20.0
