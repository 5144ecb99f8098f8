"""What a start-up costs, in GPU-seconds, after Bootseer: waste, waiting at the barrier, blame, share."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise

from tocsin.models.startup.durations import NS, StageTable


@dataclass(frozen=True, slots=True)
class Blame:
    """The node that ended a stage last.

    Attributes:
        node: its name, "" where the marks do not say.
        gpu_seconds: GPU time that the job would have saved without it.
    """

    node: str
    gpu_seconds: float


def waste_gpu_seconds(gpu_counts: Mapping[str, int], allocated_ns: Mapping[str, int], train_ns: int) -> float:
    """Return the GPU time from the allocation of each node to the first step.

    Args:
        gpu_counts: node -> number of its GPUs.
        allocated_ns: node -> when it was allocated, or first heard.
        train_ns: begin of the first step.
    """
    return sum(gpu_counts[node] * max(train_ns - begin_ns, 0) / NS for node, begin_ns in allocated_ns.items())


def waiting_gpu_seconds(table: StageTable, gpu_counts: Mapping[str, int]) -> float:
    """Return the GPU time that nodes waited for the last node to end the stage; 1 GPU where no number is known."""
    end_ns = table.end_ns
    ended = ((span.node, span.end_ns) for span in table.spans if span.end_ns is not None)
    return sum(gpu_counts.get(node, 1) * ((end_ns or 0) - own_ns) / NS for node, own_ns in ended)


def blame(table: StageTable, gpu_counts: Mapping[str, int]) -> Blame | None:
    """Return the last node of a stage with what it costs; None if fewer than two have ended.

    The cost is the distance of the two last ends, times the GPUs of the job.
    """
    ends = sorted(((span.end_ns, span.node) for span in table.spans if span.end_ns is not None), reverse=True)
    if len(ends) < 2:
        return None
    total = sum(gpu_counts.get(span.node, 1) for span in table.spans)
    (last_ns, node), (next_ns, _) = ends[:2]
    return Blame(node, (last_ns - next_ns) / NS * total)


def share(waste_seconds: float, allocated_seconds: float) -> float:
    """Return the share of GPU time that start-ups take; 0 if nothing was allocated. Both in GPU-seconds."""
    return waste_seconds / allocated_seconds if allocated_seconds > 0 else 0.0


StageKey = tuple[str, str]
"""(start kind, stage)."""


@dataclass(slots=True)
class StageSpent:
    """GPU time that a start spent on one stage.

    Attributes:
        own_gpu_ns: nodes were in the stage, GPU-nanoseconds.
        waiting_gpu_ns: nodes had ended it and waited for the last node to end it.
    """

    own_gpu_ns: int = 0
    waiting_gpu_ns: int = 0


def spent_on_stages(
    tables: Sequence[StageTable], gpu_counts: Mapping[str, int], begin_ns: int, train_ns: int
) -> dict[StageKey, StageSpent]:
    """Return what the GPU time of a start was spent on; each instant of each node counts once.

    A node that is in two stages is in the one that began last. A node in none waits for the last node of the stage that
    it ended last; where that has ended, too, nothing is known of its time, and nothing is counted.

    Args:
        tables: stages of one start.
        gpu_counts: node -> number of its GPUs; others are left out.
        begin_ns: begin of the start.
        train_ns: begin of the first step.
    """
    spent: dict[StageKey, StageSpent] = {}
    last_ns: dict[StageKey, int] = {}
    nodes: dict[str, list[tuple[int, int, StageKey]]] = {}
    for table in tables:
        key = table.start_kind, table.stage
        last_ns[key] = train_ns if table.open_nodes else table.end_ns or 0
        for span in table.spans:
            end_ns = train_ns if span.is_open else span.end_ns
            if span.begin_ns is not None and end_ns is not None:
                nodes.setdefault(span.node, []).append((max(span.begin_ns, begin_ns), min(end_ns, train_ns), key))
    for node, spans in nodes.items():
        for key, is_own, length_ns in _pieces([one for one in spans if one[0] < one[1]], last_ns, train_ns):
            one = spent.setdefault(key, StageSpent())
            if is_own:
                one.own_gpu_ns += length_ns * gpu_counts.get(node, 0)
            else:
                one.waiting_gpu_ns += length_ns * gpu_counts.get(node, 0)
    return spent


def _pieces(
    spans: Sequence[tuple[int, int, StageKey]], last_ns: Mapping[StageKey, int], train_ns: int
) -> Iterator[tuple[StageKey, bool, int]]:
    """Yield (stage, whether the node is in it or waits, nanoseconds) of one node's spans (begin, end, stage)."""
    edges = sorted({edge for begin_ns, end_ns, _ in spans for edge in (begin_ns, end_ns)} | {train_ns})
    for since_ns, until_ns in pairwise(edges):
        within = [one for one in spans if one[0] <= since_ns and until_ns <= one[1]]
        if within:
            yield max(within, key=lambda one: (one[0], one[2]))[2], True, until_ns - since_ns
            continue
        before = [one for one in spans if one[1] <= since_ns]
        if before:
            key = max(before, key=lambda one: (one[1], one[2]))[2]
            yield key, False, max(0, min(until_ns, last_ns[key]) - since_ns)
