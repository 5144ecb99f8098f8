"""Workload skew: machines that do more work a second than expected, and may be slower because of it.

In a synchronous job all machines do the same work per step, and all steps take as long as the slowest one. A slow
machine therefore never does more work a second than those waiting for it. One that does has more to do: a hot expert,
or longer sequences. Ten percent more power is no alarm, but explains why a rank is slower than its peers.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import astuple, dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tocsin.models.peers import PeerWindow
from tocsin.models.robust import MAD_TO_SIGMA, median
from tocsin.pipeline.core.arrays import array_from, array_state
from tocsin.pipeline.detect.peers.rows import Block
from tocsin.schemas.records import NS_PER_SECOND

FloatArray = NDArray[np.float32]
IntArray = NDArray[np.intp]

POWER = "gpu_power_watts"
CLOCK = "gpu_sm_clock_hertz"
TENSOR = "gpu_tensor_active_ratio"
WORK = (TENSOR, "gpu_fp_active_ratio", "gpu_dram_active_ratio")
"""Metrics of a GPU's work."""
LINK = "nvlink_bytes_per_second"
MOVED = (LINK, "pcie_bytes_per_second")
"""Metrics of a GPU's traffic."""
_COLUMNS = (POWER, CLOCK, *WORK, *MOVED)
"""Metrics that are tracked; the columns of all arrays here."""
_STAGE_COUNT = 2
"""Number of moving means in series."""
_FEW_COUNT = 16
"""Number of hosts above which one of them hardly affects the spread of all."""
_NOTHING_FLOORS = 3.0
"""Multiple of a metric's noise floor below which a value is treated as nothing, and gives no ratio."""


@dataclass(frozen=True, slots=True)
class LoadConfig:
    """Settings. Ratios are values divided by their expectation.

    Attributes:
        memory_ns: time constant of the moving means ...
        memory_step_count: ... or so many steps, if longer: within a long step, work and waiting alternate.
        least_power_ratio: ratio of power from which on power alone shows more work.
        least_work_ratio: ratio of the busiest of tensor cores, arithmetic and memory that shows more work, if ...
        least_power_with_work_ratio: ... power has at least this ratio.
        least_all_ratio: ratio of work and of link traffic that shows more work, if ...
        least_power_with_all_ratio: ... power has at least this ratio.
        keeps_ratio: ratio of work or power at which known higher work continues.
        most_ratio: share of hosts with more work above which the whole job does other work.
        clear_sigmas: least distance above the other hosts, in standard deviations.
        least_clock_ratio: clock ratio below which activity shows no work, as a low clock raises it.
        least_moved_ratio: traffic ratio below which a host may wait for its link.
        wasted_ratio: excess of power over work from which on power is wasted by slow kernels; hot experts have more
            excess work than power.
        faint_ratio: excess of tensor core activity below which it is no more work ...
        follows_ratio: ... or as a share of the excess of arithmetic or memory: such activity is not the job's. Longer
            prompts gave half.
    """

    memory_ns: int = 15 * NS_PER_SECOND
    memory_step_count: int = 2
    least_power_ratio: float = 1.05
    least_work_ratio: float = 1.10
    least_power_with_work_ratio: float = 1.02
    least_all_ratio: float = 1.05
    least_power_with_all_ratio: float = 1.01
    keeps_ratio: float = 1.04
    most_ratio: float = 0.25
    clear_sigmas: float = 3.0
    least_clock_ratio: float = 0.985
    least_moved_ratio: float = 0.9
    wasted_ratio: float = 0.02
    faint_ratio: float = 0.03
    follows_ratio: float = 0.3


@dataclass(frozen=True, slots=True)
class Load:
    """Higher load of a host.

    Attributes:
        power_ratio: power divided by its expectation; 1.0 if not higher or unknown.
        work_ratio: work divided by its expectation; 1.0 if not higher or unknown.
        since_ns: start of the first window that showed it.
    """

    power_ratio: float
    work_ratio: float
    since_ns: int


