"""Who waits for its own data loader while the job stands: its loader says so itself."""

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
    """Settings.

    Attributes:
        least_seconds: a loader with an empty queue that fetches for so long has its rank wait.
        fresh_ns: what it said longer ago tells nothing: those that wait say so every some seconds.
        before_ns: it may have said so this long before the job was seen to stand.
    """

    least_seconds: float = 3.0
    fresh_ns: int = 60 * NS_PER_SECOND
    before_ns: int = 30 * NS_PER_SECOND


@dataclass(slots=True)
class LoaderTracker:
    """What the loaders of one job's ranks said last.

    Attributes:
        config: settings.
        graph: who runs where.
        empty: rank -> [ts_ns, seconds that it fetches, source], of those whose queue is empty.
    """

    config: LoaderConfig
    graph: JobGraph
    empty: dict[int, list[Any]] = field(default_factory=dict)

    def take(self, event: Event) -> None:
        """Hear one rank's loader."""
        if event.rank < 0:
            return
        seconds = number(event.payload, "fetch_seconds", 0.0)
        has_rows = number(event.payload, "rows", 0.0) > 0 or number(event.payload, "queue_depth", 0.0) > 0
        if has_rows or seconds < self.config.least_seconds:
            self.empty.pop(event.rank, None)
        else:
            self.empty[event.rank] = [event.ts_ns, seconds, str(event.payload.get("source", ""))]

    def explain(self, findings: Sequence[Finding], now_ns: int) -> list[Finding]:
        """The same, where a rank that holds up the job for no known reason waits for its loader: ``loader_stall``."""
        return [self._explained(finding, now_ns) for finding in findings]

    def _explained(self, finding: Finding, now_ns: int) -> Finding:
        if finding.fault is not FaultKind.HANG or len(finding.suspects) != 1 or not self._is_open(finding):
            return finding
        earliest_ns = max(now_ns - self.config.fresh_ns, finding.onset_ns - self.config.before_ns)
        waiting = [rank for rank, told in self.empty.items() if told[0] >= earliest_ns]
        [suspect] = finding.suspects
        # Where others wait for data, too, it is the storage of all, or the job stands for another reason.
        if not waiting or not set(waiting) <= self._ranks_of(finding):
            return finding
        ts_ns, seconds, source = self.empty[min(waiting)]
        text = f"{names_of(self.graph, waiting)}: its loader's queue is empty, and it fetches for {seconds:.3g} s"
        text += f" from {source}" if source else ""
        said = Evidence("loader", events.LOADER, 2.0, ts_ns, ts_ns, text, suspect_value=seconds)
        ranks = suspect.ranks or tuple(sorted(waiting))
        evidence = (said, *finding.evidence)
        return replace(finding, cause="loader_stall", suspects=(replace(suspect, ranks=ranks),), evidence=evidence)

    def _is_open(self, finding: Finding) -> bool:
        """Whether nothing tells the cause. A process that only SIGKILL ended may wait for its storage as well."""
        had_to_be_killed = finding.cause == "process_frozen" and self._ranks_of(finding) <= self.graph.killed_last()
        return finding.cause == "unknown" or had_to_be_killed

    def _ranks_of(self, finding: Finding) -> set[int]:
        [suspect] = finding.suspects
        if suspect.ranks:
            return set(suspect.ranks)
        return set(self.graph.ranks_of_host(suspect.component.name))

    def to_state(self) -> list[Any]:
        """JSON-able state."""
        return rows_state(self.empty)

    def load_state(self, state: Sequence[Sequence[Any]]) -> None:
        """Take back what ``to_state`` gave."""
        self.empty = rows_from(state)
