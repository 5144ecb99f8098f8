"""Machines of one job as rows of the peer detector: hosts, GPUs, and which hosts are compared with each other."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tocsin.models.frames import GpuRow
from tocsin.models.metric_means import MetricMeans
from tocsin.pipeline.detect.peers.departures import Absences
from tocsin.pipeline.detect.peers.gpu_inventory import GpuInventory
from tocsin.pipeline.detect.peers.rows import MeanRows, SliceMeans, groups_of
from tocsin.pipeline.job.graph import JobGraph

IntArray = NDArray[np.intp]


@dataclass(frozen=True, slots=True)
class RosterChange:
    """Change of the rows of hosts: first hosts were added, then some were removed.

    Attributes:
        moved_rows: for each host known before, its row among the grown hosts.
        host_count: number of hosts after new ones were added.
        kept_rows: rows of the grown hosts that are left, ascending.
        gone: hosts that were removed, as they left the job for good.
    """

    moved_rows: Sequence[int]
    host_count: int
    kept_rows: Sequence[int]
    gone: frozenset[str]


class Roster:
    """Known hosts and GPUs of one job, and the pipeline stages that each host carries."""

    def __init__(self, graph: JobGraph) -> None:
        """Start without hosts.

        Args:
            graph: facts of the job.
        """
        self._graph = graph
        self.hosts: list[str] = []
        """Row keys of hosts, ascending."""
        self.gpus = GpuInventory()
        """GPUs of each host, replaced ones included."""
        self._tasks: dict[str, tuple[int, ...] | None] = {}
        """Host -> the pipeline stages that it carries, () = unknown, None = it is spare."""
        self._absences = Absences()
        self._rows: MeanRows | None = None
        """Rows of the last slice's means among the known ones."""

    def take(self, means: MetricMeans, now_ns: int) -> RosterChange | None:
        """Learn the hosts and GPUs of a slice's means.

        Args:
            means: the slice's means.
            now_ns: end of the slice.

        Returns:
            How the rows of hosts changed; None if hosts and GPUs are those of the last slice, as nearly always.
        """
        if self._rows is not None and self._rows.are_of(means) and not self._absences.is_due(now_ns):
            return None
        of_host: dict[str, set[GpuRow]] = {host: set() for host in means.hosts}
        for row in means.gpu_rows:
            of_host[row[0]].add(row)
        for host, rows in of_host.items():
            self.gpus.know(host, rows)
        grown = sorted(set(means.hosts).union(self.hosts))
        place = {host: row for row, host in enumerate(grown)}
        moved = [place[host] for host in self.hosts]
        needed = self._graph.placement.roles_of_hosts()
        gone = frozenset(self._absences.take(means.hosts, grown, needed, now_ns))
        kept = [row for row, host in enumerate(grown) if host not in gone]
        self.hosts = [grown[row] for row in kept]
        if gone:
            self.gpus.forget(gone)
        self._rows = MeanRows.of(means, self.hosts, self.gpus.rows())
        return RosterChange(moved, len(grown), kept, gone)

    def laid_out(self, means: MetricMeans) -> SliceMeans:
        """Return the means of the slice that was taken last, a row for each known host and GPU."""
        rows = self._rows or MeanRows.of(means, self.hosts, self.gpus.rows())
        return rows.slice_means(means)

    def groups(self, least_count: int) -> tuple[IntArray, set[str]]:
        """Return which hosts are compared with each other, and which hosts carry other stages than before.

        Args:
            least_count: least number of hosts of the same pipeline stages; below it all hosts are compared.

        Returns:
            The group of each host, shape (hosts,), -1 = compared with nobody; and the hosts that do other work from
            now on: a spare host that got ranks, or a host that got another stage.
        """
        if len(self.hosts) < least_count:
            return np.full(len(self.hosts), -1, np.intp), set()
        roles, spare = self._graph.placement.roles_of_hosts(), self._graph.spare_hosts()
        tasks = {host: None if host in spare else roles.get(host, ()) for host in self.hosts}
        before, self._tasks = self._tasks, tasks
        changed = {host for host, task in tasks.items() if task and before.get(host, ()) not in ((), task)}
        return groups_of([tasks[host] for host in self.hosts], least_count), changed

    def to_state(self) -> dict[str, Any]:
        """Return the state as JSON-able values, to be put among others."""
        return {
            "hosts": self.hosts,
            **self.gpus.to_state(),
            "tasks": sorted(self._tasks.items()),
            "absences": self._absences.to_state(),
        }

    def load_state(self, state: Mapping[str, Any]) -> None:
        """Replace the state by the values of ``to_state``, other ones among them ignored."""
        self.hosts = state["hosts"]
        self.gpus.load_state(state)
        self._tasks = {host: None if task is None else tuple(task) for host, task in state["tasks"]}
        self._absences.load_state(state["absences"])
        self._rows = None
