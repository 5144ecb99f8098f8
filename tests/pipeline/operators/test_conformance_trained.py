"""Minder's operator with an LSTM-VAE that was trained for the test keeps the contract, too."""

from __future__ import annotations

from functools import cache

import numpy as np
import pytest

from tests.pipeline.operators.conformance import DetectorCase
from tests.pipeline.operators.test_conformance import MinderConformance
from tocsin.models.lstm_vae import Limits, LstmVae
from tocsin.models.minder import MinderModel, Variant
from tocsin.pipeline.operators.minder_ticks import ticks_of_frames
from tocsin.schemas.metrics import BUILTIN_TABLE

torch = pytest.importorskip("torch", reason="training needs tocsin[train]")

from tocsin.models.training.lstm_vae_training import VaeTrainingConfig, train_vae  # noqa: E402  # torch first

METRIC = "gpu_power_watts"


@cache
def trained(unit: float) -> LstmVae:
    """Taught by healthy machines like those that are judged, in another unit where that is tried."""
    torch.set_num_threads(1)
    case = TestMinderDetectorTrained()
    case.unit = unit
    tables = {BUILTIN_TABLE.table_id: BUILTIN_TABLE}
    ticks = [ticks_of_frames(data, tables, (METRIC,)) for data in case.slices(12, faulty=False)]
    values = np.concatenate([one.values for one in ticks if one is not None], axis=2)
    small = VaeTrainingConfig(window_count=4_000, epoch_count=12)
    return train_vae([values], [METRIC], [Limits(0.0, 900.0 * unit)], small)


class TestMinderDetectorTrained(MinderConformance):
    """One metric, so that training takes seconds."""

    variant: Variant = "vae"
    is_taught = True

    def model(self) -> MinderModel:
        single = {METRIC: trained(self.unit)} if self.is_taught else {}
        limits = {METRIC: Limits(0.0, 900.0 * self.unit)}
        return MinderModel(limits, single, priority=(METRIC,), threshold_sigmas=self.threshold_sigmas, version="m1")

    def untaught(self) -> DetectorCase:
        """Without its LSTM-VAE it abstains."""
        case = TestMinderDetectorTrained()
        case.is_taught = False
        return case
