"""Step detector: who is slow, step after step, in which phase, against its own role.

Keyed by job. Emits anomalies; ``diagnose`` decides what they mean. A candidate must last: strong evidence briefly, weak
evidence long (``StepsConfig.need_seconds``).
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Collection, Container, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace

import numpy as np

from tocsin.models.documents import Model, version_of, with_numbers
from tocsin.models.job_change import JobChange, find_job_change
from tocsin.models.pace import Slowdown, find_slowdown, grew_in_own_time, most_growth_seconds
from tocsin.models.robust import median, spread
from tocsin.models.steps import (
    SlowConfig,
    SlowPart,
    SlowRanks,
    StepWindow,
    find_slow,
    has_peers,
    median_excess,
    volatility_ratio,
)
from tocsin.pipeline.core.arrays import map_from, map_state
from tocsin.pipeline.core.operator import UNCHANGED, pack_state, unpack_state
from tocsin.pipeline.detect.steps.baseline import BLOCK_COUNT, ExcessPast
from tocsin.pipeline.detect.steps.candidates import (
    JOB,
    Candidate,
    Candidates,
    RotationConfig,
)
from tocsin.pipeline.detect.steps.rows import (
    StepRows,
    pending_from,
    pending_state,
    table_of,
    window_from,
    window_parts,
)
from tocsin.pipeline.detect.steps.slower_hosts import harmed_hosts
from tocsin.pipeline.job.announced_phases import StepExcuses
from tocsin.pipeline.job.graph import JobGraph
from tocsin.schemas.reasons import Reason
from tocsin.schemas.records import NS_PER_SECOND, GroupKind, Slice, StepBatch, StepRecord
from tocsin.schemas.verdicts import Anomaly, Component, ComponentKind, WitnessKind

DETECTOR = "steps"


@dataclass(frozen=True, slots=True)
class StepsConfig:
    """Settings of the step detector.

    Attributes:
        slow: alarm lines of the comparison among peers.
        short_count: window of strong evidence, steps.
        long_count: window of weak evidence, steps.
        least_ranks_count: ranks of one role from which on they are compared on fewer machines than make peers.
        history_count: steps of the job's own past.
        warmup_count: first steps of a rank that are not judged (compilation, caches).
        active_ns: a rank that finished no step for this long is not waited for.
        ripe_ns: a step is judged without the missing ranks after this.
        candidate_grace_ns: a candidate may fail the test for this long.
        min_lasting_seconds: the strongest evidence must last this long.
        max_lasting_seconds: weak evidence is believed after this.
        lasting_scale_seconds: need = scale / strength^2. 0.4: a rank that doubles the step
            time is named after 1.5 s, one that adds a tenth after 40 s.
        early_ratio: an excess of which this share was there in the first ``long_count`` judged steps
            was always there.
        from_start_factor: what was always there must last so many times longer: it may be how the
            job is split (rank 0's extra work), not a machine.
        from_start_seconds: and at least this long.
        max_volatility_ratio: where the ranks' own times scatter by more within a step (sequences of
            many lengths), five steps prove nothing: only the long window speaks. Ranks of a quiet
            job scatter by 0.02 to 0.08.
        max_host_ratio: more hosts slow together (of 16: two) are no machine fault.
        rotation: when one host after another looks slow.
        job_strength_ratio: growth of the whole job's step time worth a word.
        job_kept_ratio: of that line: a slowdown that was told goes on until it is below this. One of just the line, in
            steps that scatter by some percent, would come and go every few steps.
        own_growth_ratio: share of it that is all ranks' own time, from which on that makes the job slow.
    """

    slow: SlowConfig = field(default_factory=SlowConfig)
    short_count: int = 5
    long_count: int = 24
    least_ranks_count: int = 4
    history_count: int = 512
    warmup_count: int = 3
    active_ns: int = 12 * NS_PER_SECOND
    ripe_ns: int = 6 * NS_PER_SECOND
    candidate_grace_ns: int = 3 * NS_PER_SECOND
    min_lasting_seconds: float = 1.5
    max_lasting_seconds: float = 60.0
    lasting_scale_seconds: float = 0.4
    early_ratio: float = 0.5
    from_start_factor: float = 4.0
    from_start_seconds: float = 20.0
    job_strength_ratio: float = 0.25
    job_kept_ratio: float = 0.6
    own_growth_ratio: float = 0.6
    max_volatility_ratio: float = 0.12
    max_host_ratio: float = 0.125
    rotation: RotationConfig = field(default_factory=RotationConfig)

    def need_seconds(self, strength_ratio: float) -> float:
        """How long evidence of this strength must last."""
        need = self.lasting_scale_seconds / max(strength_ratio, 1e-3) ** 2
        return min(max(need, self.min_lasting_seconds), self.max_lasting_seconds)


_HISTORY_COLUMNS = 4


class StepDetector:
    """Finds slow ranks and job-wide slowdowns in one job's steps; the graph, shared with ``diagnose``, is fed first."""

    def __init__(self, config: StepsConfig, graph: JobGraph) -> None:
        """Start without history."""
        self._own = self._config = config
        self._model: Model | None = None
        self._graph = graph
        self._excused = StepExcuses(graph.announced)
        self._pending: dict[int, dict[int, StepRecord]] = {}
        self._pending_since_ns: dict[int, int] = {}
        self._seen_count: dict[int, int] = {}
        self._last_row_ns: dict[int, int] = {}
        self._window: list[StepRows] = []
        """Newest last, at most ``long_count``."""
        self._history: list[list[float]] = []
        self._history_ns: list[int] = []
        self.longest_pause_ns = 0
        """The longest time between two steps that ended, beyond a usual step; not where the job announced a pause."""
        self._judged_count = 0
        self._early: dict[int, float] = {}
        """rank -> its excess over its peers' own time in the job's first judged steps, seconds."""
        self._past = ExcessPast()
        self._candidates = Candidates(config.rotation)
        self._is_compared = True
        """Whether ranks were compared with one another as they were judged last."""
        self.abstained: dict[str, int] = {}

    @property
    def median_step_ns(self) -> int:
        """The job's step time over its history, 0: not known yet."""
        if not self._history:
            return 0
        return int(float(np.median([row[0] for row in self._history])) * NS_PER_SECOND)

    def rate_of(self, rank: int, now_ns: int) -> float:
        """Steps per second of one rank, from its newest step's time; 0 when it finished none of late."""
        last_ns = self._last_row_ns.get(rank, 0)
        if now_ns - last_ns > self._config.active_ns:
            return 0.0
        for step in reversed(self._window):
            duration_seconds = step.duration_of(rank)
            if duration_seconds is not None:
                return 1.0 / max(duration_seconds, 1e-3)
        return 0.0

    def slowdown_since(self, onset_ns: int, now_ns: int) -> Slowdown | None:
        """How much longer the job's steps take since then; None where its steps cannot tell.

        Args:
            onset_ns: a time of the past.
            now_ns: the slice's end, or an earlier time: as it was seen by then.
        """
        count = bisect_right(self._history_ns, now_ns)
        history = np.array(self._history[:count], float).reshape(count, _HISTORY_COLUMNS)
        ends_ns = np.array(self._history_ns[:count], np.int64)
        found = find_slowdown(history[:, 0], ends_ns, onset_ns, now_ns)
        return found and replace(found, is_of_own=grew_in_own_time(history, ends_ns, onset_ns))

    def most_growth_seconds(self, onset_ns: int, now_ns: int) -> float | None:
        """By how much the job's steps may at most be longer since then, by median and mean; None: too few of them."""
        count = bisect_right(self._history_ns, now_ns)
        seconds = np.array([row[0] for row in self._history[:count]])
        return most_growth_seconds(seconds, np.array(self._history_ns[:count], np.int64), onset_ns)

    def own_excess_seconds(self, host: str) -> float | None:
        """How much longer than its peers a host's slowest rank computes of late, beyond noise; None: not measured.

        Where only some of its ranks send steps, nothing above the noise is no measurement: it may be another.
        """
        if not self._window:
            return None
        ranks, table = table_of(self._window[-self._config.short_count :])
        own = table[0] - table[1]
        roles = np.array([self._graph.placement.stage_of(rank) for rank in ranks])
        mine = np.array([self._graph.host_of(rank) == host for rank in ranks])
        found = []
        for role in np.unique(roles[mine]):
            peers = roles == role
            excesses = median(own[:, peers] - median(own[:, peers], 1)[:, None], 0)
            noise = 3 * float(spread(excesses[~mine[peers]][None, :], 1)[0]) if (~mine[peers]).any() else np.nan
            found.append(float(np.max(excesses[mine[peers]])) - noise)
        excess = max((value for value in found if np.isfinite(value)), default=None)
        if excess is None or (excess <= 0.0 and not set(self._graph.ranks_of_host(host)) <= set(ranks)):
            return None
        return max(0.0, excess)

    def grown_excess_seconds(self, host: str, onset_ns: int) -> float:
        """By how much more than before an onset a host's slowest rank computes longer than its peers; 0: nobody knows.

        It is measured over a dozen steps since then, and stands out among all hosts; else it is 0, too.
        """
        if len(self._window) < BLOCK_COUNT or self._begin_ns(-BLOCK_COUNT) < onset_ns:
            return 0.0
        window, ranks = self._arrays()
        return self._past.grown_seconds(window, ranks, self._graph.host_of, onset_ns).get(host, 0.0)

    def harmed_since(self, onset_ns: int, now_ns: int) -> dict[str, WitnessKind]:
        """Hosts whose own steps are longer since then as the job's are, and by what they tell it: they wait, or so."""
        slowdown = self.slowdown_since(onset_ns, now_ns)
        if slowdown is None or not slowdown.is_certain or not np.isfinite(slowdown.ratio) or not self._window:
            return {}
        return harmed_hosts(self._window, slowdown, self._waited_seconds(onset_ns), self._graph.host_of)

    def _waited_seconds(self, onset_ns: int) -> float:
        """For how long the ranks communicated in a step before an onset, in the median; NaN: nobody tells."""
        count = bisect_right(self._history_ns, onset_ns)
        waited = np.array([row[3] for row in self._history[:count]], float)
        return float(np.median(waited)) if waited.size else float("nan")

    @property
    def own_growth(self) -> tuple[int, float] | None:
        """Since when all ranks' own time makes the job slow, and by what ratio its steps grew; None: it does not."""
        job = self._candidates.now.get(JOB)
        if job is None or job.detail["own_ratio"] < self._config.own_growth_ratio:
            return None
        return job.since_ns, job.detail["step_seconds"] / job.detail["baseline_seconds"] - 1

    @property
    def newest_ns(self) -> int:
        """End of the newest judged step, 0: none."""
        return self._history_ns[-1] if self._history_ns else 0

    def on_model(self, model: Model | None) -> None:
        """Judge with these numbers from the next slice on, None: with its own; what was learned stays."""
        self._model = model
        own = replace(self._own, slow=with_numbers(self._own.slow, model, "slow"))
        self._config = with_numbers(own, model, "lines")

    def on_slice(self, data: Slice) -> Sequence[Anomaly]:
        """Take the steps of one second and return what looks wrong at its end."""
        for record in data.records:
            if isinstance(record, StepBatch):
                self._take(record.rows, data.end_ns)
        ripe = self._take_ripe(data.end_ns)
        if not ripe:
            return self._emit(data)
        if self._past.is_due(self._judged_count):
            self._past.take(*self._arrays(), self._graph.host_of, self.newest_ns, self._judged_count)
        roles = self._judge_ranks()
        if roles is not None:
            self._judge_job()
        return self._emit(data)

    def _take(self, rows: Sequence[StepRecord], now_ns: int) -> None:
        """Large jobs send thousands of rows a second: phases are looked up only where there are any."""
        warmup_count, seen, newest = self._config.warmup_count, self._seen_count, self._last_row_ns
        has_phases = self._graph.announced.any
        pending = self._pending
        for row in rows:
            rank, ts_ns = row.rank, row.ts_ns
            seen[rank] = count = seen.get(rank, 0) + 1
            if ts_ns > newest.get(rank, -1):
                newest[rank] = ts_ns
            if count <= warmup_count:
                self._abstain(Reason.WARMING_UP)
                continue
            if row.communication_seconds is None:
                self._abstain(Reason.NO_HOOK)  # nobody can be singled out; the job's pace is known all the same
            if has_phases:
                begin_ns = ts_ns - int(row.duration_seconds * NS_PER_SECOND)
                if self._excused.take(rank, row.step, begin_ns, ts_ns):
                    self._abstain(Reason.ANNOUNCED_PHASE)
                    continue
            ranks = pending.get(row.step)
            if ranks is None:
                ranks = pending[row.step] = {}
                self._pending_since_ns[row.step] = now_ns
            ranks[rank] = row

    def _abstain(self, reason: Reason) -> None:
        self.abstained[reason.value] = self.abstained.get(reason.value, 0) + 1

    def _take_ripe(self, now_ns: int) -> int:
        """Move steps that all active ranks have finished into the window; how many."""
        if not self._pending:
            return 0
        active = {rank for rank, ts in self._last_row_ns.items() if now_ns - ts <= self._config.active_ns}
        active = {rank for rank in active if self._seen_count[rank] > self._config.warmup_count}
        count = 0
        for step in sorted(self._pending):
            rows = self._pending[step]
            waited_ns = now_ns - self._pending_since_ns[step]
            if not active <= rows.keys() and waited_ns < self._config.ripe_ns:
                break
            del self._pending[step], self._pending_since_ns[step]
            told = StepRows.of(rows).follows(self._window[-1] if self._window else None)
            self._window.append(told)
            self._judged_count += 1
            self._remember(told)
            count += 1
        del self._window[: -self._config.long_count]
        return count

    def _remember(self, told: StepRows) -> None:
        if self._history_ns and told.end_ns < self._history_ns[-1]:
            return  # what came late of a step that was judged without it: the history is in order of time
        table = told.values
        own = table[:, 0] - table[:, 1]
        data = np.nan_to_num(table[:, 2])
        self._history.append(
            [
                float(np.median(table[:, 0])),
                float(np.percentile(data, 20)),
                float(np.median(own - data)),
                float(np.median(table[:, 1])),
            ]
        )
        if self._history_ns and not self._graph.in_announced_phase(self._history_ns[-1], told.end_ns):
            pause_ns = told.end_ns - self._history_ns[-1] - self.median_step_ns
            self.longest_pause_ns = max(self.longest_pause_ns, pause_ns)
        self._history_ns.append(told.end_ns)
        del self._history[: -self._config.history_count]
        del self._history_ns[: -self._config.history_count]

    def _arrays(self) -> tuple[StepWindow, tuple[int, ...]]:
        ranks, table = table_of(self._window)
        roles = np.array(self._graph.placement.stages_of(ranks), dtype=np.int64)
        return StepWindow(table[0], table[1], table[2:], roles), ranks

    def _judge_ranks(self) -> StepWindow | None:
        window, ranks = self._arrays()
        if self._judged_count <= self._config.long_count:
            excess = median_excess(window)
            self._early = {rank: float(excess[index]) for index, rank in enumerate(ranks)}
        lines = self._lines(ranks)
        self._is_compared = has_peers(window.roles, lines)
        if not self._is_compared:
            self._abstain(Reason.TOO_FEW_PEERS)
            return window
        volatile = volatility_ratio(window) > self._config.max_volatility_ratio
        counts = (self._config.long_count,) if volatile else (self._config.short_count, self._config.long_count)
        found: dict[str, Candidate] = {}
        is_any_slow = False
        for count in counts:
            if len(self._window) < count:
                continue
            slow = find_slow(window.last(count), lines)
            if slow is None:
                continue
            is_any_slow = True
            if not self._are_few(slow, ranks):
                self._abstain(Reason.AMBIGUOUS)
                continue
            for host, seen in self._seen(slow, ranks, len(self._window) - count).items():
                if host not in found or seen.detail["strength_ratio"] > found[host].detail["strength_ratio"]:
                    found[host] = seen
        if is_any_slow:
            self._keep_overshadowed(found, window.last(counts[0]), ranks)
        self._update_candidates(found)
        return window

    def _lines(self, ranks: Sequence[int]) -> SlowConfig:
        """The alarm lines: on one or two machines a rank has peers only among more ranks of its role."""
        lines = self._config.slow
        if self._graph.host_count(ranks, lines.min_peer_count) >= lines.min_peer_count:
            return lines
        return replace(lines, min_peer_count=max(lines.min_peer_count, self._config.least_ranks_count))

    def _are_few(self, slow: SlowRanks, ranks: Sequence[int]) -> bool:
        """Whether these are on so few hosts that it can be the machines' fault."""
        hosts = {self._graph.host_of(ranks[column]) for column in slow.columns}
        return len(hosts) <= max(1, int(self._config.max_host_ratio * len(self._graph.hosts)))

    def _begin_ns(self, row: int) -> int:
        """When the step of this row of the window began."""
        step = self._window[row]
        return step.end_ns - int(float(step.values[:, 0].max()) * NS_PER_SECOND)

    def _seen(self, slow: SlowRanks, ranks: Sequence[int], first_row: int) -> dict[str, Candidate]:
        """The slow ranks host by host: each has its own excess, and its own begin."""
        of_host: dict[str, list[SlowPart]] = {}
        for part in slow.parts:
            of_host.setdefault(self._graph.host_of(ranks[part.column]), []).append(part)
        newest_ns = self._window[-1].end_ns
        shared = {"score": slow.score, "peer_seconds": slow.peer_seconds, "share_ratio": slow.share_ratio}
        found = {}
        for host, parts in of_host.items():
            top = {name: value for name, value in asdict(parts[0]).items() if name not in ("column", "first_row")}
            detail = {**top, **shared, "ranks": sorted(ranks[part.column] for part in parts)}
            early = self._config.early_ratio * parts[0].excess_seconds
            from_start = any(self._early.get(rank, 0.0) >= early for rank in detail["ranks"])
            onset_ns = self._begin_ns(first_row + parts[0].first_row)
            found[host] = Candidate(onset_ns, newest_ns, detail, slow.score, from_start)
        return found

    def _update_candidates(self, found: Mapping[str, Candidate]) -> None:
        newest_ns = self._window[-1].end_ns
        for host, seen in found.items():
            self._candidates.see(host, seen)
        for name in list(self._candidates.now):
            if name != JOB:
                self._candidates.forget(name, newest_ns, self._config.candidate_grace_ns)

    def _keep_overshadowed(self, found: Collection[str], window: StepWindow, ranks: Sequence[int]) -> None:
        """Who was slow and is so still has not recovered because another one is slower now, or several are."""
        now = self._candidates.now
        hidden = [name for name in now if name != JOB and name not in found and now[name].spoken]
        excess = dict(zip(ranks, median_excess(window), strict=True)) if hidden else {}
        for name in hidden:
            candidate = now[name]
            lines = self._config.slow.min_excess_seconds, candidate.detail["excess_seconds"] / 2
            if max(excess.get(rank, 0.0) for rank in candidate.detail["ranks"]) >= max(lines):
                candidate.last_ns = self._window[-1].end_ns

    def _judge_job(self) -> None:
        known = self._candidates.now.get(JOB)
        kept_ratio = self._config.job_kept_ratio if known is not None and known.spoken else 1.0
        line = kept_ratio * self._config.job_strength_ratio
        change = find_job_change(np.array(self._history), self._config.short_count, line)
        if change is None:
            self._candidates.forget(JOB, self._history_ns[-1], self._config.candidate_grace_ns)
            return
        detail = {name: value for name, value in asdict(change).items() if name != "first_row"}
        detail["is_compared"] = self._is_compared
        score = change.strength_ratio / self._config.job_strength_ratio
        self._candidates.see(JOB, Candidate(self._job_onset_ns(change), self._history_ns[-1], detail, score))

    def _job_onset_ns(self, change: JobChange) -> int:
        end_ns = self._history_ns[change.first_row]
        return end_ns - int(self._history[change.first_row][0] * NS_PER_SECOND)

    def _emit(self, data: Slice) -> list[Anomaly]:
        anomalies = []
        for name, candidate in sorted(self._candidates.now.items()):
            reason = self._too_early(candidate)
            if reason is not None:
                self._abstain(reason)
                continue
            candidate.spoken = True
            before = [] if name == JOB else self._candidates.before(name, self.median_step_ns)
            if name == JOB or before:
                component = Component(ComponentKind.JOB, data.job.job_id)
            else:
                component = Component(ComponentKind.HOST, name)
            anomalies.append(
                Anomaly(
                    job=data.job,
                    slice_end_ns=data.end_ns,
                    component=component,
                    metric="step_seconds" if name == JOB else "rotating_seconds" if before else "own_seconds",
                    start_ns=candidate.since_ns,
                    end_ns=candidate.last_ns,
                    score=candidate.score,
                    detector=DETECTOR,
                    model_version=version_of(self._model),
                    detail={**candidate.detail, "from_start": candidate.from_start, "before": before},
                )
            )
        return anomalies

    def _too_early(self, candidate: Candidate) -> Reason | None:
        """Why a candidate is not worth an anomaly yet."""
        if candidate.spoken and candidate is self._candidates.now.get(JOB):
            return None  # it lasts, if by less
        need = self._config.need_seconds(candidate.detail["strength_ratio"])
        if candidate.from_start:
            need = max(self._config.from_start_seconds, self._config.from_start_factor * need)
            if self._stages_unknown(candidate.detail.get("ranks", ())):
                return Reason.STAGES_UNKNOWN
        return Reason.NOT_CONTINUOUS if candidate.lasted_seconds < need else None

    def _stages_unknown(self, ranks: Sequence[int]) -> bool:
        """Whether the job has pipeline stages and nobody said who is in which: a long stage looks slow."""
        staged = any(group.kind is GroupKind.PP for group in self._graph.groups.values())
        return staged and any(self._graph.placement.stage_of(rank) < 0 for rank in ranks)

    def finished_parts(self, known: Container[str]) -> dict[str, bytes]:
        """Parts of the next snapshot that do not change any more, without those of these names."""
        _, parts = window_parts(self._window, self._judged_count, known)
        return {name: data for name, data in parts.items() if data != UNCHANGED}

    def snapshot(self, known: Container[str] = ()) -> dict[str, bytes]:
        """State in one part, and a large job's steps in a part each: those of these names are UNCHANGED."""
        window, parts = window_parts(self._window, self._judged_count, known)
        state = {
            "pending": pending_state(self._pending),
            "pending_since": sorted(self._pending_since_ns.items()),
            "seen": map_state(self._seen_count, "<i8"),
            "last_row": map_state(self._last_row_ns, "<i8"),
            "window": window,
            "judged": self._judged_count,
            "early": map_state(self._early, "<f8"),
            "history": self._history,
            "history_ns": self._history_ns,
            "longest_pause_ns": self.longest_pause_ns,
            "excused": self._excused.to_state(),
            "past": self._past.to_state(),
            "candidates": self._candidates.to_state(),
            "abstained": self.abstained,
        }
        return {"steps": pack_state(state), **parts}

    def restore(self, parts: Mapping[str, bytes]) -> None:
        """Take back what ``snapshot`` gave."""
        state = unpack_state(parts, "steps")
        self._pending = pending_from(state["pending"])
        self._pending_since_ns = dict(map(tuple, state["pending_since"]))
        self._seen_count = map_from(state["seen"])
        self._last_row_ns = map_from(state["last_row"])
        self._window = window_from(state["window"], parts)
        self._judged_count = state["judged"]
        self._early = map_from(state["early"])
        self._history = state["history"]
        self._history_ns = state["history_ns"]
        self.longest_pause_ns = state["longest_pause_ns"]
        self._excused.load_state(state["excused"])
        self._past.load_state(state["past"])
        self._candidates.load_state(state["candidates"])
        self.abstained = state["abstained"]
