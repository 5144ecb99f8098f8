"""Normal sequences for the one-class network, from slices of jobs where nothing was wrong.

Cut by the very code that cuts them live, so that what is learned is what will be judged.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

import numpy as np
from numpy.typing import NDArray

from tocsin.models.entropy import EntropyConfig
from tocsin.models.op_features import feature_count, sum_up
from tocsin.pipeline.operators.graph import JobGraph
from tocsin.pipeline.operators.trace_memory import SequenceMemory
from tocsin.pipeline.operators.trace_windows import PHASE_VOCABULARY, TraceWindows, WindowConfig
from tocsin.schemas.records import NS_PER_SECOND, JobKey, JobRecord, Slice

Singles = NDArray[np.float32]


def second_slices(records: Iterable[JobRecord]) -> Iterator[Slice]:
    """Records of one job, by event time, as slices of a second; seconds without any are left out."""
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
    start_ns = records[-1].ts_ns // NS_PER_SECOND * NS_PER_SECOND
    return Slice(job, start_ns, start_ns + NS_PER_SECOND, tuple(records))


def sequences_of(
    slices: Iterable[Slice], sequence_count: int, config: WindowConfig, min_peer_count: int = 3
) -> tuple[Singles, int]:
    """A job's sequences of features.

    Args:
        slices: of one job, in order.
        sequence_count: windows of a sequence.
        config: how long a window is.
        min_peer_count: smaller roles are left out: their features say nothing.

    Returns:
        All sequences, shape (sequences, windows, features), and how many of them share no window: a rank's
        sequences overlap, and the ranks of a job share its noise, so a job counts once each sequence length.
    """
    graph, found, window_count = JobGraph(), [], 0
    windows, memory = TraceWindows(config, graph), SequenceMemory(sequence_count)
    for data in slices:
        graph.take(data.records)
        if not windows.take(data):
            continue
        window_count += 1
        for role in windows.close(data.end_ns):
            if role.family != "phases" or np.unique(role.rows.ranks).size < min_peer_count:
                continue
            summed = sum_up(role.rows, PHASE_VOCABULARY.class_count)
            enough = summed.has_enough(EntropyConfig().min_operations_factor)
            ranks = summed.ranks[enough]
            memory.take(ranks, summed.features[enough].astype(np.float32), role.begin_ns)
            found.append(memory.whole(ranks)[1])
    found = [part for part in found if len(part)]
    if not found:
        return np.zeros((0, sequence_count, feature_count(PHASE_VOCABULARY.class_count)), np.float32), 0
    return np.concatenate(found), window_count // sequence_count
