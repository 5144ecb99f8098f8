"""What a piece of work costs, for ``make bench-detect``."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TypeVar

from tests.bench.detect_load import SLICE_SECONDS

_Data = TypeVar("_Data")


@dataclass(frozen=True, slots=True)
class Cost:
    """What one slice costs.

    Attributes:
        cpu_seconds: median over the measured slices.
        wall_seconds: the same by the clock (a machine that others use is slower).
    """

    cpu_seconds: float
    wall_seconds: float

    @property
    def times_real(self) -> float:
        """Seconds of the job that are worked off in a second of one core."""
        return SLICE_SECONDS / self.cpu_seconds


def cost_of(work: Callable[[_Data], object], data: _Data) -> Cost:
    """Run it once."""
    begin_cpu, begin = time.process_time(), time.perf_counter()
    work(data)
    return Cost(time.process_time() - begin_cpu, time.perf_counter() - begin)


def middle(costs: Sequence[Cost]) -> Cost:
    """The medians of several costs."""
    return Cost(
        statistics.median(cost.cpu_seconds for cost in costs), statistics.median(cost.wall_seconds for cost in costs)
    )
