"""Work per second of a job's machines, from their metrics: the job's pace where no steps are recorded."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from tocsin.models.pace import Slowdown, is_uneven, means_of_spans, slowdown_of_spans, slowdown_of_work
from tocsin.models.robust import nan_median
from tocsin.schemas.records import NS_PER_SECOND

WORK = (
    "gpu_tensor_active_ratio",
    "gpu_dram_active_ratio",
    "nvlink_bytes_per_second",
    "pcie_bytes_per_second",
    "gpu_sm_active_ratio",
)
"""Metrics whose mean measures work per second; all fall alike when steps take longer. Utilisation does not, as waiting
kernels spin."""
TRAFFIC_WORK = "rdma_bytes_per_second"
"""Metric used where none of ``WORK`` is known: a step moves the same bytes however long it takes."""
FALLBACK_WORK = ("gpu_power_watts", "gpu_util_ratio", "cpu_util_ratio")
"""Metrics used where neither is known; waiting kernels draw power and use GPUs and CPUs as well."""
_COMPUTE, _TRAFFIC = (
    ("gpu_tensor_active_ratio", "gpu_fp_active_ratio"),
    ("rdma_bytes_per_second", "nvlink_bytes_per_second", "pcie_bytes_per_second"),
)
"""Metrics of computing, and of traffic."""
_COMPUTE_RATIO, _TRAFFIC_RATIO = 0.95, 0.75
"""Least ratio of computing and greatest ratio of traffic to the usual level that show non-training work. A slow step
computes and moves the same; machines that compute as usual but move much less evaluate."""
_POWER, _REST_POWER_RATIO = "gpu_power_watts", 0.75
"""Power metric, and the ratio to its usual level below which GPUs rest. Waiting kernels draw 30 to 50 % of a GPU's
limit, working ones 70 to 100 %."""
_PCIE, _BURST_RATIO = WORK.index("pcie_bytes_per_second"), 1.5
"""Index of the PCIe metric in ``WORK``, and the ratio to its usual level that is a burst. It matters where nvidia-smi
supplies no other metric: steps reach 1.35, a checkpoint 2 to 45."""
_LONGEST_BURST_NS = 300 * NS_PER_SECOND
"""Longest burst in nanoseconds; a longer one is the job's new way of working."""
_KEPT_FACTORS = 180
"""Number of windows that are kept: a quarter of an hour."""
_MOVE_COUNT = 24
"""Number of windows over which the usual change of work is averaged."""
_GOES_ON_COUNT, _GOES_ON_RATIO = 2, 0.5
"""Number of last windows, and least ratio to the usual work in each, with which the machines count as working."""
_BEFORE_COUNT, _AFTER_COUNT = 24, 8
"""Number of windows compared before and after an onset."""
_RISEN_RATIO = 0.08
"""Rise above the least work of a stall, in units of usual work, that shows that machines start to work again. In a hang
work stays flat; in a healthy job of a thousand hosts that waited for data it rose by .02 to .05 a window."""
_STANDING_SHARE_RATIO, _RESTING_SHARE_RATIO = 0.5, 0.8
"""Share of its usual work below which a machine waits in a stalled job; the second if no metric shows work."""
_SPAN_NS = 30 * NS_PER_SECOND
"""Length in nanoseconds of spans over which windows of an uneven job are averaged."""
_SPANS_BEFORE_COUNT, _SPANS_AFTER_COUNT = 10, 4
"""Number of half-minute spans compared in an uneven job: five minutes before an onset, two after."""


@dataclass(frozen=True, slots=True)
class WorkConfig:
    """Settings.

    Attributes:
        idle_ratio: share of its usual work below which the job does none.
        stalled_after_ns: duration without work (plus one and a half steps) after which machines are stalled.
        jump_ratio: change of work between two windows above which a window shows a transition rather than a state ...
        jump_factor: ... if it also exceeds the usual change by this factor, as steps may be longer than a window.
    """

    idle_ratio: float = 0.35
    stalled_after_ns: int = 8 * NS_PER_SECOND
    jump_ratio: float = 0.35
    jump_factor: float = 2.5


