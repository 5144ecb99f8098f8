"""The work that a job's machines do per second, as their metrics show it: its pace where steps tell none."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from tocsin.models.pace import Slowdown, is_uneven, means_of_spans, slowdown_of_spans, slowdown_of_work
from tocsin.schemas.records import NS_PER_SECOND

WORK = (
    "gpu_tensor_active_ratio",
    "gpu_dram_active_ratio",
    "nvlink_bytes_per_second",
    "pcie_bytes_per_second",
    "gpu_sm_active_ratio",
)
"""Metrics whose mean is work per second: all fall alike when steps take longer (utilization does not: waiting
kernels spin)."""
TRAFFIC_WORK = "rdma_bytes_per_second"
"""Asked where there is none of them: bytes of a step are as many however long it takes, and who waits sends none."""
FALLBACK_WORK = ("gpu_power_watts", "gpu_util_ratio", "cpu_util_ratio")
"""Asked where there is none of these: waiting kernels draw power, use GPUs and CPUs, too."""
_COMPUTE, _TRAFFIC = (
    ("gpu_tensor_active_ratio", "gpu_fp_active_ratio"),
    ("rdma_bytes_per_second", "nvlink_bytes_per_second", "pcie_bytes_per_second"),
)
_COMPUTE_RATIO, _TRAFFIC_RATIO = 0.95, 0.75
"""Of what is usual. A step is the same sums and the same bytes however long it takes: machines that do as many sums a
second as ever, and move less than three quarters of the bytes, make no slow steps but do other work (they evaluate)."""
_POWER, _REST_POWER_RATIO = "gpu_power_watts", 0.75
"""Kernels that wait draw 30 to 50 % of a GPU's limit, working ones 70 to 100 %."""
_PCIE, _BURST_RATIO = WORK.index("pcie_bytes_per_second"), 1.5
"""Nvidia-smi alone shows no other work. Steps stay within 1.35 times the usual of it; a checkpoint is 2 to 45."""
_LONGEST_BURST_NS = 300 * NS_PER_SECOND
"""What is so for longer is how the job works now."""
_KEPT_FACTORS = 180
"""A quarter of an hour: what was before a deviation is asked for as long as it lasts."""
_MOVE_COUNT = 24
_GOES_ON_COUNT, _GOES_ON_RATIO = 2, 0.5
_BEFORE_COUNT, _AFTER_COUNT = 24, 8
_RISEN_RATIO = 0.08
"""Of the job's usual work: more than the least of a standstill is no standstill of all. In a hang the machines' work
stays; of a healthy job of a thousand hosts that waited 40 s for data it was .01, then .02 to .05 more each window."""
_STANDING_SHARE_RATIO, _RESTING_SHARE_RATIO = 0.5, 0.8
"""Of a machine's usual work, and of what is asked where no metric shows work: it waits in a job that stands."""
_SPAN_NS = 30 * NS_PER_SECOND
_SPANS_BEFORE_COUNT, _SPANS_AFTER_COUNT = 10, 4
"""Of an uneven job: five minutes before, two after."""


@dataclass(frozen=True, slots=True)
class WorkConfig:
    """Settings.

    Attributes:
        idle_ratio: below this share of its usual work the job does none.
        standing_after_ns: machines that do no work for so long (and one and a half steps) stand.
        jump_ratio: where the work moves by more between two windows, the window shows the clocks' offsets,
            not the machines ...
        jump_factor: ... and by so many times its usual move (steps longer than a window).
    """

    idle_ratio: float = 0.35
    standing_after_ns: int = 8 * NS_PER_SECOND
    jump_ratio: float = 0.35
    jump_factor: float = 2.5


def work_row(shares: Mapping[str, float]) -> tuple[list[float], bool]:
    """The factors of ``WORK``, or of what is asked where there is none of them; and whether it is the former."""
    row = [shares.get(name, np.nan) for name in WORK]
    if np.isfinite(row).any():
        return row, True
    if np.isfinite(traffic := shares.get(TRAFFIC_WORK, np.nan)):
        return [traffic] + [np.nan] * (len(WORK) - 1), True
    return [shares.get(name, np.nan) for name in FALLBACK_WORK] + [np.nan] * (len(WORK) - len(FALLBACK_WORK)), False


def is_other_work(shares: Mapping[str, float]) -> bool:
    """Whether the machines compute as much as ever and move much less. False also where one of the two is not known."""
    compute, traffic = (
        [shares[name] for name in names if np.isfinite(shares.get(name, np.nan))] for names in (_COMPUTE, _TRAFFIC)
    )
    return bool(compute and traffic) and min(compute) >= _COMPUTE_RATIO and max(traffic) < _TRAFFIC_RATIO


