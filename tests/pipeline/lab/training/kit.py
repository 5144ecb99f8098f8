"""Small recordings of six machines on disk, for training: one falls at the onset, or none does."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from tests.pipeline.lab.backtest.test_minder_runner import recording
from tocsin.models.training.lstm_vae_training import VaeTrainingConfig
from tocsin.pipeline.lab.parallel import serial
from tocsin.pipeline.lab.training.recordings import TrainingSet, look_at_all
from tocsin.pipeline.recording.tables import Recording
from tocsin.pipeline.recording.writer import write_recording

SHORT = VaeTrainingConfig(window_count=1000, epoch_count=1)
NEVER = 10**6


def written(folder: Path, job: Recording, *, truth: Mapping[str, Any] | None = None) -> Path:
    """Write a recording; its truth, or another one."""
    write_recording(folder, job if truth is None else dataclasses.replace(job, truth=dict(truth)))
    return folder


def healthy(folder: Path, seconds: int = 1000) -> Path:
    """Nothing happens."""
    return written(folder, recording(seconds, NEVER), truth={"faults": []})


def faulty(folder: Path, onset: int, seconds: int = 1000) -> Path:
    """One machine's power halves."""
    return written(folder, recording(seconds, onset))


def unlabelled(folder: Path, seconds: int = 400) -> Path:
    """Nobody knows what happened."""
    job = recording(seconds, NEVER)
    write_recording(folder, dataclasses.replace(job, truth=None))
    return folder


def with_values(folder: Path, job: Recording, metric: str, rows: slice, value: float) -> Path:
    """The same with other samples in some rows."""
    values = np.array(job.tables["host_metrics"][metric], np.float32)
    values[rows] = value
    tables = {**job.tables, "host_metrics": {**job.tables["host_metrics"], metric: values}}
    return written(folder, dataclasses.replace(job, tables=tables))


def looked(*paths: Path) -> TrainingSet:
    """As the command looks at them."""
    return look_at_all(paths, serial)
