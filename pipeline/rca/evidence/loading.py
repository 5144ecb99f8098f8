"""What the ranks' data loaders report: sources, fetch times, sequence lengths, new starts after a failure."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from itertools import islice
from typing import Any, NamedTuple

import numpy as np

from tocsin.models.loading.imbalance import Imbalance, find_imbalance
from tocsin.models.loading.sources import Fetch
from tocsin.models.loading.told_lengths import WeighedLengths, weigh_lengths
from tocsin.pipeline.job.graph import JobGraph
from tocsin.pipeline.rca.common import names_of
from tocsin.pipeline.rca.evidence.sampled_times import SampledTimes
from tocsin.pipeline.rca.finding import Finding
from tocsin.schemas import events
from tocsin.schemas.reasons import Reason
from tocsin.schemas.records import NS_PER_SECOND, Event, StepRecord
from tocsin.schemas.verdicts import Evidence, FaultKind
from tocsin.schemas.wire.event_payloads import number

DETECTOR = "loader"
_PARALLEL_LEAST = 3
"""Fewest data-parallel ranks whose lengths are compared."""


@dataclass(frozen=True, slots=True)
class LoadingConfig:
    """Settings of the tracker.

    Attributes:
        kept_count: newest reports that are kept of each rank.
        fresh_ns: age from which on a report is ignored.
        least_steps_count: fewest steps, reported by all data-parallel ranks, whose lengths are compared.
        told_ns: how long a loader's new start is told.
        most_told_count: most ranks whose new starts are told by name.
        most_peers_count: most peers whose lengths a rank's are compared with; more make the median no better.
    """

    kept_count: int = 8
    fresh_ns: int = 120 * NS_PER_SECOND
    least_steps_count: int = 3
    told_ns: int = 60 * NS_PER_SECOND
    most_told_count: int = 8
    most_peers_count: int = 64


class LoaderRow(NamedTuple):
    """One report about a step of one rank; -1 where the batch did not tell.

    Attributes:
        ts_ns: when it was sent.
        step: number of the step; of a report without one, of the rank's newest finished step.
        source: name of the source, "" = unknown.
        fetch_seconds: mean time that steps waited for data.
        tokens: sum of the sequences' lengths.
        squares: sum of the squared lengths.
        compute_seconds: what the rank computed in the step.
    """

    ts_ns: int
    step: int
    source: str
    fetch_seconds: float
    tokens: float
    squares: float
    compute_seconds: float = -1.0


@dataclass(frozen=True, slots=True)
class UnevenLengths:
    """Imbalance of sequence lengths among data-parallel ranks.

    Attributes:
        first_step: first of the compared steps.
        last_step: the last one.
        tokens: imbalance of the sums of lengths.
        squares: imbalance of the sums of squared lengths, to which attention is proportional.
        source: the source that the longest batches come from most often, "" = unknown.
        first_ns: when the oldest compared step was reported.
        last_ns: the same of the newest.
    """

    first_step: int
    last_step: int
    tokens: Imbalance
    squares: Imbalance
    source: str
    first_ns: int
    last_ns: int


@dataclass(slots=True)
class LoadingTracker:
    """Newest reports of the data loaders of one job's ranks.

    Attributes:
        config: settings.
        graph: the job's ranks and hosts.
        rows: rank -> its newest reports, oldest first.
        times: what ranks compute in the steps of which reports may come.
        restarts: rank -> [when told, number of new starts so far, seconds until the next batch, samples used twice,
            samples left out]; -1 = unknown.
    """

    config: LoadingConfig
    graph: JobGraph
    rows: dict[int, list[LoaderRow]] = field(default_factory=dict)
    times: SampledTimes = field(default_factory=SampledTimes)
    restarts: dict[int, list[Any]] = field(default_factory=dict)

    def take(self, event: Event) -> None:
        """Take a loader event of one rank; one of a fetch that goes on has no rows, and is left out."""
        payload = event.payload
        if event.rank < 0 or number(payload, "rows", 0.0) <= 0:
            return
        step, seconds, tokens, squares = (
            number(payload, key, -1.0) for key in ("step", "fetch_seconds", "tokens", "sum_squared_lengths")
        )
        source = str(payload.get("source") or "")
        before = self.rows.get(event.rank, [])
        number_of_step = int(step) if step >= 0 else self.times.newest_step(event.rank)
        compute_seconds = self.times.of(event.rank, number_of_step)
        row = LoaderRow(event.ts_ns, number_of_step, source, seconds, tokens, squares, compute_seconds)
        self.rows[event.rank] = [*before, row][-self.config.kept_count :]
        if max(tokens, squares) >= 0:
            distance = number_of_step - before[-1].step if before and step >= 0 else 0
            self.times.expect(event.rank, number_of_step, distance)
        count = number(payload, "restarts", 0.0)
        if count > self.restarts.get(event.rank, (0, 0))[1]:
            facts = (number(payload, key, -1.0) for key in ("recovery_seconds", "duplicate_rows", "skipped_rows"))
            self.restarts[event.rank] = [event.ts_ns, int(count), *facts]

    def take_steps(self, rows: Iterable[StepRecord]) -> None:
        """Take finished steps: what the ranks computed in those whose lengths are told."""
        if not self.rows:
            return
        for row in rows:
            reports = self.rows.get(row.rank)
            if reports and (seconds := self.times.take(row)) >= 0:
                self.rows[row.rank] = [
                    one._replace(compute_seconds=seconds) if one.step == row.step else one for one in reports
                ]

    def weigh(self, rank: int, peers: Iterable[int], excess_ratio: float, since_ns: int) -> WeighedLengths | None:
        """Return what the lengths of a rank's batches explain of its excess over its peers; None: nothing is told yet.

        Args:
            rank: the rank.
            peers: ranks of other hosts that it is compared with; the first ones that tell lengths are enough.
            excess_ratio: by how much longer it computes, as a share of their time.
            since_ns: since when it does.
        """
        own = {row.step: row for row in self.rows.get(rank, ()) if row.compute_seconds >= 0}
        told = (self.rows[peer] for peer in peers if peer in self.rows)
        rows = [own, *({row.step: row for row in one} for one in islice(told, self.config.most_peers_count))]
        steps = sorted(own)
        if not steps or len(rows) == 1:
            return None
        table = np.array([[_batch_of(one.get(step)) for one in rows] for step in steps])
        is_new = np.array([own[step].ts_ns >= since_ns for step in steps])
        return weigh_lengths(table[..., 0], table[..., 1], table[..., 2], is_new, excess_ratio)

    def sources(self, now_ns: int) -> dict[int, str]:
        """Return rank -> the source that it reads, for ranks that lately read only one."""
        found: dict[int, str] = {}
        for rank, rows in self.rows.items():
            names = {row.source for row in rows if now_ns - row.ts_ns < self.config.fresh_ns}
            if len(names) == 1 and "" not in names:
                [found[rank]] = names
        return found

    def fetches(self, since_ns: int, now_ns: int) -> list[Fetch]:
        """Return how long the ranks that read one source wait for it since ``since_ns``."""
        sources, found = self.sources(now_ns), []
        for rank, source in sorted(sources.items()):
            times = [row.fetch_seconds for row in self.rows[rank] if row.ts_ns >= since_ns and row.fetch_seconds >= 0]
            if times:
                found.append(Fetch(rank, source, float(np.median(times))))
        return found

    def lengths(self, now_ns: int) -> UnevenLengths | None:
        """Return how unevenly lengths are shared out in the newest steps; None if too few steps or ranks tell them."""
        by_step: dict[int, dict[int, LoaderRow]] = defaultdict(dict)
        members: set[int] = set()
        for rank, rows in self.rows.items():
            place = self.graph.places.get(rank)
            member = rank if place is None or place.dp < 0 else place.dp
            for row in rows:
                if row.tokens < 0 or row.squares < 0 or row.step < 0 or now_ns - row.ts_ns >= self.config.fresh_ns:
                    continue
                members.add(member)
                known = by_step[row.step].get(member)
                by_step[row.step][member] = row if known is None else max(known, row, key=lambda one: one.squares)
        steps = sorted(step for step, found in by_step.items() if len(found) == len(members))
        if len(members) < _PARALLEL_LEAST or len(steps) < self.config.least_steps_count:
            return None
        table = [[by_step[step][member] for member in sorted(members)] for step in steps]
        tokens = find_imbalance(np.array([[row.tokens for row in rows] for rows in table]))
        squares = find_imbalance(np.array([[row.squares for row in rows] for rows in table]))
        if tokens is None or squares is None:
            return None
        names = Counter(max(rows, key=lambda row: row.squares).source for rows in table)
        source = max(sorted(names), key=lambda name: names[name])
        stamps = [row.ts_ns for rows in table for row in rows]
        return UnevenLengths(steps[0], steps[-1], tokens, squares, source, min(stamps), max(stamps))

    def find(self, now_ns: int) -> list[Finding]:
        """Return the finding that loaders failed and began anew lately, which accuses nobody."""
        late = {rank: row for rank, row in sorted(self.restarts.items()) if now_ns - row[0] < self.config.told_ns}
        if not late:
            return []
        texts = [self._restart_text(rank, row) for rank, row in list(late.items())[: self.config.most_told_count]]
        if len(late) > len(texts):
            texts.append(f"and {len(late) - len(texts)} more ranks")
        begin_ns, end_ns = min(row[0] for row in late.values()), max(row[0] for row in late.values())
        evidence = Evidence(DETECTOR, events.LOADER, 1.0, begin_ns, end_ns, "; ".join(texts))
        reason = Reason.LOADER_RESTARTED
        return [Finding(FaultKind.DEGRADED, "loader_stall", (), begin_ns, 0.9, reason, (evidence,), seen_ns=end_ns)]

    def _restart_text(self, rank: int, row: Sequence[Any]) -> str:
        """Return a sentence about the new start of a rank's loader."""
        _, count, recovery_seconds, twice, left_out = row
        rows = self.rows.get(rank, ())
        source = f" of {rows[-1].source}" if rows and rows[-1].source else ""
        text = f"the loader{source} of {names_of(self.graph, [rank])} failed and began anew ({count} times so far)"
        if recovery_seconds >= 0:
            text += f", its next batch came after {recovery_seconds:.3g} s"
        if twice < 0 or left_out < 0:
            return f"{text}; whether samples were used twice or left out is not known"
        return f"{text}; {twice:.0f} samples were used twice and {left_out:.0f} left out"

    def to_state(self) -> dict[str, Any]:
        """Return the state as JSON-serialisable values, for a snapshot."""
        rows = [[rank, [list(row) for row in rows]] for rank, rows in sorted(self.rows.items())]
        restarts = [[rank, *row] for rank, row in sorted(self.restarts.items())]
        return {"rows": rows, "restarts": restarts, "times": self.times.to_state()}

    def load_state(self, state: dict[str, Any]) -> None:
        """Restore the state from values that ``to_state`` returned."""
        self.rows = {rank: [LoaderRow(*row) for row in rows] for rank, rows in state["rows"]}
        self.times.load_state(state["times"])
        self.restarts = {rank: list(row) for rank, *row in state["restarts"]}


def _batch_of(row: LoaderRow | None) -> tuple[float, float, float]:
    """Return tokens, squared lengths and computation of a report, NaN where it does not tell.

    Of a batch that tells only one kind of length, it stands for both.
    """
    if row is None or max(row.tokens, row.squares) < 0 or row.compute_seconds < 0:
        return np.nan, np.nan, np.nan
    tokens, squares = (
        one if one >= 0 else other for one, other in ((row.tokens, row.squares), (row.squares, row.tokens))
    )
    return tokens, squares, row.compute_seconds
