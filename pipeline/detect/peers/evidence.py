"""Evidence against machines: sums of their distances from their peers, while the job works and while it stands."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import asdict, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tocsin.models.peers import PeerConfig
from tocsin.pipeline.core.operator import anomaly_from
from tocsin.pipeline.detect.peers.anomalies import joined
from tocsin.pipeline.detect.peers.comparison import JudgedWindow
from tocsin.pipeline.detect.peers.config import PeersConfig
from tocsin.pipeline.detect.peers.cusum import Cusum, shared_columns
from tocsin.pipeline.detect.peers.half_minutes import HalfMinuteMeans, as_asked
from tocsin.pipeline.detect.peers.standstill import holds_memory, stall_sigmas
from tocsin.pipeline.detect.peers.standstill_outlier import STANDSTILL_OUTLIER_SUMS, outlier_sigmas
from tocsin.schemas.metrics import Metric, MetricTable
from tocsin.schemas.verdicts import Anomaly

FloatArray = NDArray[np.float32]

_AT_ANY_PACE = frozenset({"cpu_util_ratio", "gpu_sm_clock_hertz"})
"""Metrics that tell machines apart also where steps are longer than a window, so that no two windows are alike.

Work on GPUs and network moves with the step, and offsets between hosts look like differences. A CPU that another
program uses stays used, and a clock that is held stays low."""
_EARLY_DIP_RATIO = 0.5
"""Share of an alarm from which on a metric counts as an early dip."""
_EARLY_DIP_COUNT = 2
"""Metrics with an early dip that make a host an early one, when the job came to stand."""


class WorkingEvidence:
    """Evidence while the job works: sums over windows, and over means of half a minute."""

    def __init__(self, config: PeersConfig, own: PeersConfig, table: MetricTable, metrics: Sequence[Metric]) -> None:
        """Start without hosts and without evidence.

        Args:
            config: settings, those of a model included.
            own: settings without a model.
            table: the metrics that are compared.
            metrics: columns of the distances.
        """
        self._windows = Cusum(config.sums, len(metrics), 0, shared_columns(metrics))
        self._half_minutes = HalfMinuteMeans(config.patience, table)
        self._at_any_pace = np.array([metric.name in _AT_ANY_PACE for metric in metrics], bool)
        self.configure(config, own)

    def configure(self, config: PeersConfig, own: PeersConfig) -> None:
        """Add up by other settings from now on; the evidence stays."""
        self._windows.configure(config.sums)
        self._half_minutes.sums.configure(as_asked(own.patience.sums, config.sums, own.sums))

    def set_floors(self, floors: Mapping[str, float]) -> None:
        """Measure the metrics of these names with these floors instead of their units' own."""
        self._half_minutes.set_floors(floors)

    def grow(self, rows: Sequence[int], host_count: int) -> None:
        """Move host i to ``rows[i]`` of ``host_count`` rows."""
        self._windows.grow(rows, host_count)
        self._half_minutes.grow(rows, host_count)

    def keep(self, rows: Sequence[int], gone: Collection[str]) -> None:
        """Keep the hosts of these rows alone; the ``gone`` ones left the job."""
        self._windows.keep(rows)
        self._half_minutes.keep(rows, gone)

    def forget(self, hosts: Sequence[str], rows: Sequence[int]) -> None:
        """Forget the evidence against these hosts, given as names and as rows."""
        self._windows.forget(rows)
        self._half_minutes.forget(hosts, rows)

    @property
    def alarmed(self) -> NDArray[np.bool_]:
        """Hosts with an alarm by windows, when ``anomalies`` was called last, shape (hosts,)."""
        return self._windows.alarmed

    def add(self, window: JudgedWindow) -> None:
        """Add the distances of one window."""
        self._windows.add(window.seen.sigmas, window.data.start_ns, window.data.end_ns)

    def add_at_any_pace(self, window: JudgedWindow, *, judges_rest: bool) -> None:
        """Add only the metrics that tell machines apart at any pace of the job.

        Args:
            window: the window.
            judges_rest: whether the other metrics count as judged and not deviating.
        """
        data = window.data
        self._windows.add(window.seen.sigmas, data.start_ns, data.end_ns, self._at_any_pace, judges_rest=judges_rest)

    def add_to_half_minute(self, window: JudgedWindow, hosts: Sequence[str], config: PeerConfig) -> None:
        """Add one window to the half minute that is under way; at its end the means are judged."""
        data, seen = window.data, window.seen
        crowded = self._windows.crowded(seen.sigmas)
        near = self._half_minutes.tempered(seen.values, seen.windows)
        self._half_minutes.take((data.start_ns, data.end_ns), hosts, near, window.groups, config, crowded)

    def drop_half_minute(self) -> None:
        """Drop the half minute that is under way, as the job does not work."""
        self._half_minutes.drop()

    def anomalies(self, window: JudgedWindow) -> list[Anomaly]:
        """Return the hosts that differ by windows, by half minutes, or by both; one anomaly a host."""
        found = {row: window.anomaly(row, self._windows) for row in self._windows.alarms()}
        half_minutes = self._half_minutes.sums
        for row in half_minutes.alarms():
            anomaly = window.anomaly(row, half_minutes)
            found[row] = joined(found[row], anomaly) if row in found else anomaly
        return [found[row] for row in sorted(found)]

    def early_dips(self, window: JudgedWindow) -> list[Anomaly]:
        """Return the hosts without an alarm that had begun to differ in several metrics."""
        rows = self._windows.early_dips(_EARLY_DIP_RATIO, _EARLY_DIP_COUNT)
        return [window.anomaly(row, self._windows) for row in rows]

    def to_state(self) -> dict[str, Any]:
        """Return the state as JSON-able values, to be put among others."""
        return {"working": self._windows.to_state(), "patience": self._half_minutes.to_state()}

    def load_state(self, state: Mapping[str, Any]) -> None:
        """Replace the state by the values of ``to_state``, other ones among them ignored."""
        self._windows.load_state(state["working"])
        self._half_minutes.load_state(state["patience"])


