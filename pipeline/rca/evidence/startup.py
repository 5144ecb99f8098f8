"""Stages of a job's start: the host that is late in one is named before the stage ends.

The rule is that of ``models/startup`` (after Bootseer): hosts are compared with those that have ended the same stage.
Where all are slow by earlier starts of the job, what they share is to blame and no host. A host that was late in the
same stage in three of its last five starts is a finding of its own, told when the third such start is over, and again
while it is late once more. It is worth a drain by hand. All are notes.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, astuple, dataclass, field, replace
from typing import Any

from tocsin.models.startup.durations import StageBook, StageTable, without
from tocsin.models.startup.marks import marks_of
from tocsin.models.startup.stragglers import (
    SharedSlowness,
    StartHistory,
    Straggler,
    StragglerConfig,
    stragglers,
)
from tocsin.pipeline.core.operator import pack_state, unpack_state
from tocsin.pipeline.rca.finding import Finding
from tocsin.schemas import events
from tocsin.schemas.reasons import Reason
from tocsin.schemas.records import NS_PER_SECOND, Event
from tocsin.schemas.startup import SHARED_SERVICES, Edge, StageMark
from tocsin.schemas.verdicts import Component, ComponentKind, Evidence, FaultKind, Suspect

DETECTOR = "startup"
_ENDS = frozenset({events.EXIT, events.PROCESS_GONE, events.BYE})
_PART = "startup"


@dataclass(frozen=True, slots=True)
class StartupConfig:
    """Settings of the detector.

    Attributes:
        limits: when a host is late, and when a stage is slow on all.
        most_named_count: most hosts that are named in one stage; of more, or of half of all hosts, what they share is
            to blame.
        most_stages_count: stages that are kept of one start; further ones are left out.
        held_ns: least time for which a late host is told of: that it ends now does not take back that it was late. A
            host that was late again and again is told of for as long, from the end of the start.
    """

    limits: StragglerConfig = field(default_factory=StragglerConfig)
    most_named_count: int = 4
    most_stages_count: int = 64
    held_ns: int = 20 * NS_PER_SECOND


Outsiders = Callable[[Iterable[str]], frozenset[str]]
"""Function hosts -> those of them that carry no rank of the job."""


def _nobody(_hosts: Iterable[str]) -> frozenset[str]:
    """Return that every host may carry a rank."""
    return frozenset()


class StartupDetector:
    """Judges the stages of one attempt of a job while it starts; earlier attempts are its history."""

    def __init__(self, config: StartupConfig, outsiders: Outsiders = _nobody) -> None:
        """Start without marks.

        Args:
            config: settings.
            outsiders: returns those of some hosts that carry no rank of the job; they are not compared.
        """
        self._config = config
        self._outsiders = outsiders
        self._book = StageBook()
        self._history = StartHistory(config.limits)
        self._stages: set[tuple[str, str]] = set()
        self._first_ns = 0
        """First mark of the start, 0 = none."""
        self._train_ns = 0
        """When training was first seen, 0 = the job starts."""
        self._has_open = False
        """Whether a stage may be open."""
        self._told: list[_LateHost] = []
        """Late hosts that were told of lately."""
        self._again: list[_LateAgain] = []
        """Hosts that were late again and again, from the end of the start that showed it."""
        self._gone: set[str] = set()
        """Hosts of which a process has ended since their last stage began."""

    def follow(self, older: StartupDetector) -> None:
        """Take over the history of the attempt before this one."""
        self._history.load_state(older._history.to_state())

    def on_event(self, event: Event) -> None:
        """Take an event of a stage, or the end of a process; others are left out.

        A stage that begins after training is a new start. A host whose process has ended is late in nothing.
        """
        if event.name in _ENDS and self._has_open:
            self._gone.add(event.host)
        for mark in marks_of(event):
            if mark.node:
                self._take(mark)

    def _take(self, mark: StageMark) -> None:
        """Take a mark of a stage."""
        if self._train_ns:
            if mark.edge is not Edge.BEGIN or mark.ts_ns <= self._train_ns:
                return
            self._train_ns = 0
        if mark.edge is Edge.BEGIN:
            self._gone.discard(mark.node)
        key = mark.stage, mark.start_kind
        if key not in self._stages and len(self._stages) >= self._config.most_stages_count:
            return
        self._stages.add(key)
        self._first_ns = min(self._first_ns or mark.ts_ns, mark.ts_ns)
        self._book.take(mark)
        self._has_open = True

    def on_step(self, begin_ns: int, now_ns: int) -> None:
        """Take that a step has ended: the start is over and becomes history.

        Args:
            begin_ns: when the step began; one that began before the first stage belongs to the time before this start.
            now_ns: the slice's end.
        """
        if self._train_ns or begin_ns < self._first_ns:
            return
        if self._stages:
            tables = self._tables()
            self._history.add(tables, now_ns)
            here = {(span.node, table.stage) for table in tables for span in table.spans}
            repeated = [one for one in self._history.repeated_now() if one[:2] in here]
            self._again = [_LateAgain(*one, now_ns) for one in repeated[: self._config.most_named_count]]
        self._book, self._stages, self._first_ns, self._gone = StageBook(), set(), 0, set()
        self._train_ns, self._has_open = now_ns, False

    def on_time(self, now_ns: int) -> list[Finding]:
        """Return what holds now: late hosts, or a service that all hosts wait for. Nothing once the job trains."""
        tables = self._tables() if self._has_open or self._told else []
        here = {span.node for table in tables for span in table.spans}
        self._told = [one for one in self._told if one.late.node in here or not here]
        tables = [table for table in tables if table.open_nodes]
        self._has_open = bool(tables)
        late: list[Straggler] = []
        found = [one for table in tables for one in self._judge(table, now_ns, late)]
        if late or self._told:
            found += self._tell(late, now_ns)
        if self._again:
            self._again = [one for one in self._again if now_ns - one.since_ns < self._config.held_ns]
            named = {host for one in found for host in one.accused}
            found += [_slow_again(one, now_ns) for one in self._again if one.node not in named]
        return found

    def _tables(self) -> list[StageTable]:
        """Return the stages of the start, of the hosts that carry ranks of the job."""
        tables = self._book.tables()
        outside = self._outsiders({span.node for table in tables for span in table.spans})
        return without(tables, outside) if outside else tables

    def _judge(self, table: StageTable, now_ns: int, alone: list[Straggler]) -> list[Finding]:
        """Return the findings about one stage that is not over; its late hosts are appended to ``alone``."""
        shared = self._history.shared_slowness(table, now_ns)
        if shared is not None:
            return [_slow_on_all(table, shared, now_ns)]
        late = [one for one in stragglers(table, now_ns, self._config.limits) if one.node not in self._gone]
        if len(late) > self._config.most_named_count or 2 * len(late) >= len(table.spans):
            return [_slow_on_many(table, late, now_ns)]
        alone.extend(one for one in late if one.is_open)
        return []

    def _tell(self, late: Sequence[Straggler], now_ns: int) -> list[Finding]:
        """Return the findings about hosts that are late, and about those that were told of a moment ago."""
        before = {(one.late.node, one.late.stage): one for one in self._told}
        now = {}
        for one in late:
            key = one.node, one.stage
            since_ns = before[key].since_ns if key in before else now_ns
            now[key] = _LateHost(one, since_ns, now_ns - round(one.seconds * NS_PER_SECOND))
        kept = {key: one for key, one in before.items() if now_ns - one.since_ns < self._config.held_ns}
        self._told = list({**kept, **now}.values())
        repeated = {(node, stage) for node, stage, _, _ in self._history.repeated()}
        return [_slow_alone(one, now_ns, again=(one.late.node, one.late.stage) in repeated) for one in self._told]

    def snapshot(self) -> dict[str, bytes]:
        """Return the state as one named part."""
        state = {
            "marks": self._book.to_state(),
            "stages": sorted([stage, kind] for stage, kind in self._stages),
            "history": self._history.to_state(),
            "first_ns": self._first_ns,
            "train_ns": self._train_ns,
            "has_open": self._has_open,
            "gone": sorted(self._gone),
            "again": [astuple(one) for one in self._again],
            "told": [[asdict(one.late), one.since_ns, one.begin_ns] for one in self._told],
        }
        return {_PART: pack_state(state)}

    def restore(self, parts: Mapping[str, bytes]) -> None:
        """Restore the state that ``snapshot`` returned; other parts are left out."""
        state: dict[str, Any] = unpack_state(parts, _PART)
        self._book.load_state(state["marks"])
        self._stages = {(stage, kind) for stage, kind in state["stages"]}
        self._history.load_state(state["history"])
        self._first_ns, self._train_ns, self._has_open = state["first_ns"], state["train_ns"], state["has_open"]
        self._gone = set(state["gone"])
        self._again = [_LateAgain(*one) for one in state["again"]]
        self._told = [_LateHost(Straggler(**late), since_ns, begin_ns) for late, since_ns, begin_ns in state["told"]]


@dataclass(frozen=True, slots=True)
class _LateHost:
    """A late host, since when it is told of, and when its stage began."""

    late: Straggler
    since_ns: int
    begin_ns: int


@dataclass(frozen=True, slots=True)
class _LateAgain:
    """A host that was late in a stage in ``slow_count`` of its last ``start_count`` starts, the last one included."""

    node: str
    stage: str
    slow_count: int
    start_count: int
    since_ns: int


def _slow_again(late: _LateAgain, now_ns: int) -> Finding:
    """Return the finding about a host that was late again and again, once the start is over."""
    text = (
        f"{late.node} was late in {late.stage} in {late.slow_count} of its last {late.start_count} starts: worth a "
        "drain and a check by hand"
    )
    evidence = _evidence(late.stage, late.slow_count / late.start_count, (late.since_ns, now_ns), text)
    suspect = Suspect(Component(ComponentKind.HOST, late.node))
    reason = Reason.LATE_IN_STARTS
    return Finding(FaultKind.FAIL_SLOW, "startup_slow", (suspect,), late.since_ns, 0.95, reason, (evidence,))


def _slow_alone(told: _LateHost, now_ns: int, *, again: bool) -> Finding:
    """Return the finding about one host that is late; ``again``: it was so in three of its last five starts, too."""
    late = told.late
    text = (
        f"{late.node} has been in {late.stage} for {late.seconds:.0f} s, the median of {late.peer_count} hosts that "
        f"have ended it is {late.median_seconds:.0f} s"
    )
    if again:
        text += "; it was late in this stage in three of its last five starts: worth a drain and a check by hand"
    evidence = _evidence(late.stage, late.seconds / late.limit_seconds, (told.begin_ns, now_ns), text)
    evidence = replace(evidence, suspect_value=late.seconds, peer_value=late.median_seconds)
    suspect = Suspect(Component(ComponentKind.HOST, late.node))
    reason = Reason.LATE_IN_STARTS if again else Reason.LATE_IN_STARTUP
    return Finding(
        FaultKind.FAIL_SLOW,
        "startup_slow",
        (suspect,),
        told.begin_ns,
        0.9,
        reason,
        (evidence,),
        certain=True,
    )


def _slow_on_all(table: StageTable, slow: SharedSlowness, now_ns: int) -> Finding:
    """Return the finding about a stage that is slow on all hosts."""
    text = (
        f"all hosts are slow in {table.stage}: {slow.median_seconds:.0f} s, in {slow.start_count} earlier starts "
        f"{slow.usual_seconds:.0f} s; look at {_shared_by(table)}"
    )
    return _shared(table, slow.median_seconds / slow.usual_seconds / 2.0, now_ns, text)


def _slow_on_many(table: StageTable, late: Sequence[Straggler], now_ns: int) -> Finding:
    """Return the finding about a stage in which many hosts are late: more than break at once."""
    text = (
        f"{len(late)} of {len(table.spans)} hosts are late in {table.stage}: more than have a fault of their own at "
        f"once; look at {_shared_by(table)}"
    )
    return _shared(table, late[0].seconds / late[0].limit_seconds, now_ns, text)


def _shared(table: StageTable, score: float, now_ns: int, text: str) -> Finding:
    """Return a finding that names no host."""
    begin_ns = table.begin_ns or now_ns
    evidence = _evidence(table.stage, score, (begin_ns, now_ns), text)
    reason = Reason.STARTUP_SLOW_ON_ALL
    return Finding(FaultKind.FAIL_SLOW, "shared_service", (), begin_ns, 0.8, reason, (evidence,))


def _shared_by(table: StageTable) -> str:
    """Return what hosts share in a stage."""
    known = {stage.value: what for stage, what in SHARED_SERVICES.items()}
    return known.get(table.stage, "what they share")


def _evidence(stage: str, score: float, span_ns: tuple[int, int], text: str) -> Evidence:
    """Return evidence about a stage."""
    return Evidence(DETECTOR, f"{stage}_seconds", score, *span_ns, text)
