"""Tracker of announced phases, such as checkpoints: finds a host that repeatedly holds up all others.

Step times show nothing then, and metrics are not judged in announced phases, so the phases' own durations are compared.
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
    """Settings of the tracker.

    Attributes:
        ratio: least ratio of the longest phase to the second longest ...
        least_excess_ns: ... and least difference, for the longest host to stand out.
        chance_ratio: probability below which the same host being longest several times in a row is not chance. Three
            times suffice in a job of 15 hosts, five in one of four.
        least_host_count: fewest hosts that announce phases for a comparison.
        together_ns: greatest spread of the starts of one common phase.
        clock_ns: tolerance for clocks and for delayed step records.
        lasting_ns: how long after its last phase a finding holds.
        kept_count: phases remembered for each name.
        kept_step_count: step ends that are remembered.
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
    """Phase that several ranks announced together.

    Attributes:
        name: phase name, such as ``checkpoint``.
        begin_ns: earliest start.
        ends: rank -> (host, end time in nanoseconds; 0 while it lasts).
    """

    name: str
    begin_ns: int
    ends: dict[int, tuple[str, int]] = field(default_factory=dict)

    def by_host(self) -> dict[str, int]:
        """Return host -> time in nanoseconds at which its last rank ended the phase."""
        found: dict[str, int] = {}
        for host, end_ns in self.ends.values():
            found[host] = max(end_ns, found.get(host, 0))
        return found


@dataclass(slots=True)
class PhaseTracker:
    """Announced phases of one job.

    Attributes:
        config: settings.
        graph: the job's ranks and hosts.
        open: phases that some ranks are still in.
        history: phase name -> rows, newest last: [begin_ns, end_ns, host that held up all others ("" = none), its
            duration in seconds, the second longest duration in seconds, number of hosts].
        step_ends_ns: recent end times of steps.
    """

    config: PhaseConfig
    graph: JobGraph
    open: list[_Phase] = field(default_factory=list)
    history: dict[str, list[list[Any]]] = field(default_factory=dict)
    step_ends_ns: list[int] = field(default_factory=list)

    def take(self, event: Event) -> None:
        """Record that a rank begins or ends a phase."""
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
        """Record step ends: a job that steps on does not wait for a phase."""
        newest_ns = max((row.ts_ns for row in rows), default=0)
        if newest_ns and (not self.step_ends_ns or newest_ns > self.step_ends_ns[-1]):
            self.step_ends_ns = [*self.step_ends_ns, newest_ns][-self.config.kept_step_count :]

    def find(self, now_ns: int) -> Finding | None:
        """Judge all finished phases and return a finding about the host that holds up all others, if any."""
        for phase in [phase for phase in self.open if self._is_over(phase, now_ns)]:
            self.open.remove(phase)
            self._judge(phase)
        found = [
            self._finding(name, history)
            for name, history in sorted(self.history.items())
            if self._holds_up(history, now_ns)
        ]
        return found[0] if found else None

    def _is_over(self, phase: _Phase, now_ns: int) -> bool:
        """Return whether all ranks that began the phase have ended it, and no further starts are expected."""
        return all(end_ns for _, end_ns in phase.ends.values()) and now_ns - phase.begin_ns > self.config.together_ns

    def _judge(self, phase: _Phase) -> None:
        """Add one finished phase to the history, with the host that alone took longest while no steps ended."""
        ends = phase.by_host()
        if len(ends) < self.config.least_host_count:
            return
        (second_ns, _), (end_ns, host) = sorted((end_ns, host) for host, end_ns in ends.items())[-2:]
        longest, second = end_ns - phase.begin_ns, second_ns - phase.begin_ns
        is_alone = longest >= max(self.config.ratio * second, second + self.config.least_excess_ns)
        first_ns, last_ns = second_ns + self.config.clock_ns, end_ns - self.config.clock_ns
        steps_continue = not self.step_ends_ns or any(first_ns < step_ns < last_ns for step_ns in self.step_ends_ns)
        slowest = host if is_alone and not steps_continue else ""
        seconds = [longest / NS_PER_SECOND, second / NS_PER_SECOND]
        history = [phase.begin_ns, end_ns, slowest, *seconds, len(ends)]
        self.history[phase.name] = [*self.history.get(phase.name, []), history][-self.config.kept_count :]

    def _last_streak(self, history: Sequence[Sequence[Any]]) -> Sequence[Sequence[Any]]:
        """Return the last rows in which the same host held up all others, oldest first; empty if there is none."""
        length = 0
        while length < len(history) and history[-1 - length][2] == history[-1][2] != "":
            length += 1
        return history[len(history) - length :]

    def _holds_up(self, history: Sequence[Sequence[Any]], now_ns: int) -> bool:
        """Return whether one host held up enough recent phases in a row to rule out chance.

        It must have been like the others in an earlier phase; a host that always takes longer may have more to save.
        """
        last = self._last_streak(history)
        if not last or now_ns - last[-1][1] > self.config.lasting_ns:
            return False
        times = 1 + max(1, math.ceil(math.log(1 / self.config.chance_ratio) / math.log(last[-1][5])))
        # Who always took longer has more to save: once it was like the others.
        return len(last) >= times and len(history) > len(last)

    def _finding(self, name: str, history: Sequence[Sequence[Any]]) -> Finding:
        """Return the fail-slow finding about the host that holds up all others; its action is soft."""
        last = self._last_streak(history)
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
        """Return the state as JSON-serialisable values, for a snapshot."""
        return {
            "open": [[phase.name, phase.begin_ns, rows_state(phase.ends)] for phase in self.open],
            "told": pairs_state(self.history),
            "step_ends_ns": self.step_ends_ns,
        }

    def load_state(self, state: dict[str, Any]) -> None:
        """Restore the state from values that ``to_state`` returned."""
        self.open = [
            _Phase(name, begin_ns, {rank: (host, end_ns) for rank, host, end_ns in ends})
            for name, begin_ns, ends in state["open"]
        ]
        self.history = {name: [list(one) for one in history] for name, history in state["told"]}
        self.step_ends_ns = state["step_ends_ns"]