class StandstillEvidence:
    """Evidence while the job stands: who is not where the others are, who is an outlier, and who fell first."""

    def __init__(self, config: PeersConfig, own: PeersConfig, metric_count: int) -> None:
        """Start without hosts and without evidence.

        Args:
            config: settings, those of a model included.
            own: settings without a model.
            metric_count: columns of the distances.
        """
        self._first: Anomaly | None = None
        """The only host that fell in the first window in which the job did nothing."""
        self.start_sums(config, own, metric_count)

    def start_sums(self, config: PeersConfig, own: PeersConfig, metric_count: int) -> None:
        """Forget hosts and sums, as other metrics are compared from now on; who fell first stays."""
        self._stalled = Cusum(config.stalled, metric_count)
        self._outlier = Cusum(STANDSTILL_OUTLIER_SUMS, metric_count)
        self.configure(config, own)

    def configure(self, config: PeersConfig, own: PeersConfig) -> None:
        """Add up by other settings from now on; the evidence stays."""
        self._config = config
        self._stalled.configure(config.stalled)
        self._outlier.configure(as_asked(STANDSTILL_OUTLIER_SUMS, config.stalled, own.stalled))

    def grow(self, rows: Sequence[int], host_count: int) -> None:
        """Move host i to ``rows[i]`` of ``host_count`` rows."""
        self._stalled.grow(rows, host_count)
        self._outlier.grow(rows, host_count)

    def keep(self, rows: Sequence[int]) -> None:
        """Keep the hosts of these rows alone."""
        self._stalled.keep(rows)
        self._outlier.keep(rows)

    def forget(self, rows: Sequence[int]) -> None:
        """Forget the sums of these hosts (rows)."""
        self._stalled.forget(rows)
        self._outlier.forget(rows)

    def clear(self) -> None:
        """Forget all evidence, as the job works again."""
        self._stalled.clear()
        self._outlier.clear()
        self._first = None

    def add(self, window: JudgedWindow, *, began: bool, is_stalled: bool) -> None:
        """Take one window in which the job does nothing.

        Args:
            window: the window.
            began: whether it is the first one; then who fell first is looked for.
            is_stalled: whether the job stalls, so that the window is added to the sums.
        """
        data, seen, known = window.data, window.seen, window.known
        sigmas = stall_sigmas(seen, known, window.groups, began=began)
        if began:
            self._first = self._fallen_first(window, sigmas)
        if is_stalled:
            self._stalled.add(sigmas, data.start_ns, data.end_ns)
            self._outlier.add(self._outlier_sigmas(window), data.start_ns, data.end_ns)

    def _fallen_first(self, window: JudgedWindow, sigmas: FloatArray) -> Anomaly | None:
        """Return the anomaly of the one host that differs from its peers already in the first window without work.

        A sum over this window alone reaches half of an alarm. None if no host differs so, or several do.
        """
        falling = Cusum(self._config.stalled, len(window.known.metrics), window.known.host_count)
        falling.add(sigmas, window.data.start_ns, window.data.end_ns)
        rows = falling.early_dips(_EARLY_DIP_RATIO, 1)
        return window.anomaly(rows[0], falling) if len(rows) == 1 else None

    def _outlier_sigmas(self, window: JudgedWindow) -> FloatArray:
        """Return how far each host is out by each metric, shape (2: high, low; hosts, metrics)."""
        known = window.known
        return outlier_sigmas(window.seen, known.blocks, window.groups, self._config.lone_gpu_ratio, known.host_count)

    def anomalies(self, window: JudgedWindow, dips: Sequence[Anomaly]) -> list[Anomaly]:
        """Return the hosts that differ in a stalled job; each detail says in which way, and whether memory is held.

        Args:
            window: the newest window.
            dips: hosts that had begun to differ before the job came to stand.
        """
        hosts = window.builder.hosts
        held = {hosts[row] for row in np.flatnonzero(holds_memory(window.seen, window.known))}
        stalled = [window.anomaly(row, self._stalled) for row in self._stalled.alarms()]
        early_dips = list(dips)
        if self._first is not None and all(anomaly.component != self._first.component for anomaly in early_dips):
            early_dips.append(self._first)
        as_outliers = replace(window, seen=replace(window.seen, sigmas=self._outlier_sigmas(window)))
        outliers = [as_outliers.anomaly(row, self._outlier) for row in self._outlier.alarms()]
        return [
            replace(anomaly, detail={**anomaly.detail, name: True, "holds_memory": anomaly.component.name in held})
            for name, anomalies in (("standing", stalled), ("leaning", early_dips), ("odd", outliers))
            for anomaly in anomalies
        ]

    def to_state(self) -> dict[str, Any]:
        """Return the state as JSON-able values, to be put among others."""
        return {
            "standing": self._stalled.to_state(),
            "odd": self._outlier.to_state(),
            "first": None if self._first is None else asdict(self._first),
        }

    def load_state(self, state: Mapping[str, Any]) -> None:
        """Replace the state by the values of ``to_state``, other ones among them ignored."""
        self._stalled.load_state(state["standing"])
        self._outlier.load_state(state["odd"])
        self._first = None if state["first"] is None else anomaly_from(state["first"])
