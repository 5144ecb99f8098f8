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
from tocsin.pipeline.core.arrays import array_from, array_state
from tocsin.pipeline.detect.peers.rows import Block
from tocsin.schemas.records import NS_PER_SECOND

FloatArray = NDArray[np.float32]
IntArray = NDArray[np.intp]

POWER = "gpu_power_watts"
CLOCK = "gpu_sm_clock_hertz"
TENSOR = "gpu_tensor_active_ratio"
WORK = (TENSOR, "gpu_fp_active_ratio", "gpu_dram_active_ratio")
LINK = "nvlink_bytes_per_second"
MOVED = (LINK, "pcie_bytes_per_second")
_COLUMNS = (POWER, CLOCK, *WORK, *MOVED)
_STAGE_COUNT = 2
_FEW_COUNT = 16
"""Of more hosts one says nothing about the spread of all."""
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
        faint_ratio: tensor cores that do so little more do no more ...
        follows_ratio: ... or so small a share of what arithmetic or memory do: then it is no work of the job. Of longer
            prompts it was half.
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
    faint_ratio: float = 0.03
    follows_ratio: float = 0.3


@dataclass(frozen=True, slots=True)
class Load:
    """How much more than expected a host draws and does, both 1.0 where it is as ever or nobody tells; since when."""

    power_ratio: float
    work_ratio: float
    since_ns: int


@dataclass(slots=True)
class LoadTracker:
    """What each host of one job lately did, over what is expected of it.

    Both are means of their own: in a window of a long step a machine may do half of what is expected, in the next one
    twice as much of next to nothing.
    """

    config: LoadConfig
    hosts: list[str] = field(default_factory=list)
    means: FloatArray = field(default_factory=lambda: np.empty((_STAGE_COUNT, 2, 0, len(_COLUMNS)), np.float32))
    """What they did and what was expected, and means of these means: shape (2, 2, hosts, metrics), NaN = not known.

    A single fading mean swings with the phases of steps as long as its memory; the mean of it, each of half of that
    memory, does not.
    """
    floors: FloatArray = field(default_factory=lambda: np.zeros(len(_COLUMNS), np.float32))
    more: dict[str, Load] = field(default_factory=dict)
    """Who does more work, as the last window left it."""

    def share_of(self, span_ns: int, step_ns: int = 0) -> float:
        """How much of what is known a window of so long replaces, in a job with such steps (0: not known)."""
        memory_ns = max(self.config.memory_ns, self.config.memory_step_count * step_ns)
        return min(1.0, _STAGE_COUNT * span_ns / memory_ns)

    @property
    def ratios(self) -> FloatArray:
        """The one over the other, shape (hosts, metrics), NaN where there is nothing to take a ratio of."""
        return self._ratios_of(slice(None))

    def _ratios_of(self, rows: int | slice) -> FloatArray:
        done, expected = self.means[-1][:, rows]
        with np.errstate(invalid="ignore", divide="ignore", over="ignore"):
            tells = expected > _NOTHING_FLOORS * self.floors
            return np.where(tells, done / expected, np.nan).astype(np.float32)

    def take(self, share: float, start_ns: int, hosts: Sequence[str], now: FloatArray, floors: FloatArray) -> None:
        """Take one window in which the job worked.

        Args:
            share: as ``share_of`` its length.
            start_ns: its begin.
            hosts: row keys.
            now: as ``load_values`` gives them.
            floors: of each metric, shape (metrics,): less is nothing.
        """
        self.means = self._of(hosts)
        for stage in range(_STAGE_COUNT):
            known = self.means[stage]
            moved = known + np.float32(share) * (now - known)
            now = np.where(np.isfinite(known) & np.isfinite(now), moved, np.where(np.isfinite(now), now, known))
            self.means[stage] = now
        self.hosts, self.floors = list(hosts), floors
        self._see_more(start_ns)

    def clear(self) -> None:
        """The job does something else, or nothing."""
        self.means, self.more = np.full_like(self.means, np.nan), {}

    def forget(self, hosts: Collection[str]) -> None:
        """These do other work from now on."""
        self.means[..., [row for row, host in enumerate(self.hosts) if host in hosts], :] = np.nan
        self.more = {host: load for host, load in self.more.items() if host not in hosts}

    def more_work(self, host: str) -> Load | None:
        """How much more work than its peers a host does, None: no more, or nobody knows."""
        return self.more.get(host)

    def wastes_power(self, host: str) -> bool:
        """Whether a host draws more power than expected and does not do as much more with it."""
        return host in self.hosts and self._wastes(self._told(self.hosts.index(host)))

    def moves_no_more(self, host: str) -> bool:
        """Whether a host's tensor cores are known to do no more than expected, nor its links.

        More power, memory or arithmetic is another program's then, or that of slow memory.
        """
        return host in self.hosts and self._moves_no_more(self._told(self.hosts.index(host)))

    def _see_more(self, start_ns: int) -> None:
        """Who does more work since this window, or still does."""
        ratios = self.ratios
        clear = self._clear(ratios)
        asked = [_COLUMNS.index(name) for name in (POWER, *WORK)]
        rows = np.flatnonzero((clear & (ratios >= self.config.keeps_ratio))[:, asked].any(1))
        before, more = self.more, {}
        for row in map(int, rows):
            host = self.hosts[row]
            known = before.get(host)
            if (seen := self._seen_more(ratios[row], clear[row], keeps=known is not None)) is not None:
                more[host] = Load(*seen, known.since_ns if known else start_ns)
        crowded = len(more) > max(2.0, self.config.most_ratio * len(self.hosts))
        self.more = {} if crowded else more

    def _seen_more(self, ratios: FloatArray, is_clear: NDArray[np.bool_], *, keeps: bool) -> tuple[float, float] | None:
        """By how much power and work of one host stand out, if they are those of more work."""
        config, told = self.config, _named(ratios)
        low = [told[CLOCK] < config.least_clock_ratio, *(told[name] < config.least_moved_ratio for name in MOVED)]
        if any(low) or self._wastes(told) or self._moves_no_more(told):
            return None
        clear = {name: told[name] for name, stands_out in zip(_COLUMNS, is_clear, strict=True) if stands_out}
        power, work = clear.get(POWER, 1.0), max(clear.get(name, 1.0) for name in WORK)
        beside = work >= config.least_work_ratio and power >= config.beside_power_ratio
        moved = min(work, clear.get(LINK, 1.0)) >= config.least_all_ratio and told[POWER] >= config.beside_all_ratio
        still = keeps and max(work, power) >= config.keeps_ratio
        return (power, work) if power >= config.least_power_ratio or beside or moved or still else None

    def _told(self, row: int) -> dict[str, float]:
        return _named(self._ratios_of(row))

    def _wastes(self, told: Mapping[str, float]) -> bool:
        work = [told[name] for name in WORK if np.isfinite(told[name])]
        return bool(work) and told[POWER] > max(1.0, *work) + self.config.wasted_ratio

    def _moves_no_more(self, told: Mapping[str, float]) -> bool:
        most = max((told[name] for name in WORK if np.isfinite(told[name])), default=1.0)
        least = 1 + max(self.config.faint_ratio, self.config.follows_ratio * (most - 1))
        return told[TENSOR] < least and not any(told[name] >= least for name in MOVED)

    def _clear(self, ratios: FloatArray) -> NDArray[np.bool_]:
        """What of each host stands out among the others, shape (hosts, metrics)."""
        if len(ratios) > _FEW_COUNT:
            return ratios >= self._line(ratios)
        found = np.zeros(ratios.shape, bool)
        for row in range(len(ratios)):
            found[row] = ratios[row] >= self._line(np.delete(ratios, row, 0))
        return found

    def _line(self, others: FloatArray) -> FloatArray:
        """From where on a host stands out among others, shape (metrics,)."""
        middle = median(others, 0)
        return middle + np.float32(self.config.clear_sigmas * MAD_TO_SIGMA) * median(np.abs(others - middle), 0)

    def _of(self, hosts: Sequence[str]) -> FloatArray:
        """What is known of these, shape (2, 2, hosts, metrics)."""
        if list(hosts) == self.hosts:
            return self.means.copy()
        rows = {host: row for row, host in enumerate(self.hosts)}
        found = np.full((_STAGE_COUNT, 2, len(hosts), len(_COLUMNS)), np.nan, np.float32)
        for row, host in enumerate(hosts):
            if host in rows:
                found[..., row, :] = self.means[..., rows[host], :]
        return found

    def to_state(self) -> dict[str, Any]:
        """JSON-able state."""
        more = [[host, *astuple(load)] for host, load in sorted(self.more.items())]
        return {"hosts": self.hosts, "means": array_state(self.means), "floors": array_state(self.floors), "more": more}

    def load_state(self, state: Mapping[str, Any]) -> None:
        """Take back what ``to_state`` gave."""
        self.hosts, self.means = list(state["hosts"]), array_from(state["means"])
        self.floors = array_from(state["floors"])
        self.more = {host: Load(power, work, since_ns) for host, power, work, since_ns in state["more"]}


