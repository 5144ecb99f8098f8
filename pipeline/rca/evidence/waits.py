"""Hangs: who holds up a job that stands still, from live collective records.

Keeps the last known place of each rank (what it finished, what it stands in) and asks
``tocsin.models.hang`` whom the waiting leads to. How long to wait before saying so
depends on the evidence: a stopped process or a wrong collective cannot right itself,
a rank that is merely late may be writing a checkpoint that nobody announced.
"""

from __future__ import annotations

import itertools
from collections.abc import Collection, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

import numpy as np

from tocsin.models.hang import (
    FACT_ALIVE_ELSEWHERE,
    FACT_GONE,
    FACT_STOPPED,
    GroupInfo,
    HangFinding,
    HangInput,
    OpState,
    RankWait,
    analyse,
)
from tocsin.models.hang_input import ROOTED_NAMES, base_name
from tocsin.pipeline.job.graph import JobGraph
from tocsin.pipeline.rca.finding import Finding
from tocsin.pipeline.rca.hang_report import HangReport, is_direct
from tocsin.schemas import events
from tocsin.schemas.reasons import Reason
from tocsin.schemas.records import NS_PER_SECOND, CollectiveRecord, StepRecord
from tocsin.schemas.verdicts import Evidence, FaultKind

DETECTOR = "waits"
_ANEW_NS = 10 * NS_PER_SECOND


