import threading
import time

import pytest

from tests.collectors.agent.core_bench import Bench


@pytest.fixture
def bench() -> Bench:
    return Bench()


class HookClock:
    """The hook's clock in a test's hand: time passes when ``spin`` is called, whatever else the machine does."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._now_ns = time.perf_counter_ns()

    def __call__(self) -> int:
        return self._now_ns

    def spin(self, seconds: float) -> None:
        with self._lock:
            self._now_ns += round(seconds * 1e9)


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> HookClock:
    clock = HookClock()
    for name in ("timer", "recorder", "collectives"):
        monkeypatch.setattr(f"tocsin.collectors.hook._{name}._now_ns", clock)
    return clock
