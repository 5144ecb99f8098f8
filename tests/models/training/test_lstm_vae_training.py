"""Training: numpy says what torch says, the same seed gives the same model, and the model does what it is for."""

from __future__ import annotations

import numpy as np
import pytest

pytest.importorskip("torch", reason="training needs tocsin[train]")

import torch

from tests.models.minder_cases import MODEL, Fault, samples_of
from tocsin.models.lstm_vae import FloatArray, Limits, LstmVae
from tocsin.models.lstm_vae_file import encode_vae
from tocsin.models.minder import MinderConfig, MinderModel, Variant, detect
from tocsin.models.training.lstm_vae_training import (
    TorchVae,
    VaeTrainingConfig,
    draw_windows,
    learned_limits,
    to_numpy,
    train_vae,
)
from tocsin.schemas.errors import ConfigError
from tocsin.schemas.metrics import Metric

UNIT = Limits(0.0, 1.0)
SHORT = VaeTrainingConfig(window_count=4000, epoch_count=3)
POWER = "gpu_power_watts"


def machines_at_work(count: int = 40, noise: float = 0.005, seed: int = 0) -> FloatArray:
    """Machines at levels of their own, which move slowly; shape (machines, 1, ticks)."""
    rng = np.random.default_rng(seed)
    level = rng.uniform(0.1, 0.9, (count, 1, 1)) + 0.05 * np.sin(np.arange(900) / rng.uniform(5, 30, (count, 1, 1)))
    return np.asarray(level + noise * rng.standard_normal((count, 1, 900)), np.float32)


@pytest.mark.parametrize("width", [1, 7])
def test_numpy_and_torch_agree_to_1e_5(width: int) -> None:
    torch.manual_seed(3)
    model = TorchVae(width, VaeTrainingConfig())
    names = [f"m{index}" for index in range(width)]
    plain = to_numpy(model, names, [UNIT] * width, 8)
    windows = np.random.default_rng(0).uniform(-0.5, 1.5, (9000, 8, width)).astype(np.float32)
    with torch.no_grad():
        wanted = model.reconstruct(torch.from_numpy(windows)).numpy()

    assert np.abs(plain.reconstruct(windows) - wanted).max() < 1e-5


def test_the_same_seed_gives_the_same_bytes_and_leaves_the_users_own_randomness_alone() -> None:
    values = [machines_at_work(6)]
    torch.manual_seed(1)
    before = torch.random.get_rng_state()
    one, other = (encode_vae(train_vae(values, ["m"], [UNIT], SHORT)) for _ in range(2))

    assert one == other
    assert (torch.random.get_rng_state() == before).all()
    assert encode_vae(train_vae(values, ["m"], [UNIT], VaeTrainingConfig(1, window_count=4000, epoch_count=3))) != one


def test_progress_is_told_step_by_step_to_the_end() -> None:
    reported: list[tuple[int, int]] = []
    train_vae([machines_at_work(4)], ["m"], [UNIT], SHORT, lambda done, steps: reported.append((done, steps)))

    assert reported == [(number, reported[-1][1]) for number in range(1, reported[-1][1] + 1)]


def test_recordings_of_different_size_train_together_and_gaps_are_left_out() -> None:
    first, second = machines_at_work(3), machines_at_work(5)[:, :, :50].copy()
    first[0, 0, 10:20] = np.nan
    windows = draw_windows([first, second, first[:, :, :3]], VaeTrainingConfig(window_count=10_000))

    assert windows.shape == (3 * 893 + 5 * 43 - 17, 8, 1)
    assert np.isfinite(windows).all()


def test_data_without_a_whole_window_is_an_error_that_names_the_metric() -> None:
    with pytest.raises(ConfigError, match="cpu_util_ratio"):
        train_vae([np.full((4, 1, 100), np.nan, np.float32)], ["cpu_util_ratio"], [UNIT], SHORT)


def test_limits_are_the_metrics_own_and_what_it_leaves_open_is_learned() -> None:
    values = [np.array([[5.0, np.nan, 700.0, np.inf]], np.float32)]

    assert learned_limits(Metric("gpu_util_ratio", "gpu", 0.0, 1.0), values) == Limits(0.0, 1.0)
    assert learned_limits(Metric(POWER, "gpu", 0.0, None), values) == Limits(0.0, 700.0)
    assert learned_limits(Metric("errors_count", "host", 0.0, None), [np.zeros((2, 9), np.float32)]) == Limits(0.0, 1.0)
    with pytest.raises(ConfigError, match="no sample"):
        learned_limits(Metric(POWER, "gpu", 0.0, None), [np.full((1, 3), np.nan, np.float32)])


@pytest.fixture(scope="module")
def trained() -> LstmVae:
    """One model of one metric, as the paper sizes it."""
    return train_vae([machines_at_work()], [POWER], [UNIT])


def by_windows(values: FloatArray) -> FloatArray:
    views = np.lib.stride_tricks.sliding_window_view(values, 8, axis=2)
    found: FloatArray = np.ascontiguousarray(views[:, 0].reshape(-1, 8)[::3, :, None])
    return found


@pytest.mark.slow  # ten seconds: the whole training of one metric
def test_a_trained_model_reconstructs_below_the_papers_mse_of_1e_4(trained: LstmVae) -> None:
    windows = by_windows(machines_at_work(seed=9))

    assert np.square(trained.reconstruct(windows) - windows).mean() < 1e-4


@pytest.mark.slow  # the same training
def test_noise_is_removed_and_real_outliers_stay_outliers(trained: LstmVae) -> None:
    clean, noisy = machines_at_work(noise=0.0, seed=9), machines_at_work(noise=0.02, seed=9)
    rest = np.square(trained.reconstruct(by_windows(noisy)) - by_windows(clean)).mean()
    levels = trained.reconstruct(np.linspace(0.1, 0.9, 9, dtype=np.float32)[:, None, None].repeat(8, 1)).mean(axis=1)

    assert rest < 0.02**2
    assert (np.diff(levels[:, 0]) > 0.05).all()


@pytest.mark.parametrize("variant", ["vae", "concatenated", "integrated"])
def test_each_variant_with_models_finds_a_gross_fault_and_says_nothing_of_a_healthy_job(variant: Variant) -> None:
    metrics = (POWER, "cpu_util_ratio")
    healthy = samples_of(12, 900, metrics=metrics, seed=5)
    faulty = samples_of(12, 900, Fault(4, POWER, 300, 900, -0.4), metrics=metrics, seed=6)
    teacher = [samples_of(12, 900, Fault(1, POWER, 0, 400, -0.5), metrics=metrics, seed=7).values]
    limits = {name: MODEL.limits[name] for name in metrics}
    single = {
        name: train_vae([part[:, [row]] for part in teacher], [name], [limits[name]], SHORT)
        for row, name in enumerate(metrics)
    }
    integrated = train_vae(teacher, metrics, list(limits.values()), SHORT)
    model = MinderModel(limits, single, integrated, metrics)
    found = detect(faulty, model, MinderConfig(variant))

    assert found.alert is not None
    assert (found.alert.row, found.alert.metric) == (4, POWER if variant == "vae" else variant)
    assert detect(healthy, model, MinderConfig(variant)).alert is None
