"""Which machines do more work a second than is usual for them, by their peers: they may be slow because of it.

In a synchronous job all do the same work in each step, and the steps of all are as long as the slowest's: whoever is
slow does as much work a second as those who wait for it, and draws as much power or less. Whoever does more of both
has more to do: a hot expert, longer sequences. Ten percent more power is no alarm by itself; beside a rank that is
slower than its peers it tells why.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import astuple, dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tocsin.models.peers import PeerWindow
from tocsin.models.robust import MAD_TO_SIGMA, median
from tocsin.pipeline.operators.arrays import array_from, array_state
from tocsin.pipeline.operators.peer_rows import Block
from tocsin.schemas.records import NS_PER_SECOND

FloatArray = NDArray[np.float32]
IntArray = NDArray[np.intp]

POWER = "gpu_power_watts"
CLOCK = "gpu_sm_clock_hertz"
WORK = ("gpu_tensor_active_ratio", "gpu_fp_active_ratio", "gpu_dram_active_ratio")
LINK = "nvlink_bytes_per_second"
MOVED = (LINK, "pcie_bytes_per_second")
_COLUMNS = (POWER, CLOCK, *WORK, *MOVED)
_NOTHING_FLOORS = 3.0
"""Below so many of a metric's floors there is nothing to take a ratio of."""


@dataclass(frozen=True, slots=True)
class LoadConfig:
    """Settings.

    Attributes:
        memory_ns: a window of so long ago counts e times less ...
        memory_step_count: ... and of so many steps, where that is longer: within a long step who is slow works while
            others wait, and waits while they work.
        least_power_ratio: of what is expected: power alone shows more work from here on.
        least_work_ratio: the busiest of tensor cores, arithmetic and memory, where ...
        beside_power_ratio: ... power is higher too, by so much.
        least_all_ratio: of work, where the links carry as much more and power is higher, too, if by ...
        beside_all_ratio: ... little: whoever moves more a second than those who wait for it does more in each step.
        keeps_ratio: who once showed more work does as long as work or power is so much above what is expected.
        most_ratio: of the hosts; where more of them show it the job does other work.
        clear_sigmas: above the other hosts by so many of their spreads.
        least_clock_ratio: at a lower clock the same work takes more of the cycles.
        least_moved_ratio: whoever moves less than usual over a link may wait for that link.
        wasted_ratio: power that is so much further above what is expected than work is, where both are known, is spent
            on something else: slow kernels. Those of hot experts are busier by more than the power that they draw.
    """

    memory_ns: int = 15 * NS_PER_SECOND
    memory_step_count: int = 2
    least_power_ratio: float = 1.05
    least_work_ratio: float = 1.10
    beside_power_ratio: float = 1.02
    least_all_ratio: float = 1.05
    beside_all_ratio: float = 1.01
    keeps_ratio: float = 1.04
    most_ratio: float = 0.25
    clear_sigmas: float = 3.0
    least_clock_ratio: float = 0.985
    least_moved_ratio: float = 0.9
    wasted_ratio: float = 0.02


@dataclass(frozen=True, slots=True)
class Load:
    """How much more than expected a host draws and does, both 1.0 where it is as ever or nobody tells; since when."""

    power_ratio: float
    work_ratio: float
    since_ns: int


