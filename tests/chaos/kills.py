"""Who is killed when, drawn from a seed; and how long each takes to come back."""

from __future__ import annotations

import random
import threading
import time
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field

from tests.chaos.up import COMPONENTS, ClusterUp, wait_for

_LOOK_SECONDS = 0.2
_CALM = 4
_BACK_SECONDS = 240.0
"""A worker that is killed before its first bundle is missed late: Beam waits three minutes for it to connect (a
constant of its ``GrpcDataService``); all else is back within two."""


@dataclass(frozen=True)
class Kill:
    """One kill.

    Attributes:
        after_seconds: since the kill before it, or since the beginning.
        component: who.
    """

    after_seconds: float
    component: str


def schedule(seed: int, kills_each_count: int, gap_seconds: tuple[float, float]) -> list[Kill]:
    """Each component so often, in a random order, at random times; the same for the same seed.

    One gap of three is longer, so that the job comes back between two kills, and says what it said before.
    """
    order = random.Random(seed)
    found = [component for component in COMPONENTS for _ in range(kills_each_count)]
    order.shuffle(found)
    return [Kill(order.uniform(*gap_seconds) * order.choice((1, 1, _CALM)), component) for component in found]


@dataclass
class Reaper:
    """Works off a schedule in a thread of its own.

    Attributes:
        counts: kills done, by component.
        recovery_seconds: the longest time until the cluster was whole again, by who was killed last before.
    """

    cluster: ClusterUp
    plan: Sequence[Kill]
    counts: Counter[str] = field(default_factory=Counter)
    recovery_seconds: dict[str, float] = field(default_factory=dict)
    error: str = ""
    _stop: threading.Event = field(default_factory=threading.Event)

    def __post_init__(self) -> None:
        self._down: dict[str, float] = {}
        self._lock = threading.Lock()
        self._thread = threading.Thread(target=self._run, name="reaper", daemon=True)
        self._watcher = threading.Thread(target=self._watch, name="watcher", daemon=True)

    def start(self) -> None:
        """Begin."""
        self._thread.start()
        self._watcher.start()

    def join(self) -> None:
        """Wait until all are killed, and back."""
        self._thread.join()
        if not wait_for(lambda: not self._down, _BACK_SECONDS):
            self.error = self.error or f"not back after {_BACK_SECONDS:.0f} s: {', '.join(self._down)}"
        self._stop.set()
        self._watcher.join()

    def _run(self) -> None:
        for kill in self.plan:
            time.sleep(kill.after_seconds)
            pids: list[int] = []

            def strike(component: str = kill.component, pids: list[int] = pids) -> bool:
                pids += self.cluster.strike(component)
                return bool(pids)

            if not wait_for(strike, _BACK_SECONDS):  # dead still, of an earlier kill
                self.error = f"{kill.component} did not come back within {_BACK_SECONDS:.0f} s"
                return
            with self._lock:
                self.counts[kill.component] += 1
                self._down.setdefault(kill.component, time.monotonic())

    def _watch(self) -> None:
        """Note when all is well again: parts wait for each other, so one that is alive may not work yet."""
        while not self._stop.wait(_LOOK_SECONDS):
            begun = time.monotonic()
            if not self._down or not self.cluster.is_whole():
                continue
            with self._lock:
                for component, since in list(self._down.items()):
                    if since < begun:
                        longest = self.recovery_seconds.get(component, 0.0)
                        self.recovery_seconds[component] = max(longest, time.monotonic() - since)
                        del self._down[component]