@dataclass(slots=True)
class LoadTracker:
    """Recent work of each host of one job relative to what is expected.

    Values and expectations are averaged separately. Within a long step a host may do half of a large expectation in one
    window, and twice a tiny one in the next.

    Attributes:
        config: settings.
        hosts: host names; the rows.
        floors: noise floor of each metric, shape (metrics,).
    """

    config: LoadConfig
    hosts: list[str] = field(default_factory=list)
    means: FloatArray = field(default_factory=lambda: np.empty((_STAGE_COUNT, 2, 0, len(_COLUMNS)), np.float32))
    """Moving means of values and expectations, and means of these means: shape (2, 2, hosts, metrics), NaN = unknown. A
    single moving mean would swing with the phases of long steps; the second stage does not."""
    floors: FloatArray = field(default_factory=lambda: np.zeros(len(_COLUMNS), np.float32))
    more: dict[str, Load] = field(default_factory=dict)
    """Host -> its higher load, for hosts that do more work as of the last window."""

    def share_of(self, span_ns: int, step_ns: int = 0) -> float:
        """Return the weight of one window in the moving means, at most 1.0.

        Args:
            span_ns: length of the window.
            step_ns: the job's step time; 0: unknown.
        """
        memory_ns = max(self.config.memory_ns, self.config.memory_step_count * step_ns)
        return min(1.0, _STAGE_COUNT * span_ns / memory_ns)

    @property
    def ratios(self) -> FloatArray:
        """Mean values divided by mean expectations, shape (hosts, metrics); NaN where about nothing is expected."""
        return self._ratios_of(slice(None))

    def _ratios_of(self, rows: int | slice) -> FloatArray:
        """Return ``ratios`` of selected rows."""
        done, expected = self.means[-1][:, rows]
        with np.errstate(invalid="ignore", divide="ignore", over="ignore"):
            is_known = expected > _NOTHING_FLOORS * self.floors
            return np.where(is_known, done / expected, np.nan).astype(np.float32)

    def take(self, share: float, start_ns: int, hosts: Sequence[str], now: FloatArray, floors: FloatArray) -> None:
        """Take one window in which the job worked.

        Args:
            share: weight of the window, from ``share_of``.
            start_ns: start of the window.
            hosts: host names; the rows.
            now: values and expectations from ``load_values``.
            floors: noise floor of each metric, shape (metrics,).
        """
        self.means = self._means_of(hosts)
        for stage in range(_STAGE_COUNT):
            known = self.means[stage]
            moved = known + np.float32(share) * (now - known)
            now = np.where(np.isfinite(known) & np.isfinite(now), moved, np.where(np.isfinite(now), now, known))
            self.means[stage] = now
        self.hosts, self.floors = list(hosts), floors
        self._update_more_work(start_ns)

    def clear(self) -> None:
        """Reset all means, as the job does other work or none."""
        self.means, self.more = np.full_like(self.means, np.nan), {}

    def forget(self, hosts: Collection[str]) -> None:
        """Forget these hosts, as they do other work from now on."""
        self.means[..., [row for row, host in enumerate(self.hosts) if host in hosts], :] = np.nan
        self.more = {host: load for host, load in self.more.items() if host not in hosts}

    def more_work(self, host: str) -> Load | None:
        """Return how much more work than expected a host does; None if no more, or unknown."""
        return self.more.get(host)

    def wastes_power(self, host: str) -> bool:
        """Return whether a host draws more power than expected without doing correspondingly more work."""
        return host in self.hosts and self._wastes(self._ratios_by_name(self.hosts.index(host)))

    def moves_no_more(self, host: str) -> bool:
        """Return whether a host's tensor cores and links are known to do no more than expected.

        Higher power, memory or arithmetic activity then comes from another program, or from slow memory.
        """
        return host in self.hosts and self._moves_no_more(self._ratios_by_name(self.hosts.index(host)))

    def _update_more_work(self, start_ns: int) -> None:
        """Update ``more`` after a window that starts at ``start_ns``; it is empty if too many hosts do more work."""
        ratios = self.ratios
        clear = self._stands_out(ratios)
        columns = [_COLUMNS.index(name) for name in (POWER, *WORK)]
        rows = np.flatnonzero((clear & (ratios >= self.config.keeps_ratio))[:, columns].any(1))
        before, more = self.more, {}
        for row in map(int, rows):
            host = self.hosts[row]
            known = before.get(host)
            if (seen := self._higher_load(ratios[row], clear[row], keeps=known is not None)) is not None:
                more[host] = Load(*seen, known.since_ns if known else start_ns)
        crowded = len(more) > max(2.0, self.config.most_ratio * len(self.hosts))
        self.more = {} if crowded else more

    def _higher_load(
        self, ratios: FloatArray, is_clear: NDArray[np.bool_], *, keeps: bool
    ) -> tuple[float, float] | None:
        """Return (power ratio, work ratio) of one host if they show more work; else None.

        Args:
            ratios: ratios of the host, shape (metrics,).
            is_clear: metrics in which the host stands out among the others.
            keeps: whether the host was already known to do more work.
        """
        config, by_name = self.config, _named(ratios)
        low = [by_name[CLOCK] < config.least_clock_ratio, *(by_name[name] < config.least_moved_ratio for name in MOVED)]
        if any(low) or self._wastes(by_name) or self._moves_no_more(by_name):
            return None
        clear = {name: by_name[name] for name, stands_out in zip(_COLUMNS, is_clear, strict=True) if stands_out}
        power, work = clear.get(POWER, 1.0), max(clear.get(name, 1.0) for name in WORK)
        with_power = work >= config.least_work_ratio and power >= config.least_power_with_work_ratio
        moved = (
            min(work, clear.get(LINK, 1.0)) >= config.least_all_ratio
            and by_name[POWER] >= config.least_power_with_all_ratio
        )
        still = keeps and max(work, power) >= config.keeps_ratio
        return (power, work) if power >= config.least_power_ratio or with_power or moved or still else None

    def _ratios_by_name(self, row: int) -> dict[str, float]:
        """Return metric name -> ratio for one row."""
        return _named(self._ratios_of(row))

    def _wastes(self, ratios: Mapping[str, float]) -> bool:
        """Return whether power exceeds the highest work ratio by more than ``wasted_ratio``."""
        work = [ratios[name] for name in WORK if np.isfinite(ratios[name])]
        return bool(work) and ratios[POWER] > max(1.0, *work) + self.config.wasted_ratio

    def _moves_no_more(self, ratios: Mapping[str, float]) -> bool:
        """Return whether tensor cores and links are below the ratio that counts as more work."""
        most = max((ratios[name] for name in WORK if np.isfinite(ratios[name])), default=1.0)
        least = 1 + max(self.config.faint_ratio, self.config.follows_ratio * (most - 1))
        return ratios[TENSOR] < least and not any(ratios[name] >= least for name in MOVED)

    def _stands_out(self, ratios: FloatArray) -> NDArray[np.bool_]:
        """Return where a host stands out above all others, shape (hosts, metrics)."""
        if len(ratios) > _FEW_COUNT:
            return ratios >= self._outlier_line(ratios)
        found = np.zeros(ratios.shape, bool)
        for row in range(len(ratios)):
            found[row] = ratios[row] >= self._outlier_line(np.delete(ratios, row, 0))
        return found

    def _outlier_line(self, others: FloatArray) -> FloatArray:
        """Return the ratio above which a host stands out among these others, shape (metrics,)."""
        middle = median(others, 0)
        return middle + np.float32(self.config.clear_sigmas * MAD_TO_SIGMA) * median(np.abs(others - middle), 0)

    def _means_of(self, hosts: Sequence[str]) -> FloatArray:
        """Return the means of these hosts, shape (2, 2, hosts, metrics), NaN for new ones."""
        if list(hosts) == self.hosts:
            return self.means.copy()
        rows = {host: row for row, host in enumerate(self.hosts)}
        found = np.full((_STAGE_COUNT, 2, len(hosts), len(_COLUMNS)), np.nan, np.float32)
        for row, host in enumerate(hosts):
            if host in rows:
                found[..., row, :] = self.means[..., rows[host], :]
        return found

    def to_state(self) -> dict[str, Any]:
        """Return the state as JSON-serialisable values, for a snapshot."""
        more = [[host, *astuple(load)] for host, load in sorted(self.more.items())]
        return {"hosts": self.hosts, "means": array_state(self.means), "floors": array_state(self.floors), "more": more}

    def load_state(self, state: Mapping[str, Any]) -> None:
        """Restore the state from values that ``to_state`` returned."""
        self.hosts, self.means = list(state["hosts"]), array_from(state["means"])
        self.floors = array_from(state["floors"])
        self.more = {host: Load(power, work, since_ns) for host, power, work, since_ns in state["more"]}


