"""Training sequences for the one-class network, from slices of healthy jobs.

They are cut by the code that cuts them for judging, so that both see the same features.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

import numpy as np
from numpy.typing import NDArray

from tocsin.models.entropy import EntropyConfig
from tocsin.models.op_features import Vocabulary, feature_count, sum_up
from tocsin.pipeline.detect.traces.memory import SequenceMemory
from tocsin.pipeline.detect.traces.windows import (
    PHASE_VOCABULARY,
    RoleWindow,
    TraceWindows,
    WindowConfig,
)
from tocsin.pipeline.job.graph import JobGraph
from tocsin.schemas.records import NS_PER_SECOND, JobKey, JobRecord, Slice

Singles = NDArray[np.float32]


def second_slices(records: Iterable[JobRecord]) -> Iterator[Slice]:
    """Yield the records of one job, ordered by event time, as slices of one second; empty seconds are skipped."""
    held: list[JobRecord] = []
    job = JobKey("", "")
    for record in records:
        if held and record.ts_ns // NS_PER_SECOND != held[-1].ts_ns // NS_PER_SECOND:
            yield _slice(job, held)
            held = []
        job = record.job
        held.append(record)
    if held:
        yield _slice(job, held)


def _slice(job: JobKey, records: list[JobRecord]) -> Slice:
    """Return the slice of one second that holds these records."""
    start_ns = records[-1].ts_ns // NS_PER_SECOND * NS_PER_SECOND
    return Slice(job, start_ns, start_ns + NS_PER_SECOND, tuple(records))


def role_windows(slices: Iterable[Slice], config: WindowConfig) -> Iterator[RoleWindow]:
    """Yield the windows of one job's slices, as a running detector cuts them.

    Args:
        slices: slices of one job, in order.
        config: length of a window.
    """
    graph = JobGraph()
    windows = TraceWindows(config, graph)
    for data in slices:
        graph.take(data.records)
        if windows.take(data):
            yield from windows.close(data.end_ns)


def sequences_of(
    slices: Iterable[Slice],
    sequence_count: int,
    config: WindowConfig,
    min_peer_count: int = 3,
    vocabulary: Vocabulary = PHASE_VOCABULARY,
) -> tuple[Singles, int]:
    """Return feature sequences of a job's step phases, and their independent number, as ``sequences_in`` does.

    Args:
        slices: slices of one job, in order.
        sequence_count: windows of a sequence.
        config: length of a window.
        min_peer_count: fewest ranks of a role; features of smaller roles mean nothing.
        vocabulary: phases of the features; jobs that do not measure all of them give no sequences.
    """
    found = (window for window in role_windows(slices, config) if window.family == "phases")
    return sequences_in(found, vocabulary, sequence_count, min_peer_count)


def sequences_in(
    windows: Iterable[RoleWindow],
    vocabulary: Vocabulary,
    sequence_count: int,
    min_peer_count: int = 3,
    struck: Sequence[tuple[int, int]] = (),
) -> tuple[Singles, int]:
    """Return feature sequences of one job's windows of one family, and how many of them are independent.

    Args:
        windows: windows in order.
        vocabulary: operation classes of the features.
        sequence_count: windows of a sequence.
        min_peer_count: fewest ranks of a role; features of smaller roles mean nothing.
        struck: start and end of each fault in nanoseconds; windows that touch one are skipped, and no sequence spans
            it.

    Returns:
        All sequences, shape (sequences, windows, features), and how many of them share no window. A rank's sequences
        overlap and a job's ranks share its noise, so each sequence length of a job counts once.
    """
    found, begins, memory = [], set[int](), SequenceMemory(sequence_count)
    for window in windows:
        if any(window.begin_ns < end_ns and begin_ns < window.end_ns for begin_ns, end_ns in struck):
            memory = SequenceMemory(sequence_count)
            continue
        begins.add(window.begin_ns)
        if np.unique(window.rows.ranks).size < min_peer_count or not window.has_sources_of(vocabulary):
            continue
        summed = sum_up(window.in_words_of(vocabulary), vocabulary.class_count)
        enough = summed.has_enough(EntropyConfig().min_operations_factor)
        ranks = summed.ranks[enough]
        memory.take(ranks, summed.features[enough].astype(np.float32), window.begin_ns)
        found.append(memory.whole(ranks)[1])
    found = [part for part in found if len(part)]
    if not found:
        return np.zeros((0, sequence_count, feature_count(vocabulary.class_count)), np.float32), 0
    return np.concatenate(found), len(begins) // sequence_count