class WorkTracker:
    """Follows the work of one job's machines."""

    def __init__(self, config: WorkConfig) -> None:
        """Know nothing."""
        self._config = config
        self._factors: list[list[float]] = []
        """Per window [start_ns, end_ns, the job's factor of each metric of ``WORK``], newest last."""
        self._usual_move = 0.0
        self._idle_since_ns = 0
        self._burst_since_ns = 0
        self.other_work_since_ns = 0
        """Since when the machines compute as much as ever and move much less, 0: they do not."""
        self.resting_since_ns = 0
        """Since when the machines' GPUs draw much less power than usual in each window, 0: they do not."""
        self.is_loading = False
        """Whether all that is known of the last window is a burst over PCIe while the GPUs rest: each machine loads or
        saves, as far as it has come. Of that window alone: no state."""
        self._shows_work = False
        """Whether the last window was judged by metrics of ``WORK``: spinning machines draw power, too."""
        self.work_ratio = 1.0
        """Work per second in the last window over its usual one."""
        self.stalled_since_ns = 0
        """Since when the machines do no work, 0: they work."""
        self.stalled_known_ns = 0
        """When that was known: a job with long steps pauses longer within a step."""
        self.longest_stall_ns = 0
        """The longest such time that ended."""

    @property
    def is_known(self) -> bool:
        """Whether there are metrics that show the machines' work, and their usual level is learned."""
        return bool(self._factors)

    def waiting_line(self, onset_ns: int, now_ns: int) -> float | None:
        """Below which share of its usual work a machine waits as the job does since an onset; None: the job does not.

        Half of what the job lost: each machine by itself scatters more than all of them together.
        """
        if self.stalled_since_ns:
            return _STANDING_SHARE_RATIO if self._shows_work else _RESTING_SHARE_RATIO
        slowdown = self.slowdown_since(onset_ns, now_ns)
        if slowdown is None or not slowdown.is_certain:
            return None
        return 1.0 - 0.5 * (1.0 - 1.0 / (1.0 + slowdown.ratio))

    @property
    def is_idle(self) -> bool:
        """Whether the machines did no work in the last window: they stand, or pause within a step."""
        return bool(self._idle_since_ns)

    def take(
        self,
        span_ns: tuple[int, int],
        shares: Mapping[str, float],
        step_ns: int,
        *,
        announced: bool,
        overdue: bool = False,
    ) -> bool:
        """Take one window; whether it shows a change, not a state.

        Args:
            span_ns: begin and end of the window.
            shares: metric -> its level among all machines over the usual one.
            step_ns: the job's step time, 0: not known. Pauses within a step are no standstill.
            announced: the job announced a pause.
            overdue: its steps are known, and none has ended for much longer than one takes.
        """
        row, self._shows_work = work_row(shares)
        rests = shares.get(_POWER, 1.0) < _REST_POWER_RATIO
        self.resting_since_ns = (self.resting_since_ns or span_ns[0]) if rests else 0
        is_storage = self._is_storage(row, span_ns)
        self.is_loading = is_storage and rests
        if not np.isfinite(row).any():
            return False
        if is_storage:
            self._end_standstill(span_ns[0])
            return False
        before, self.work_ratio = self.work_ratio, float(np.nanmedian(row))
        start_ns, end_ns = span_ns
        self.other_work_since_ns = (self.other_work_since_ns or start_ns) if is_other_work(shares) else 0
        if not announced:
            self._factors.append([float(start_ns), float(end_ns), *row])
            del self._factors[:-_KEPT_FACTORS]
        # GPUs that rest, in a job whose steps do not end, wait, and spin so that they seem to be busy.
        spins = overdue and rests and not self._shows_work
        if self.work_ratio < self._config.idle_ratio or spins:
            self._idle_since_ns = self._idle_since_ns or start_ns
            if end_ns - self._idle_since_ns >= self._config.standing_after_ns + int(1.5 * step_ns):
                self.stalled_known_ns = self.stalled_known_ns if self.stalled_since_ns else end_ns
                self.stalled_since_ns = self._idle_since_ns
            return not self.stalled_since_ns  # the first windows show the clocks' offsets, or a pause within a step
        was_idle = bool(self._idle_since_ns)
        self._end_standstill(start_ns)
        return was_idle or self._jumped(abs(self.work_ratio - before))

    def _is_storage(self, row: list[float], span_ns: tuple[int, int]) -> bool:
        """Whether all that is known is a burst over PCIe: a checkpoint goes over it, and its end is no slowdown."""
        if sum(map(np.isfinite, row)) != 1 or not row[_PCIE] > _BURST_RATIO:
            self._burst_since_ns = 0
            return False
        self._burst_since_ns = self._burst_since_ns or span_ns[0]
        return span_ns[1] - self._burst_since_ns <= _LONGEST_BURST_NS

    def _end_standstill(self, now_ns: int) -> None:
        if self.stalled_since_ns:
            self.longest_stall_ns = max(self.longest_stall_ns, now_ns - self.stalled_since_ns)
        self._idle_since_ns = self.stalled_since_ns = 0

    @property
    def is_rising(self) -> bool:
        """Whether machines that stood begin to work again, one after the other: who is late differs from who is not.

        Whoever makes a job stand makes it stand, and those who wait for it do not work meanwhile.
        """
        rows = [row[2:] for row in self._factors if row[0] >= self._idle_since_ns] if self._idle_since_ns else []
        ratios = np.nanmedian(np.array(rows, np.float64), axis=1) if rows else np.zeros(1)
        return bool(ratios[-1] > float(np.nanmin(ratios)) + _RISEN_RATIO)

    @property
    def goes_on(self) -> bool:
        """Whether the machines did no less than half of their usual work in each of the last two windows.

        Then a step that is overdue (2.5 times as long as usual: 0.4 of the work per second) is none that takes long:
        they evaluate, compile, save or load, and nobody announced it.
        """
        last = np.array([row[2:] for row in self._factors[-_GOES_ON_COUNT:]], np.float64)
        if not self._shows_work or len(last) < _GOES_ON_COUNT or not np.isfinite(last).any(axis=1).all():
            return False
        return float(np.nanmedian(last, axis=1).min()) >= _GOES_ON_RATIO

    def _jumped(self, moved: float) -> bool:
        jumped = moved > max(self._config.jump_ratio, self._config.jump_factor * self._usual_move)
        self._usual_move += (min(moved, 3 * self._usual_move + 0.05) - self._usual_move) / _MOVE_COUNT
        return jumped

    def slowdown_since(self, onset_ns: int, now_ns: int) -> Slowdown | None:
        """How much less work per second the machines do since then, as was seen by ``now_ns``; None: cannot be told.

        Work per second and step time are each other's inverse in a synchronous job.
        """
        if not self._factors:
            return None
        table = np.array([row for row in self._factors if row[1] <= now_ns])
        if not table.size:
            return None
        before, after = table[table[:, 1] <= onset_ns][:, 2:], table[table[:, 0] >= onset_ns][:, 2:]
        count = max(1, round(_SPAN_NS / max(1.0, table[-1, 1] - table[-1, 0])))
        if count > 1 and is_uneven(before[-_BEFORE_COUNT:]):
            spans_before = means_of_spans(before, count)[-_SPANS_BEFORE_COUNT:]
            return slowdown_of_spans(spans_before, means_of_spans(after, count)[-_SPANS_AFTER_COUNT:])
        return slowdown_of_work(before[-_BEFORE_COUNT:], after[-_AFTER_COUNT:])

    def to_state(self) -> dict[str, Any]:
        """JSON-able state."""
        return {
            "factors": self._factors,
            "usual_move": self._usual_move,
            "idle_since_ns": self._idle_since_ns,
            "burst_since_ns": self._burst_since_ns,
            "shows_work": self._shows_work,
            "work_ratio": self.work_ratio,
            "standing_since_ns": self.stalled_since_ns,
            "standing_known_ns": self.stalled_known_ns,
            "longest_standing_ns": self.longest_stall_ns,
            "other_work_since_ns": self.other_work_since_ns,
            "resting_since_ns": self.resting_since_ns,
        }

    def load_state(self, state: Mapping[str, Any]) -> None:
        """Take back what ``to_state`` gave."""
        self._factors, self._usual_move = state["factors"], state["usual_move"]
        self._idle_since_ns, self.work_ratio = state["idle_since_ns"], state["work_ratio"]
        self._shows_work, self._burst_since_ns = state["shows_work"], state["burst_since_ns"]
        self.stalled_since_ns, self.stalled_known_ns = state["standing_since_ns"], state["standing_known_ns"]
        self.longest_stall_ns = state["longest_standing_ns"]
        self.other_work_since_ns, self.resting_since_ns = state["other_work_since_ns"], state["resting_since_ns"]
