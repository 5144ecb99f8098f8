"""Who is odd in a job that stands, beside machines that always were special."""

from __future__ import annotations

import numpy as np

from tests.pipeline.detect.peers.test_over_time import Floats, anomalies
from tocsin.schemas.metrics import GPU_METRICS, HOST_METRICS

CPU, TCP = ([metric.name for metric in HOST_METRICS].index(name) for name in ("cpu_util_ratio", "tcp_bytes_per_second"))
MEMORY = [metric.name for metric in HOST_METRICS].index("memory_used_ratio")
COOLS = [metric.name for metric in GPU_METRICS].index("gpu_temperature_celsius")


def _stalls(window: int, host: Floats, gpu: Floats) -> None:
    """Ranks that wait: no work on GPUs, more on CPUs, a twentieth of the traffic."""
    host[:, TCP] *= 1e7
    if window >= 60:
        gpu[:] *= 0.02
        host[:, TCP] *= 0.05
        host[:, CPU] *= 1.5


def _odd(change: object) -> list[str]:
    def job(window: int, host: Floats, gpu: Floats) -> None:
        _stalls(window, host, gpu)
        change(window, host, gpu)  # type: ignore[operator]  # a test's own function

    return sorted({anomaly.component.name for _, anomaly in anomalies(job, 75) if "odd" in anomaly.detail})


def test_nobody_is_where_all_wait_alike() -> None:
    assert _odd(lambda window, host, gpu: None) == []


def test_whoever_sends_or_holds_something_is() -> None:
    def sends(window: int, host: Floats, gpu: Floats) -> None:
        if window >= 60:
            host[3, TCP] += 4e7

    def frees(window: int, host: Floats, gpu: Floats) -> None:
        if window >= 60:
            host[3, MEMORY] -= 0.2

    assert _odd(sends) == ["n03"]
    assert _odd(frees) == ["n03"]


def test_a_machine_that_always_did_twice_as_much_waits_like_the_others() -> None:
    def adds(window: int, host: Floats, gpu: Floats) -> None:
        host[3, CPU] += 0.4  # another service of its own, which goes on

    def scales(window: int, host: Floats, gpu: Floats) -> None:
        host[3, CPU] *= 1.8

    assert _odd(adds) == []
    assert _odd(scales) == []


def test_cards_that_cool_down_more_slowly_are_not() -> None:
    def cools(window: int, host: Floats, gpu: Floats) -> None:
        gpu[:, :, COOLS] = 60 * np.maximum(0.6, 1 - 0.02 * max(0, window - 60))
        gpu[3, :, COOLS] = 60.0

    assert _odd(cools) == []
