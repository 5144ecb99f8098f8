"""Peer detector: which machine's metrics differ from its peers', and since when.

Keyed by (job, metric group): each metric is judged by itself, so that a large job's metrics
may be spread over workers. Emits one anomaly per machine; ``diagnose`` decides what it means.

Two kinds of evidence are kept apart: what differs while the job works, and what differs while
it stands (a rank that stopped alone is where the others are not: they spin in a collective).
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace

import numpy as np
from numpy.typing import NDArray

from tocsin.models.documents import Model, numbers_of, version_of, with_numbers
from tocsin.models.frames import GpuRow
from tocsin.models.metric_means import MetricMeans
from tocsin.models.pace import overdue_seconds
from tocsin.models.peers import PeerConfig
from tocsin.models.robust import median
from tocsin.pipeline.core.frame_blocks import BUILTIN_TABLES, join_blocks, slice_blocks
from tocsin.pipeline.core.operator import anomaly_from, pack_state, unpack_state
from tocsin.pipeline.detect.peers.activity import WorkConfig, WorkTracker
from tocsin.pipeline.detect.peers.anomalies import AnomalyBuilder, joined
from tocsin.pipeline.detect.peers.cusum import Cusum, SumConfig, shared_columns
from tocsin.pipeline.detect.peers.departures import Absences
from tocsin.pipeline.detect.peers.exits import (
    ExitsConfig,
    ExitTracker,
    knows_memory,
    memory_shares,
)
from tocsin.pipeline.detect.peers.gpu_inventory import GpuInventory
from tocsin.pipeline.detect.peers.half_minutes import HalfMinuteConfig, HalfMinuteMeans, as_asked
from tocsin.pipeline.detect.peers.host_work import HostWork, work_shares
from tocsin.pipeline.detect.peers.leaf_congestion import PAUSES, SwitchesConfig, SwitchTracker
from tocsin.pipeline.detect.peers.rows import (
    GPU_SAMPLES,
    Block,
    MeanRows,
    SliceMeans,
    bare_host_count,
    directed,
    groups_of,
    largest_by_host,
    mean_by_host,
    sample_shares,
    table_from,
    table_state,
)
from tocsin.pipeline.detect.peers.standstill import (
    LOST_SIGMAS,
    Known,
    Seen,
    holds_memory,
    stall_sigmas,
)
from tocsin.pipeline.detect.peers.standstill_outlier import ODD_SUMS, outlier_sigmas
from tocsin.pipeline.detect.peers.warmup import ALL, BeginConfig, BeginTracker
from tocsin.pipeline.detect.peers.workload import (
    LoadConfig,
    LoadTracker,
    load_floors,
    load_values,
)
from tocsin.pipeline.job.graph import JobGraph
from tocsin.schemas.metrics import BUILTIN_TABLE, MetricTable
from tocsin.schemas.reasons import Reason
from tocsin.schemas.records import NS_PER_SECOND, Slice, TableAnnouncement
from tocsin.schemas.verdicts import Anomaly

FloatArray = NDArray[np.float32]
IntArray = NDArray[np.intp]

_AT_ANY_PACE = frozenset({"cpu_util_ratio", "gpu_sm_clock_hertz"})
"""Of a job whose steps are longer than a window hardly two windows are alike. Work on GPUs and network moves with them,
and hosts' offsets look like differences; a CPU that another program uses stays used, a clock that is held stays low."""
_EARLY_DIP_RATIO, _EARLY_DIP_COUNT = 0.5, 2
"""So many metrics with so much of an alarm, when the job came to stand."""


