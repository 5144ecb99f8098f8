"""Tracker of Flight Recorder dumps of a stalled job: names the ranks that hold up the others.

A dump is one rank's memory of its collectives at one time. Dumps arrive as answers to probes, from a hook whose rank is
stalled, or as files of a recording. All are analysed together, once every rank has answered or had time to. They are
discarded when a step or a collective finishes after them.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import asdict, dataclass, replace
from typing import Any

from tocsin.models.hang import FACT_ALIVE_ELSEWHERE, FACT_GONE, FACT_STOPPED, STUCK_INSIDE, HangFinding
from tocsin.pipeline.job.graph import JobGraph
from tocsin.pipeline.rca.evidence.flight_recorder import DumpFolder, analyse_dumps
from tocsin.pipeline.rca.evidence.waits import WaitTracker
from tocsin.pipeline.rca.finding import Finding
from tocsin.pipeline.rca.hang_report import HangReport
from tocsin.schemas.errors import ConfigError, SchemaError
from tocsin.schemas.formats.flight_recorder import (
    FlightDump,
    FlightEntry,
    FlightGroup,
    FlightStatus,
    parse_dump,
)
from tocsin.schemas.kinds import LEFT_DUMP
from tocsin.schemas.reasons import Reason
from tocsin.schemas.records import NS_PER_SECOND, CollectiveRecord, ProbeAnswer

DETECTOR = "flight_recorder"
_KEPT_UNFINISHED_COUNT = 4_096
"""Most unfinished operations kept of one rank, oldest first; the oldest shows where the rank is stalled."""


@dataclass(frozen=True, slots=True)
class DumpConfig:
    """Settings of the tracker.

    Attributes:
        settle_ns: how long after the newest answer missing ranks are waited for; an agent gives a hook 10 s.
        forget_after_ns: age relative to the newest dump from which on a dump belongs to another stall.
        kept_entry_count: finished operations that all dumps together keep; unfinished ones have their own limit.
        direct_ns: patience with dumps that the watchdog wrote ...
        step_factor: ... or this many step times, if longer.
    """

    settle_ns: int = 12 * NS_PER_SECOND
    forget_after_ns: int = 600 * NS_PER_SECOND
    kept_entry_count: int = 50_000
    direct_ns: int = 2 * NS_PER_SECOND
    step_factor: int = 3


@dataclass(slots=True)
class _Answer:
    """Answer of one rank: a parsed dump, or the reason ``why`` it could not be parsed; neither if it was empty."""

    ts_ns: int
    dump: FlightDump | None
    why: str = ""


class DumpTracker:
    """Flight Recorder dumps of one stalled job, and their analysis."""

    def __init__(self, config: DumpConfig, graph: JobGraph, mute_after_seconds: float) -> None:
        """Start without dumps."""
        self._config = config
        self._graph = graph
        self._reporter = HangReport(graph, DETECTOR, mute_after_seconds)
        self._answers: dict[int, _Answer] = {}
        """Rank -> its latest answer."""
        self._newest_ns = 0
        """Time of the newest answer."""
        self._left_by_watchdog = False
        """Whether the newest dumps were written by the job's own watchdog."""
        self._judged: tuple[object, HangFinding | None, int] | None = None
        """Last analysis as (inputs, result, time since when ranks wait), so that it is repeated only for new inputs."""

    def take(self, answer: ProbeAnswer) -> None:
        """Store the answer of one rank: a dump, an unreadable dump, or none.

        An empty answer does not replace an earlier dump. Answers much older than the newest are dropped.
        """
        if answer.rank < 0:
            return
        self._newest_ns = max(self._newest_ns, answer.ts_ns)
        self._left_by_watchdog = answer.request_id == LEFT_DUMP
        self._answers = {
            rank: known
            for rank, known in self._answers.items()
            if self._newest_ns - known.ts_ns <= self._config.forget_after_ns
        }
        known = self._answers.get(answer.rank)
        try:
            dump = parse_dump(answer.payload) if answer.payload else None
        except SchemaError as error:
            self._answers[answer.rank] = _Answer(answer.ts_ns, None, str(error))
        else:
            if dump is None and known is not None and known.dump is not None:
                return  # it said more when it could
            limit = self._config.kept_entry_count // max(16, self._graph.world_size)
            self._answers[answer.rank] = _Answer(answer.ts_ns, None if dump is None else _truncated(dump, limit))
        self._judged = None

    def take_collectives(self, rows: Iterable[CollectiveRecord]) -> None:
        """Discard all dumps if a collective ended after the newest one: the job goes on."""
        if self._answers and any(row.end_ns > self._newest_ns for row in rows):
            self._forget()

    def _forget(self) -> None:
        """Discard all answers and the last analysis."""
        self._answers, self._judged, self._left_by_watchdog = {}, None, False

    @property
    def stalled_since_ns(self) -> int:
        """Time in nanoseconds since when ranks wait for others, according to the dumps; 0 if they do not."""
        found = self._judged[1] if self._judged is not None else None
        return self._judged[2] if self._judged is not None and found is not None and found.blocked else 0

    def find(self, now_ns: int, median_step_ns: int, waits: WaitTracker) -> tuple[Finding | None, Reason | None]:
        """Return (finding, None), or (None, reason for having no finding); (None, None) without dumps.

        The finding accuses the ranks that hold up the job. It has no suspects where the job is stalled and no rank is
        singled out.

        Args:
            now_ns: end of the slice.
            median_step_ns: usual step time.
            waits: tracker of waiting ranks, for its patience.
        """
        if self._answers and self._graph.progress_ns > self._newest_ns:
            self._forget()
        if not any(answer.dump for answer in self._answers.values()):
            return None, None
        if (
            not self._left_by_watchdog
            and now_ns - self._newest_ns < self._config.settle_ns
            and self._is_awaiting_ranks()
        ):
            return None, Reason.WITHIN_PATIENCE
        found, start_ns = self._finding(now_ns)
        if found is None:
            return None, Reason.AMBIGUOUS
        if not found.blocked and found.reason != STUCK_INSIDE:
            return None, Reason.NOBODY_WAITS
        if not self._left_by_watchdog and found.reason == Reason.SILENT_AND_PEERS_STALLED.value:
            return None, Reason.AMBIGUOUS  # a hook that cannot write dumps is silent too
        reason = self._reason_to_wait(found, start_ns, now_ns, median_step_ns, waits)
        if reason is not None:
            return None, reason
        if found.culprits:
            return self._reporter.finding(found, start_ns, now_ns), None
        return self._reporter.unexplained(found, start_ns, now_ns), None

    def _reason_to_wait(
        self, found: HangFinding, start_ns: int, now_ns: int, median_step_ns: int, waits: WaitTracker
    ) -> Reason | None:
        """Return why the waiting may still be normal: within patience, or in an announced phase; None if it is not."""
        stood_ns = now_ns - max(start_ns, self._graph.progress_ns)
        if self._left_by_watchdog:
            # The job's own patience is over: it ended itself. But one whose steps go on has not hung.
            need_ns = max(self._config.direct_ns, self._config.step_factor * median_step_ns)
            return Reason.WITHIN_PATIENCE if self._graph.max_step >= 0 and stood_ns < need_ns else None
        if stood_ns < waits.patience_ns(found, median_step_ns):
            return Reason.WITHIN_PATIENCE
        if self._graph.in_announced_phase(start_ns, now_ns):
            return Reason.ANNOUNCED_PHASE
        return None

    def _is_awaiting_ranks(self) -> bool:
        """Return whether live ranks have not answered yet."""
        ranks = self._graph.ranks
        gone = {rank for rank, facts in ranks.items() if facts.exit is not None or facts.bye_ns}
        world = self._graph.world_size
        known = sum(1 for rank in gone.union(self._answers) if rank < world)
        return known < world

    def _finding(self, now_ns: int) -> tuple[HangFinding | None, int]:
        """Return the analysis of all dumps, and the time in nanoseconds since when ranks wait."""
        facts = self._facts()
        key = (sorted(facts.items()), self._graph.world_size)
        if self._judged is None or self._judged[0] != key:
            self._judged = (key, *self._analysed(facts))
        _, found, start_ns = self._judged
        if not start_ns or start_ns > now_ns:  # nobody stamped the operations, or by another clock
            start_ns = min(now_ns, self._graph.progress_ns or self._newest_ns)
        return found, start_ns

    def _analysed(self, facts: dict[int, str]) -> tuple[HangFinding | None, int]:
        """Return the analysis of the dumps, and the earliest time in nanoseconds since when ranks wait (0: unknown).

        The analysis is None if the dumps do not fit the job.

        Args:
            facts: rank -> what is known of ranks without a dump.
        """
        dumps = {rank: answer.dump for rank, answer in sorted(self._answers.items()) if answer.dump is not None}
        broken = {rank: ("its dump", answer.why) for rank, answer in sorted(self._answers.items()) if answer.why}
        try:
            found = analyse_dumps(DumpFolder(dumps, broken), self._graph.world_size, facts)
        except ConfigError:  # dumps of ranks that this job does not have
            return None, 0
        waiting = set(found.victims) or set(dumps)
        starts = (_stalled_since_ns(dump) for rank, dump in dumps.items() if rank in waiting)
        return found, min((start_ns for start_ns in starts if start_ns), default=0)

    def _facts(self) -> dict[int, str]:
        """Return rank -> known state (gone, stopped, alive elsewhere) of ranks that wrote no dump.

        A rank that wrote one was alive at that time, whatever happened later.
        """
        facts = {}
        frozen = self._graph.killed_last()
        for rank, known in self._graph.ranks.items():
            answer = self._answers.get(rank)
            if answer is not None and answer.dump is not None:
                continue
            if known.exit is not None or known.bye_ns:
                facts[rank] = FACT_STOPPED if rank in frozen else FACT_GONE
            elif known.stopped_since_ns:
                facts[rank] = FACT_STOPPED
            elif known.stall is not None and not known.stall.get("in_collective"):
                facts[rank] = FACT_ALIVE_ELSEWHERE
        return facts

    def to_state(self) -> dict[str, Any]:
        """Return the state as JSON-serialisable values, for a snapshot."""
        return {
            "answers": [
                [rank, answer.ts_ns, None if answer.dump is None else asdict(answer.dump), answer.why]
                for rank, answer in sorted(self._answers.items())
            ],
            "newest_ns": self._newest_ns,
            "left": self._left_by_watchdog,
        }

    def load_state(self, state: dict[str, Any]) -> None:
        """Restore the state from values that ``to_state`` returned."""
        self._answers = {
            rank: _Answer(ts_ns, None if dump is None else _dump_from(dump), why)
            for rank, ts_ns, dump, why in state["answers"]
        }
        self._newest_ns, self._left_by_watchdog = state["newest_ns"], state["left"]
        self._judged = None