def load_floors(block: Block) -> FloatArray:
    """Of each metric that is asked, shape (metrics,): less than some of these is nothing; 0 where nobody has it."""
    place = {metric.name: column for column, metric in enumerate(block.metrics)}
    return np.array([block.scales[place[name]].floor if name in place else 0.0 for name in _COLUMNS], np.float32)


def load_values(values: FloatArray, groups: IntArray, block: Block, window: PeerWindow) -> FloatArray:
    """What each host does in a window and what is expected of it, shape (2, hosts, metrics), NaN = not known.

    Args:
        values: means over each host's GPUs, shape (hosts, metrics).
        groups: who is compared with whom, shape (hosts,).
        block: what ``values`` are.
        window: and what was expected of them; until that is learned, what the group shows is.
    """
    place = {metric.name: column for column, metric in enumerate(block.metrics)}
    now = np.full((2, len(values), len(_COLUMNS)), np.nan, np.float32)
    for column, name in enumerate(_COLUMNS):
        if (source := place.get(name)) is None:
            continue
        learned = np.isfinite(window.sigmas[:, source])
        expected = np.where(learned, window.expected[:, source], _of_group(values[:, source], groups))
        tells = np.isfinite(values[:, source]) & np.isfinite(expected)
        now[0, tells, column], now[1, tells, column] = values[tells, source], expected[tells]
    return now


def _named(row: FloatArray) -> dict[str, float]:
    return dict(zip(_COLUMNS, map(float, row), strict=True))


def _of_group(values: FloatArray, groups: IntArray) -> FloatArray:
    """What each row's group shows, shape (rows,)."""
    found = np.full(len(values), np.nan, np.float32)
    for group in np.unique(groups[groups >= 0]):
        rows = groups == group
        found[rows] = median(values[rows], 0)
    return found
