"""An ML engineer's walk with Kafka and Flink: a job's records, training on them, and the running Flink job judges.

Nothing is restarted: the models reach the job by the topic of models. The job is played faster than it ran, so that
the commands' clock is the job's.
"""

from __future__ import annotations

import json
import re
import time
from collections.abc import Callable, Iterator, Mapping
from itertools import groupby
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from tests.flink_fixtures import Stream
from tocsin.cli import announcing
from tocsin.cli.main import main
from tocsin.pipeline.lab.testing import JobShape, MachineShape, MetricsJob
from tocsin.pipeline.stores.report_codec import decode_status
from tocsin.schemas.kafka.topics import JOB_STATUS
from tocsin.schemas.model_announcement import BOUNDARY_NS
from tocsin.schemas.records import NS_PER_SECOND

pytestmark = [pytest.mark.slow, pytest.mark.timeout(900)]

DETECTORS = ("entropy", "minder")
SLOW_RANK, SLOW_HOST = 3, "n03"


class Walk:
    """A played job whose records go to Kafka, a Flink job, and the engineer's commands."""

    def __init__(self, stream: Stream, capsys: pytest.CaptureFixture[str]) -> None:
        self.stream = stream
        self._capsys = capsys
        start_ns = (time.time_ns() - 3600 * NS_PER_SECOND) // BOUNDARY_NS * BOUNDARY_NS
        shape = JobShape(rank_count=8, step_seconds=1.0, start_ns=start_ns)
        self.job = MetricsJob(shape, MachineShape(gpu_count=1))
        self.kafka = (f"--kafka={stream.broker.address}", f"--topic-prefix={stream.prefix}")

    def train(self, seconds: int) -> None:
        """Let the job train for so long."""
        for _ in range(seconds):
            self.stream.send(self.job.second())
        self.stream.tick(0)

    def slow_for(self, seconds: int) -> dict[str, Any]:
        """Let one machine be slow, and draw little power, for so long; return what truth.json says of that."""
        onset_ns = self.job.now_ns
        self._set(forward=2.5, power=0.2)
        self.train(seconds)
        self._set(forward=1.0, power=1.0)
        named = {"suspects": [{"kind": "host", "name": SLOW_HOST}], "onset_ns": onset_ns, "end_ns": self.job.now_ns}
        return {"kind": "power_cap", "fault": "fail_slow", "cause": "power_cap", **named}

    def _set(self, *, forward: float, power: float) -> None:
        self.job.slow(SLOW_RANK, "forward", forward)
        self.job.shift(SLOW_RANK, "gpu_power_watts", power)

    def command(self, *arguments: str) -> str:
        """Run ``tocsin`` and return what it prints."""
        status, printed = main(list(arguments)), self._capsys.readouterr()
        assert status == 0, printed.err
        return printed.out

    def model(self, detector: str, truth: Path) -> str:
        """Train a model on what the topics hold of the job, and return its version."""
        source = ("--from-kafka", self.job.job.job_id, "--truth", str(truth), "--jobs", "1")
        text = self.command("train", "--detector", detector, *source, *self.kafka)
        found = re.search(rf"{detector} (\d{{8}}-[0-9a-f]{{8}}): added to", text)
        assert found is not None, text
        return found[1]

    def promote(self, versions: Mapping[str, str]) -> None:
        """Promote a version of each detector, and announce it to the Flink job."""
        for name, version in versions.items():
            self.command("models", "promote", name, version, "--force", "--effective-in", "10", *self.kafka)

    def judging(self) -> Iterator[Mapping[str, Any]]:
        """What the Flink job says of each learned detector, state by state."""
        for record in self.stream.read(JOB_STATUS, self._is_last, seconds=240):
            yield {one["detector"]: one for one in decode_status(record.value).state["learned"]}

    def _is_last(self, records: list[Any]) -> bool:
        newest_ns = max((decode_status(one.value).ts_ns for one in records), default=0)
        return newest_ns >= self.job.now_ns - 15 * NS_PER_SECOND


def test_models_trained_on_a_jobs_topics_judge_the_running_flink_job_and_are_rolled_back(
    stream: Callable[..., Stream], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("TOCSIN_REGISTRY", str(tmp_path / "registry"))
    walk = Walk(stream(None), capsys)
    walk.stream.submit("--parallelism=2", *(f"--detector={name}=evidence" for name in DETECTORS))
    walk.train(150)
    fault = walk.slow_for(90)
    walk.train(30)
    (truth := tmp_path / "truth.json").write_text(json.dumps({"faults": [fault]}))
    versions = {name: walk.model(name, truth) for name in DETECTORS}
    monkeypatch.setattr(announcing, "time", SimpleNamespace(time_ns=lambda: walk.job.now_ns))

    walk.promote(versions)
    walk.train(180)
    walk.slow_for(120)
    walk.promote(dict.fromkeys(DETECTORS, "builtin"))
    walk.train(60)

    states = list(walk.judging())
    for name, version in versions.items():
        shown = [state[name]["card"]["version"] for state in states]
        turns = [one for one, _ in groupby(shown)]
        assert turns == [turns[0], version, turns[0]], name
        named = {host for state in states for host in state[name]["names"] if state[name]["card"]["version"] == version}
        assert named == {SLOW_HOST}, name
