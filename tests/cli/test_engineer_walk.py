"""An ML engineer's walk, command after command: a live job is recorded, a model is trained, compared, promoted, used.

The engine is that of ``serve``, and its clock is a played job's; the commands are told the same time.
"""

from __future__ import annotations

import dataclasses
import json
import re
import signal
import subprocess
import sys
from collections.abc import Iterator, Mapping
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

pytest.importorskip("torch", reason="training needs tocsin[train]")

from tocsin.cli import announcing
from tocsin.cli.main import main
from tocsin.cli.paths import control_socket
from tocsin.models.bilstm_file import decode_bilstm, encode_bilstm
from tocsin.models.entropy_file import encode_entropy
from tocsin.models.minder_file import decode_minder, encode_minder
from tocsin.models.training import bilstm_ocnn_training
from tocsin.pipeline.detect.learned.registry import learned_config
from tocsin.pipeline.detect.learned.shipped import shipped_model
from tocsin.pipeline.lab.backtest.detector_sets import live_set_of
from tocsin.pipeline.lab.registry import Registry, comparison
from tocsin.pipeline.lab.testing import JobShape, MachineShape, MemoryStore, MetricsJob
from tocsin.pipeline.lab.training.entropy import OWN
from tocsin.pipeline.recording.live import RecordingManager
from tocsin.pipeline.runtime.embedded.engine import EngineConfig
from tocsin.pipeline.runtime.embedded.service import EngineService, ServiceConfig
from tocsin.pipeline.runtime.job_pipeline import JobConfig
from tocsin.schemas.model_announcement import BUILTIN_VERSION
from tocsin.schemas.records import NS_PER_SECOND

pytestmark = [pytest.mark.slow, pytest.mark.timeout(900)]

DETECTORS = ("entropy", "bilstm", "minder")
SLOW_RANK, SLOW_HOST = 3, "n03"
RECORDED_SECONDS = 240
POWER, CPU = "gpu_power_watts", "cpu_util_ratio"
TRAINED_ON = ("healthy-0", "healthy-1", "faulty")


