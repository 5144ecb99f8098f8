"""Hangs: the ranks that a job which stands still waits for, from live collective records.

Keeps the last known operations of each rank and asks ``tocsin.models.hang`` which ranks the others wait for. The
patience before a finding depends on the evidence. A stopped process or a wrong collective does not recover by itself.
A rank that is only late may be writing an unannounced checkpoint.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from typing import Any

from tocsin.models.hang import (
    FACT_ALIVE_ELSEWHERE,
    FACT_GONE,
    FACT_STOPPED,
    GroupInfo,
    HangFinding,
    HangInput,
    analyse,
)
from tocsin.pipeline.job.graph import JobGraph
from tocsin.pipeline.rca.evidence.wait_places import WaitPlaces
from tocsin.pipeline.rca.finding import Finding
from tocsin.pipeline.rca.hang_report import HangReport, is_direct
from tocsin.schemas import events
from tocsin.schemas.reasons import Reason
from tocsin.schemas.records import NS_PER_SECOND, CollectiveRecord, StepRecord
from tocsin.schemas.verdicts import Evidence, FaultKind

DETECTOR = "waits"


@dataclass(frozen=True, slots=True)
class WaitConfig:
    """Settings: the waiting times that are normal.

    Attributes:
        direct_ns: patience where the fault cannot end by itself, such as a stopped process.
        late_ns: patience with a rank that lives and has not arrived. An unannounced checkpoint of one rank takes tens
            of seconds.
        mute_ns: patience with such a rank whose hook thread gives no sign of life.
        mute_after_seconds: age from which on a rank's last sign of life counts as none.
        first_step_ns: patience before the job's first step, which compiles and loads.
        begun_ns: a job without step records is past its first step when its collectives ended over this span.
        step_factor: patience is at least this many of the job's steps.
        learned_factor: patience is at least this many times the longest wait that ended by itself.
        max_patience_ns: upper limit of the learned patience.
        stable_turn_count: the analysis must name the same ranks this many seconds in a row.
    """

    direct_ns: int = 2 * NS_PER_SECOND
    late_ns: int = 30 * NS_PER_SECOND
    mute_ns: int = 15 * NS_PER_SECOND
    mute_after_seconds: float = 5.0
    first_step_ns: int = 600 * NS_PER_SECOND
    begun_ns: int = 120 * NS_PER_SECOND
    step_factor: int = 3
    learned_factor: float = 2.0
    max_patience_ns: int = 1800 * NS_PER_SECOND
    stable_turn_count: int = 2


class WaitTracker:
    """Hang analysis of one job's live waits."""

    def __init__(self, config: WaitConfig, graph: JobGraph) -> None:
        """Start without ranks.

        Args:
            config: settings.
            graph: the job.
        """
        self._config = config
        self._graph = graph
        self._story = HangReport(graph, DETECTOR, config.mute_after_seconds)
        self._places = WaitPlaces(graph, self._learn)
        self._longest_wait_ns = 0
        self._last_culprits: list[int] = []
        self._stable_count = 0
        self._direct = False
        """Whether the last finding was a fault that cannot end by itself: such a wait teaches no patience."""
        self._blamed: frozenset[int] | None = None
        """Ranks that the others wait for in this slice; None: no rank reports its waits."""

    def take_collectives(self, rows: Sequence[CollectiveRecord]) -> None:
        """Take a batch of collective rows."""
        self._places.take_collectives(rows)

    def take_steps(self, rows: Sequence[StepRecord]) -> None:
        """Take finished steps."""
        self._places.take_steps(rows)

    def _learn(self, wait_ns: int, from_ns: int, to_ns: int) -> None:
        """Learn from a wait that ended by itself, unless it was announced or a fault."""
        if not self._direct and not self._graph.in_announced_phase(from_ns, to_ns):
            self._longest_wait_ns = max(self._longest_wait_ns, wait_ns)

    def find(self, now_ns: int, median_step_ns: int, silent: Sequence[str]) -> tuple[list[Finding], list[Reason]]:
        """Return findings about the ranks that the others wait for, once that has lasted long enough.

        Call it once a slice: it counts for how many slices the same ranks are named.

        Args:
            now_ns: the slice's end.
            median_step_ns: the job's step time; 0: not known.
            silent: hosts that have reported nothing for too long.

        Returns:
            Findings, and the reasons why something that waits is no finding.
        """
        self._blamed = frozenset() if self.tells else None
        starts = self._places.starts_ns()
        if not starts or now_ns - min(starts) < self._config.direct_ns:
            self._stable_count = 0
            self._direct = False
            return self._all_elsewhere(now_ns, median_step_ns), []
        if not self._graph.groups:
            return [], [Reason.GROUPS_UNKNOWN]
        finding = analyse(self._input(silent))
        self._blamed = frozenset(finding.culprits or finding.ambiguous)
        if not finding.culprits or (not is_direct(finding) and self._are_pipelines(finding.culprits)):
            self._stable_count = 0
            return self._unexplained(now_ns, median_step_ns, min(starts), finding)
        same = list(finding.culprits) == self._last_culprits
        self._stable_count = self._stable_count + 1 if same else 1
        self._last_culprits = list(finding.culprits)
        if finding.reason == Reason.SILENT_AND_PEERS_STALLED.value:
            return [], [Reason.WITHIN_PATIENCE]
        waited_ns = now_ns - min(starts)
        direct = self._direct = is_direct(finding)
        if waited_ns < self.patience_ns(finding, median_step_ns):
            return [], [Reason.WITHIN_PATIENCE]
        if not direct and self._graph.in_announced_phase(min(starts), now_ns):
            return [], [Reason.ANNOUNCED_PHASE]
        if self._stable_count < self._config.stable_turn_count:
            return [], [Reason.NOT_CONTINUOUS]
        return [self._story.finding(finding, min(starts), now_ns)], []

    def _are_pipelines(self, ranks: Sequence[int]) -> bool:
        """Return whether these ranks are all stages of pipelines over several hosts.

        One stage then holds up the others by sends, which are no collectives. The waits do not show which stage.
        """
        places = [self._graph.places.get(rank) for rank in ranks]
        stages: dict[tuple[int, int], set[int]] = {}
        for place in places:
            if place is None or place.pp < 0:
                return False
            stages.setdefault((place.dp, place.tp), set()).add(place.pp)
        every = {place.pp for place in self._graph.places.values()}
        is_spread = len({place.host for place in places if place is not None}) > 1
        return is_spread and len(every) > 1 and all(found == every for found in stages.values())

    def agrees(self, findings: Sequence[Finding]) -> bool:
        """Return whether the peers wait for all suspects of these findings, as far as their waits are known.

        Args:
            findings: findings about silent hosts.
        """
        suspects = [suspect for finding in findings for suspect in finding.suspects]
        return self._blamed is None or all(
            not suspect.ranks or self._blamed & set(suspect.ranks) for suspect in suspects
        )

    def reported_ns(self, rank: int) -> int:
        """Return when a rank last reported the operations that it waits in, ns; 0: never, or it waits in none."""
        return self._places.reported_ns(rank)

    @property
    def tells(self) -> bool:
        """Whether the job's groups are known and its ranks report their waits."""
        return bool(self._graph.groups) and not self._places.is_empty

    def waiting_for(
        self, ranks: Collection[int], now_ns: int, median_step_ns: int, silent: Collection[str]
    ) -> set[int]:
        """Return the other ranks that have waited for exactly these ranks for longer than a step explains.

        Args:
            ranks: the accused ranks.
            now_ns: the slice's end.
            median_step_ns: the job's step time; 0: not known.
            silent: hosts that have reported nothing for too long.
        """
        patience_ns = max(self._config.direct_ns, self._config.step_factor * median_step_ns)
        return self._places.waiting_for(ranks, now_ns, patience_ns, silent)

    def _all_elsewhere(self, now_ns: int, median_step_ns: int) -> list[Finding]:
        """Return a finding where no rank waits and none makes a step: all stand in their own code."""
        start_ns = self._graph.progress_ns
        if start_ns == 0 or now_ns - start_ns < self._base_patience_ns(median_step_ns):
            return []
        alive = [facts for facts in self._graph.ranks.values() if facts.exit is None and not facts.bye_ns]
        stalls = [facts.stall for facts in alive if facts.stall is not None and not facts.stall.get("in_collective")]
        if len(alive) < 2 or len(stalls) < len(alive) or self._graph.in_announced_phase(start_ns, now_ns):
            return []
        loading = all(stall.get("phase") == "data" for stall in stalls)
        cause, reason = (
            ("shared_service", Reason.ALL_LOADERS_SLOW) if loading else ("unknown", Reason.JOB_STALLED_UNEXPLAINED)
        )
        where = "in their data loaders" if loading else "in their own code, in no collective"
        text = f"all {len(alive)} ranks stand {where} for {(now_ns - start_ns) / 1e9:.0f} s"
        evidence = Evidence(DETECTOR, events.STALL, 1.0, start_ns, now_ns, text)
        return [Finding(FaultKind.HANG, cause, (), start_ns, 0.7, reason, (evidence,))]

    def _unexplained(
        self, now_ns: int, median_step_ns: int, start_ns: int, finding: HangFinding
    ) -> tuple[list[Finding], list[Reason]]:
        """Return a finding without suspects where all ranks wait and none stands out, once the patience is over."""
        if now_ns - start_ns < self._base_patience_ns(median_step_ns) or not finding.blocked:
            return [], [Reason.AMBIGUOUS if finding.ambiguous else Reason.WITHIN_PATIENCE]
        if self._graph.in_announced_phase(start_ns, now_ns):
            return [], [Reason.ANNOUNCED_PHASE]
        return [self._story.unexplained(finding, start_ns, now_ns)], []

    def _base_patience_ns(self, median_step_ns: int) -> int:
        """Return the patience with a rank that lives and is late, ns."""
        first_ns, last_ns = self._places.done_span_ns
        if self._graph.max_step < 0 and last_ns - first_ns < self._config.begun_ns:
            return self._config.first_step_ns
        learned = int(self._config.learned_factor * self._longest_wait_ns)
        patience = max(self._config.late_ns, self._config.step_factor * median_step_ns, learned)
        return min(patience, self._config.max_patience_ns)

    def patience_ns(self, finding: HangFinding, median_step_ns: int) -> int:
        """Return how long a wait for the ranks of an analysis is normal, ns.

        Args:
            finding: the analysis.
            median_step_ns: the job's step time; 0: not known.
        """
        if is_direct(finding):
            return max(self._config.direct_ns, self._config.step_factor * median_step_ns)
        patience = self._base_patience_ns(median_step_ns)
        if all(self._story.is_mute(rank) for rank in finding.culprits):
            learned = int(self._config.learned_factor * self._longest_wait_ns)
            return min(patience, max(self._config.mute_ns, self._config.step_factor * median_step_ns, learned))
        return patience

    def _input(self, silent: Sequence[str]) -> HangInput:
        """Return the input of the hang analysis; ranks of silent hosts have no operations in it."""
        graph, mute = self._graph, frozenset(silent)
        quiet = frozenset(rank for rank in graph.ranks if graph.host_of(rank) in mute)
        facts = {}
        frozen = graph.killed_last()
        for rank, known in graph.ranks.items():
            if (known.exit is not None or known.bye_ns) and rank not in graph.disbelieved:
                facts[rank] = FACT_STOPPED if rank in frozen else FACT_GONE
            elif known.stopped_since_ns:
                facts[rank] = FACT_STOPPED
            elif known.stall is not None and not known.stall.get("in_collective"):
                facts[rank] = FACT_ALIVE_ELSEWHERE
        states = tuple(self._places.state_of(rank) for rank in sorted(graph.ranks) if rank not in quiet)
        groups = tuple(
            GroupInfo(group.comm_id, group.kind.value, group.ranks) for _, group in sorted(graph.groups.items())
        )
        hosts = {rank: known.host for rank, known in graph.ranks.items()}
        return HangInput(groups, states, quiet, facts, graph.world_size, host_of=hosts)

    def to_state(self) -> dict[str, Any]:
        """Return the state as a JSON-able object with arrays."""
        return {
            "places": self._places.to_state(),
            "longest_wait_ns": self._longest_wait_ns,
            "done_span_ns": self._places.done_span_ns,
            "last_culprits": self._last_culprits,
            "stable_count": self._stable_count,
            "direct": self._direct,
        }

    def load_state(self, state: dict[str, Any]) -> None:
        """Restore the state that ``to_state`` returned."""
        self._places.load_state(state["places"])
        self._longest_wait_ns = state["longest_wait_ns"]
        self._places.done_span_ns = list(state["done_span_ns"])
        self._last_culprits = state["last_culprits"]
        self._stable_count = state["stable_count"]
        self._direct = state["direct"]
