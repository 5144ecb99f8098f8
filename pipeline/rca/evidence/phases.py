"""Whose checkpoint takes longer than everybody's, again and again, while all wait for it.

Steps are as long as ever then, and in an announced phase nobody is judged by metrics: the phases themselves tell.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from tocsin.pipeline.core.state_maps import pairs_state, rows_state
from tocsin.pipeline.job.graph import JobGraph
from tocsin.pipeline.rca.finding import Finding
from tocsin.schemas.reasons import Reason
from tocsin.schemas.records import NS_PER_SECOND, Event, StepRecord
from tocsin.schemas.verdicts import Component, ComponentKind, Evidence, FaultKind, Suspect


@dataclass(frozen=True, slots=True)
class PhaseConfig:
    """Settings.

    Attributes:
        ratio: the longest is alone where it is so many times the second longest ...
        least_excess_ns: ... and longer by this.
        chance_ratio: the same host is the longest so many times in a row by chance as seldom as this, if each is it as
            often: that says how many times are needed (three in a job of 15 hosts, five in one of four).
        least_host_count: fewer hosts that announce theirs tell nothing.
        together_ns: what begins within this is one phase of all.
        clock_ns: clocks, and the way of a step's record, may be wrong by this.
        lasting_ns: what is found holds for so long after the last one ended.
        kept_count: phases that are remembered, of each name.
        kept_step_count: ends of steps that are remembered.
    """

    ratio: float = 2.0
    least_excess_ns: int = 5 * NS_PER_SECOND
    chance_ratio: float = 0.005
    least_host_count: int = 4
    together_ns: int = 10 * NS_PER_SECOND
    clock_ns: int = 2 * NS_PER_SECOND
    lasting_ns: int = 900 * NS_PER_SECOND
    kept_count: int = 16
    kept_step_count: int = 64


@dataclass(slots=True)
class _Phase:
    """One phase of all: when it began, and each rank's host and when the phase ended there (0: not yet)."""

    name: str
    begin_ns: int
    ends: dict[int, tuple[str, int]] = field(default_factory=dict)

    def by_host(self) -> dict[str, int]:
        """Host -> when its last rank ended it."""
        found: dict[str, int] = {}
        for host, end_ns in self.ends.values():
            found[host] = max(end_ns, found.get(host, 0))
        return found