@dataclass(frozen=True, slots=True)
class WaitConfig:
    """How long waiting is normal.

    Attributes:
        direct_ns: patience where the evidence cannot right itself (or three steps, if longer).
        late_ns: patience with a rank that has not arrived and lives: an unannounced checkpoint
            of one rank takes tens of seconds.
        mute_ns: the same when the rank's hook thread gives no sign of life.
        mute_after_seconds: age of the last sign of life that counts as none.
        first_step_ns: before the job's first step (compilation, first loading).
        begun_ns: a job without step records is past its first step when its collectives ended over this span.
        step_factor: patience is at least this many of the job's steps.
        learned_factor: patience is at least this many times the longest wait that righted itself.
        max_patience_ns: learned patience ends here.
        stable_turn_count: the same answer is needed this many seconds in a row.
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


@dataclass(slots=True)
class _WaitPlace:
    """Where a rank stands: its unfinished operations and the last finished ones."""

    pending: list[dict[str, Any]] = field(default_factory=list)
    pending_ns: int = 0
    done: dict[str, list[int]] = field(default_factory=dict)
    """communicator -> [sequence number, end_ns]."""


class WaitTracker:
    """Live waits of one job."""

    def __init__(self, config: WaitConfig, graph: JobGraph) -> None:
        """Know nobody's place."""
        self._config = config
        self._graph = graph
        self._story = HangReport(graph, DETECTOR, config.mute_after_seconds)
        self._places: dict[int, _WaitPlace] = {}
        self._longest_wait_ns = 0
        self._done_span_ns = [0, 0]
        """First and last end of a collective."""
        self._last_culprits: list[int] = []
        self._stable_count = 0
        self._direct = False
        """Whether the last answer was a fault for sure: how long that lasted is not normal."""
        self._blamed: frozenset[int] | None = None
        """Whom the waiting leads to in this slice, None where nothing tells who waits for whom."""

    def take_collectives(self, rows: Sequence[CollectiveRecord]) -> None:
        """Learn places: the state rows of a batch are all that a rank stands in."""
        fresh: dict[int, list[dict[str, Any]]] = {}
        for row in rows:
            place = self._places.get(row.rank)
            if place is None:
                place = self._places[row.rank] = _WaitPlace()
            if row.record == "state":
                op = OpState(
                    row.comm_id,
                    row.op_seq,
                    row.op_name,
                    row.msg_bytes,
                    row.dtype,
                    row.peer,
                    row.peer >= 0,
                    None,
                    row.start_ns,
                )
                fresh.setdefault(row.rank, []).append(asdict(op))
                place.pending_ns = row.ts_ns
            else:
                self._finish(place, row)
        for rank, pending in fresh.items():
            self._places[rank].pending = sorted(pending, key=lambda op: (op["start_ns"], op["comm_id"], op["seq"]))

    def _finish(self, place: _WaitPlace, row: CollectiveRecord) -> None:
        if row.peer >= 0:
            return
        if row.end_ns:
            self._done_span_ns = [self._done_span_ns[0] or row.end_ns, max(self._done_span_ns[1], row.end_ns)]
        known = place.done.get(row.comm_id)
        # A smaller number long after a larger one: the program was started again, and counts anew.
        anew = known is not None and row.op_seq < known[0] and row.end_ns > known[1] + _ANEW_NS
        if anew:
            place.done.clear()
            place.pending = [op for op in place.pending if op["start_ns"] > row.end_ns]
        if anew or known is None or row.op_seq > known[0]:
            place.done[row.comm_id] = [row.op_seq, row.end_ns]
        for op in list(place.pending) if place.pending else ():
            if op["comm_id"] == row.comm_id and not op["is_p2p"] and op["seq"] <= row.op_seq:
                place.pending.remove(op)
                self._learn(row.end_ns - op["start_ns"], op["start_ns"], row.end_ns)

    def take_steps(self, rows: Sequence[StepRecord]) -> None:
        """A finished step finished what was begun in it."""
        for row in rows:
            place = self._places.get(row.rank)
            if place is None or not place.pending:
                continue
            for op in list(place.pending):
                if op["start_ns"] < row.ts_ns and place.pending_ns < row.ts_ns:
                    place.pending.remove(op)
                    self._learn(row.ts_ns - op["start_ns"], op["start_ns"], row.ts_ns)

    def _learn(self, wait_ns: int, from_ns: int, to_ns: int) -> None:
        """A wait that righted itself is normal for this job, unless it was announced or a fault."""
        if not self._direct and not self._graph.in_announced_phase(from_ns, to_ns):
            self._longest_wait_ns = max(self._longest_wait_ns, wait_ns)

    def find(self, now_ns: int, median_step_ns: int, silent: Sequence[str]) -> tuple[list[Finding], list[Reason]]:
        """Whom the waiting leads to, if it has lasted long enough."""
        self._blamed = frozenset() if self._graph.groups and self._places else None
        starts = [op["start_ns"] for place in self._places.values() for op in place.pending if op["start_ns"] > 0]
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
        """Whether these are all stages of pipelines over several hosts.

        One of them holds up the others, by sends that are no collectives: which one, this does not tell.
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
        """Whether the peers wait for the hosts that a silence accuses, as far as is known who waits."""
        suspects = [suspect for finding in findings for suspect in finding.suspects]
        return self._blamed is None or all(
            not suspect.ranks or self._blamed & set(suspect.ranks) for suspect in suspects
        )

    def told_ns(self, rank: int) -> int:
        """When a rank last told in which operations it stands, 0: it stands in none, or never told."""
        place = self._places.get(rank)
        return place.pending_ns if place is not None and place.pending else 0

    @property
    def tells(self) -> bool:
        """Whether anybody tells who waits for whom."""
        return bool(self._graph.groups and self._places)

    def waiting_for(
        self, ranks: Collection[int], now_ns: int, median_step_ns: int, silent: Collection[str]
    ) -> set[int]:
        """The other ranks that have waited for exactly these for longer than a step explains, as they say themselves.

        All that lack in what they stand in are among these; who waits for somebody who waits is no witness: the one
        between may be at fault. Nor is who stands in a collective that a member finished: nobody finishes it before
        all are in it, so that either the accused were, or somebody says what is not so.
        """
        accused, mute = frozenset(ranks), frozenset(silent)
        patience_ns = max(self._config.direct_ns, self._config.step_factor * median_step_ns)
        asked: dict[tuple[str, int, str], list[int]] = {}
        found: set[int] = set()
        for rank, place in self._places.items():
            facts = self._graph.ranks.get(rank)
            if rank in accused or not place.pending or (facts is not None and facts.exit is not None):
                continue
            for op in _front(place.pending):
                if now_ns - op["start_ns"] < patience_ns:
                    continue
                if not op["is_p2p"]:
                    asked.setdefault(_key_of(op), []).append(rank)
                elif op["peer"] in accused and not self._is_with(op["peer"], rank):
                    found.add(rank)
        for key, waiting in asked.items():
            group = self._graph.groups.get(key[0])
            if group is None or accused.isdisjoint(group.ranks) or self._is_finished(group.ranks, key):
                continue
            lacking = {rank for rank in group.ranks if not self._is_in(rank, key, mute)}
            if lacking and lacking <= accused:
                found.update(waiting)
        return found

    def _is_finished(self, ranks: Sequence[int], key: tuple[str, int, str]) -> bool:
        """Whether a member finished a collective that ends nowhere before all are in it."""
        if base_name(key[2]) in ROOTED_NAMES:
            return False
        return any(rank in self._places and self._places[rank].done.get(key[0], (-1,))[0] >= key[1] for rank in ranks)

    def _is_in(self, rank: int, key: tuple[str, int, str], mute: Collection[str]) -> bool:
        """Whether a rank has reached an operation; of one whose host is silent only what it finished counts."""
        place = self._places.get(rank)
        if place is None:
            return False
        if place.done.get(key[0], (-1,))[0] >= key[1]:
            return True
        return self._graph.host_of(rank) not in mute and any(_key_of(op) == key for op in _front(place.pending))

    def _is_with(self, rank: int, other: int) -> bool:
        """Whether a rank stands in an operation between these two."""
        place = self._places.get(rank)
        return place is not None and any(op["is_p2p"] and op["peer"] == other for op in _front(place.pending))

    def _all_elsewhere(self, now_ns: int, median_step_ns: int) -> list[Finding]:
        """Nobody waits for anybody, and yet nobody makes a step: all stand in their own code."""
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
        """Everybody waits and nobody stands out: say so once the patience is over."""
        if now_ns - start_ns < self._base_patience_ns(median_step_ns) or not finding.blocked:
            return [], [Reason.AMBIGUOUS if finding.ambiguous else Reason.WITHIN_PATIENCE]
        if self._graph.in_announced_phase(start_ns, now_ns):
            return [], [Reason.ANNOUNCED_PHASE]
        return [self._story.unexplained(finding, start_ns, now_ns)], []

    def _base_patience_ns(self, median_step_ns: int) -> int:
        if self._graph.max_step < 0 and self._done_span_ns[1] - self._done_span_ns[0] < self._config.begun_ns:
            return self._config.first_step_ns
        learned = int(self._config.learned_factor * self._longest_wait_ns)
        patience = max(self._config.late_ns, self._config.step_factor * median_step_ns, learned)
        return min(patience, self._config.max_patience_ns)

    def patience_ns(self, finding: HangFinding, median_step_ns: int) -> int:
        """How long a wait for these culprits is normal."""
        if is_direct(finding):
            return max(self._config.direct_ns, self._config.step_factor * median_step_ns)
        patience = self._base_patience_ns(median_step_ns)
        if all(self._story.is_mute(rank) for rank in finding.culprits):
            learned = int(self._config.learned_factor * self._longest_wait_ns)
            return min(patience, max(self._config.mute_ns, self._config.step_factor * median_step_ns, learned))
        return patience

    def _input(self, silent: Sequence[str]) -> HangInput:
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
        states = tuple(self._state(rank) for rank in sorted(graph.ranks) if rank not in quiet)
        groups = tuple(
            GroupInfo(group.comm_id, group.kind.value, group.ranks) for _, group in sorted(graph.groups.items())
        )
        hosts = {rank: known.host for rank, known in graph.ranks.items()}
        return HangInput(groups, states, quiet, facts, graph.world_size, host_of=hosts)

    def _state(self, rank: int) -> RankWait:
        place = self._places.get(rank, _WaitPlace())
        return RankWait(
            rank,
            tuple(OpState(**op) for op in place.pending),
            {comm_id: done[0] for comm_id, done in place.done.items()},
            {comm_id: done[1] for comm_id, done in place.done.items()},
            place.pending_ns if place.pending else 0,
        )

    def to_state(self) -> dict[str, Any]:
        """JSON-able state."""
        return {
            "places": _places_state(self._places),
            "longest_wait_ns": self._longest_wait_ns,
            "done_span_ns": self._done_span_ns,
            "last_culprits": self._last_culprits,
            "stable_count": self._stable_count,
            "direct": self._direct,
        }

    def load_state(self, state: dict[str, Any]) -> None:
        """Take back what ``to_state`` gave."""
        self._places = _places_from(state["places"])
        self._longest_wait_ns = state["longest_wait_ns"]
        self._done_span_ns = list(state["done_span_ns"])
        self._last_culprits = state["last_culprits"]
        self._stable_count = state["stable_count"]
        self._direct = state["direct"]


def _front(pending: Sequence[dict[str, Any]]) -> Sequence[dict[str, Any]]:
    """Where a rank stands: in its oldest operation, and where that is no collective in all before the first one."""
    count = next((index for index, op in enumerate(pending) if not op["is_p2p"]), len(pending))
    return pending[: max(1, count)]


def _key_of(op: Mapping[str, Any]) -> tuple[str, int, str]:
    return op["comm_id"], op["seq"], op["op_name"]


def _places_state(places: Mapping[int, _WaitPlace]) -> dict[str, Any]:
    """Ranks, when each was heard of, its finished operations one behind the other, and who waits in which."""
    ranks = sorted(places)
    found = [places[rank] for rank in ranks]
    done = [(comm_id, *entry) for place in found for comm_id, entry in place.done.items()]
    return {
        "ranks": np.array(ranks, "<i8"),
        "pending_ns": np.array([place.pending_ns for place in found], "<i8"),
        "done_counts": np.array([len(place.done) for place in found], "<i8"),
        "done_comm_ids": [comm_id for comm_id, _, _ in done],
        "done": [np.array([entry[column] for entry in done], "<i8") for column in (1, 2)],
        "pending": [[rank, place.pending] for rank, place in zip(ranks, found, strict=True) if place.pending],
    }


def _places_from(state: Mapping[str, Any]) -> dict[int, _WaitPlace]:
    """Take back what ``_places_state`` gave."""
    done = zip(state["done_comm_ids"], *(column.tolist() for column in state["done"]), strict=True)
    places = {}
    columns = (state[name].tolist() for name in ("ranks", "pending_ns", "done_counts"))
    for rank, pending_ns, count in zip(*columns, strict=True):
        own = {comm_id: [seq, end_ns] for comm_id, seq, end_ns in itertools.islice(done, count)}
        places[rank] = _WaitPlace([], pending_ns, own)
    for rank, pending in state["pending"]:
        places[rank].pending = pending
    return places