@dataclass(frozen=True, slots=True)
class PeersConfig:
    """Settings of the operator.

    Attributes:
        peers: the comparison.
        sums: how evidence adds up while the job works.
        work: when it does.
        standing: and while it stands: the others' processes end after a while, and then all look alike.
        patience: and over means of half a minute.
        exits: whose processes ended first.
        begin: when it began to work in earnest.
        load: who does more work than expected.
        switches: which leaf switch is jammed with all that is behind it.
        standing_share_ratio: while the job stands, a host differs from this share of its usual level on.
        lone_standing_share_ratio: and a single one of its GPUs from this share on.
        lone_gpu_ratio: a single GPU's deviation counts so much: the largest of eight is larger by chance.
        long_window_ns: windows of so long (samples of 5 s and more) ...
        long_warmup_count: ... begin to judge after so many: twelve of a minute would be a blind quarter of an hour.
    """

    peers: PeerConfig = field(default_factory=PeerConfig)
    sums: SumConfig = field(default_factory=SumConfig)
    work: WorkConfig = field(default_factory=WorkConfig)
    standing: SumConfig = field(default_factory=lambda: SumConfig(decays=False))
    patience: HalfMinuteConfig = field(default_factory=HalfMinuteConfig)
    exits: ExitsConfig = field(default_factory=ExitsConfig)
    begin: BeginConfig = field(default_factory=BeginConfig)
    load: LoadConfig = field(default_factory=LoadConfig)
    switches: SwitchesConfig = field(default_factory=SwitchesConfig)
    standing_share_ratio: float = 0.3
    lone_standing_share_ratio: float = 0.5
    lone_gpu_ratio: float = 0.8
    long_window_ns: int = 25 * NS_PER_SECOND
    long_warmup_count: int = 6


