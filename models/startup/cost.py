"""What a start-up costs, in GPU-seconds, after Bootseer: waste, waiting at the barrier, blame, share."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

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
