"""Minder's operator with an LSTM-VAE that was trained for the test keeps the contract, too."""

from __future__ import annotations

from functools import cache

import numpy as np
import pytest

from tests.pipeline.detect.conformance import DetectorCase
from tests.pipeline.detect.test_conformance import MinderConformance
from tocsin.models.lstm_vae import Limits, LstmVae
from tocsin.models.minder import MinderModel, Variant
from tocsin.pipeline.detect.baselines.minder_ticks import ticks_of_frames
from tocsin.schemas.metrics import BUILTIN_TABLE

torch = pytest.importorskip("torch", reason="training needs tocsin[train]")

from tocsin.models.training.lstm_vae_training import VaeTrainingConfig, train_vae  # noqa: E402  # torch first

METRIC = "gpu_power_watts"
OTHER = "gpu_util_ratio"


def limits_of(metrics: tuple[str, ...], unit: float) -> dict[str, Limits]:
    """Power in watts times the unit, all else ratios."""
    return {name: Limits(0.0, 900.0 * unit) if name == METRIC else Limits(0.0, 1.0) for name in metrics}


@cache
def trained(metrics: tuple[str, ...], unit: float) -> LstmVae:
    """Taught by healthy machines like those that are judged, in another unit where that is tried."""
    torch.set_num_threads(1)
    case = TestMinderDetectorTrained()
    case.unit = unit
    tables = {BUILTIN_TABLE.table_id: BUILTIN_TABLE}
    ticks = [ticks_of_frames(data, tables, metrics) for data in case.slices(12, faulty=False)]
    values = np.concatenate([one.values for one in ticks if one is not None], axis=2)
    small = VaeTrainingConfig(window_count=4_000, epoch_count=12)
    return train_vae([values], metrics, list(limits_of(metrics, unit).values()), small)


class TestMinderDetectorTrained(MinderConformance):
    """One metric, so that training takes seconds."""

    variant: Variant = "vae"
    priority: tuple[str, ...] = (METRIC,)
    is_taught = True

    def networks(self) -> tuple[dict[str, LstmVae], LstmVae | None]:
        """One for each metric, and the one of all, where the variant has it."""
        return {name: trained((name,), self.unit if name == METRIC else 1.0) for name in self.priority}, None

    def model(self) -> MinderModel:
        single, both = self.networks() if self.is_taught else ({}, None)
        return MinderModel(
            limits_of(self.priority, self.unit),
            single,
            both,
            priority=self.priority,
            threshold_sigmas=self.threshold_sigmas,
            version="m1",
        )

    def untaught(self) -> DetectorCase:
        """Without its LSTM-VAE it abstains."""
        case = type(self)()
        case.is_taught = False
        return case


class TestMinderConcatenated(TestMinderDetectorTrained):
    """The ablation: embeddings of two metrics side by side."""

    variant: Variant = "concatenated"
    priority: tuple[str, ...] = (METRIC, OTHER)


class TestMinderIntegrated(TestMinderDetectorTrained):
    """The ablation: one network of two metrics."""

    variant: Variant = "integrated"
    priority: tuple[str, ...] = (METRIC, OTHER)
    graded_strengths = (0.5, 1.0)
    """A tenth less power in one metric of two is less than its 1.5 sigmas."""

    def networks(self) -> tuple[dict[str, LstmVae], LstmVae | None]:
        return {}, trained(self.priority, self.unit)
