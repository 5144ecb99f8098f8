"""Peer detector: which machine's metrics differ from its peers', and since when.

The detector is keyed by (job, metric group). Each metric is judged by itself, so that a large job's metrics may be
spread over workers. It emits one anomaly per machine; the root cause analysis decides what an anomaly means.

Two kinds of evidence are kept apart: what differs while the job works, and what differs while it stands. In a job that
stands, a rank that stopped alone differs from the others, which spin in a collective.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

from tocsin.models.documents import Model, numbers_of, version_of, with_numbers
from tocsin.models.metric_means import MetricMeans
from tocsin.models.pace import overdue_seconds
from tocsin.pipeline.core.frame_blocks import BUILTIN_TABLES, join_blocks, slice_blocks
from tocsin.pipeline.core.operator import pack_state, unpack_state
from tocsin.pipeline.detect.abstaining import Abstaining
from tocsin.pipeline.detect.peers.activity import WorkTracker
from tocsin.pipeline.detect.peers.anomalies import AnomalyBuilder
from tocsin.pipeline.detect.peers.comparison import JudgedWindow, PeerComparison
from tocsin.pipeline.detect.peers.config import PeersConfig
from tocsin.pipeline.detect.peers.evidence import StandstillEvidence, WorkingEvidence
from tocsin.pipeline.detect.peers.exits import ExitTracker, knows_memory, memory_shares
from tocsin.pipeline.detect.peers.host_work import HostWork, work_shares
from tocsin.pipeline.detect.peers.leaf_congestion import PAUSES, SwitchTracker
from tocsin.pipeline.detect.peers.roster import Roster
from tocsin.pipeline.detect.peers.rows import SliceMeans, bare_host_count, table_from, table_state
from tocsin.pipeline.detect.peers.warmup import ALL, BeginTracker
from tocsin.pipeline.detect.peers.workload import LoadTracker, load_floors, load_values
from tocsin.pipeline.job.graph import JobGraph
from tocsin.schemas.metrics import BUILTIN_TABLE, MetricTable
from tocsin.schemas.reasons import Reason
from tocsin.schemas.records import NS_PER_SECOND, Slice, TableAnnouncement
from tocsin.schemas.verdicts import Anomaly


class PeerDetector(Abstaining):
    """Finds the machines that differ among all machines of one job."""

    def __init__(self, config: PeersConfig, graph: JobGraph) -> None:
        """Start without history.

        Args:
            config: settings without a model.
            graph: facts of the job, fed with each slice before the detector is.
        """
        self._own = self._config = config
        self._model: Model | None = None
        self._peers = config.peers
        """Settings of the comparison, those of the last window's length."""
        self._graph = graph
        self._roster = Roster(graph)
        self._standstill = StandstillEvidence(config, config, 0)
        self.work = WorkTracker(config.work)
        """Tracker of the times at which the job works, idles and is stalled."""
        self.load = LoadTracker(config.load)
        """Tracker of machines that do more work than expected."""
        self.host_work = HostWork()
        """Tracker of each machine's work, as a share of its usual work."""
        self._exits = ExitTracker(config.exits)
        self._switches = SwitchTracker(config.switches)
        self.abstained: dict[str, int] = {}
        """Reason -> how often nothing was judged for it."""
        self._begin = BeginTracker(config.begin)
        self._begin_with(BUILTIN_TABLE)

    def _begin_with(self, table: MetricTable) -> None:
        """Start to learn anew with the metrics of a table; hosts and the course of the job stay known."""
        host_count = len(self._roster.hosts)
        self._comparison = PeerComparison(table)
        metrics = self._comparison.metrics
        self._working = WorkingEvidence(self._config, self._own, table, metrics)
        self._standstill.start_sums(self._config, self._own, len(metrics))
        for evidence in (self._working, self._standstill):
            evidence.grow([], host_count)
        self.load.clear()
        self.host_work.clear()
        self._set_floors()

    def on_model(self, model: Model | None) -> None:
        """Judge with a model's numbers from the next slice on, None = with the own ones; what was learned stays."""
        self._model = model
        own = replace(
            self._own,
            peers=with_numbers(self._own.peers, model, "comparison"),
            sums=with_numbers(self._own.sums, model, "working"),
            stalled=with_numbers(self._own.stalled, model, "standing"),
        )
        self._config = with_numbers(own, model, "lines")
        self._peers = self._config.peers
        for evidence in (self._working, self._standstill):
            evidence.configure(self._config, self._own)
        self._set_floors()

    def _set_floors(self) -> None:
        """Measure by the model's floors, by the units' own where it has none."""
        floors = numbers_of(self._model).get("floors", {})
        self._comparison.set_floors(floors)
        self._working.set_floors(floors)

    def on_slice(self, data: Slice, step_ns: int = 0) -> Sequence[Anomaly]:
        """Take the frames of one metric slice and return the machines that differ at its end.

        Args:
            data: one metric slice.
            step_ns: the job's step time, 0 = unknown. A pause within a step is no standstill.
        """
        for record in data.records:
            if isinstance(record, TableAnnouncement):
                self.take_table(record.table)
        tables = {**BUILTIN_TABLES, self.table.table_id: self.table}
        return self.on_means(data, join_blocks(slice_blocks(data, tables), self.table), step_ns)

    def on_means(self, data: Slice, means: MetricMeans | None, step_ns: int = 0) -> Sequence[Anomaly]:
        """Take the means of one metric slice and return the machines that differ at its end.

        Args:
            data: one metric slice.
            means: the means of its frames, None = it has none.
            step_ns: the job's step time, 0 = unknown.
        """
        if means is None:
            return []
        self._abstain(Reason.METRIC_MISSING, bare_host_count(means))
        self._follow_hosts(means, data.end_ns)
        is_long = data.end_ns - data.start_ns >= self._config.long_window_ns
        warmup_count = self._config.long_warmup_count if is_long else self._config.peers.warmup_count
        self._peers = replace(self._config.peers, warmup_count=warmup_count)
        return self._judge(data, self._roster.laid_out(means), step_ns)

    @property
    def table(self) -> MetricTable:
        """The metrics that are compared."""
        return self._comparison.table

    def take_table(self, table: MetricTable) -> None:
        """Learn anew with the metrics that the job announces, unless they are the same."""
        if table != self.table:
            self._begin_with(table)

    def _follow_hosts(self, means: MetricMeans, now_ns: int) -> None:
        """Add rows for new hosts, and drop those of hosts that left the job."""
        change = self._roster.take(means, now_ns)
        if change is None:
            return
        for evidence in (self._working, self._standstill):
            if change.host_count != len(change.moved_rows):
                evidence.grow(change.moved_rows, change.host_count)
        if change.gone:
            self._working.keep(change.kept_rows, change.gone)
            self._standstill.keep(change.kept_rows)
            self._comparison.drop(change.gone)

    def _judge(self, data: Slice, slice_means: SliceMeans, step_ns: int) -> list[Anomaly]:
        """Compare one window, add it to the evidence and return the machines that differ."""
        window = self._compared(data, slice_means)
        if (window.groups < 0).all():
            self._abstain(Reason.TOO_FEW_PEERS)
            return []
        announced = self._graph.in_announced_phase(data.start_ns, data.end_ns)
        if announced or self.work.stalled_since_ns:
            self.load.clear()
        else:
            self._add_load(window, slice_means.hosts, step_ns)
        was_idle = self.work.is_idle
        shares = self._comparison.common_factors(window.seen)
        if self._began_to_work(data, shares, step_ns):
            return []
        jumped = self._follow_work(window, slice_means.hosts, shares, step_ns, announced=announced)
        if was_idle and not self.work.is_idle:
            self._standstill.clear()
        if announced or self.work.stalled_since_ns:
            self._working.drop_half_minute()
        else:
            self._working.add_to_half_minute(window, slice_means.hosts, self._peers)
        if announced:
            self._abstain(Reason.ANNOUNCED_PHASE)
        elif self.work.is_idle:
            self._add_idle(window, began=not was_idle)
        else:
            self._add_working(window, jumped=jumped)
        stalled: Sequence[Anomaly] = ()
        if self.work.stalled_since_ns:
            stalled = self._standstill.anomalies(window, self._working.early_dips(window))
        congested = self._congested_switches(window)
        return [*self._working.anomalies(window), *stalled, *self._ended_first(window), *congested]

    def _compared(self, data: Slice, slice_means: SliceMeans) -> JudgedWindow:
        """Compare one window; what was learned of hosts that got other work is forgotten first."""
        groups, changed = self._roster.groups(self._peers.min_peer_count)
        if changed:
            self._forget(changed)
        doubted, ratio = self._working.alarmed, self._config.lone_gpu_ratio
        comparison = self._comparison
        seen = comparison.compare(slice_means, groups, self._peers, ratio, doubted, self._roster.gpus)
        builder = AnomalyBuilder(
            self._roster.hosts,
            comparison.metrics,
            len(self.table.host),
            comparison.blocks,
            version_of(self._model),
            self._graph.placement.neighbours_of,
        )
        return JudgedWindow(data, seen, groups, comparison.known(self._config, len(slice_means.hosts)), builder)

    def _forget(self, hosts: set[str]) -> None:
        """Forget what was learned of hosts that do other work from now on."""
        rows = [row for row, host in enumerate(self._roster.hosts) if host in hosts]
        self._comparison.forget(hosts)
        self._working.forget(sorted(hosts), rows)
        self._standstill.forget(rows)
        self.load.forget(hosts)

    def _follow_work(
        self, window: JudgedWindow, hosts: Sequence[str], shares: Mapping[str, float], step_ns: int, *, announced: bool
    ) -> bool:
        """Follow whether the job works, idles or stands; return whether its work has jumped in this window."""
        if not self._comparison.is_warm(self._peers.warmup_count):
            return False
        data = window.data
        work = work_shares(window.seen.values, self._comparison.blocks, self._peers.warmup_count)
        self.host_work.take(hosts, work)
        overdue = self._is_overdue(data.end_ns, step_ns)
        return self.work.take((data.start_ns, data.end_ns), shares, step_ns, announced=announced, overdue=overdue)

    def _add_working(self, window: JudgedWindow, *, jumped: bool) -> None:
        """Add one window of a job that works to the evidence."""
        if not (jumped or self.work.is_loading):
            self._working.add(window)
            return
        # A machine that has its data first computes while the others load: it is ahead of them, and none is slow.
        self._working.add_at_any_pace(window, judges_rest=not self.work.is_loading)
        self._abstain(Reason.NOT_CONTINUOUS)

    def _add_idle(self, window: JudgedWindow, *, began: bool) -> None:
        """Add one window in which the job does nothing to the evidence."""
        is_stalled = self.work.stalled_since_ns > 0 and not self.work.is_rising
        self._standstill.add(window, began=began, is_stalled=is_stalled)
        if is_stalled:
            return
        self._abstain(Reason.NOT_CONTINUOUS)
        if not self.work.stalled_since_ns:
            self._working.add_at_any_pace(window, judges_rest=False)

    def _congested_switches(self, window: JudgedWindow) -> list[Anomaly]:
        """Return the leaf switches that are congested with all machines behind them."""
        column = next((c for c, metric in enumerate(self.table.host) if metric.name == PAUSES), None)
        if column is None:
            return []
        pauses = window.seen.values["host"][:, column]
        return self._switches.take(window.data, self._roster.hosts, pauses, self._graph.placement.switches_of_hosts())

    @property
    def memory_is_held(self) -> bool:
        """Whether nearly all machines use GPU memory as usual, so that their processes live; False where unknown."""
        block = self._comparison.blocks["mean"]
        known = knows_memory(block.state, [metric.name for metric in block.metrics], self._peers.warmup_count)
        return bool(known.sum() >= self._config.exits.known_ratio * max(1, known.size)) and not self._exits.anybody_left

    @property
    def ended_at_once(self) -> dict[str, int]:
        """Machine -> about when its processes ended, where nearly all machines' processes ended within seconds."""
        seen_count = self._comparison.blocks["mean"].state.seen_count
        worked = seen_count.max(axis=1, initial=0) >= self._peers.warmup_count  # not those that replace others
        return self._exits.ended_at_once(int(worked.sum()))

    def _ended_first(self, window: JudgedWindow) -> list[Anomaly]:
        """Return the machines whose processes ended before the others'."""
        block = self._comparison.blocks["mean"]
        names = [metric.name for metric in block.metrics]
        shares = memory_shares(window.seen.values["mean"], block.state, names, self._peers.warmup_count)
        return self._exits.take(window.data, self._roster.hosts, shares)

    def _began_to_work(self, data: Slice, shares: Mapping[str, float], step_ns: int) -> bool:
        """Return whether the job as a whole has begun to work; what was learned before is forgotten then.

        Where only single metrics have begun, what was learned of them is forgotten.
        """
        begun = self._begin.take((data.start_ns, data.end_ns), shares, step_ns)
        if not begun:
            return False
        if ALL not in begun:
            self._comparison.forget_young(begun, self._config.begin.young_factor * self._peers.warmup_count)
            self._begin.forget(begun)
            return False
        self._begin = BeginTracker(self._config.begin)
        self.work = WorkTracker(self._config.work)
        self._standstill.clear()
        self._begin_with(self.table)
        self._abstain(Reason.WARMING_UP)
        return True

    def _is_overdue(self, now_ns: int, step_ns: int) -> bool:
        """Return whether steps are known and none has ended for much longer than a step takes."""
        late_ns = now_ns - self._graph.progress_ns
        return step_ns > 0 and late_ns > overdue_seconds(step_ns / NS_PER_SECOND) * NS_PER_SECOND

    def _add_load(self, window: JudgedWindow, hosts: Sequence[str], step_ns: int) -> None:
        """Add one window to the machines' work load.

        Windows in which the job idles for a while count too: a machine that works while all others wait does more.
        """
        data, seen = window.data, window.seen
        block = self._comparison.blocks["mean"]
        now = load_values(seen.values["mean"], window.groups, block, seen.windows["mean"])
        share = self.load.share_of(data.end_ns - data.start_ns, step_ns)
        self.load.take(share, data.start_ns, hosts, now, load_floors(block))

    def snapshot(self) -> dict[str, bytes]:
        """Return the state in one part per kind of rows, and one for the rest."""
        state = {
            "table": table_state(self.table),
            **self._roster.to_state(),
            **self._working.to_state(),
            **self._standstill.to_state(),
            "work": self.work.to_state(),
            "begin": self._begin.to_state(),
            "exits": self._exits.to_state(),
            "switches": self._switches.to_state(),
            "load": self.load.to_state(),
            "host_work": self.host_work.to_state(),
            "abstained": self.abstained,
        }
        return {**self._comparison.snapshot(), "peers": pack_state(state)}

    def restore(self, parts: Mapping[str, bytes]) -> None:
        """Replace the state by that of a snapshot."""
        state = unpack_state(parts, "peers")
        self._roster.load_state(state)
        self._begin_with(table_from(state["table"]))
        self._comparison.restore(parts)
        self._working.load_state(state)
        self._standstill.load_state(state)
        self.work.load_state(state["work"])
        self._begin.load_state(state["begin"])
        self._exits.load_state(state["exits"])
        self._switches.load_state(state["switches"])
        self.load.load_state(state["load"])
        self.host_work.load_state(state["host_work"])
        self.abstained = state["abstained"]
