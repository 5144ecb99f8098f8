"""Windows of operation durations from step and collective records, grouped by the role of ranks.

Two families are kept apart. Phases of steps are sent by every rank and do not overlap. Collectives, by name, lie within
the phase ``communication``, and only some ranks send all of theirs (see ``design.md``, volume).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tocsin.models.op_features import PHASES, REST, OpRows, Vocabulary
from tocsin.pipeline.core.arrays import array_from, array_state
from tocsin.pipeline.core.state_maps import pairs_from, pairs_state
from tocsin.pipeline.detect.abstaining import Abstaining
from tocsin.pipeline.job.graph import JobGraph
from tocsin.schemas.reasons import Reason
from tocsin.schemas.records import NS_PER_SECOND, CollectiveBatch, CollectiveRecord, Slice, StepBatch, StepRecord

PHASE_VOCABULARY = Vocabulary(PHASES)
"""Operation classes of the phases of a step."""
_PARTS = tuple(f"{name}_seconds" for name in PHASES[:-1])
_MIN_KNOWN_RATIO = 0.5
"""Least share of a window's operations that a network must know; of those it does not know it learned nothing."""


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
        rows: operations; of phases, all measured phases of one step stand together, in the order of ``PHASES``.
        begin_ns: start of the window.
        end_ns: end of the slice that completed the window.
    """

    family: str
    vocabulary: Vocabulary
    rows: OpRows
    begin_ns: int
    end_ns: int

    @property
    def sources(self) -> tuple[str, ...]:
        """Operation classes that this window has, in the order of its vocabulary: phases measured, operations run."""
        codes = np.flatnonzero(np.bincount(self.rows.classes, minlength=self.vocabulary.class_count))
        return tuple(self.vocabulary.classes[code] for code in codes.tolist())

    def has_sources_of(self, vocabulary: Vocabulary) -> bool:
        """Return whether a network of this vocabulary can judge the window.

        All of its phases must be measured. Of collectives and traced operations jobs run different ones: at least half
        of them must be known to the vocabulary.
        """
        if self.family == "phases":
            return set(vocabulary.words) <= set(self.sources)
        known = vocabulary.encode(self.vocabulary.classes)[self.rows.classes] < len(vocabulary.words)
        return bool(known.size) and float(known.mean()) >= _MIN_KNOWN_RATIO

    def in_vocabulary(self, vocabulary: Vocabulary) -> RoleWindow:
        """Return the window with its operations in the classes of another vocabulary."""
        return replace(self, vocabulary=vocabulary, rows=self.in_words_of(vocabulary))

    def in_words_of(self, vocabulary: Vocabulary) -> OpRows:
        """Return the operations in the classes of another vocabulary.

        Phases that it does not know are added to the ``rest`` of their step, as if they had not been measured; other
        operations become ``other``.
        """
        if vocabulary == self.vocabulary:
            return self.rows
        if self.family == "phases":
            return self._with_fewer_phases(vocabulary)
        classes = vocabulary.encode(self.vocabulary.classes)[self.rows.classes]
        return OpRows(self.rows.ranks, classes, self.rows.seconds)

    def _with_fewer_phases(self, vocabulary: Vocabulary) -> OpRows:
        """Return the steps' phases with those that the vocabulary does not know added to ``rest``."""
        sources = self.sources
        kept = [column for column, word in enumerate(sources) if word in vocabulary.words]
        folded = [column for column in range(len(sources)) if column not in kept]
        steps = self.rows.seconds.reshape(-1, len(sources)).copy()
        steps[:, sources.index(REST)] += steps[:, folded].sum(axis=1)
        ranks = self.rows.ranks.reshape(-1, len(sources))[:, kept]
        classes = vocabulary.encode(sources[column] for column in kept)
        return OpRows(ranks.reshape(-1), np.tile(classes, len(steps)), steps[:, kept].reshape(-1))


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

    @property
    def has_sources(self) -> bool:
        """Whether any step or any usable collective was ever taken."""
        return bool(self._seen or self._begin_ns)

    def take(self, data: Slice) -> bool:
        """Take one slice's records; return whether the window is full and ends with this slice.

        A slice without steps and collectives never ends a window, so it does not matter whether such slices are given:
        an engine has one a second, a recording may skip them.
        """
        told = False
        for record in data.records:
            if isinstance(record, StepBatch):
                told = True
                for step in record.rows:
                    self._take_step(step)
            elif isinstance(record, CollectiveBatch):
                told = True
                for collective in record.rows:
                    self._take_collective(collective)
        if not told:
            return False
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
