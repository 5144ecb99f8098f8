"""Tracker of non-finite losses and gradients (NaN): finds the rank that had the first one.

After one all-reduce every rank has the NaN. The order is therefore taken from (step, loss before gradient norm), which
needs no clocks.

No rank counts as first where no other rank was seen with finite numbers before. An engine that starts in the middle of
an episode hears the reports in random order.

If the same step yields NaN again after a restart, its data or the model's weights are to blame. Both are nearly the
same then, while the machine may differ.
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
"""Order within a step of the numbers that may be lost."""
_LOCAL_STAGE = -1
"""Stage of a number that a rank reports as its own, computed before any all-reduce."""


@dataclass(frozen=True, slots=True)
class NanConfig:
    """Settings of the tracker.

    Attributes:
        settle_ns: how long after the first report other ranks' reports may still arrive.
        answer_ns: how long to wait for the peers' own numbers of that step.
        forget_ns: silence after which an episode ends.
        same_steps_count: steps at most this far apart count as the same, as some ranks report every few steps, or a
            step late. A rank that repeats a step further back was rolled back.
        apart_steps_count: if two machines have NaN within so many steps, neither is at fault: two machines hardly break
            so close together, while a diverging model fails anywhere.
        kept_count: number of earlier episodes that are remembered.
        watched_steps_count: where only events report NaN, number of steps that must have been observed before the first
            report ...
        watched_ns: ... or, without known steps, how long the job must have been observed (two agent reports).
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
    """Earlier episode of non-finite numbers.

    Attributes:
        step: first step with a non-finite number.
        hosts: hosts that had it at that step, sorted.
        ts_ns: time of the first report.
        is_replayed: whether the job has since gone back to before that step.
    """

    step: int
    hosts: tuple[str, ...]
    ts_ns: int
    is_replayed: bool


