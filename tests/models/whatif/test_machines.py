"""Workers that are slow on their own, from computation times."""

from __future__ import annotations

import numpy as np
import pytest

from tocsin.models.whatif.compute import Computation
from tocsin.models.whatif.machines import slow_workers


@pytest.mark.parametrize(("alike_count", "named"), [(0, [0]), (3, [])])
def test_a_worker_that_is_like_its_peers_in_some_steps_is_not_named(alike_count: int, named: list[int]) -> None:
    seconds = np.ones((4, 8, 3))
    seconds[:, :, 0] = 1.5
    seconds[:, :alike_count, 1:] = 1.5  # in these steps all are slow
    rows = np.arange(4)
    parts = [Computation(kind, 0, rows, rows, seconds, seconds.mean(axis=1)) for kind in ("forward", "backward")]

    assert [worker.dp for worker in slow_workers(parts)] == named
