"""E6: the report holds both areas, and says so where entropy adds nothing."""

from __future__ import annotations

import numpy as np
import pytest

from tests.models.ocnn_cases import rows_of_job
from tocsin.models.entropy import EntropyConfig
from tocsin.models.op_features import sum_up
from tocsin.schemas.errors import ConfigError

pytest.importorskip("sklearn", reason="training needs tocsin[train]")

from tocsin.models.training.entropy_ablation import Ablation, ablate, features_of


def windows(jobs: int, slow_factor: float) -> Ablation:
    """Jobs of eight ranks; in every second window rank 3 is slow."""
    plain, entropies, odd, of_job = [], [], [], []
    draw = np.random.default_rng(4)
    for job in range(jobs):
        for faulty in (False, True):
            window = sum_up(rows_of_job(draw, slow_factor if faulty else 1.0, 0.02), 4)
            left, right = features_of(window, EntropyConfig())
            plain.append(left)
            entropies.append(right)
            odd += [faulty and rank == 3 for rank in range(8)]
            of_job += [job] * 8
    return ablate(np.concatenate(plain), np.concatenate(entropies), np.array(odd), np.array(of_job))


@pytest.mark.parametrize("slow_factor", [1.03, 1.5])
def test_e6_the_report_holds_both_areas(slow_factor: float) -> None:
    found = windows(40, slow_factor)

    assert 0.5 < found.without_ratio <= 1
    assert 0.5 < found.with_ratio <= 1
    assert (found.faulty_count, found.all_count) == (20, 320)
    assert f"{found.without_ratio:.3f}" in found.sentence
    assert f"{found.with_ratio:.3f}" in found.sentence


def test_e6_it_says_so_where_entropy_adds_less_than_a_hundredth() -> None:
    assert "adds less" in Ablation(0.990, 0.995, 1, 2).sentence
    assert "adds less" in Ablation(0.99, 0.90, 1, 2).sentence
    assert "adds less" not in Ablation(0.90, 0.95, 1, 2).sentence


def test_a_half_without_faults_is_refused() -> None:
    rows = np.zeros((4, 2))
    with pytest.raises(ConfigError, match="0 of 2"):
        ablate(rows, rows, np.array([False] * 4), np.array([0, 0, 1, 1]))
