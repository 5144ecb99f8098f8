"""Normal sequences are cut as they will be judged."""

from __future__ import annotations

import numpy as np

from tests.pipeline.detect.traces.test_detector import (
    JOB,
    T0,
    job_slices,
    nothing,
)
from tocsin.models.op_features import PHASES, feature_count
from tocsin.pipeline.detect.traces.memory import SequenceMemory
from tocsin.pipeline.detect.traces.training import second_slices, sequences_of
from tocsin.pipeline.detect.traces.windows import WindowConfig
from tocsin.schemas.records import NS_PER_SECOND

FEATURES = feature_count(len(PHASES) + 1)


def test_records_become_slices_of_a_second() -> None:
    slices = job_slices(3, nothing, 20)
    again = list(second_slices(record for data in slices for record in data.records))

    assert [len(data.records) for data in again] == [6, *[3] * 18]  # places are stamped with a begin of a second
    assert {data.job for data in again} == {JOB}
    assert all((data.start_ns - T0) % NS_PER_SECOND == 0 for data in again)
    assert list(second_slices([])) == []


def test_every_rank_of_every_window_from_the_sixth_on_is_a_sequence() -> None:
    found, independent = sequences_of(job_slices(8, nothing, 205), 6, WindowConfig())

    windows = 20
    assert found.shape == (8 * (windows - 5), 6, FEATURES)
    assert independent == windows // 6
    assert np.isfinite(found).all()


def test_a_job_without_peers_or_without_steps_gives_none() -> None:
    for hosts, seconds in ((2, 205), (8, 1)):
        found, independent = sequences_of(job_slices(hosts, nothing, seconds), 6, WindowConfig())

        assert found.shape == (0, 6, FEATURES)
        assert independent == 0


def test_a_rank_that_misses_a_window_begins_anew() -> None:
    memory = SequenceMemory(2)
    row = np.ones((1, 3), np.float32)
    for window, ranks in enumerate(([0, 1], [1], [0, 1])):
        memory.take(np.array(ranks), row.repeat(len(ranks), 0), window)
        wanted = {0: [], 1: [1], 2: [1]}[window]
        assert memory.whole(np.array(ranks))[0].tolist() == wanted
