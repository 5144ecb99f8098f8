"""Step detector: which ranks are slow step after step, in which phase of a step, compared with their own role.

The detector is keyed by job and emits anomalies; the root cause analysis decides what they mean. A candidate must
last before it is reported: strong evidence briefly, weak evidence long (``StepsConfig.need_seconds``).
"""

from __future__ import annotations

from collections.abc import Collection, Container, Mapping, Sequence
from dataclasses import asdict, replace

import numpy as np

from tocsin.models.documents import Model, version_of, with_numbers
from tocsin.models.job_change import JobChange
from tocsin.models.steps import (
    SlowConfig,
    SlowPart,
    SlowRanks,
    StepWindow,
    find_slow,
    has_peers,
    luck_ratio,
    median_excess,
    volatility_ratio,
)
from tocsin.pipeline.core.arrays import map_from, map_state
from tocsin.pipeline.core.operator import UNCHANGED, pack_state, unpack_state
from tocsin.pipeline.detect.abstaining import Abstaining
from tocsin.pipeline.detect.steps.anomalies import anomaly_of
from tocsin.pipeline.detect.steps.baseline import BLOCK_COUNT, ExcessPast
from tocsin.pipeline.detect.steps.candidates import JOB, MORE, Candidate, Candidates, Turns
from tocsin.pipeline.detect.steps.config import StepsConfig
from tocsin.pipeline.detect.steps.costs import costs_ratio
from tocsin.pipeline.detect.steps.history import StepHistory
from tocsin.pipeline.detect.steps.pending import PendingSteps
from tocsin.pipeline.detect.steps.replicas import is_whole_replica
from tocsin.pipeline.detect.steps.reporting import too_early, was_slow_before
from tocsin.pipeline.detect.steps.rows import StepRows, table_of, window_from, window_parts
from tocsin.pipeline.detect.steps.slower_hosts import harmed_hosts, self_time_excess_seconds
from tocsin.pipeline.job.graph import JobGraph
from tocsin.schemas.reasons import Reason
from tocsin.schemas.records import NS_PER_SECOND, Slice, StepBatch
from tocsin.schemas.verdicts import Anomaly, WitnessKind


