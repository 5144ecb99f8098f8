"""The trace detectors over a recording: windows of its steps and collectives as they arrive, then of its operations.

On simulated faults they found fewer, and later, than ``peers`` and ``steps`` (``docs/traces.md``).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import Final

from tocsin.models.bilstm_ocnn import OcnnModel
from tocsin.pipeline.detect.traces.detector import TraceDetector, TracesConfig
from tocsin.pipeline.detect.traces.training import second_slices
from tocsin.pipeline.detect.traces.windows import RoleWindow
from tocsin.pipeline.job.graph import JobGraph
from tocsin.pipeline.lab.backtest.runner import Opinion, RunnerAccusation
from tocsin.pipeline.recording.judged_range import has_no_length, in_span
from tocsin.pipeline.recording.ops import TABLE, ranks_of, step_clock, step_windows, vocabulary_of
from tocsin.pipeline.recording.places import Places
from tocsin.pipeline.recording.score import host_count_of
from tocsin.pipeline.recording.stream import records_of
from tocsin.pipeline.recording.tables import Recording
from tocsin.schemas.job_key import LONE_RANK_PREFIX
from tocsin.schemas.reasons import Reason
from tocsin.schemas.records import RankPlace, Slice, Topology
from tocsin.schemas.verdicts import Anomaly

READS: Final = ("steps", "collectives", TABLE)
"""Tables that the trace detectors use; a recording needs one of them."""
OP_STEP_COUNT: Final = 4
"""Steps in a window of operations. At one operation a step these are as many as ``EntropyConfig`` requires."""
_UNREAD: Final = ("host_metrics", "probes", "agent_status")


def opinion_of(
    recording: Recording, detector: str, config: TracesConfig, networks: Mapping[str, OcnnModel] | None = None
) -> Opinion:
    """Return a trace detector's accusations of hosts (ranks without a known host), one per anomaly.

    Args:
        recording: a recording from ``read_with_ops``.
        detector: ``entropy`` or ``bilstm``.
        config: settings.
        networks: networks of ``bilstm``, by operation family.

    Returns:
        The accusations, or why the recording cannot be judged.
    """
    if not any(_row_count(recording, name) for name in READS):
        return Opinion((), Reason.NO_HOOK)
    if has_no_length(recording.manifest):
        return Opinion((), Reason.SPAN_TOO_SHORT)
    graph = JobGraph()
    judge = TraceDetector(replace(config, detectors=(detector,)), graph, networks)
    answers = [_answer(anomaly) for anomaly in _anomalies(recording, judge, graph)]
    return Opinion.of(answers, None if judge.judged[detector] else _reason(recording, judge))


def slices_of(recording: Recording) -> Iterator[Slice]:
    """Yield a recording's records without metrics, in slices of one second."""
    tables = {name: columns for name, columns in recording.tables.items() if name not in _UNREAD}
    return second_slices(in_span(records_of(replace(recording, tables=tables)), recording.manifest))


def op_windows(recording: Recording) -> Iterator[RoleWindow]:
    """Yield the windows of a recording's traced operations, with the times of ``step_clock``; none without a trace."""
    if not _row_count(recording, TABLE):
        return
    columns, clock = recording.tables[TABLE], step_clock(recording)
    words = vocabulary_of(columns)
    for one in step_windows(columns, words, OP_STEP_COUNT):
        yield RoleWindow(TABLE, words, one.rows, clock(one.first_step - 1), clock(one.last_step))


def _anomalies(recording: Recording, judge: TraceDetector, graph: JobGraph) -> Iterator[Anomaly]:
    """Yield all anomalies of a trace detector in a recording."""
    for data in slices_of(recording):
        graph.take(data.records)
        yield from judge.on_slice(data)
    if not _row_count(recording, TABLE):
        return
    _place_ranks(recording, graph)
    job = Places(recording).job_at(recording.manifest.start_ns)
    for window in op_windows(recording):
        yield from judge.on_window(job, window)


def _place_ranks(recording: Recording, graph: JobGraph) -> None:
    """Give each traced rank without a known place a host of its own."""
    places, start_ns = Places(recording), recording.manifest.start_ns
    for rank, stage in ranks_of(recording.tables[TABLE]).items():
        if not graph.host_of(rank):
            host = places.host_of(rank)
            graph.take((Topology(places.job_at(start_ns), host, start_ns, (RankPlace(rank, host, pp=stage),)),))


def _answer(anomaly: Anomaly) -> RunnerAccusation:
    """Return an anomaly as an accusation."""
    name = anomaly.component.name.removeprefix(LONE_RANK_PREFIX)
    return RunnerAccusation(name, anomaly.metric, anomaly.start_ns, anomaly.slice_end_ns, anomaly.score)


def _reason(recording: Recording, judge: TraceDetector) -> Reason:
    """Return why no rank could be judged: the detector's most frequent reason."""
    if "topology" in recording.tables and host_count_of(recording) < TracesConfig().min_peer_count:
        return Reason.TOO_FEW_PEERS
    by_count = sorted(judge.abstained.items(), key=lambda one: (-one[1], one[0]))
    return Reason(by_count[0][0]) if by_count else Reason.SPAN_TOO_SHORT


def _row_count(recording: Recording, name: str) -> int:
    """Return the number of rows of a table, 0 if it is missing."""
    return len(next(iter(recording.tables.get(name, {}).values()), ()))
