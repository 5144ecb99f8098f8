"""Windows of operation durations from step and collective records, grouped by the role of ranks.

Two families are kept apart. Phases of steps are sent by every rank and do not overlap. Collectives, by name, lie within
the phase ``communication``, and only some ranks send all of theirs (see ``design.md``, volume).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tocsin.models.op_features import PHASES, OpRows, Vocabulary
from tocsin.pipeline.core.arrays import array_from, array_state
from tocsin.pipeline.core.state_maps import pairs_from, pairs_state
from tocsin.pipeline.detect.abstaining import Abstaining
from tocsin.pipeline.job.graph import JobGraph
from tocsin.schemas.reasons import Reason
from tocsin.schemas.records import NS_PER_SECOND, CollectiveBatch, CollectiveRecord, Slice, StepBatch, StepRecord

PHASE_VOCABULARY = Vocabulary(PHASES)
"""Operation classes of the phases of a step."""
_PARTS = tuple(f"{name}_seconds" for name in PHASES[:-1])


@dataclass(frozen=True, slots=True)
class WindowConfig:
    """Length and limits of a window.

    Attributes:
        window_ns: least length (``seed-systems-b.md`` 4.3 and 5.3: 10 s).
        min_step_count: least number of steps of the median rank; a distribution needs samples.
        longest_ns: length at which a window is closed in any case; it fits eight steps of 15 s.
        max_step_count: steps kept of one rank; the first ones.
        max_collective_count: collectives kept of one rank; the first ones.
        warmup_count: first steps of a rank that are skipped (compilation, caches), as in ``StepsConfig``.
        min_sampling_ratio: least number of a rank's collectives, relative to the most of its role. Ranks below it are
            sampled differently and not compared; half the sampling is still judged (5.4 E3).
    """

    window_ns: int = 10 * NS_PER_SECOND
    min_step_count: int = 8
    longest_ns: int = 120 * NS_PER_SECOND
    max_step_count: int = 64
    max_collective_count: int = 1024
    warmup_count: int = 3
    min_sampling_ratio: float = 0.4


@dataclass(frozen=True, slots=True)
class RoleWindow:
    """Operations of the ranks of one role in one window.

    Attributes:
        family: one of ``FAMILIES``.
        vocabulary: operation classes of the rows.
        rows: operations.
        begin_ns: start of the window.
        end_ns: end of the slice that completed the window.
    """

    family: str
    vocabulary: Vocabulary
    rows: OpRows
    begin_ns: int
    end_ns: int

    def in_words_of(self, vocabulary: Vocabulary) -> OpRows:
        """Return the operations in the classes of another vocabulary; unknown ones become ``other``."""
        if vocabulary == self.vocabulary:
            return self.rows
        classes = vocabulary.encode(self.vocabulary.classes)[self.rows.classes]
        return OpRows(self.rows.ranks, classes, self.rows.seconds)


@dataclass(slots=True)
class TraceWindows(Abstaining):
    """Collector of one job's operations; ``take`` returns when a window is full, ``close`` empties it.

    Attributes:
        config: length and limits of a window.
        graph: the job's ranks and hosts.
        abstained: reason -> number of skipped records.
    """

    config: WindowConfig
    graph: JobGraph
    abstained: dict[str, int] = field(default_factory=dict)
    left_out_count: int = 0
    """Number of operations dropped because a rank had too many in a window."""
    _seen: dict[int, int] = field(default_factory=dict)
    _steps: dict[int, list[list[float]]] = field(default_factory=dict)
    """Rank -> one row of phase times in seconds per step, NaN = not measured."""
    _collectives: dict[int, list[tuple[str, float]]] = field(default_factory=dict)
    _begin_ns: int = 0

    def take(self, data: Slice) -> bool:
        """Take one slice's records; return whether the window is full and ends with this slice."""
        for record in data.records:
            if isinstance(record, StepBatch):
                for step in record.rows:
                    self._take_step(step)
            elif isinstance(record, CollectiveBatch):
                for collective in record.rows:
                    self._take_collective(collective)
        if not self._begin_ns:
            self._begin_ns = data.start_ns if self._steps or self._collectives else 0
            return False
        lasted_ns = data.end_ns - self._begin_ns
        if lasted_ns < self.config.window_ns:
            return False
        counts = sorted(map(len, self._steps.values()))
        enough = not counts or counts[len(counts) // 2] >= self.config.min_step_count
        return enough or lasted_ns >= self.config.longest_ns

    def close(self, end_ns: int) -> Iterator[RoleWindow]:
        """Yield the roles of the window, phases first, and start the next window at ``end_ns``."""
        begin_ns, self._begin_ns = self._begin_ns, end_ns
        steps, self._steps = self._steps, {}
        collectives, self._collectives = self._collectives, {}
        for rows in self._phase_roles(steps):
            yield RoleWindow("phases", PHASE_VOCABULARY, rows, begin_ns, end_ns)
        vocabulary = Vocabulary(tuple(sorted({name for rows in collectives.values() for name, _ in rows} - {"other"})))
        for ranks in self._sampled_roles(collectives):
            rows = _collective_rows(ranks, collectives, vocabulary)
            yield RoleWindow("collectives", vocabulary, rows, begin_ns, end_ns)

    def _is_excused(self, rank: int, from_ns: int, to_ns: int) -> bool:
        """Return whether the job, or this rank, was in an announced phase during this span."""
        return self.graph.in_announced_phase(from_ns, to_ns) or self.graph.announced.is_in_phase(rank, from_ns, to_ns)

    def _take_step(self, row: StepRecord) -> None:
        """Add the phase times of one step record, unless it is unusable."""
        count = self._seen.get(row.rank, 0)
        self._seen[row.rank] = count + 1
        if count < self.config.warmup_count:
            return self._abstain(Reason.WARMING_UP)
        if row.communication_seconds is None:
            return self._abstain(Reason.NO_HOOK)
        values = [getattr(row, name) for name in _PARTS]
        measured = [value for value in values if value is not None]
        if not all(0.0 <= value < float("inf") for value in (row.duration_seconds, *measured)):  # NaN is not, either
            return self._abstain(Reason.BAD_NUMBER)
        if self._is_excused(row.rank, row.ts_ns - int(row.duration_seconds * NS_PER_SECOND), row.ts_ns):
            return self._abstain(Reason.ANNOUNCED_PHASE)
        rest = max(0.0, row.duration_seconds - sum(measured))
        rows = self._steps.setdefault(row.rank, [])
        if len(rows) >= self.config.max_step_count:
            self.left_out_count += 1
            return None
        rows.append([float("nan") if value is None else value for value in (*values, rest)])
        return None

    def _take_collective(self, row: CollectiveRecord) -> None:
        """Add the duration of one completed collective, unless it is unusable."""
        if row.record != "completion" or row.channel != -1 or not row.start_ns or not row.end_ns:
            return None  # not the whole of a finished operation
        if row.end_ns < row.start_ns:
            return self._abstain(Reason.BAD_NUMBER)
        if self._is_excused(row.rank, row.start_ns, row.end_ns):
            return self._abstain(Reason.ANNOUNCED_PHASE)
        rows = self._collectives.setdefault(row.rank, [])
        if len(rows) >= self.config.max_collective_count:
            self.left_out_count += 1
            return None
        rows.append((row.op_name, (row.end_ns - row.start_ns) / NS_PER_SECOND))
        return None

    def _phase_roles(self, steps: Mapping[int, list[list[float]]]) -> Iterator[OpRows]:
        """Yield the operations of each role: ranks of one stage whose hooks measure the same phases."""
        roles: dict[tuple[int, bytes], list[int]] = {}
        tables = {rank: np.array(rows) for rank, rows in steps.items()}
        for rank in sorted(tables):
            measured = np.isfinite(tables[rank]).all(axis=0)
            roles.setdefault((self.graph.placement.stage_of(rank), measured.tobytes()), []).append(rank)
        for (_, measured_bytes), ranks in sorted(roles.items()):
            columns = np.flatnonzero(np.frombuffer(measured_bytes, bool))
            lengths = [len(tables[rank]) for rank in ranks]
            seconds = np.concatenate([tables[rank][:, columns] for rank in ranks])
            of_rank = np.repeat(np.array(ranks, np.int64), lengths)
            yield OpRows(
                np.repeat(of_rank, columns.size), np.tile(columns, len(seconds)).astype(np.int64), seconds.reshape(-1)
            )

    def _sampled_roles(self, collectives: Mapping[int, list[tuple[str, float]]]) -> Iterator[list[int]]:
        """Yield the ranks of each stage that sent a similar number of collectives."""
        roles: dict[int, list[int]] = {}
        for rank in sorted(collectives):
            roles.setdefault(self.graph.placement.stage_of(rank), []).append(rank)
        for _, ranks in sorted(roles.items()):
            least = self.config.min_sampling_ratio * max(len(collectives[rank]) for rank in ranks)
            yield [rank for rank in ranks if len(collectives[rank]) >= least]

    def to_state(self) -> dict[str, Any]:
        """Return the state as JSON-serialisable values, for a snapshot."""
        return {
            "seen": pairs_state(self._seen),
            "steps": [[rank, array_state(np.array(rows))] for rank, rows in sorted(self._steps.items())],
            "collectives": [[rank, [list(row) for row in rows]] for rank, rows in sorted(self._collectives.items())],
            "begin_ns": self._begin_ns,
            "abstained": self.abstained,
            "left_out": self.left_out_count,
        }

    def load_state(self, state: Mapping[str, Any]) -> None:
        """Restore the state from values that ``to_state`` returned."""
        self._seen = pairs_from(state["seen"])
        self._steps = {rank: array_from(rows).tolist() for rank, rows in state["steps"]}
        self._collectives = {rank: [(name, seconds) for name, seconds in rows] for rank, rows in state["collectives"]}
        self._begin_ns = state["begin_ns"]
        self.abstained = dict(state["abstained"])
        self.left_out_count = state["left_out"]


def _collective_rows(ranks: list[int], rows: Mapping[int, list[tuple[str, float]]], vocabulary: Vocabulary) -> OpRows:
    """Return the collectives of these ranks as operations in the classes of a vocabulary."""
    of_rank = np.repeat(np.array(ranks, np.int64), [len(rows[rank]) for rank in ranks])
    classes = vocabulary.encode(name for rank in ranks for name, _ in rows[rank])
    seconds: NDArray[np.float64] = np.array([value for rank in ranks for _, value in rows[rank]])
    return OpRows(of_rank, classes, seconds)