class StepDetector(Abstaining):
    """Finds slow ranks and job-wide slowdowns in one job's steps."""

    def __init__(self, config: StepsConfig, graph: JobGraph) -> None:
        """Start without history.

        Args:
            config: settings without a model.
            graph: facts of the job, fed with each slice before the detector is.
        """
        self._own = self._config = config
        self._model: Model | None = None
        self._graph = graph
        self._pending = PendingSteps(graph.announced, self._abstain)
        self.window: list[StepRows] = []
        """The newest judged steps, newest last, at most ``long_count``."""
        self.history = StepHistory(graph.in_announced_phase)
        """The job's own step times."""
        self.judged_count = 0
        """Number of steps judged so far."""
        self._early: dict[int, float] = {}
        """Rank -> excess over its peers' own time in first steps, of the job or where ranks moved to, seconds."""
        self._past = ExcessPast()
        self._candidates = Candidates(config.rotation)
        self._is_compared = True
        """Whether ranks were compared with one another when they were judged last."""
        self.abstained: dict[str, int] = {}
        """Reason -> how often nothing was judged for it."""

    @property
    def median_step_ns(self) -> int:
        """The job's median step time, 0 = unknown yet."""
        return self.history.median_step_ns

    def rate_of(self, rank: int, now_ns: int) -> float:
        """Return a rank's steps per second by its newest step, 0 = it finished none of late.

        Args:
            rank: the rank.
            now_ns: the slice's end.
        """
        if now_ns - self._pending.newest_ns_of(rank) > self._config.active_ns:
            return 0.0
        for step in reversed(self.window):
            duration_seconds = step.duration_of(rank)
            if duration_seconds is not None:
                return 1.0 / max(duration_seconds, 1e-3)
        return 0.0

    def self_time_excess_seconds(self, host: str) -> float | None:
        """Return how much longer than its peers a host's slowest rank computes of late, beyond noise.

        The result is None where it was not measured. That includes a host without an excess of which only some ranks
        send steps: another rank may have one.
        """
        return self_time_excess_seconds(self.window[-self._config.short_count :], host, self._graph)

    def costs_ratio(self, suspects: Collection[int], onset_ns: int) -> float | None:
        """Return the share of the newest steps since an onset that some ranks cost the job; None: not measured."""
        steps = [step for step in self.window if step.end_ns > onset_ns]
        stages = self._graph.placement.stages_of(table_of(steps)[0]) if steps else ()
        return costs_ratio(steps, stages, suspects)

    def grown_self_time_seconds(self, host: str, onset_ns: int) -> float:
        """Return by how much the excess of a host's slowest rank over its peers has grown since an onset.

        The growth is measured over a dozen steps since then. It is 0 where it does not stand out among all hosts, and
        where it is unknown.
        """
        if len(self.window) < BLOCK_COUNT or self._begin_ns(-BLOCK_COUNT) < onset_ns:
            return 0.0
        window, ranks = self._arrays()
        return self._past.grown_seconds(window, ranks, self._graph.host_of, onset_ns).get(host, 0.0)

    def harmed_since(self, onset_ns: int, now_ns: int) -> dict[str, WitnessKind]:
        """Return the hosts whose steps have become longer with the job's since an onset, and what shows it.

        Args:
            onset_ns: a time of the past.
            now_ns: the slice's end.
        """
        slowdown = self.history.slowdown_since(onset_ns, now_ns)
        if slowdown is None or not slowdown.is_certain or not np.isfinite(slowdown.ratio) or not self.window:
            return {}
        return harmed_hosts(self.window, slowdown, self.history.waited_seconds(onset_ns), self._graph.host_of)

    @property
    def own_growth(self) -> tuple[int, float] | None:
        """Onset of a slowdown in all ranks' own time, and the ratio by which steps grew; None = there is none."""
        job = self._candidates.now.get(MORE) or self._candidates.now.get(JOB)
        if job is None or job.detail["own_ratio"] < self._config.own_growth_ratio:
            return None
        return job.since_ns, job.detail["step_seconds"] / job.detail["baseline_seconds"] - 1

    def on_model(self, model: Model | None) -> None:
        """Judge with a model's numbers from the next slice on, None = with the own ones; what was learned stays."""
        self._model = model
        own = replace(self._own, slow=with_numbers(self._own.slow, model, "slow"))
        self._config = with_numbers(own, model, "lines")

    def on_slice(self, data: Slice) -> Sequence[Anomaly]:
        """Take the steps of one second and return the anomalies at its end."""
        self._begin_anew_where_moved()
        for record in data.records:
            if isinstance(record, StepBatch):
                self._pending.take(record.rows, data.end_ns, self._config)
        if not self._take_ripe(data.end_ns):
            return self._emit(data)
        if self._past.is_due(self.judged_count):
            self._past.take(*self._arrays(), self._graph.host_of, self.history.newest_ns, self.judged_count)
        self._judge_ranks()
        self._judge_job()
        return self._emit(data)

    def _begin_anew_where_moved(self) -> None:
        """Forget what ranks did before some moved to other hosts; the job's past stays (``_change``)."""
        moved_ns = self._graph.placement.moved_ns
        if not self.window or self.window[0].end_ns > moved_ns:
            return
        self._pending.begin_anew(moved_ns)
        self.window = [step for step in self.window if step.end_ns > moved_ns]
        self._past = ExcessPast(taken_count=self.judged_count)
        self._candidates.drop((JOB, MORE, *self._graph.placement.changed_ns))
        self.history.baseline.release(moved_ns)

    def _take_ripe(self, now_ns: int) -> bool:
        """Move the steps that all active ranks have finished into the window; return whether there were any."""
        before_count = self.judged_count
        for rows in self._pending.pop_ripe(now_ns, self._config):
            step_rows = StepRows.of(rows).follows(self.window[-1] if self.window else None)
            self.window.append(step_rows)
            self.judged_count += 1
            self.history.add(step_rows, self._config.history_count)
            if len(self.window) == self._config.long_count:
                self._learn_early()
        del self.window[: -self._config.long_count]
        return self.judged_count > before_count

    def _learn_early(self) -> None:
        """Learn each rank's excess in the first steps, of the job or where its ranks moved to.

        How the job is split makes a rank slow wherever it runs: no more of its excess is that than it had anywhere.
        """
        before = self._early if self.judged_count > self._config.long_count else {}
        self._early = {rank: min(value, before.get(rank, value)) for rank, value in self._excess_seconds().items()}

    def _excess_seconds(self) -> dict[int, float]:
        """Return rank -> excess of its own time over its peers' in the window, seconds."""
        window, ranks = self._arrays()
        return dict(zip(ranks, map(float, median_excess(window)), strict=True))

    def _arrays(self) -> tuple[StepWindow, tuple[int, ...]]:
        """Return the window as arrays of shape (steps, ranks), and the ranks."""
        ranks, table = table_of(self.window)
        roles = np.array(self._graph.placement.stages_of(ranks), dtype=np.int64)
        return StepWindow(table[0], table[1], table[2:], roles), ranks

    def _judge_ranks(self) -> None:
        """Compare the ranks of each role over the newest steps and follow which hosts look slow."""
        window, ranks = self._arrays()
        if self.judged_count < self._config.long_count:
            self._early = self._excess_seconds()
        lines = self._lines(ranks)
        self._is_compared = has_peers(window.roles, lines)
        if not self._is_compared:
            self._abstain(Reason.TOO_FEW_PEERS)
            return
        volatile = volatility_ratio(window) > self._config.max_volatility_ratio
        counts = (self._config.long_count,) if volatile else (self._config.short_count, self._config.long_count)
        found: dict[str, Candidate] = {}
        is_any_slow = False
        for count in counts:
            if len(self.window) < count:
                continue
            if (slow := find_slow(newest := window.last(count), lines)) is None:
                continue
            is_any_slow = True
            if not self._are_few(slow, ranks) or is_whole_replica(slow, newest, ranks, self._graph):
                self._abstain(Reason.AMBIGUOUS)
                continue
            for host, seen in self._seen(slow, window, ranks, len(self.window) - count).items():
                if host not in found or seen.detail["strength_ratio"] > found[host].detail["strength_ratio"]:
                    found[host] = seen
        if is_any_slow:
            self._keep_overshadowed(found, window.last(counts[0]), ranks)
        self._update_candidates(found)

    def _lines(self, ranks: Sequence[int]) -> SlowConfig:
        """Return the alarm lines; on too few machines a rank has peers only among more ranks of its role."""
        lines = self._config.slow
        if self._graph.host_count(ranks, lines.min_peer_count) >= lines.min_peer_count:
            return lines
        return replace(lines, min_peer_count=max(lines.min_peer_count, self._config.least_ranks_count))

    def _are_few(self, slow: SlowRanks, ranks: Sequence[int]) -> bool:
        """Return whether the slow ranks are on so few hosts that it can be a machine fault."""
        hosts = {self._graph.host_of(ranks[column]) for column in slow.columns}
        return len(hosts) <= max(1, int(self._config.max_host_ratio * len(self._graph.hosts)))

    def _begin_ns(self, row: int) -> int:
        """Return when a step of the window (row) began."""
        step = self.window[row]
        return step.end_ns - int(float(step.values[:, 0].max()) * NS_PER_SECOND)

    def _seen(self, slow: SlowRanks, window: StepWindow, ranks: Sequence[int], first_row: int) -> dict[str, Candidate]:
        """Return host -> its slow ranks as a candidate, with its own excess and begin.

        Args:
            slow: the slow ranks.
            window: all steps of the window.
            ranks: rank of each column.
            first_row: row of the window at which the judged steps begin.
        """
        of_host: dict[str, list[SlowPart]] = {}
        for part in slow.parts:
            of_host.setdefault(self._graph.host_of(ranks[part.column]), []).append(part)
        newest_ns = self.window[-1].end_ns
        shared = {"score": slow.score, "peer_seconds": slow.peer_seconds, "share_ratio": slow.share_ratio}
        found = {}
        for host, parts in of_host.items():
            top = {name: value for name, value in asdict(parts[0]).items() if name not in ("column", "first_row")}
            detail = {**top, **shared, "ranks": sorted(ranks[part.column] for part in parts)}
            early = self._config.early_ratio * parts[0].excess_seconds
            from_start = any(self._early.get(rank, 0.0) >= early for rank in detail["ranks"])
            onset_ns = self._begin_ns(first_row + parts[0].first_row)
            since_ns = self._candidates.began_ns(host, onset_ns)
            count = sum(step.end_ns > since_ns for step in self.window)
            luck = luck_ratio(window, slow.columns, count, slow.parts[0].excess_seconds)
            found[host] = Candidate(onset_ns, newest_ns, detail, slow.score, from_start, luck)
        return found

    def _update_candidates(self, found: Mapping[str, Candidate]) -> None:
        """Add the hosts that look slow to the candidates, and drop those that have recovered."""
        newest_ns, grace_ns = self.window[-1].end_ns, self._config.candidate_grace_ns
        for host, seen in found.items():
            self._candidates.see(host, seen)
        if found:  # another one is the slowest, and whoever is slow in none of the newest steps has recovered
            grace_ns = min(grace_ns, newest_ns - self._begin_ns(-min(self._config.short_count, len(self.window))))
        for name in list(self._candidates.now):
            if name not in (JOB, MORE):
                self._candidates.forget(name, newest_ns, grace_ns)

    def _keep_overshadowed(self, found: Collection[str], window: StepWindow, ranks: Sequence[int]) -> None:
        """Keep reported hosts that are still slow, though hidden by the slower ones found in this slice."""
        now = self._candidates.now
        hidden = [name for name in now if name not in (JOB, MORE) and name not in found and now[name].is_reported]
        excess = dict(zip(ranks, median_excess(window), strict=True)) if hidden else {}
        for name in hidden:
            candidate = now[name]
            lines = self._config.slow.min_excess_seconds, candidate.detail["excess_seconds"] / 2
            if max(excess.get(rank, 0.0) for rank in candidate.detail["ranks"]) >= max(lines):
                candidate.last_ns = self.window[-1].end_ns

    def _judge_job(self) -> None:
        """Follow whether the job's steps have become longer, and longer still while they are."""
        known = self._candidates.now.get(JOB)
        change = self._change()
        reported_ns = known.since_ns if known is not None and known.is_reported else 0
        accepted_seconds = (
            self.history.accepted_seconds(reported_ns, change, self._config) if reported_ns and change else 0.0
        )
        self._follow_job(JOB, change, accepted_seconds)
        if known is not None and JOB not in self._candidates.now:
            self.history.baseline.release(known.last_ns)
        after_ns = 0 if MORE in self._candidates.now else reported_ns + self._config.rotation.overlap_ns
        further = self.history.further_change(self._config.short_count, self._job_line(MORE), after_ns)
        self._follow_job(MORE, further, 0.0)

    def _change(self) -> JobChange | None:
        """Return how the newest steps differ from the usual ones; what ranks compute is usual since they last moved.

        A better placement may make kernels slower, as transfers take a part of the processors.
        """
        if len(self.window) < self._config.short_count:
            return None
        line, moved_ns = self._job_line(JOB), self._graph.placement.moved_ns
        change = self.history.change(self._config.short_count, line)
        if change is None or change.own_ratio < self._config.own_growth_ratio or self.history.oldest_ns > moved_ns:
            return change
        self.history.begin_anew(moved_ns)
        return self.history.change(self._config.short_count, line)

    def _job_line(self, name: str) -> float:
        """Return the least growth of the job's steps for a candidate: less where it is reported already."""
        known = self._candidates.now.get(name)
        kept_ratio = self._config.job_kept_ratio if known is not None and known.is_reported else 1.0
        return kept_ratio * self._config.job_strength_ratio

    def _follow_job(self, name: str, change: JobChange | None, accepted_seconds: float) -> None:
        """Update a candidate for the whole job by the growth of its steps; without growth forget it after a while."""
        newest_ns = self.history.newest_ns
        if change is None:
            self._candidates.forget(name, newest_ns, self._config.candidate_grace_ns)
            return
        detail = {name: value for name, value in asdict(change).items() if name != "first_row"}
        detail |= {"is_compared": self._is_compared, "accepted_seconds": accepted_seconds}
        score = change.strength_ratio / self._config.job_strength_ratio
        self._candidates.see(name, Candidate(self.history.begin_ns(change.first_row), newest_ns, detail, score))

    def _emit(self, data: Slice) -> list[Anomaly]:
        """Return an anomaly for each candidate that has lasted long enough."""
        anomalies = []
        for name, candidate in sorted(self._candidates.now.items()):
            turns = self._turns_before(name, candidate)
            reason = too_early(candidate, self._config, self._graph, is_whole_job=name in (JOB, MORE), turns=turns)
            if reason is not None:
                self._abstain(reason)
                continue
            if turns.passed_on and candidate.luck_ratio > self._config.max_luck_ratio:
                self._candidates.add_turn(name)
            else:
                candidate.is_reported = True
            anomalies.append(anomaly_of(data, name, candidate, turns, version_of(self._model)))
        return anomalies

    def _turns_before(self, name: str, candidate: Candidate) -> Turns:
        """Return other hosts' turns that led to a candidate; who was slow beside them took nothing over."""
        turns = self._candidates.turns_before(name, self.median_step_ns)
        if not turns.passed_on:
            return turns
        was_beside = was_slow_before(candidate, turns.ended_ns, self.window)
        return replace(turns, passed_on=()) if was_beside else turns

    def finished_parts(self, known: Container[str]) -> dict[str, bytes]:
        """Return the parts of the next snapshot that do not change any more, without those of the known names."""
        _, parts = window_parts(self.window, self.judged_count, known)
        return {name: data for name, data in parts.items() if data != UNCHANGED}

    def snapshot(self, known: Container[str] = ()) -> dict[str, bytes]:
        """Return the state in one part, and each step of a large job in its own; parts of known names are UNCHANGED."""
        window, parts = window_parts(self.window, self.judged_count, known)
        state = {
            **self._pending.to_state(),
            "window": window,
            "judged": self.judged_count,
            "early": map_state(self._early, "<f8"),
            **self.history.to_state(),
            "past": self._past.to_state(),
            "candidates": self._candidates.to_state(),
            "abstained": self.abstained,
        }
        return {"steps": pack_state(state), **parts}

    def restore(self, parts: Mapping[str, bytes]) -> None:
        """Replace the state by that of a snapshot."""
        state = unpack_state(parts, "steps")
        self._pending.load_state(state)
        self.window = window_from(state["window"], parts)
        self.judged_count = state["judged"]
        self._early = map_from(state["early"])
        self.history.load_state(state)
        self._past.load_state(state["past"])
        self._candidates.load_state(state["candidates"])
        self.abstained = state["abstained"]