@dataclass(slots=True)
class PhaseTracker:
    """The announced phases of one job.

    Attributes:
        config: settings.
        graph: who runs where.
        open: phases that some hosts are in.
        told: of each name, the newest last: [begin_ns, end_ns, host that held up all ("" = nobody), its seconds, those
            of the second longest, hosts].
        step_ends_ns: when steps ended lately.
    """

    config: PhaseConfig
    graph: JobGraph
    open: list[_Phase] = field(default_factory=list)
    told: dict[str, list[list[Any]]] = field(default_factory=dict)
    step_ends_ns: list[int] = field(default_factory=list)

    def take(self, event: Event) -> None:
        """A rank begins a phase, or ends it."""
        name, edge = str(event.payload.get("phase", "")), event.payload.get("edge")
        host = event.host or self.graph.host_of(event.rank)
        if not name or not host or event.rank < 0:
            return
        ts_ns = self.graph.corrected_ns(event.rank, event.ts_ns)
        phase = next((phase for phase in reversed(self.open) if phase.name == name), None)
        if edge == "begin":
            if phase is None or ts_ns - phase.begin_ns > self.config.together_ns:
                phase = _Phase(name, ts_ns)
                self.open = [*self.open, phase][-self.config.kept_count :]
            phase.begin_ns = min(phase.begin_ns, ts_ns)
            phase.ends.setdefault(event.rank, (host, 0))
        elif edge == "end" and phase is not None and event.rank in phase.ends:
            phase.ends[event.rank] = (host, max(ts_ns, phase.ends[event.rank][1]))

    def take_steps(self, rows: Sequence[StepRecord]) -> None:
        """Keep when steps ended: who trains on does not wait."""
        newest_ns = max((row.ts_ns for row in rows), default=0)
        if newest_ns and (not self.step_ends_ns or newest_ns > self.step_ends_ns[-1]):
            self.step_ends_ns = [*self.step_ends_ns, newest_ns][-self.config.kept_step_count :]

    def find(self, now_ns: int) -> Finding | None:
        """The machine whose phases hold up all, None: there is none, or nobody can say."""
        for phase in [phase for phase in self.open if self._is_over(phase, now_ns)]:
            self.open.remove(phase)
            self._judge(phase)
        found = [self._finding(name, told) for name, told in sorted(self.told.items()) if self._holds_up(told, now_ns)]
        return found[0] if found else None

    def _is_over(self, phase: _Phase, now_ns: int) -> bool:
        """Whether all who began it ended it; the others' begin may still be on its way."""
        return all(end_ns for _, end_ns in phase.ends.values()) and now_ns - phase.begin_ns > self.config.together_ns

    def _judge(self, phase: _Phase) -> None:
        ends = phase.by_host()
        if len(ends) < self.config.least_host_count:
            return
        (second_ns, _), (end_ns, host) = sorted((end_ns, host) for host, end_ns in ends.items())[-2:]
        longest, second = end_ns - phase.begin_ns, second_ns - phase.begin_ns
        is_alone = longest >= max(self.config.ratio * second, second + self.config.least_excess_ns)
        first_ns, last_ns = second_ns + self.config.clock_ns, end_ns - self.config.clock_ns
        goes_on = not self.step_ends_ns or any(first_ns < step_ns < last_ns for step_ns in self.step_ends_ns)
        slowest = host if is_alone and not goes_on else ""
        seconds = [longest / NS_PER_SECOND, second / NS_PER_SECOND]
        told = [phase.begin_ns, end_ns, slowest, *seconds, len(ends)]
        self.told[phase.name] = [*self.told.get(phase.name, []), told][-self.config.kept_count :]

    def _in_a_row(self, told: Sequence[Sequence[Any]]) -> Sequence[Sequence[Any]]:
        """The last ones that the same host held up."""
        row = 0
        while row < len(told) and told[-1 - row][2] == told[-1][2] != "":
            row += 1
        return told[len(told) - row :]

    def _holds_up(self, told: Sequence[Sequence[Any]], now_ns: int) -> bool:
        last = self._in_a_row(told)
        if not last or now_ns - last[-1][1] > self.config.lasting_ns:
            return False
        times = 1 + max(1, math.ceil(math.log(1 / self.config.chance_ratio) / math.log(last[-1][5])))
        # Who always took longer has more to save: once it was like the others.
        return len(last) >= times and len(told) > len(last)

    def _finding(self, name: str, told: Sequence[Sequence[Any]]) -> Finding:
        last = self._in_a_row(told)
        begin_ns, end_ns, host, seconds, second_seconds, host_count = last[-1]
        text = (
            f"{host}: its {name} took {seconds:.3g} s, that of all other {host_count - 1} hosts {second_seconds:.3g} s "
            f"at most; all waited for it, {len(last)} times in a row"
        )
        evidence = Evidence("phases", name, 2.0, begin_ns, end_ns, text, seconds, second_seconds)
        return Finding(
            FaultKind.FAIL_SLOW,
            "unknown",
            (Suspect(Component(ComponentKind.HOST, host)),),
            last[0][0],
            0.8,
            Reason.SAME_HOST_HOLDS_UP_PHASE,
            (evidence,),
            is_soft=True,  # its disk, its way to the storage, or a shard that grew
            seen_ns=end_ns,
        )

    def to_state(self) -> dict[str, Any]:
        """JSON-able state."""
        return {
            "open": [[phase.name, phase.begin_ns, rows_state(phase.ends)] for phase in self.open],
            "told": pairs_state(self.told),
            "step_ends_ns": self.step_ends_ns,
        }

    def load_state(self, state: dict[str, Any]) -> None:
        """Take back what ``to_state`` gave."""
        self.open = [
            _Phase(name, begin_ns, {rank: (host, end_ns) for rank, host, end_ns in ends})
            for name, begin_ns, ends in state["open"]
        ]
        self.told = {name: [list(one) for one in told] for name, told in state["told"]}
        self.step_ends_ns = state["step_ends_ns"]
