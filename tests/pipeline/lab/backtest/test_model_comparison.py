"""Several models on one recording: each is asked, but not where the recording holds nothing that they differ in."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests.pipeline.lab.backtest.kit import cpu_recording, fault
from tocsin.models.documents import write_numbers
from tocsin.pipeline.lab.backtest import model_comparison
from tocsin.pipeline.lab.backtest.detector_sets import OURS, runner_of
from tocsin.pipeline.recording.writer import write_recording

STEPS = [{"steps": write_numbers({"slow": {"min_strength_ratio": ratio}})} for ratio in (0.055, 0.1, 0.18)]
PEERS = [{"peers": write_numbers({"working": {"alarm_sum": alarm}})} for alarm in (5.5, 17.5)]


def test_models_of_a_detector_that_sees_nothing_are_judged_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_recording(tmp_path / "one", cpu_recording(faults=[fault("n2", 200, 500)]))
    asked: list[object] = []

    def counted(name: str, models: Any) -> Any:
        asked.append(models)
        return runner_of(name, models)

    monkeypatch.setattr(model_comparison, "runner_of", counted)
    same = model_comparison.judge_one(model_comparison.Run(tmp_path / "one", OURS, tuple(STEPS)))
    assert len(asked) == 1  # it has no steps
    assert len(same) == 3
    assert (
        same[0]
        == same[1]
        == same[2]
        == model_comparison.judge_one(model_comparison.Run(tmp_path / "one", OURS, ({},)))[0]
    )
    asked.clear()
    model_comparison.judge_one(model_comparison.Run(tmp_path / "one", OURS, tuple(PEERS)))
    assert len(asked) == 2