def work_row(shares: Mapping[str, float]) -> tuple[list[float], bool]:
    """Return the ratios to the usual level in the order of ``WORK``, and whether they measure work.

    Without any of ``WORK``, traffic is the first entry; without traffic, the fallback metrics, and False.
    """
    row = [shares.get(name, np.nan) for name in WORK]
    if np.isfinite(row).any():
        return row, True
    if np.isfinite(traffic := shares.get(TRAFFIC_WORK, np.nan)):
        return [traffic] + [np.nan] * (len(WORK) - 1), True
    return [shares.get(name, np.nan) for name in FALLBACK_WORK] + [np.nan] * (len(WORK) - len(FALLBACK_WORK)), False


def is_non_training_phase(shares: Mapping[str, float]) -> bool:
    """Return whether the machines compute as usual but move much less; False if either is unknown."""
    compute, traffic = (
        [shares[name] for name in names if np.isfinite(shares.get(name, np.nan))] for names in (_COMPUTE, _TRAFFIC)
    )
    return bool(compute and traffic) and min(compute) >= _COMPUTE_RATIO and max(traffic) < _TRAFFIC_RATIO


class WorkTracker:
    """Follows the work of one job's machines."""

    def __init__(self, config: WorkConfig) -> None:
        """Start without windows."""
        self._config = config
        self._factors: list[list[float]] = []
        """Windows as [start_ns, end_ns, ratio to the usual level for each metric of ``WORK``], newest last."""
        self._usual_move = 0.0
        """Usual change of ``work_ratio`` between two windows."""
        self._idle_since_ns = 0
        """Start of the first of the current windows without work; 0 if the machines work."""
        self._burst_since_ns = 0
        """Start of the current PCIe burst; 0 if there is none."""
        self.non_training_since_ns = 0
        """Time in nanoseconds since when machines compute as usual and move much less; 0 if they do not."""
        self.resting_since_ns = 0
        """Time in nanoseconds since when GPUs draw much less power than usual in every window; 0 if they do not."""
        self.is_loading = False
        """Whether the last window shows only a PCIe burst while GPUs rest, as when loading or saving. Not part of the
        snapshot."""
        self._shows_work = False
        """Whether the last window had metrics of work; power alone does not tell working from spinning."""
        self.work_ratio = 1.0
        """Ratio of the work per second in the last window to the usual one."""
        self.stalled_since_ns = 0
        """Time in nanoseconds since when the machines do no work; 0 if they work."""
        self.stalled_known_ns = 0
        """Time in nanoseconds at which the stall became known; jobs with long steps need longer."""
        self.longest_stall_ns = 0
        """Duration in nanoseconds of the longest stall that has ended."""

    @property
    def is_known(self) -> bool:
        """Whether metrics show the machines' work and their usual level is known."""
        return bool(self._factors)

    def waiting_line(self, onset_ns: int, now_ns: int) -> float | None:
        """Return the share of its usual work below which a machine counts as waiting for others.

        It is 1 minus half of the job's relative loss since ``onset_ns``, as single machines scatter more than the job.
        In a stalled job it is fixed. None if the job is not certainly slower.
        """
        if self.stalled_since_ns:
            return _STANDING_SHARE_RATIO if self._shows_work else _RESTING_SHARE_RATIO
        slowdown = self.slowdown_since(onset_ns, now_ns)
        if slowdown is None or not slowdown.is_certain:
            return None
        return 1.0 - 0.5 * (1.0 - 1.0 / (1.0 + slowdown.ratio))

    @property
    def is_idle(self) -> bool:
        """Whether the machines did no work in the last window: they are stalled, or pause within a step."""
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
        """Take one window and return whether it shows a transition, in which machines should not be compared.

        Args:
            span_ns: start and end of the window.
            shares: metric -> ratio of its level over all machines to the usual one.
            step_ns: the job's step time, 0: unknown; pauses within a step are no stall.
            announced: whether the job announced a pause.
            overdue: whether steps are known and the next one is long overdue.
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
        before, self.work_ratio = self.work_ratio, float(nan_median(np.array(row, np.float64), 0))
        start_ns, end_ns = span_ns
        self.non_training_since_ns = (self.non_training_since_ns or start_ns) if is_non_training_phase(shares) else 0
        if not announced:
            self._factors.append([float(start_ns), float(end_ns), *row])
            del self._factors[:-_KEPT_FACTORS]
        # GPUs that rest, in a job whose steps do not end, wait, and spin so that they seem to be busy.
        spins = overdue and rests and not self._shows_work
        if self.work_ratio < self._config.idle_ratio or spins:
            self._idle_since_ns = self._idle_since_ns or start_ns
            if end_ns - self._idle_since_ns >= self._config.stalled_after_ns + int(1.5 * step_ns):
                self.stalled_known_ns = self.stalled_known_ns if self.stalled_since_ns else end_ns
                self.stalled_since_ns = self._idle_since_ns
            return not self.stalled_since_ns  # the first windows show the clocks' offsets, or a pause within a step
        was_idle = bool(self._idle_since_ns)
        self._end_standstill(start_ns)
        return was_idle or self._jumped(abs(self.work_ratio - before))

    def _is_storage(self, row: list[float], span_ns: tuple[int, int]) -> bool:
        """Return whether a short PCIe burst is all that is known: a checkpoint, whose end is no slowdown."""
        if sum(map(np.isfinite, row)) != 1 or not row[_PCIE] > _BURST_RATIO:
            self._burst_since_ns = 0
            return False
        self._burst_since_ns = self._burst_since_ns or span_ns[0]
        return span_ns[1] - self._burst_since_ns <= _LONGEST_BURST_NS

    def _end_standstill(self, now_ns: int) -> None:
        """End the current stall, if there is one, and record its duration."""
        if self.stalled_since_ns:
            self.longest_stall_ns = max(self.longest_stall_ns, now_ns - self.stalled_since_ns)
        self._idle_since_ns = self.stalled_since_ns = 0

    @property
    def is_rising(self) -> bool:
        """Whether stalled machines begin to work again, one after the other.

        Late ones then differ without being faulty. In a real hang the waiting machines do no work.
        """
        rows = [row[2:] for row in self._factors if row[0] >= self._idle_since_ns] if self._idle_since_ns else []
        ratios = nan_median(np.array(rows, np.float64), 1) if rows else np.zeros(1)
        return bool(ratios[-1] > float(np.nanmin(ratios)) + _RISEN_RATIO)

    @property
    def goes_on(self) -> bool:
        """Whether the machines did at least half of their usual work in each of the last two windows.

        An overdue step is then no long step (that would be 0.4 of the work): the job does unannounced other work.
        """
        last = np.array([row[2:] for row in self._factors[-_GOES_ON_COUNT:]], np.float64)
        if not self._shows_work or len(last) < _GOES_ON_COUNT or not np.isfinite(last).any(axis=1).all():
            return False
        return float(nan_median(last, 1).min()) >= _GOES_ON_RATIO

    def _jumped(self, moved: float) -> bool:
        """Return whether a change of work is far beyond the usual change, and learn that from it."""
        jumped = moved > max(self._config.jump_ratio, self._config.jump_factor * self._usual_move)
        self._usual_move += (min(moved, 3 * self._usual_move + 0.05) - self._usual_move) / _MOVE_COUNT
        return jumped

    def slowdown_since(self, onset_ns: int, now_ns: int) -> Slowdown | None:
        """Return how much less work per second the machines do since ``onset_ns``, as known at ``now_ns``.

        None if it cannot be measured. In a synchronous job, work per second is inverse to the step time.
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
        """Return the state as JSON-serialisable values, for a snapshot."""
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
            "other_work_since_ns": self.non_training_since_ns,
            "resting_since_ns": self.resting_since_ns,
        }

    def load_state(self, state: Mapping[str, Any]) -> None:
        """Restore the state from values that ``to_state`` returned."""
        self._factors, self._usual_move = state["factors"], state["usual_move"]
        self._idle_since_ns, self.work_ratio = state["idle_since_ns"], state["work_ratio"]
        self._shows_work, self._burst_since_ns = state["shows_work"], state["burst_since_ns"]
        self.stalled_since_ns, self.stalled_known_ns = state["standing_since_ns"], state["standing_known_ns"]
        self.longest_stall_ns = state["longest_standing_ns"]
        self.non_training_since_ns, self.resting_since_ns = state["other_work_since_ns"], state["resting_since_ns"]
