import hashlib

import numpy as np
import pytest
from threadpoolctl import threadpool_limits

from tests.pipeline.lab.simulation.quiet import quiet_case
from tocsin.pipeline.lab.simulation.case import HEALTHY, draw_case
from tocsin.pipeline.lab.simulation.plan import (
    Break,
    Envelope,
    Gap,
    Part,
    PlannedSlowdown,
    Shift,
    Stop,
)
from tocsin.pipeline.recording.tables import Recording, Text

ONSET_SECONDS = 60.0


def series(recording: Recording, metric: str, host: int, gpu: int = -1) -> np.ndarray[tuple[int], np.dtype[np.float32]]:
    """One series by tick."""
    table = recording.tables["host_metrics"]
    names = table["host"]
    assert isinstance(names, Text)
    rows = (names.codes == host) & (np.asarray(table["gpu"]) == gpu)
    values: np.ndarray[tuple[int], np.dtype[np.float32]] = np.asarray(table[metric])[rows]
    return values


def played(*parts: Part) -> Recording:
    return quiet_case(*parts).recording()


def after(values: np.ndarray[tuple[int], np.dtype[np.float32]]) -> float:
    return float(values[75:115].mean())


def before(values: np.ndarray[tuple[int], np.dtype[np.float32]]) -> float:
    return float(values[10:55].mean())


def test_a_healthy_quiet_job_shows_the_same_on_all_hosts_but_for_the_data_loader() -> None:
    recording = played()
    tensor = [before(series(recording, "gpu_tensor_active_ratio", host, 0)) for host in range(6)]

    assert max(tensor) - min(tensor) < 0.02 * max(tensor)
    assert max(tensor) > 0.1


def test_when_one_rank_is_slow_the_others_spin_and_do_less() -> None:
    recording = played(PlannedSlowdown((2,), 3.0, Envelope(ONSET_SECONDS)))
    peer_tensor = series(recording, "gpu_tensor_active_ratio", 4, 0)
    peer_power = series(recording, "gpu_power_watts", 4, 0)
    rdma = series(recording, "rdma_bytes_per_second", 4)

    assert after(peer_tensor) < 0.6 * before(peer_tensor)
    assert after(peer_power) < 0.9 * before(peer_power)
    assert after(rdma) < 0.7 * before(rdma)
    if quiet_case().shape.levels.spins:
        assert after(series(recording, "gpu_util_ratio", 4, 0)) > 0.85


def test_after_a_stop_the_culprit_is_idle_and_the_others_are_not_until_they_leave() -> None:
    recording = played(Stop((2,), ONSET_SECONDS, "exit", 0.5, 30.0))
    spins = quiet_case().shape.levels.spins
    culprit, peer = (series(recording, "gpu_util_ratio", host, 0) for host in (1, 4))

    assert culprit[64:85].max() < 0.01
    assert bool(peer[66:85].min() > 0.8) is spins
    assert peer[95:].max() < 0.01
    assert series(recording, "gpu_memory_used_bytes", 1, 0)[70] < series(recording, "gpu_memory_used_bytes", 4, 0)[70]


def test_a_shift_moves_its_host_and_its_gpu_only() -> None:
    cap = Shift("gpu_power_watts", (3,), Envelope(ONSET_SECONDS), gpu=1, high=100.0)
    recording = played(cap)

    assert series(recording, "gpu_power_watts", 3, 1)[62:].max() <= 100.0
    assert series(recording, "gpu_power_watts", 3, 0)[62:].max() > 100.0
    assert series(recording, "gpu_power_watts", 2, 1)[62:].max() > 100.0


def test_temperature_is_shifted_after_it_was_made_from_the_power() -> None:
    warm = Shift("gpu_temperature_celsius", (3,), Envelope(ONSET_SECONDS), add_value=12.0)
    recording = played(warm)
    values = series(recording, "gpu_temperature_celsius", 3, 0)

    assert after(values) - before(values) == pytest.approx(12.0, abs=2.5)


def test_gaps_are_rows_that_do_not_exist() -> None:
    recording = played(Gap(2, 60.0, 70.0), Gap(3, 60.0, 120.0, gpu=1))

    assert len(series(recording, "cpu_util_ratio", 2)) == 110
    assert len(series(recording, "gpu_power_watts", 2, 0)) == 110
    assert len(series(recording, "gpu_power_watts", 3, 1)) == 60
    assert len(series(recording, "gpu_power_watts", 3, 0)) == 120


def test_in_a_checkpoint_everybody_is_idle() -> None:
    recording = played(Break(60.0, "checkpoint", 20.0))

    for host in range(6):
        assert series(recording, "gpu_tensor_active_ratio", host, 0)[66:76].max() < 0.01


def test_the_number_of_blas_threads_changes_no_sample() -> None:
    digests = set()
    for threads in (1, 2, 4):
        with threadpool_limits(threads, "blas"):
            part = next(iter(draw_case(11, 512, HEALTHY, "fit", duration_seconds=60.0).parts()))
        digests.add(hashlib.sha256(part.matrices.gpu.tobytes() + part.matrices.host.tobytes()).hexdigest())

    assert len(digests) == 1
