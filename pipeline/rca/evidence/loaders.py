"""Tracker of data loaders: attributes a stall to a rank whose own loader reports an empty queue."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from tocsin.pipeline.core.state_maps import rows_from, rows_state
from tocsin.pipeline.job.graph import JobGraph
from tocsin.pipeline.rca.common import names_of
from tocsin.pipeline.rca.finding import Finding
from tocsin.schemas import events
from tocsin.schemas.records import NS_PER_SECOND, Event
from tocsin.schemas.verdicts import Evidence, FaultKind
from tocsin.schemas.wire.event_payloads import number


@dataclass(frozen=True, slots=True)
class LoaderConfig:
    """Settings of the tracker.

    Attributes:
        least_seconds: shortest fetch with an empty queue that makes a rank wait.
        fresh_ns: age from which on a report is ignored; a waiting loader repeats it every few seconds.
        before_ns: how long before the detected stall a report may lie.
    """

    least_seconds: float = 3.0
    fresh_ns: int = 60 * NS_PER_SECOND
    before_ns: int = 30 * NS_PER_SECOND


@dataclass(slots=True)
class LoaderTracker:
    """Last reports of the data loaders of one job's ranks.

    Attributes:
        config: settings.
        graph: the job's ranks and hosts.
        empty: rank -> [ts_ns, fetch duration in seconds, source] for loaders whose queue is empty.
    """

    config: LoaderConfig
    graph: JobGraph
    empty: dict[int, list[Any]] = field(default_factory=dict)

    def take(self, event: Event) -> None:
        """Record the loader event of one rank; a filled queue or a short fetch clears its entry."""
        if event.rank < 0:
            return
        seconds = number(event.payload, "fetch_seconds", 0.0)
        has_rows = number(event.payload, "rows", 0.0) > 0 or number(event.payload, "queue_depth", 0.0) > 0
        if has_rows or seconds < self.config.least_seconds:
            self.empty.pop(event.rank, None)
        else:
            self.empty[event.rank] = [event.ts_ns, seconds, str(event.payload.get("source", ""))]

    def explain(self, findings: Sequence[Finding], now_ns: int) -> list[Finding]:
        """Return the findings, with cause ``loader_stall`` where a lone suspect of a hang waits for its loader."""
        return [self._explained(finding, now_ns) for finding in findings]

    def _explained(self, finding: Finding, now_ns: int) -> Finding:
        """Return the finding, with cause ``loader_stall`` if only its suspect's ranks have empty loaders.

        Where other ranks wait for data as well, the storage of all is slow, or the job stalls for another reason.
        """
        if finding.fault is not FaultKind.HANG or len(finding.suspects) != 1 or not self._cause_is_open(finding):
            return finding
        earliest_ns = max(now_ns - self.config.fresh_ns, finding.onset_ns - self.config.before_ns)
        waiting = [rank for rank, report in self.empty.items() if report[0] >= earliest_ns]
        [suspect] = finding.suspects
        # Where others wait for data, too, it is the storage of all, or the job stands for another reason.
        if not waiting or not set(waiting) <= self._ranks_of(finding):
            return finding
        ts_ns, seconds, source = self.empty[min(waiting)]
        text = f"{names_of(self.graph, waiting)}: its loader's queue is empty, and it fetches for {seconds:.3g} s"
        text += f" from {source}" if source else ""
        evidence_of_loader = Evidence("loader", events.LOADER, 2.0, ts_ns, ts_ns, text, suspect_value=seconds)
        ranks = suspect.ranks or tuple(sorted(waiting))
        evidence = (evidence_of_loader, *finding.evidence)
        return replace(finding, cause="loader_stall", suspects=(replace(suspect, ranks=ranks),), evidence=evidence)

    def _cause_is_open(self, finding: Finding) -> bool:
        """Return whether the cause is unknown, or a process that only SIGKILL ended; it may have waited for storage."""
        had_to_be_killed = finding.cause == "process_frozen" and self._ranks_of(finding) <= self.graph.killed_last()
        return finding.cause == "unknown" or had_to_be_killed

    def _ranks_of(self, finding: Finding) -> set[int]:
        """Return the ranks of the only suspect; all ranks of its host if it lists none."""
        [suspect] = finding.suspects
        if suspect.ranks:
            return set(suspect.ranks)
        return set(self.graph.ranks_of_host(suspect.component.name))

    def to_state(self) -> list[Any]:
        """Return the state as JSON-serialisable values, for a snapshot."""
        return rows_state(self.empty)

    def load_state(self, state: Sequence[Sequence[Any]]) -> None:
        """Restore the state from values that ``to_state`` returned."""
        self.empty = rows_from(state)