class Live:
    """A played job under the engine of ``serve``, and the recordings that an engineer makes of it."""

    def __init__(self, folder: Path) -> None:
        self.recordings, self.data = folder / "recordings", folder / "data"
        self.data.mkdir()
        self.job = MetricsJob(JobShape(rank_count=8, step_seconds=1.0), MachineShape(gpu_count=1))
        engine = EngineConfig(job=JobConfig(learned=learned_config([f"{name}=evidence" for name in DETECTORS])))
        config = ServiceConfig("unix:" + str(folder / "e.sock"), control_socket(self.data), engine=engine)
        self.service = EngineService(config, MemoryStore(), lambda: self.job.now_ns)
        self.service.attach_recordings(RecordingManager(self.service.engine))
        self.service.start(ticking=False)

    def run(self, seconds: int) -> None:
        """Let the job train for so long."""
        for _ in range(seconds):
            for record in self.job.second():
                self.service.engine.take_record(record)
            self.service.tick(self.job.now_ns)

    def slow(self, *, is_slow: bool) -> None:
        """Make one machine slow and drawing far less power than its peers, which wait at 60 %, or well again."""
        self.job.slow(SLOW_RANK, "forward", 2.5 if is_slow else 1.0)
        self.job.shift(SLOW_RANK, POWER, 0.2 if is_slow else 1.0)

    def recorded(self, folder: Path, *, is_faulty: bool, seconds: int = RECORDED_SECONDS) -> Path:
        """Record the live job, as ``tocsin record`` does, and write down what happened; a fault begins half way."""
        argv = [sys.executable, "-m", "tocsin", "record", str(folder), "--data", str(self.data)]
        with subprocess.Popen(argv, stdout=subprocess.PIPE, text=True) as process:
            assert process.stdout is not None
            assert process.stdout.readline().startswith("recording ")
            self.run(seconds // 2)
            self.slow(is_slow=is_faulty)
            onset_ns = self.job.now_ns
            self.run(seconds - seconds // 2)
            process.send_signal(signal.SIGINT)
            assert process.wait(timeout=60) == 0
            assert f"tocsin replay {folder}" in process.stdout.read()
        suspects = [{"kind": "host", "name": SLOW_HOST}]
        times = {"onset_ns": onset_ns, "end_ns": self.job.now_ns}
        fault = {"kind": "power_cap", "fault": "fail_slow", "cause": "power_cap", "suspects": suspects, **times}
        (folder / "truth.json").write_text(json.dumps({"faults": [fault] if is_faulty else []}))
        self.slow(is_slow=False)
        self.run(30)
        return folder

    def learned(self, detector: str) -> Mapping[str, Any]:
        """What the engine says of the detector."""
        [job] = self.service.engine.status()["jobs"]
        [state] = [one for one in job["learned"] if one["detector"] == detector]
        return {**state, "since_ns": job["models_in_use"].get(detector, {}).get("since_ns", 0)}


@pytest.fixture(scope="module")
def live(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Live]:
    """The job and its engine, with recordings of healthy and of faulty time."""
    made = Live(tmp_path_factory.mktemp("walk"))
    made.run(60)
    for name in (*TRAINED_ON, "unseen"):
        made.recorded(made.recordings / name, is_faulty=not name.startswith("healthy"))
    yield made
    made.service.stop()


@pytest.fixture
def registry(live: Live, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Registry:
    """A registry of its own; commands have the job's time and the engine's data folder; networks are small."""
    monkeypatch.setattr(announcing, "time", SimpleNamespace(time_ns=lambda: live.job.now_ns))
    monkeypatch.setenv("TOCSIN_DATA", str(live.data))
    monkeypatch.setenv("TOCSIN_REGISTRY", str(tmp_path / "registry"))
    ocnn = partial(bilstm_ocnn_training.OcnnTraining, hidden_size=8, head_size=8)
    monkeypatch.setattr(bilstm_ocnn_training, "OcnnTraining", ocnn)
    return Registry.open(str(tmp_path / "registry"))


def spoiled(detector: str, payload: bytes) -> bytes:
    """A worse model: one that notices nothing of the fault, or (entropy) also names healthy machines."""
    if detector == "entropy":
        return encode_entropy(dataclasses.replace(OWN, max_sigmas=1.0))
    if detector == "minder":
        model = decode_minder(payload)
        limits, single = {CPU: model.limits[CPU]}, {CPU: model.single[CPU]}
        blind = dataclasses.replace(model, limits=limits, single=single, integrated=None, priority=(CPU,))
        return encode_minder(blind)
    return encode_bilstm({"collectives": decode_bilstm(payload)["collectives"]})


class Commands:
    """The commands of the walk for one detector, and what they print."""

    def __init__(self, live: Live, detector: str, capsys: pytest.CaptureFixture[str]) -> None:
        self.live, self.detector, self._capsys = live, detector, capsys

    def run(self, *arguments: object, status: int = 0) -> str:
        """Type one command; it must end with this status."""
        assert main(list(map(str, arguments))) == status, self._capsys.readouterr()
        return self._capsys.readouterr().out

    def train(self) -> str:
        """Train on three of the recordings, and return the version."""
        folders = (self.live.recordings / name for name in TRAINED_ON)
        text = self.run("train", *folders, "--detector", self.detector, "--jobs", 1)
        found = re.search(rf"{self.detector} (\d{{8}}-[0-9a-f]{{8}}): added to", text)
        assert found is not None, text
        return found[1]

    def backtest(self, version: str) -> Mapping[str, Any]:
        """Return the figures of the recording that no model was trained on."""
        judging = live_set_of(self.detector)
        unseen, model = self.live.recordings / "unseen", f"{self.detector}={version}"
        text = self.run("backtest", unseen, "--detectors", judging, "--json", "--jobs", 1, "--model", model)
        figures: Mapping[str, Any] = json.loads(text)["sets"][judging]["all"]
        return figures

    def promote(self, version: str, *flags: object, status: int = 0) -> str:
        """Promote a version, and announce it to the engine."""
        to = ("--to", "local", "--effective-in", 10)
        return self.run("models", "promote", self.detector, version, *flags, "--jobs", 1, *to, status=status)

    def roll_back(self) -> None:
        """Give the engine back what ships."""
        if shipped_model(self.detector) is None and self.detector != "entropy":
            self.run("models", "withdraw", self.detector, "--to", "local", "--effective-in", 10)
        else:
            self.promote("builtin", "--force")


def test_from_a_live_job_to_models_that_judge_it_and_back(
    live: Live, registry: Registry, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    walks = {name: Commands(live, name, capsys) for name in DETECTORS}
    versions = {name: walk.train() for name, walk in walks.items()}
    validate = ("--validate", live.recordings)
    for name, walk in walks.items():
        figures = walk.backtest(versions[name])
        assert (figures["hits"], figures["false_accusations"]) == (1, 0), name
        assert "refused (too_few_recordings): 2 faults and " in walk.promote(versions[name], *validate, status=1)

    monkeypatch.setattr(comparison, "MIN_FAULT_COUNT", 1)
    monkeypatch.setattr(comparison, "MIN_MACHINE_DAYS", 0.0)
    asked_ns = live.job.now_ns
    for name, walk in walks.items():
        assert f"{name} {versions[name]}: used by slices from" in walk.promote(versions[name], *validate)
        card = dataclasses.replace(registry.card(name, versions[name]), version="", content_hash="")
        worse = registry.add(card, spoiled(name, registry.payload(name, versions[name]))).version
        text = walk.promote(worse, *validate, status=1)
        assert f"current ({versions[name]})  new ({worse})" in text
        assert re.search(r"refused \((f1_lower|slower)\): .* instead of .*: (lower|later) by \d+\.\d+", text)

    live.run(130)
    live.slow(is_slow=True)
    live.run(80)
    text = walks["entropy"].run("models", "list", "--judging")
    for name, version in versions.items():
        state = live.learned(name)
        assert state["card"]["version"] == version
        assert set(state["names"]) <= {SLOW_HOST}
        assert state["since_ns"] == asked_ns + 10 * NS_PER_SECOND
        assert f"{name}: evidence, model {version} (" in text
        assert f"card of {name}: trained " in text

    assert SLOW_HOST in live.learned("entropy")["names"]
    assert SLOW_HOST in live.learned("minder")["names"]
    for walk in walks.values():
        walk.roll_back()
    live.run(30)
    now = {name: live.learned(name)["card"]["version"] for name in DETECTORS}
    assert now == dict.fromkeys(DETECTORS, BUILTIN_VERSION)


def test_a_live_job_that_was_recorded_for_a_minute_teaches_no_model_of_minder(
    live: Live, registry: Registry, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = live.recorded(tmp_path / "short", is_faulty=False, seconds=60)

    assert main(["train", str(folder), "--detector", "minder", "--jobs", "1"]) == 2
    assert "(too_short): " in (reported := capsys.readouterr().err)
    assert f"{folder}: the longest has 60 s of samples, it takes 100 s" in reported
    assert [card.version for card in registry.cards("minder")] == ["builtin"]
