"""Normal and struck sequences of features, drawn from operation times."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from tocsin.models.op_features import OpRows, Vocabulary, sum_up
from tocsin.models.training.bilstm_ocnn_training import NormalData, OcnnTraining

Singles = NDArray[np.float32]
VOCABULARY = Vocabulary(("forward", "backward", "communication"))
WINDOWS = 6
TRAINING = OcnnTraining(hidden_size=8, head_size=8)
"""Small: seconds on one core."""


def sequences(jobs: int, seed: int, slow_factor: float = 1.0, scale: float = 1.0) -> Singles:
    """Each job: 8 ranks, 6 windows of 8 steps; rank 3 is slow in ``forward``, the others wait for it.

    Returns:
        Shape (jobs, 8, windows, features).
    """
    draw = np.random.default_rng(seed)
    found = []
    for _ in range(jobs):
        noise = draw.uniform(0.005, 0.04)
        jobs_rows = [rows_of_job(draw, slow_factor, noise, scale) for _ in range(WINDOWS)]
        windows = [sum_up(rows, VOCABULARY.class_count).features for rows in jobs_rows]
        found.append(np.stack(windows, axis=1))
    return np.stack(found).astype(np.float32)


def rows_of_job(draw: np.random.Generator, slow_factor: float, noise: float, scale: float = 1.0) -> OpRows:
    """Eight steps of eight ranks."""
    own = np.array([0.4, 0.5]) * (1 + noise * draw.standard_normal((8, 8, 2)))
    own[3, :, 0] *= slow_factor
    busy = own.sum(axis=2)
    wait = 0.05 + busy.max(axis=0)[None, :] - busy
    seconds = scale * np.concatenate([own, wait[:, :, None]], axis=2)
    rank, _, kind = np.indices(seconds.shape)
    return OpRows(rank.reshape(-1), kind.reshape(-1), seconds.reshape(-1))


def flat(found: Singles) -> Singles:
    """All ranks of all jobs."""
    return found.reshape(-1, *found.shape[2:])


def normal_data(jobs: int = 40) -> NormalData:
    """Training and held-out jobs; no two sequences share a window, but a job's ranks share its noise."""
    held_out = flat(sequences(jobs, 2))
    return NormalData(flat(sequences(jobs, 1)), held_out, jobs)