def load_floors(block: Block) -> FloatArray:
    """Return the noise floor of each load metric, shape (metrics,); 0.0 for metrics that the block lacks."""
    place = {metric.name: column for column, metric in enumerate(block.metrics)}
    return np.array([block.scales[place[name]].floor if name in place else 0.0 for name in _COLUMNS], np.float32)


def load_values(values: FloatArray, groups: IntArray, block: Block, window: PeerWindow) -> FloatArray:
    """Return each host's values in a window and their expectations, shape (2, hosts, metrics), NaN = unknown.

    Args:
        values: means over each host's GPUs, shape (hosts, metrics).
        groups: comparison group of each host, shape (hosts,).
        block: metrics and scales of ``values``.
        window: comparison of the same window; until levels are learned, the group's median is expected.
    """
    place = {metric.name: column for column, metric in enumerate(block.metrics)}
    now = np.full((2, len(values), len(_COLUMNS)), np.nan, np.float32)
    for column, name in enumerate(_COLUMNS):
        if (source := place.get(name)) is None:
            continue
        learned = np.isfinite(window.sigmas[:, source])
        expected = np.where(learned, window.expected[:, source], _group_medians(values[:, source], groups))
        is_known = np.isfinite(values[:, source]) & np.isfinite(expected)
        now[0, is_known, column], now[1, is_known, column] = values[is_known, source], expected[is_known]
    return now


def _named(row: FloatArray) -> dict[str, float]:
    """Return a row of ratios as metric name -> ratio."""
    return dict(zip(_COLUMNS, map(float, row), strict=True))


def _group_medians(values: FloatArray, groups: IntArray) -> FloatArray:
    """Return for each row the median of its group, shape (rows,); NaN for rows without group."""
    found = np.full(len(values), np.nan, np.float32)
    for group in np.unique(groups[groups >= 0]):
        rows = groups == group
        found[rows] = median(values[rows], 0)
    return found