@dataclass(slots=True)
class NanTracker:
    """Reports of non-finite numbers in the current episode, and earlier episodes, also of earlier attempts.

    Attributes:
        config: settings.
        graph: the job's ranks and hosts.
        first: rank -> first report of this episode: [step, stage, ts_ns, value, host, whether an event reported it].
        newest_ns: time of the newest report.
        past: earlier episodes, oldest first.
        began_step: step at which the job (re)started; -1 if unknown.
        since_ns: time of the last rollback within this attempt; older reports belong to the earlier episode.
    """

    config: NanConfig
    graph: JobGraph
    first: dict[int, list[Any]] = field(default_factory=dict)
    newest_ns: int = 0
    past: list[Episode] = field(default_factory=list)
    began_step: int = -1
    since_ns: int = 0

    def take(self, event: Event) -> None:
        """Record a NaN event, if it is the rank's earliest of the episode."""
        what = str(event.payload.get("what", event.payload.get("where", "")))
        stage = _LOCAL_STAGE if "local" in what else _STAGE.get(what, 1)
        step, value = int(number(event.payload, "step", -1)), str(event.payload.get("value", "nan"))
        self._report(event.rank, [step, stage, event.ts_ns, value], by_event=True)

    def take_steps(self, rows: Sequence[StepRecord]) -> None:
        """Record non-finite losses and gradient norms in step records, and detect rollbacks."""
        if self.began_step < 0 and rows:
            self.began_step = rows[0].step
        for row in rows:
            if self.first:
                self._end_on_rollback(row)
            if row.loss is None and row.grad_norm is None:
                continue
            for stage, value in enumerate((row.loss, row.grad_norm)):
                if value is not None and not math.isfinite(value):
                    self._report(row.rank, [row.step, stage, row.ts_ns, str(value)], by_event=False)

    def _report(self, rank: int, report: list[Any], *, by_event: bool) -> None:
        """Store one report [step, stage, ts_ns, value] of a rank; start a new episode after long silence."""
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

    def _end_on_rollback(self, row: StepRecord) -> None:
        """End the episode if a rank repeats a step from before its NaN: it was rolled back within the attempt."""
        known = self.first.get(row.rank)
        if known is None or row.ts_ns <= known[2] or row.step >= known[0] - self.config.same_steps_count:
            return
        self._close()
        self.past = [replace(one, is_replayed=one.is_replayed or one.step >= row.step) for one in self.past]
        self.began_step, self.since_ns = row.step, row.ts_ns

    def _close(self) -> None:
        """Move the current episode to the past ones."""
        self.past = self._episodes()
        self.first.clear()

    def _episodes(self) -> list[Episode]:
        """Return all episodes, oldest first, the current one included."""
        if not self.first:
            return self.past
        earliest = min(report[:2] for report in self.first.values())
        reports = [report for report in self.first.values() if report[:2] == earliest]
        hosts = tuple(sorted({report[4] for report in reports}))
        now = Episode(earliest[0], hosts, min(report[2] for report in reports), is_replayed=False)
        return [*self.past, now][-self.config.kept_count :]

    def follow(self, older: NanTracker) -> None:
        """Take over the episodes of the previous attempt's tracker, marked as replayed.

        The job repeats those steps with the same data.
        """
        self.past = [replace(one, is_replayed=True) for one in older._episodes()]

    def find(self, now_ns: int) -> Finding | None:
        """Return the finding about the current episode; None without an episode, or while reports may be outstanding.

        The suspect is the host with the earliest report. There is none where several hosts share it, where peers had no
        finite numbers, or where an earlier episode shows that the machine is not at fault.
        """
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
        before = self._related_episode(earliest[0], {self.first[rank][4] for rank in ranks}) if single else None
        if single and before is None:
            peers, cleared = self._peer_counts(graph, ranks, earliest)
            if cleared < peers and now_ns - onset_ns < self.config.answer_ns:
                return None
            # A rank that alone reports its loss is not the first, it is the only one; its own number is its own.
            single = cleared > 0 or earliest[1] == _LOCAL_STAGE
        evidence = tuple(self._evidence(graph, rank) for rank in sorted(ranks)[:5])
        if single and before is None:
            suspects, reason, confidence = suspects_of(graph, ranks), Reason.NAN_FIRST_BY_STEP, 0.9
        elif before is not None:
            suspects, reason, confidence = (), before[0], 0.6
            evidence = (*evidence, _earlier_episode_evidence(*before))
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
        """Whether the NaN spread to no other host, although these have finite numbers of many later steps."""
        return bool(self.first) and stays_alone(self.first, self.graph)

    def _related_episode(self, step: int, hosts: set[str]) -> tuple[Reason, Episode] | None:
        """Return the earlier episode that shows that a NaN is not the machine's fault, with the reason; else None.

        Args:
            step: step of the current NaN.
            hosts: hosts that have it first.
        """
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

    def _peer_counts(self, graph: JobGraph, ranks: Sequence[int], earliest: Sequence[int]) -> tuple[int, int]:
        """Return (peers, cleared): how many ranks elsewhere report such numbers, and how many were finite then.

        Ranks elsewhere are those of other hosts; where the job runs on one machine, all other ranks.

        Args:
            graph: the job's ranks and hosts.
            ranks: ranks with the earliest NaN.
            earliest: step and stage of it.
        """
        hosts = set() if self._is_one_machine() else {graph.host_of(rank) for rank in ranks}
        step, stage = earliest
        peers, cleared = 0, 0
        for rank, facts in graph.ranks.items():
            if rank in ranks or graph.host_of(rank) in hosts:
                continue
            lost = rank in self.first  # later: the earliest ones are all in ``ranks``
            later = lost and self._was_finite_before(rank, facts)
            peers += int(lost or max(facts.number_steps) >= 0)
            cleared += int(later or facts.number_steps[max(stage, 0)] >= step)
        return peers, cleared

    def _is_one_machine(self) -> bool:
        """Return whether all ranks run on one machine; ranks are then compared with one another."""
        return self.graph.host_count(self.graph.ranks, 2) == 1

    def _was_finite_before(self, rank: int, facts: RankFacts) -> bool:
        """Return whether a rank with NaN was observed with finite numbers before.

        Without numbers in step records, a NaN event implies it, as the hook reports the first one. That holds only if
        the job was observed for some steps before the first report of all.
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
        """Return evidence of a rank's first NaN, with the number of ranks that followed."""
        step, stage, ts_ns, value, *_ = self.first[rank]
        what = {0: "loss", _LOCAL_STAGE: "its own gradient"}.get(stage, "gradient norm")
        text = f"{names_of(graph, [rank])}: {what} is {value} at step {step}"
        others = [report[0] for other, report in self.first.items() if other != rank]
        if others:
            text += f"; {len(others)} other ranks followed (first at step {min(others)})"
        return Evidence("nan", events.NAN, 2.0, ts_ns, ts_ns, text)

    def to_state(self) -> dict[str, Any]:
        """Return the state as JSON-serialisable values, for a snapshot."""
        return {
            "first": pairs_state(self.first),
            "newest_ns": self.newest_ns,
            "past": [[one.step, list(one.hosts), one.ts_ns, one.is_replayed] for one in self.past],
            "began_step": self.began_step,
            "since_ns": self.since_ns,
        }

    def load_state(self, state: dict[str, Any]) -> None:
        """Restore the state from values that ``to_state`` returned."""
        self.first = pairs_from(state["first"])
        self.newest_ns = state["newest_ns"]
        self.past = [Episode(step, tuple(hosts), *rest) for step, hosts, *rest in state["past"]]
        self.began_step, self.since_ns = state["began_step"], state["since_ns"]


def _earlier_episode_evidence(reason: Reason, before: Episode) -> Evidence:
    """Return evidence that describes the earlier episode, against blaming either machine."""
    hosts = ", ".join(before.hosts[:3]) + (", ..." if len(before.hosts) > 3 else "")
    text = f"before, on {hosts}, numbers were lost at step {before.step}"
    if reason is Reason.NAN_SAME_STEP_AGAIN:
        text += ": the data of that step, or the model's state, is to blame; it may have been so then, too"
    return Evidence("nan", events.NAN, 2.0, before.ts_ns, before.ts_ns, text)
