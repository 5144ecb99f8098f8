"""The starts of one attempt: their stages as the processes tell them, and what their GPU time was spent on.

The account of an attempt's time says when a start began and when training began; so both tell the same seconds.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import replace
from typing import Any, Final

from tocsin.models.startup.cost import StageKey, blame, spent_on_stages
from tocsin.models.startup.durations import StageBook, StageTable, without
from tocsin.models.startup.marks import marks_of
from tocsin.pipeline.incidents.ettr.timeline import Claim
from tocsin.pipeline.stores.attempt_starts import AttemptStart, StartStage
from tocsin.pipeline.stores.attempt_times import TimePart
from tocsin.schemas import events
from tocsin.schemas.records import NS_PER_SECOND, Event, JobKey, JobRecord, Topology
from tocsin.schemas.startup import Edge, StartupStage
from tocsin.schemas.wire.event_payloads import number

TELL_NS: Final = 10 * NS_PER_SECOND
"""Distance of two accounts of a start that goes on."""
_KEPT_NS: Final = 120 * NS_PER_SECOND
"""How long the marks of a start are kept after training began: slower processes end their first step later."""
_RETOLD_NS: Final = 3600 * NS_PER_SECOND
"""A start that goes on for longer is told again only when something is new."""
NEVER_NS: Final = (1 << 63) - 1
"""A time that does not come."""
_MOST_STAGES: Final = 64
_MOST_RANKS: Final = 1 << 17
"""Ranks, and processes in stages, that are kept."""
_MOST_WAITING: Final = 16
"""Starts that may wait to be told."""


class StartAccount:
    """Measures the starts of one attempt, of which the newest is open until the next one begins."""

    def __init__(self) -> None:
        """Start without a start."""
        self._host_of: dict[int, str] = {}
        """Rank -> its host."""
        self._book = StageBook()
        self._stages: set[StageKey] = set()
        self._size = 0
        """Processes in stages, at most."""
        self._hits: dict[StageKey, tuple[float, int]] = {}
        """Stage -> sum and count of the shares of cache hits."""
        self._began_ns = 0
        """Begin of the newest start, 0 = none."""
        self._train_ns = 0
        self._told_ns = 0
        self._has_news = False
        self._ended_ns = 0
        """When a process last ended a stage before the first step, 0 = none has."""
        self._first_step = set[Edge]()
        """Edges of the first step that were told."""
        self._over_ns = 0
        self._is_failed = False
        self._waiting: list[AttemptStart] = []
        """Starts that ended since they were told last."""

    @property
    def gpu_count(self) -> int:
        """Number of ranks that were heard, each of which has a GPU."""
        return len(self._host_of)

    def take_places(self, topology: Topology) -> None:
        """Learn which ranks a host has."""
        for place in topology.places:
            self._take_rank(place.rank, topology.host)

    def take_event(self, event: Event) -> None:
        """Learn from a hello, or from the begin or end of a stage."""
        if event.rank >= 0 and event.host and event.name in (events.HELLO, events.STAGE):
            self._take_rank(event.rank, event.host)
        for mark in marks_of(event):
            key = mark.start_kind, mark.stage
            is_known = key in self._stages or len(self._stages) < _MOST_STAGES
            if self._began_ns and mark.node and is_known and self._size < _MOST_RANKS:
                self._stages.add(key)
                self._size += 1
                self._book.take(mark)
                self._note(mark.stage, mark.edge, mark.ts_ns)
                self._has_news = True
        ratio = number(event.payload, "cache_hit_ratio", -1.0)
        if event.name == events.STAGE and 0 <= ratio <= 1:
            key = str(event.payload.get("start_kind") or "full"), str(event.payload.get("stage"))
            if key in self._stages:
                total, count = self._hits.get(key, (0.0, 0))
                self._hits[key] = total + ratio, count + 1

    def _note(self, stage: str, edge: Edge, ts_ns: int) -> None:
        """Note how far the processes have come."""
        if stage == StartupStage.FIRST_STEP:
            self._first_step.add(edge)
        elif edge is Edge.END:
            self._ended_ns = max(self._ended_ns, ts_ns)

    def _take_rank(self, rank: int, host: str) -> None:
        """Learn where a rank runs."""
        if rank in self._host_of or len(self._host_of) < _MOST_RANKS:
            self._host_of[rank] = host

    def begin(self, began_ns: int, job: JobKey) -> None:
        """Note that a start began, or began earlier than was known.

        Args:
            began_ns: when.
            job: the attempt.
        """
        if self._train_ns:
            self._next(job)
        if not self._began_ns or began_ns < self._began_ns:
            self._take_back(job)
            self._began_ns, self._has_news = began_ns, True

    def end(self, until_ns: int, failed_ns: int, *, tells_steps: bool) -> None:
        """Note that the attempt is over though its newest start has not trained, or (times of 0) that it goes on.

        Where the job is known to tell its steps, all of the time until the failure was start-up. Else the job may have
        trained without a word; then stages that ended were start-up, and nothing is known of the rest.

        Args:
            until_ns: end of the attempt.
            failed_ns: when its processes ended, or were heard last; 0: they ended in order.
            tells_steps: whether any attempt of the job told a step.
        """
        if not self._began_ns or self._train_ns:
            return
        is_failed = failed_ns > 0 and (tells_steps or Edge.BEGIN in self._first_step)
        is_failed = is_failed and Edge.END not in self._first_step
        over_ns = min(until_ns, failed_ns if is_failed else self._ended_ns)
        over_ns, is_failed = (over_ns, is_failed) if over_ns > self._began_ns else (0, False)
        if (over_ns, is_failed) != (self._over_ns, self._is_failed):
            self._over_ns, self._is_failed, self._told_ns, self._has_news = over_ns, is_failed, 0, True

    @property
    def claims(self) -> list[Claim]:
        """The time of a start that never trained, as far as it counts."""
        return [(TimePart.START_UP, self._began_ns, self._over_ns)] if self._over_ns else []

    def _take_back(self, job: JobKey) -> None:
        """Tell that a start that was over goes on under another begin, or was none: what was told of it is replaced."""
        if self._over_ns:
            self._over_ns, self._is_failed = 0, False
            self._waiting.append(self._account(job, 0))

    def train(self, job: JobKey, began_ns: int, train_ns: int) -> None:
        """Note that the first step after a start began.

        Args:
            job: the attempt.
            began_ns: begin of the start, as far as its time counts.
            train_ns: begin of the step; one that is not after the begin makes that there was no start.
        """
        if self._train_ns or not self._began_ns:
            return
        self._take_back(job)
        if train_ns <= began_ns:
            self._clear()
            return
        self._began_ns, self._train_ns, self._told_ns, self._has_news = began_ns, train_ns, 0, True

    def _next(self, job: JobKey) -> None:
        """Close the newest start; the next one begins."""
        if self._has_news and len(self._waiting) < _MOST_WAITING:
            self._waiting.append(self._account(job, 0))
        self._clear()

    def _clear(self) -> None:
        """Forget the newest start."""
        self._book, self._stages, self._size, self._hits = StageBook(), set(), 0, {}
        self._began_ns = self._train_ns = self._told_ns = 0
        self._has_news = False
        self._ended_ns, self._first_step, self._over_ns, self._is_failed = 0, set(), 0, False

    def due(self, job: JobKey, now_ns: int, *, is_heard: bool) -> list[AttemptStart]:
        """Return the starts that are to be told now: at once when they end, else each ten seconds at most.

        Args:
            job: the attempt.
            now_ns: the present.
            is_heard: whether the attempt was heard lately; a start that goes on is then told though nothing is new.
        """
        if not self._began_ns and not self._waiting:
            return []
        found = [replace(one, told_ns=now_ns) for one in self._waiting]
        self._waiting = []
        is_new = self._has_news or (is_heard and not self._train_ns and now_ns - self._began_ns < _RETOLD_NS)
        if self._began_ns and is_new and now_ns // TELL_NS > self._told_ns // TELL_NS:
            self._told_ns, self._has_news = now_ns, False
            found.append(self._account(job, now_ns))
        if self._train_ns and not self._has_news and now_ns - self._train_ns > _KEPT_NS:
            self._clear()
        return found

    @property
    def has_news(self) -> bool:
        """Whether something is to be told that was not told yet."""
        return bool(self._waiting) or (self._has_news and self._began_ns > 0)

    def _account(self, job: JobKey, told_ns: int) -> AttemptStart:
        """Return the newest start."""
        gpus = Counter(self._host_of.values())
        until_ns = self._train_ns or self._over_ns
        tables = self._own_tables() if until_ns else self._book.tables()
        spent = spent_on_stages(tables, gpus, self._began_ns, until_ns) if until_ns else {}
        stages = []
        for table in tables:
            found = _stage_of(table, gpus)
            own = spent.get((table.start_kind, table.stage))
            if own is not None:
                found = replace(found, own_gpu_ns=own.own_gpu_ns, waiting_gpu_ns=own.waiting_gpu_ns)
            total, count = self._hits.get((table.start_kind, table.stage), (0.0, 0))
            stages.append(replace(found, cache_hit_ratio=total / count) if count else found)
        sizes, is_over = (len(gpus), gpus.total()), (self._over_ns, self._is_failed)
        return AttemptStart(job, self._began_ns, self._train_ns, told_ns, *sizes, tuple(stages), *is_over)

    def _own_tables(self) -> list[StageTable]:
        """Return the stages of a start that is over, of the hosts that carry ranks; of all where none does."""
        tables, known = self._book.tables(), set(self._host_of.values())
        nodes = {span.node for table in tables for span in table.spans}
        return without(tables, nodes - known) if nodes & known else tables

    def to_state(self) -> dict[str, Any]:
        """Return the state as JSON-serialisable values, for a snapshot."""
        hosts: dict[str, list[int]] = {}
        for rank, host in self._host_of.items():
            hosts.setdefault(host, []).append(rank)
        return {
            "hosts": [[host, ranks] for host, ranks in hosts.items()],
            "marks": self._book.to_state(),
            "stages": sorted(map(list, self._stages)),
            "hits": [[*key, *values] for key, values in self._hits.items()],
            "numbers": [self._began_ns, self._train_ns, self._told_ns, self._size],
            "has_news": self._has_news,
            "over": [self._over_ns, self._is_failed],
            "waiting": [_waiting_state(one) for one in self._waiting],
        }

    @classmethod
    def from_state(cls, state: Mapping[str, Any]) -> StartAccount:
        """Return the account that ``to_state`` described."""
        found = cls()
        found._host_of = {rank: host for host, ranks in state["hosts"] for rank in ranks}
        found._book.load_state(state["marks"])
        found._stages = {(kind, stage) for kind, stage in state["stages"]}
        found._hits = {(kind, stage): (total, count) for kind, stage, total, count in state["hits"]}
        found._began_ns, found._train_ns, found._told_ns, found._size = state["numbers"]
        found._has_news = state["has_news"]
        found._over_ns, found._is_failed = state.get("over", (0, False))  # absent in states of older engines
        for _, _, stage, _, _, *edges_ns in state["marks"]:
            for edge, ts_ns in zip((Edge.BEGIN, Edge.END), edges_ns, strict=True):
                if ts_ns is not None:
                    found._note(stage, edge, ts_ns)
        found._waiting = list(map(_waiting_from, state["waiting"]))
        return found


def begin_of_stages(records: Iterable[JobRecord], since_ns: int) -> int:
    """Return when the first stage began of which records tell the begin or the length, as far as that is known.

    Args:
        records: what an attempt tells.
        since_ns: begins before are no start's.

    Returns:
        The time; ``NEVER_NS`` where there is none.
    """
    marks = (mark for record in records if isinstance(record, Event) for mark in marks_of(record))
    return min((mark.ts_ns for mark in marks if mark.edge is Edge.BEGIN and mark.ts_ns >= since_ns), default=NEVER_NS)


def _stage_of(table: StageTable, gpu_counts: Mapping[str, int]) -> StartStage:
    """Return a stage without its GPU time."""
    name, begin_ns, end_ns = _slowest(table)
    last = blame(table, {span.node: gpu_counts.get(span.node, 0) for span in table.spans})
    return StartStage(
        table.start_kind,
        table.stage,
        table.begin_ns or 0,
        table.end_ns or 0,
        len(table.spans),
        len(table.open_nodes),
        table.lost_count,
        None if table.median_seconds is None else max(0.0, table.median_seconds),
        name,
        begin_ns,
        end_ns,
        "" if last is None else last.node,
        0 if last is None else round(last.gpu_seconds * NS_PER_SECOND),
    )


def _slowest(table: StageTable) -> tuple[str, int, int]:
    """Return name, begin and end (0 = open) of the host that is in a stage for the longest time, or was."""
    still = [(span.begin_ns, span.node) for span in table.spans if span.is_open and span.begin_ns is not None]
    if still:
        begin_ns, name = min(still)
        return name, begin_ns, 0
    ended = list(_ended(table))
    if not ended:
        return "", 0, 0
    name, begin_ns, end_ns = min(ended, key=lambda one: (one[1] - one[2], one[0]))
    return name, begin_ns, end_ns


def _ended(table: StageTable) -> Iterator[tuple[str, int, int]]:
    """Yield name, begin and end of the hosts of which both are known."""
    for span in table.spans:
        if span.begin_ns is not None and span.end_ns is not None:
            yield span.node, span.begin_ns, span.end_ns


def _waiting_state(told: AttemptStart) -> list[Any]:
    """Return a start as JSON-serialisable values."""
    job = [told.job.cluster, told.job.job_id, told.job.attempt]
    stages = [[getattr(one, name) for name in StartStage.__dataclass_fields__] for one in told.stages]
    return [job, told.began_ns, told.train_ns, told.told_ns, told.host_count, told.gpu_count, stages]


def _waiting_from(state: list[Any]) -> AttemptStart:
    """Return the start that ``_waiting_state`` described."""
    job, began_ns, train_ns, told_ns, hosts, gpus, stages = state
    own = tuple(StartStage(*one) for one in stages)
    return AttemptStart(JobKey(*job), began_ns, train_ns, told_ns, hosts, gpus, own)