class PeerDetector:
    """Finds the machine that differs, among all machines of one job."""

    def __init__(self, config: PeersConfig, graph: JobGraph) -> None:
        """Start without history."""
        self._own = self._config = config
        self._model: Model | None = None
        self._peers = config.peers
        self._graph = graph
        self._hosts: list[str] = []
        self._cards = GpuInventory()
        self._tasks: dict[str, tuple[int, ...] | None] = {}
        """host -> the pipeline stages that it carries; None: it is spare."""
        self.work = WorkTracker(config.work)
        self.load = LoadTracker(config.load)
        self.host_work = HostWork()
        self._exits = ExitTracker(config.exits)
        self._switches = SwitchTracker(config.switches)
        self._first: Anomaly | None = None
        """Who fell alone in the first window in which the job did nothing."""
        self.abstained: dict[str, int] = {}
        self._begin = BeginTracker(config.begin)
        self._absences = Absences()
        self._rows: MeanRows | None = None
        """Where the last slice's rows lie among the known ones."""
        self._begin_with(BUILTIN_TABLE)

    def _begin_with(self, table: MetricTable) -> None:
        self._table = table
        self._patience = HalfMinuteMeans(self._config.patience, table)
        self._patience.sums.grow([], len(self._hosts))
        self.load.clear()
        self.host_work.clear()
        self._metrics = (*table.host, *table.gpu, GPU_SAMPLES)
        self._odd = Cusum(ODD_SUMS, len(self._metrics), len(self._hosts))
        self._ask_patience()
        self._blocks = {"host": Block(table.host), "mean": Block(table.gpu), "gpu": Block(table.gpu)}
        self._set_floors()
        shared = shared_columns(self._metrics)
        self._working = Cusum(self._config.sums, len(self._metrics), len(self._hosts), shared)
        self._standing = Cusum(self._config.standing, len(self._metrics), len(self._hosts))

    def on_model(self, model: Model | None) -> None:
        """Judge with these numbers from the next slice on, None: with its own; what was learned stays."""
        self._model = model
        own = replace(
            self._own,
            peers=with_numbers(self._own.peers, model, "comparison"),
            sums=with_numbers(self._own.sums, model, "working"),
            standing=with_numbers(self._own.standing, model, "standing"),
        )
        self._config = with_numbers(own, model, "lines")
        self._peers = self._config.peers
        self._working.configure(self._config.sums)
        self._standing.configure(self._config.standing)
        self._ask_patience()
        self._set_floors()

    def _ask_patience(self) -> None:
        self._odd.configure(as_asked(ODD_SUMS, self._config.standing, self._own.standing))
        self._patience.sums.configure(as_asked(self._own.patience.sums, self._config.sums, self._own.sums))

    def _set_floors(self) -> None:
        floors = numbers_of(self._model).get("floors", {})
        for block in self._blocks.values():
            block.set_floors(floors)
        self._patience.set_floors(floors)

    def on_slice(self, data: Slice, step_ns: int = 0) -> Sequence[Anomaly]:
        """Take the frames of one metric slice and return which machines differ at its end.

        Args:
            data: one metric slice.
            step_ns: the job's step time, 0: not known. Pauses within a step are no standstill.
        """
        for record in data.records:
            if isinstance(record, TableAnnouncement):
                self.take_table(record.table)
        tables = {**BUILTIN_TABLES, self._table.table_id: self._table}
        return self.on_means(data, join_blocks(slice_blocks(data, tables), self._table), step_ns)

    def on_means(self, data: Slice, means: MetricMeans | None, step_ns: int = 0) -> Sequence[Anomaly]:
        """Take what one metric slice told, None: nothing; as ``on_slice``."""
        if means is None:
            return []
        self._abstain(Reason.METRIC_MISSING, bare_host_count(means))
        rows = self._know(means, data.end_ns)
        is_long = data.end_ns - data.start_ns >= self._config.long_window_ns
        warmup_count = self._config.long_warmup_count if is_long else self._config.peers.warmup_count
        self._peers = replace(self._config.peers, warmup_count=warmup_count)
        return self._judge(data, rows.told(means), step_ns)

    @property
    def table(self) -> MetricTable:
        """What is compared."""
        return self._table

    def take_table(self, table: MetricTable) -> None:
        """The job has metrics of its own: start with them (a table is announced before its frames)."""
        if table != self._table:
            self._begin_with(table)

    def _know(self, means: MetricMeans, now_ns: int) -> MeanRows:
        if self._rows is not None and self._rows.are_of(means) and not self._absences.is_due(now_ns):
            return self._rows  # nearly always so: all are known
        of_host: dict[str, set[GpuRow]] = {host: set() for host in means.hosts}
        for row in means.gpu_rows:
            of_host[row[0]].add(row)
        for host, rows in of_host.items():
            self._cards.know(host, rows)
        new = set(means.hosts).difference(self._hosts)
        if new:
            self._know_hosts(new)
        self._forget(self._absences.take(means.hosts, self._hosts, self._graph.placement.roles_of_hosts(), now_ns))
        self._rows = MeanRows.of(means, self._hosts, self._cards.rows())
        return self._rows

    def _know_hosts(self, new: set[str]) -> None:
        hosts = sorted(new.union(self._hosts))
        place = {host: row for row, host in enumerate(hosts)}
        rows = [place[host] for host in self._hosts]
        for sums in (self._working, self._standing, self._odd):
            sums.grow(rows, len(hosts))
        self._patience.grow(rows, len(hosts))
        self._hosts = hosts

    def _forget(self, gone: Collection[str]) -> None:
        """Drop the rows of machines that left the job."""
        if not gone:
            return
        rows = [row for row, host in enumerate(self._hosts) if host not in gone]
        for sums in (self._working, self._standing, self._odd):
            sums.keep(rows)
        self._patience.keep(rows, gone)
        for block in self._blocks.values():
            block.drop(gone)
        self._hosts = [self._hosts[row] for row in rows]
        self._cards.forget(gone)

    def _judge(self, data: Slice, told: SliceMeans, step_ns: int) -> list[Anomaly]:
        groups = self._groups(told.hosts)
        seen = self._compare(told, groups)
        if (groups < 0).all():
            self._abstain(Reason.TOO_FEW_PEERS)
            return []
        announced = self._graph.in_announced_phase(data.start_ns, data.end_ns)
        if announced or self.work.stalled_since_ns:
            self.load.clear()
        else:
            self._see_load(data, told.hosts, seen, groups, step_ns)
        was_idle = self.work.is_idle
        shares = self._shares(np.concatenate([seen.windows["host"].factor, seen.windows["mean"].factor], axis=1))
        if self._began_to_work(data, shares, step_ns):
            return []
        jumped = False
        if self._is_warm():
            self.host_work.take(told.hosts, work_shares(seen.values, self._blocks, self._peers.warmup_count))
            span_ns, overdue = (data.start_ns, data.end_ns), self._is_overdue(data.end_ns, step_ns)
            jumped = self.work.take(span_ns, shares, step_ns, announced=announced, overdue=overdue)
        if was_idle and not self.work.is_idle:
            self._standing.clear()
            self._odd.clear()
            self._first = None
        if announced or self.work.stalled_since_ns:
            self._patience.drop()
        else:
            crowded = self._working.crowded(seen.sigmas)
            window_ns = data.start_ns, data.end_ns
            near = self._patience.tempered(seen.values, seen.windows)
            self._patience.take(window_ns, told.hosts, near, groups, self._peers, crowded)
        if announced:
            self._abstain(Reason.ANNOUNCED_PHASE)
        elif self.work.is_idle:
            self._judge_idle(data, seen, groups, began=not was_idle)
        else:
            self._judge_working(data, seen, jumped=jumped)
        standing = self._while_stalled(data, seen, groups) if self.work.stalled_since_ns else []
        jammed = self._jammed_switches(data, seen)
        return [*self._while_working(data, seen), *standing, *self._ended_first(data, seen), *jammed]

    def _judge_working(self, data: Slice, seen: Seen, *, jumped: bool) -> None:
        if not (jumped or self.work.is_loading):
            self._working.add(seen.sigmas, data.start_ns, data.end_ns)
            return
        # Who has its data first computes while the others load: it is ahead of them, and neither is slow.
        judges_rest = not self.work.is_loading
        self._working.add(seen.sigmas, data.start_ns, data.end_ns, self._at_any_pace(), judges_rest=judges_rest)
        self._abstain(Reason.NOT_CONTINUOUS)

    def _jammed_switches(self, data: Slice, seen: Seen) -> list[Anomaly]:
        column = next((c for c, metric in enumerate(self._table.host) if metric.name == PAUSES), None)
        if column is None:
            return []
        return self._switches.take(
            data, self._hosts, seen.values["host"][:, column], self._graph.placement.switches_of_hosts()
        )

    @property
    def memory_is_held(self) -> bool:
        """Whether nearly all machines use GPU memory as ever: their processes live. False also where nobody tells."""
        block = self._blocks["mean"]
        known = knows_memory(block.state, [metric.name for metric in block.metrics], self._peers.warmup_count)
        return bool(known.sum() >= self._config.exits.known_ratio * max(1, known.size)) and not self._exits.anybody_left

    @property
    def ended_at_once(self) -> dict[str, int]:
        """Each machine and about when its processes ended, where those of nearly all did so within seconds."""
        seen_count = self._blocks["mean"].state.seen_count
        worked = seen_count.max(axis=1, initial=0) >= self._peers.warmup_count  # not those that replace others
        return self._exits.ended_at_once(int(worked.sum()))

    def _ended_first(self, data: Slice, seen: Seen) -> list[Anomaly]:
        block = self._blocks["mean"]
        names = [metric.name for metric in block.metrics]
        shares = memory_shares(seen.values["mean"], block.state, names, self._peers.warmup_count)
        return self._exits.take(data, self._hosts, shares)

    def _is_warm(self) -> bool:
        counts = [self._blocks[name].state.seen_count.max(initial=0) for name in ("host", "mean")]
        return float(max(counts)) >= self._peers.warmup_count

    def _began_to_work(self, data: Slice, shares: Mapping[str, float], step_ns: int) -> bool:
        """Whether what was learned so far was no work; then it is forgotten. Of a single metric only that."""
        begun = self._begin.take((data.start_ns, data.end_ns), shares, step_ns)
        if not begun:
            return False
        if ALL not in begun:
            young_count = self._config.begin.young_factor * self._peers.warmup_count
            for block in self._blocks.values():
                block.forget_young(begun, young_count)
            self._begin.forget(begun)
            return False
        self._begin, self._first = BeginTracker(self._config.begin), None
        self.work = WorkTracker(self._config.work)
        self._begin_with(self._table)
        self._abstain(Reason.WARMING_UP)
        return True

    def _while_working(self, data: Slice, seen: Seen) -> list[Anomaly]:
        """Who differs by windows, by half minutes, or by both."""
        found = {row: self._anomaly(data, row, self._working, seen) for row in self._working.alarms()}
        for row in self._patience.sums.alarms():
            anomaly = self._anomaly(data, row, self._patience.sums, seen)
            found[row] = joined(found[row], anomaly) if row in found else anomaly
        return [found[row] for row in sorted(found)]

    def _judge_idle(self, data: Slice, seen: Seen, groups: IntArray, *, began: bool) -> None:
        sigmas = stall_sigmas(seen, self._known(), groups, began=began)
        if began:
            # Who fell first is far from the others while they still fall; clocks and sampling differ by less.
            falling = Cusum(self._config.standing, len(self._metrics), len(self._hosts))
            falling.add(sigmas, data.start_ns, data.end_ns)
            rows = falling.early_dips(_EARLY_DIP_RATIO, 1)
            self._first = self._anomaly(data, rows[0], falling, seen) if len(rows) == 1 else None
        if self.work.stalled_since_ns and not self.work.is_rising:
            self._standing.add(sigmas, data.start_ns, data.end_ns)
            self._odd.add(self._odd_sigmas(seen, groups), data.start_ns, data.end_ns)
            return
        self._abstain(Reason.NOT_CONTINUOUS)
        if not self.work.stalled_since_ns:
            self._working.add(seen.sigmas, data.start_ns, data.end_ns, self._at_any_pace(), judges_rest=False)

    def _at_any_pace(self) -> NDArray[np.bool_]:
        """Metrics that tell machines apart whether the job computes, waits or pauses within a step."""
        return np.array([metric.name in _AT_ANY_PACE for metric in self._metrics], bool)

    def _odd_sigmas(self, seen: Seen, groups: IntArray) -> FloatArray:
        return outlier_sigmas(seen, self._blocks, groups, self._config.lone_gpu_ratio, len(self._hosts))

    def _is_overdue(self, now_ns: int, step_ns: int) -> bool:
        """Whether steps are known and none has ended for much longer than one takes."""
        late_ns = now_ns - self._graph.progress_ns
        return step_ns > 0 and late_ns > overdue_seconds(step_ns / NS_PER_SECOND) * NS_PER_SECOND

    def _while_stalled(self, data: Slice, seen: Seen, groups: IntArray) -> list[Anomaly]:
        """Who is not where the others are; and who fell first: that shows in the window before, or as they fall."""
        held = {self._hosts[row] for row in np.flatnonzero(holds_memory(seen, self._known()))}
        standing = [self._anomaly(data, row, self._standing, seen) for row in self._standing.alarms()]
        rows = self._working.early_dips(_EARLY_DIP_RATIO, _EARLY_DIP_COUNT)
        leaning = [self._anomaly(data, row, self._working, seen) for row in rows]
        if self._first is not None and all(anomaly.component != self._first.component for anomaly in leaning):
            leaning.append(self._first)
        as_odd = replace(seen, sigmas=self._odd_sigmas(seen, groups))
        odd = [self._anomaly(data, row, self._odd, as_odd) for row in self._odd.alarms()]
        return [
            replace(anomaly, detail={**anomaly.detail, name: True, "holds_memory": anomaly.component.name in held})
            for name, anomalies in (("standing", standing), ("leaning", leaning), ("odd", odd))
            for anomaly in anomalies
        ]

    def _see_load(self, data: Slice, hosts: Sequence[str], seen: Seen, groups: IntArray, step_ns: int) -> None:
        """Who works while all others wait does more, too: windows in which the job idles for a while count."""
        block = self._blocks["mean"]
        now = load_values(seen.values["mean"], groups, block, seen.windows["mean"])
        share = self.load.share_of(data.end_ns - data.start_ns, step_ns)
        self.load.take(share, data.start_ns, hosts, now, load_floors(block))

    def _compare(self, told: SliceMeans, groups: IntArray) -> Seen:
        hosts, gpus, of_host, gpu_means = told.hosts, told.gpus, told.of_host, told.gpu_values
        values = {
            "host": told.host_values,
            "mean": mean_by_host(gpu_means, of_host, len(hosts)),
            "gpu": gpu_means,
        }
        config, doubted = self._peers, self._working.alarmed
        windows = {
            "host": self._blocks["host"].compare(hosts, values["host"], groups, config, doubted),
            "mean": self._blocks["mean"].compare(hosts, values["mean"], groups, config, doubted),
            "gpu": self._blocks["gpu"].compare(gpus, values["gpu"], groups[of_host], config, doubted[of_host]),
        }
        lone = self._config.lone_gpu_ratio * directed(windows["gpu"].sigmas, self._table.gpu)
        means = np.fmax(directed(windows["mean"].sigmas, self._table.gpu), largest_by_host(lone, of_host, len(hosts)))
        own = directed(windows["host"].sigmas, self._table.host)
        shares = self._sample_shares(gpu_means, of_host, len(hosts))
        lost = np.stack([0 * shares, np.where(np.isnan(shares), np.nan, LOST_SIGMAS * (shares < 1))])[:, :, None]
        sigmas = np.concatenate([own, means, lost], axis=2).astype(np.float32)
        return Seen(sigmas, values, windows, shares, of_host)

    def _sample_shares(self, gpu_means: FloatArray, of_host: IntArray, host_count: int) -> FloatArray:
        known = self._blocks["gpu"].state.seen_count.max(axis=1, initial=0) >= self._peers.warmup_count
        known &= self._cards.are_in_use(self._blocks["gpu"].names)
        return sample_shares(gpu_means, known, of_host, host_count)

    def _groups(self, hosts: Sequence[str]) -> IntArray:
        """Which hosts are compared with each other: those of the same pipeline stages, where they are enough."""
        least = self._peers.min_peer_count
        count = len(hosts)
        if count < least:
            return np.full(count, -1, np.intp)
        roles, spare = self._graph.placement.roles_of_hosts(), self._graph.spare_hosts()
        self._follow_tasks({host: None if host in spare else roles.get(host, ()) for host in hosts})
        keys = [None if host in spare else roles.get(host, ()) for host in hosts]
        return groups_of(keys, least)

    def _follow_tasks(self, tasks: dict[str, tuple[int, ...] | None]) -> None:
        """A spare host that gets ranks, or one that gets another stage, is learned anew."""
        new = {
            host
            for host, task in tasks.items()
            if task and host in self._tasks and self._tasks[host] != () and self._tasks[host] != task
        }
        self._tasks = tasks
        if new:
            for block in self._blocks.values():
                block.forget(new)
            rows = [row for row, host in enumerate(self._hosts) if host in new]
            self._working.forget(rows)
            self._standing.forget(rows)
            self._odd.forget(rows)
            self._patience.forget(sorted(new), rows)
            self.load.forget(new)

    def _known(self) -> Known:
        config = self._config
        ratios = config.standing_share_ratio, config.lone_standing_share_ratio
        return Known(self._blocks, self._metrics, len(self._hosts), *ratios)

    def _shares(self, factors: FloatArray) -> dict[str, float]:
        """The job's common factor of each metric that has one."""
        middle = median(factors, 0)
        return {m.name: float(value) for m, value in zip(self._metrics, middle, strict=False) if np.isfinite(value)}

    def _anomaly(self, data: Slice, row: int, sums: Cusum, seen: Seen) -> Anomaly:
        version = version_of(self._model)
        of_host, neighbours_of = len(self._table.host), self._graph.placement.neighbours_of
        words = AnomalyBuilder(self._hosts, self._metrics, of_host, self._blocks, version, neighbours_of)
        return words.anomaly(data, row, sums, seen)

    def _abstain(self, reason: Reason, count: int = 1) -> None:
        if count:
            self.abstained[reason.value] = self.abstained.get(reason.value, 0) + count

    def snapshot(self) -> dict[str, bytes]:
        """State in one part per kind of rows, and one for the rest."""
        parts = {f"peers_{name}": pack_state(block.to_state()) for name, block in self._blocks.items()}
        parts["peers"] = pack_state(
            {
                "table": table_state(self._table),
                "hosts": self._hosts,
                **self._cards.to_state(),
                "tasks": sorted(self._tasks.items()),
                "working": self._working.to_state(),
                "standing": self._standing.to_state(),
                "odd": self._odd.to_state(),
                "patience": self._patience.to_state(),
                "work": self.work.to_state(),
                "first": None if self._first is None else asdict(self._first),
                "begin": self._begin.to_state(),
                "exits": self._exits.to_state(),
                "switches": self._switches.to_state(),
                "load": self.load.to_state(),
                "host_work": self.host_work.to_state(),
                "absences": self._absences.to_state(),
                "abstained": self.abstained,
            }
        )
        return parts

    def restore(self, parts: Mapping[str, bytes]) -> None:
        """Take back what ``snapshot`` gave."""
        state = unpack_state(parts, "peers")
        self._hosts = state["hosts"]
        self._cards.load_state(state)
        self._tasks = {host: None if task is None else tuple(task) for host, task in state["tasks"]}
        self._rows = None
        self._begin_with(table_from(state["table"]))
        self._working.load_state(state["working"])
        self._standing.load_state(state["standing"])
        self._odd.load_state(state["odd"])
        self._patience.load_state(state["patience"])
        self.work.load_state(state["work"])
        self._first = None if state["first"] is None else anomaly_from(state["first"])
        self._begin.load_state(state["begin"])
        self._exits.load_state(state["exits"])
        self._switches.load_state(state["switches"])
        self.load.load_state(state["load"])
        self.host_work.load_state(state["host_work"])
        self._absences.load_state(state["absences"])
        self.abstained = state["abstained"]
        for name, block in self._blocks.items():
            block.load_state(unpack_state(parts, f"peers_{name}"))