@dataclass(slots=True)
class LoadTracker:
    """What each host of one job lately did, over what is expected of it: shape (hosts, metrics), NaN = not known."""

    config: LoadConfig
    hosts: list[str] = field(default_factory=list)
    ratios: FloatArray = field(default_factory=lambda: np.empty((0, len(_COLUMNS)), np.float32))
    more: dict[str, Load] = field(default_factory=dict)
    """Who does more work, as the last window left it."""

    def share_of(self, span_ns: int, step_ns: int = 0) -> float:
        """How much of what is known a window of so long replaces, in a job with such steps (0: not known)."""
        return min(1.0, span_ns / max(self.config.memory_ns, self.config.memory_step_count * step_ns))

    def take(self, share: float, start_ns: int, hosts: Sequence[str], now: FloatArray) -> None:
        """Take one window in which the job worked.

        Args:
            share: as ``share_of`` its length.
            start_ns: its begin.
            hosts: row keys.
            now: as ``load_ratios`` gives them.
        """
        known = self._of(hosts)
        moved = known + np.float32(share) * (now - known)
        self.ratios = np.where(np.isfinite(known) & np.isfinite(now), moved, np.where(np.isfinite(now), now, known))
        self.hosts = list(hosts)
        self._see_more(start_ns)

    def clear(self) -> None:
        """The job does something else, or nothing."""
        self.ratios, self.more = np.full_like(self.ratios, np.nan), {}

    def forget(self, hosts: Collection[str]) -> None:
        """These do other work from now on."""
        self.ratios[[row for row, host in enumerate(self.hosts) if host in hosts]] = np.nan
        self.more = {host: load for host, load in self.more.items() if host not in hosts}

    def more_work(self, host: str) -> Load | None:
        """How much more work than its peers a host does, None: no more, or nobody knows."""
        return self.more.get(host)

    def wastes_power(self, host: str) -> bool:
        """Whether a host draws more power than expected and does not do as much more with it."""
        return host in self.hosts and self._wastes(self._told(self.hosts.index(host)))

    def _see_more(self, start_ns: int) -> None:
        """Who does more work since this window, or still does."""
        above = self.ratios[:, [_COLUMNS.index(name) for name in (POWER, *WORK)]]
        rows = np.flatnonzero((above >= self.config.keeps_ratio).any(1))
        if len(rows) > max(2.0, self.config.most_ratio * len(self.hosts)):
            rows = rows[:0]
        before, self.more = self.more, {}
        for row in map(int, rows):
            host = self.hosts[row]
            known = before.get(host)
            if (seen := self._seen_more(row, keeps=known is not None)) is not None:
                self.more[host] = Load(*seen, known.since_ns if known else start_ns)

    def _seen_more(self, row: int, *, keeps: bool) -> tuple[float, float] | None:
        """By how much power and work of one host stand out, if they are those of more work."""
        config, told = self.config, self._told(row)
        low = [told[CLOCK] < config.least_clock_ratio, *(told[name] < config.least_moved_ratio for name in MOVED)]
        if any(low) or self._wastes(told):
            return None
        clear = self._clear_ratios(row)
        power, work = clear.get(POWER, 1.0), max(clear.get(name, 1.0) for name in WORK)
        beside = work >= config.least_work_ratio and power >= config.beside_power_ratio
        moved = min(work, clear.get(LINK, 1.0)) >= config.least_all_ratio and told[POWER] >= config.beside_all_ratio
        still = keeps and max(work, power) >= config.keeps_ratio
        return (power, work) if power >= config.least_power_ratio or beside or moved or still else None

    def _told(self, row: int) -> dict[str, float]:
        return dict(zip(_COLUMNS, map(float, self.ratios[row]), strict=True))

    def _wastes(self, told: Mapping[str, float]) -> bool:
        work = [told[name] for name in WORK if np.isfinite(told[name])]
        return bool(work) and told[POWER] > max(1.0, *work) + self.config.wasted_ratio

    def _clear_ratios(self, row: int) -> dict[str, float]:
        """What of a host stands out among the others."""
        others = np.delete(self.ratios, row, 0)
        middle = median(others, 0)
        width = MAD_TO_SIGMA * median(np.abs(others - middle), 0)
        with np.errstate(invalid="ignore"):
            clear = self.ratios[row] - middle >= self.config.clear_sigmas * width
        return {name: float(self.ratios[row, column]) for column, name in enumerate(_COLUMNS) if clear[column]}

    def _of(self, hosts: Sequence[str]) -> FloatArray:
        """What is known of these."""
        if list(hosts) == self.hosts:
            return self.ratios
        rows = {host: row for row, host in enumerate(self.hosts)}
        found = np.full((len(hosts), len(_COLUMNS)), np.nan, np.float32)
        for row, host in enumerate(hosts):
            if host in rows:
                found[row] = self.ratios[rows[host]]
        return found

    def to_state(self) -> dict[str, Any]:
        """JSON-able state."""
        more = [[host, *astuple(load)] for host, load in sorted(self.more.items())]
        return {"hosts": self.hosts, "ratios": array_state(self.ratios), "more": more}

    def load_state(self, state: Mapping[str, Any]) -> None:
        """Take back what ``to_state`` gave."""
        self.hosts, self.ratios = list(state["hosts"]), array_from(state["ratios"])
        self.more = {host: Load(power, work, since_ns) for host, power, work, since_ns in state["more"]}


def load_ratios(values: FloatArray, groups: IntArray, block: Block, window: PeerWindow) -> FloatArray:
    """What each host does in a window over what is expected of it, shape (hosts, metrics), NaN = not known.

    Args:
        values: means over each host's GPUs, shape (hosts, metrics).
        groups: who is compared with whom, shape (hosts,).
        block: what ``values`` are.
        window: and what was expected of them; until that is learned, what the group shows is.
    """
    place = {metric.name: column for column, metric in enumerate(block.metrics)}
    now = np.full((len(values), len(_COLUMNS)), np.nan, np.float32)
    for column, name in enumerate(_COLUMNS):
        if (source := place.get(name)) is None:
            continue
        learned = np.isfinite(window.sigmas[:, source])
        expected = np.where(learned, window.expected[:, source], _of_group(values[:, source], groups))
        tells = expected > _NOTHING_FLOORS * block.scales[source].floor
        now[tells, column] = values[tells, source] / expected[tells]
    return now


def _of_group(values: FloatArray, groups: IntArray) -> FloatArray:
    """What each row's group shows, shape (rows,)."""
    found = np.full(len(values), np.nan, np.float32)
    for group in np.unique(groups[groups >= 0]):
        rows = groups == group
        found[rows] = median(values[rows], 0)
    return found
