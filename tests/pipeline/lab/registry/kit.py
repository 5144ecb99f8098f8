"""Cards and models for tests of the registry."""

from __future__ import annotations

from dataclasses import replace
from itertools import count
from typing import Any

import fsspec
import numpy as np
from pyarrow import fs

from tests.models.test_lstm_vae_file import drawn
from tocsin.models.documents import write_numbers
from tocsin.models.minder import MinderModel
from tocsin.models.minder_file import encode_minder
from tocsin.pipeline.lab.registry import ModelCard
from tocsin.pipeline.lab.registry.files import Files

TRAINED_AT = "2026-11-21T10:00:00+00:00"
_buckets = count()


def payload_of(alarm_sum: float = 12.0) -> bytes:
    """A model of the peers detector."""
    return write_numbers({"working": {"alarm_sum": alarm_sum}})


def minder_payload(window_ticks: int = 8, hidden: int = 4, factor: float = 1.0) -> bytes:
    """A Minder model with weights that nobody trained, its latent ones that much larger."""
    vae = replace(drawn(hidden=hidden), window_ticks=window_ticks)
    vae = replace(vae, latent_weight=vae.latent_weight * np.float32(factor))
    return encode_minder(
        MinderModel(dict(zip(vae.metrics, vae.limits, strict=True)), {"metric_0": vae}, None, vae.metrics)
    )


def card(detector: str = "peers", **changes: Any) -> ModelCard:
    """A card as training writes it: without version and hash."""
    training = {"fingerprint": "0" * 64, "recordings": 3, "machine_days": 1.5, "faults": 2, "source": ["recordings"]}
    values: dict[str, Any] = {
        "detector": detector,
        "format": f"{detector}/1",
        "trained_at": TRAINED_AT,
        "code_version": "0.1.0+00000000",
        "seed": 7,
        "training": training,
        "settings": {"budget_per_machine_day": 0.01},
        "thresholds": {"alarm_sum": 12.0},
        "metrics": {"training": {"f1": 0.97}},
    }
    return ModelCard(**{**values, **changes})


def memory_store() -> Files:
    """An object store in memory: folders are only parts of names there, and nothing is renamed."""
    system = fs.PyFileSystem(fs.FSSpecHandler(fsspec.filesystem("memory")))
    bucket = f"bucket-{next(_buckets)}/models"
    return Files(system, bucket, f"memory://{bucket}")
