"""Which rank was the first without a number.

After one all-reduce everybody has it, so the order is told by (step, loss before
gradient norm), which needs no clock. Clocks are asked only among hosts whose error
is known to be smaller than the gap.

Nobody is the first where nobody else was seen with numbers before: who hears of it in its midst (an engine that
started then, or of a rank that joined late) hears of the ranks in the order in which they happen to speak.

A step that has no number again after a restart has the same data and nearly the
same weights: those are to blame, whatever machine it is on by then.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from tocsin.pipeline.core.state_maps import pairs_from, pairs_state
from tocsin.pipeline.job.facts import RankFacts
from tocsin.pipeline.job.graph import JobGraph
from tocsin.pipeline.rca.common import names_of, suspects_of
from tocsin.pipeline.rca.evidence.contradicted import stays_alone
from tocsin.pipeline.rca.finding import Finding
from tocsin.schemas import events
from tocsin.schemas.reasons import Reason
from tocsin.schemas.records import NS_PER_SECOND, Event, StepRecord
from tocsin.schemas.verdicts import Evidence, FaultKind
from tocsin.schemas.wire.event_payloads import number

_STAGE = {"loss": 0, "grad_norm": 1}
_LOCAL_STAGE = -1
"""A number of the rank's own, said to be so: before it met those of the others."""


@dataclass(frozen=True, slots=True)
class NanConfig:
    """Settings.

    Attributes:
        settle_ns: how long after the first report the others may still be heard.
        answer_ns: how long the peers' own numbers of that step are waited for.
        forget_ns: an episode without new reports ends after this.
        same_steps_count: steps that lie no further apart are one: some report every few steps, or a step late. Who
            makes a step again that lies further back was rolled back.
        apart_steps_count: another machine's NaN that comes sooner after (or before) one machine's is no fault of its
            own: two machines hardly break within so few steps, a model that diverges loses its numbers anywhere.
        kept_count: how many earlier episodes are remembered.
        watched_steps_count: where only events tell, a report is the first if so many steps were heard of before it ...
        watched_ns: ... or where no steps are told, the job for so long (two reports of an agent).
    """

    settle_ns: int = NS_PER_SECOND
    answer_ns: int = 10 * NS_PER_SECOND
    forget_ns: int = 300 * NS_PER_SECOND
    same_steps_count: int = 3
    apart_steps_count: int = 100
    kept_count: int = 16
    watched_steps_count: int = 2
    watched_ns: int = 10 * NS_PER_SECOND


@dataclass(frozen=True, slots=True)
class Episode:
    """Numbers that were lost before.

    Attributes:
        step: the first step without a number.
        hosts: who had it then, by name.
        ts_ns: when.
        is_replayed: whether the job went back behind it since.
    """

    step: int
    hosts: tuple[str, ...]
    ts_ns: int
    is_replayed: bool


