"""Types of traced operations, in the words of the public what-if traces (``seed-systems-a.md`` 4.2)."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Final

FORWARD: Final = "forward-compute"
BACKWARD: Final = "backward-compute"
COMPUTE: Final = (FORWARD, BACKWARD)
"""Computation of one microbatch on one stage; they share the stage's compute stream."""
DIRECTIONS: Final = ("forward", "backward")
P2P: Final = ("forward-send", "forward-recv", "backward-send", "backward-recv")
"""Transfers between neighbouring pipeline stages; each type has a stream of its own."""
ALL_GATHER: Final = "params-all-gather"
REDUCE_SCATTER: Final = "grads-reduce-scatter"
SEPARATE_ALL_REDUCE: Final = "separate-grads-all-reduce"
LAYERNORM: Final = "layernorm-grads-all-reduce"
EMBEDDING: Final = "embedding-grads-all-reduce"
CLIP: Final = "optimizer-clip-main-grad"
OPTIMIZER: Final = "optimizer"
GC: Final = "gc"
DATA_PARALLEL: Final = (ALL_GATHER, REDUCE_SCATTER, SEPARATE_ALL_REDUCE)
"""Collectives among the data-parallel ranks of one stage."""
SYNCHRONISED: Final = (*DATA_PARALLEL, CLIP)
"""Collectives that no data-parallel rank can leave before all have entered."""
COMMUNICATION: Final = frozenset((*P2P, *DATA_PARALLEL, EMBEDDING, CLIP))
"""Types that wait for other workers; their traced durations include the waiting."""
MEDIAN: Final = frozenset((*COMMUNICATION, LAYERNORM))
"""Types whose ideal is the median; that of all others is the mean.

Communication has long outliers, computation is unevenly spread (``seed-systems-a.md`` 4.3).
"""
KNOWN: Final = (*COMPUTE, *P2P, *DATA_PARALLEL, LAYERNORM, EMBEDDING, CLIP, OPTIMIZER, GC)
"""All types that the dependency model knows."""
MERGED: Final[Mapping[str, str]] = MappingProxyType(
    {
        "forward-send": "forward-pp-comm",
        "forward-recv": "forward-pp-comm",
        "backward-send": "backward-pp-comm",
        "backward-recv": "backward-pp-comm",
    }
)
"""Type -> its name in ``S_t``: the two ends of a transfer are one."""