def _stalled_since_ns(dump: FlightDump) -> int:
    """Return when a rank issued its oldest unfinished operation, in nanoseconds; 0 if none or not recorded."""
    return min((entry.created_ns for entry in dump.entries if not entry.is_done and entry.created_ns), default=0)


def _truncated(dump: FlightDump, kept_count: int) -> FlightDump:
    """Return the dump with its newest ``kept_count`` finished operations and a limited number of unfinished ones."""
    done = [entry.record_id for entry in dump.entries if entry.is_done]
    if len(dump.entries) - len(done) > _KEPT_UNFINISHED_COUNT:
        unfinished = [entry for entry in dump.entries if not entry.is_done][:_KEPT_UNFINISHED_COUNT]
        whole = [*unfinished, *(entry for entry in dump.entries if entry.is_done)]
        dump = replace(dump, entries=tuple(sorted(whole, key=lambda entry: entry.record_id)))
    if len(done) <= kept_count:
        return dump
    first = done[-kept_count] if kept_count else done[-1] + 1
    kept = tuple(entry for entry in dump.entries if not entry.is_done or entry.record_id >= first)
    return replace(dump, entries=kept)


def _dump_from(state: dict[str, Any]) -> FlightDump:
    """Return the dump that a snapshot holds as plain dictionaries."""
    return FlightDump(
        version=state["version"],
        comm_lib_version=state["comm_lib_version"],
        groups=tuple(FlightGroup(g["name"], g["desc"], tuple(g["ranks"])) for g in state["groups"]),
        status=tuple((number, FlightStatus(**status)) for number, status in state["status"]),
        entries=tuple(FlightEntry(**entry) for entry in state["entries"]),
        nameless_ranks=tuple(state["nameless_ranks"]),
    )