@dataclass(slots=True)
class NanTracker:
    """The reports of one episode, and what is left of those before it, be it in an earlier attempt.

    Attributes:
        config: settings.
        graph: who runs where.
        first: rank -> [step, stage, ts_ns, value, host, told by an event], of this episode.
        newest_ns: its newest report.
        past: earlier episodes, the oldest first.
        began_step: the step from which the job goes on since it (re)started, -1: not heard.
        since_ns: when it went back, within this attempt: older reports are of the episode before.
    """

    config: NanConfig
    graph: JobGraph
    first: dict[int, list[Any]] = field(default_factory=dict)
    newest_ns: int = 0
    past: list[Episode] = field(default_factory=list)
    began_step: int = -1
    since_ns: int = 0

    def take(self, event: Event) -> None:
        """Keep a rank's first report of the episode."""
        what = str(event.payload.get("what", event.payload.get("where", "")))
        stage = _LOCAL_STAGE if "local" in what else _STAGE.get(what, 1)
        step, value = int(number(event.payload, "step", -1)), str(event.payload.get("value", "nan"))
        self._report(event.rank, [step, stage, event.ts_ns, value], by_event=True)

    def take_steps(self, rows: Sequence[StepRecord]) -> None:
        """Step records show it too, where nobody sends events of it."""
        if self.began_step < 0 and rows:
            self.began_step = rows[0].step
        for row in rows:
            if self.first:
                self._see_way_back(row)
            if row.loss is None and row.grad_norm is None:
                continue
            for stage, told in enumerate((row.loss, row.grad_norm)):
                if told is not None and not math.isfinite(told):
                    self._report(row.rank, [row.step, stage, row.ts_ns, str(told)], by_event=False)

    def _report(self, rank: int, report: list[Any], *, by_event: bool) -> None:
        ts_ns = int(report[2])
        if ts_ns < self.since_ns:
            return
        if ts_ns - self.newest_ns > self.config.forget_ns:
            self._close()
        self.newest_ns = max(self.newest_ns, ts_ns)
        known = self.first.get(rank)
        if known is None or report[:2] < known[:2]:
            known = self.first[rank] = [*report, self.graph.host_of(rank), known is not None and known[5]]
        known[5] = known[5] or by_event

    def _see_way_back(self, row: StepRecord) -> None:
        """Who makes an earlier step after its NaN was rolled back, without a new attempt: the episode is over."""
        known = self.first.get(row.rank)
        if known is None or row.ts_ns <= known[2] or row.step >= known[0] - self.config.same_steps_count:
            return
        self._close()
        self.past = [replace(one, is_replayed=one.is_replayed or one.step >= row.step) for one in self.past]
        self.began_step, self.since_ns = row.step, row.ts_ns

    def _close(self) -> None:
        self.past = self._episodes()
        self.first.clear()

    def _episodes(self) -> list[Episode]:
        """All episodes, with the one that goes on."""
        if not self.first:
            return self.past
        earliest = min(report[:2] for report in self.first.values())
        reports = [report for report in self.first.values() if report[:2] == earliest]
        hosts = tuple(sorted({report[4] for report in reports}))
        now = Episode(earliest[0], hosts, min(report[2] for report in reports), is_replayed=False)
        return [*self.past, now][-self.config.kept_count :]

    def follow(self, older: NanTracker) -> None:
        """Remember what was lost in the attempt before this one: the job makes those steps again, with that data."""
        self.past = [replace(one, is_replayed=True) for one in older._episodes()]

    def find(self, now_ns: int) -> Finding | None:
        """Who was first, nobody where that cannot be said, None without an episode."""
        if not self.first or now_ns - self.newest_ns > self.config.forget_ns:
            return None
        onset_ns = min(report[2] for report in self.first.values())
        if now_ns - onset_ns < self.config.settle_ns:
            return None
        earliest = min(report[:2] for report in self.first.values())
        graph = self.graph
        ranks = [rank for rank, report in self.first.items() if report[:2] == earliest]
        # Several in the same step had it before they met: what they share (the weights) is to blame,
        # and the fastest of them is only the fastest.
        single = len(ranks) == 1 or (not self._is_one_machine() and len({graph.host_of(rank) for rank in ranks}) == 1)
        before = self._before(earliest[0], {self.first[rank][4] for rank in ranks}) if single else None
        if single and before is None:
            peers, cleared = self._cleared(graph, ranks, earliest)
            if cleared < peers and now_ns - onset_ns < self.config.answer_ns:
                return None
            # A rank that alone reports its loss is not the first, it is the only one; its own number is its own.
            single = cleared > 0 or earliest[1] == _LOCAL_STAGE
        evidence = tuple(self._evidence(graph, rank) for rank in sorted(ranks)[:5])
        if single and before is None:
            suspects, reason, confidence = suspects_of(graph, ranks), Reason.NAN_FIRST_BY_STEP, 0.9
        elif before is not None:
            suspects, reason, confidence = (), before[0], 0.6
            evidence = (*evidence, _told_before(*before))
        else:
            suspects, reason, confidence = (), Reason.NAN_EVERYWHERE, 0.6
        return Finding(
            FaultKind.SILENT_CORRUPTION,
            "nan_gradient",
            suspects,
            onset_ns,
            confidence,
            reason,
            evidence,
            certain=True,
            is_lone=single and len({report[4] for report in self.first.values()}) == 1,
        )

    @property
    def stays_alone(self) -> bool:
        """Whether the lost number spread to nobody: everybody else has numbers of many later steps."""
        return bool(self.first) and stays_alone(self.first, self.graph)

    def _before(self, step: int, hosts: set[str]) -> tuple[Reason, Episode] | None:
        """What came before that shows that a NaN is not of the machine that alone has it, and why it does."""
        if step < 0:
            return None
        is_fresh = self.began_step >= 0 and step <= self.began_step + self.config.same_steps_count
        others = None
        for one in reversed(self.past):
            if one.step < 0:
                continue
            is_other = set(one.hosts) != hosts
            steps_count = abs(step - one.step)
            if steps_count <= self.config.same_steps_count and (is_other or one.is_replayed):
                return Reason.NAN_SAME_STEP_AGAIN, one
            # Right after it went back, it is the state that it took up.
            if is_other and (steps_count <= self.config.apart_steps_count or (is_fresh and one.is_replayed)):
                others = others or one
        return None if others is None else (Reason.NAN_SOON_ELSEWHERE, others)

    def _cleared(self, graph: JobGraph, ranks: Sequence[int], earliest: Sequence[int]) -> tuple[int, int]:
        """How many ranks of other hosts report this number, and how many of them had one at that step.

        Where the whole job runs on one machine: how many other ranks.
        """
        hosts = set() if self._is_one_machine() else {graph.host_of(rank) for rank in ranks}
        step, stage = earliest
        peers, cleared = 0, 0
        for rank, facts in graph.ranks.items():
            if rank in ranks or graph.host_of(rank) in hosts:
                continue
            lost = rank in self.first  # later: the earliest ones are all in ``ranks``
            later = lost and self._had_numbers(rank, facts)
            peers += int(lost or max(facts.number_steps) >= 0)
            cleared += int(later or facts.number_steps[max(stage, 0)] >= step)
        return peers, cleared

    def _is_one_machine(self) -> bool:
        """Whether all ranks run on one machine: then they are compared with one another."""
        return self.graph.host_count(self.graph.ranks, 2) == 1

    def _had_numbers(self, rank: int, facts: RankFacts) -> bool:
        """Whether a rank was seen with numbers before it lost them.

        Where steps tell none an event does: a hook sends it when a number is lost, so the steps before had theirs. Not
        where the first of all reports came as soon as anything of the job was heard: there may have been one before.
        """
        if max(facts.number_steps) >= 0:
            return True
        _, _, ts_ns, _, _, by_event = self.first[rank]
        earliest_step, earliest_ns = min((report[0], report[2]) for report in self.first.values())
        if self.began_step >= 0 and earliest_step >= 0:
            was_watched = earliest_step >= self.began_step + self.config.watched_steps_count
        else:
            was_watched = facts.first_seen_ns < earliest_ns - self.config.watched_ns
        return bool(by_event) and was_watched and facts.first_seen_ns < ts_ns - NS_PER_SECOND

    def _evidence(self, graph: JobGraph, rank: int) -> Evidence:
        step, stage, ts_ns, value, *_ = self.first[rank]
        what = {0: "loss", _LOCAL_STAGE: "its own gradient"}.get(stage, "gradient norm")
        text = f"{names_of(graph, [rank])}: {what} is {value} at step {step}"
        others = [report[0] for other, report in self.first.items() if other != rank]
        if others:
            text += f"; {len(others)} other ranks followed (first at step {min(others)})"
        return Evidence("nan", events.NAN, 2.0, ts_ns, ts_ns, text)

    def to_state(self) -> dict[str, Any]:
        """JSON-able state."""
        return {
            "first": pairs_state(self.first),
            "newest_ns": self.newest_ns,
            "past": [[one.step, list(one.hosts), one.ts_ns, one.is_replayed] for one in self.past],
            "began_step": self.began_step,
            "since_ns": self.since_ns,
        }

    def load_state(self, state: dict[str, Any]) -> None:
        """Take back what ``to_state`` gave."""
        self.first = pairs_from(state["first"])
        self.newest_ns = state["newest_ns"]
        self.past = [Episode(step, tuple(hosts), *rest) for step, hosts, *rest in state["past"]]
        self.began_step, self.since_ns = state["began_step"], state["since_ns"]


def _told_before(reason: Reason, before: Episode) -> Evidence:
    """What the NaN of before says, to whoever would blame either machine."""
    hosts = ", ".join(before.hosts[:3]) + (", ..." if len(before.hosts) > 3 else "")
    text = f"before, on {hosts}, numbers were lost at step {before.step}"
    if reason is Reason.NAN_SAME_STEP_AGAIN:
        text += ": the data of that step, or the model's state, is to blame; it may have been so then, too"
    return Evidence("nan", events.NAN, 2.0, before.ts_ns, before.ts_ns, text)
