"""Input of the hang analysis: what is known of each rank's operations, and which ranks are silent.

``tocsin.models.hang_waits`` builds the wait-for graph from it; ``tocsin.models.hang`` judges that graph.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from itertools import islice

ROOTED_NAMES = frozenset({"broadcast", "reduce", "gather", "scatter", "coalesced"})
"""Names of operations that may end on one member before another has entered them."""

FACT_STOPPED = "stopped"
"""The rank's process is stopped (SIGSTOP, debugger)."""
FACT_GONE = "gone"
"""The rank's process has ended."""
FACT_ALIVE_ELSEWHERE = "alive_not_in_collective"
"""The rank's process runs and is in no collective."""
FROZEN_FACTS = frozenset({FACT_STOPPED, FACT_GONE})
"""Facts of ranks that wait for nobody, whatever their operations say."""

MAX_LISTED_RANKS = 65_536
"""Most ranks that are listed by name although only the announced world size tells of them; the others are counted."""


@dataclass(frozen=True, slots=True)
class GroupInfo:
    """A communication group.

    Attributes:
        comm_id: the communicator.
        kind: its purpose (``world dp pp tp`` ..., or any text that groups of one purpose share).
        ranks: global ranks of its members.
        inferred: whether the members were inferred from the ranks that showed the communicator.
    """

    comm_id: str
    kind: str
    ranks: tuple[int, ...]
    inferred: bool = False


@dataclass(frozen=True, slots=True)
class OpState:
    """One operation of one rank.

    Attributes:
        comm_id: the communicator.
        seq: its sequence number there; collectives and point-to-point operations count apart.
        op_name: its name (``all_reduce``, ``send`` ...).
        msg_bytes: message size, -1 = unknown.
        dtype: element type, "" = unknown.
        peer: global rank of the other side of a point-to-point operation, -1 = none or unknown.
        is_p2p: whether it is a point-to-point operation.
        started: whether the device runs it, None = unknown.
        start_ns: when the rank issued it, 0 = unknown.
    """

    comm_id: str
    seq: int
    op_name: str
    msg_bytes: int = -1
    dtype: str = ""
    peer: int = -1
    is_p2p: bool = False
    started: bool | None = None
    start_ns: int = 0


@dataclass(frozen=True, slots=True)
class RankWait:
    """Operations of one rank, as far as they are known.

    Attributes:
        rank: global rank.
        pending: its unfinished operations in its own order, oldest first.
        completed: communicator -> sequence number of the last finished **collective**.
        completed_ns: communicator -> when that collective finished on this rank.
        seen_ns: when ``pending`` was seen, 0 = unknown (its freshness is not checked).
        hidden_ops: whether it also runs operations that nobody records (gloo: send and receive). An empty
            ``pending`` then does not prove that it waits for nobody.
        history: its last finished operations in its own order, newest last; () = unknown.
    """

    rank: int
    pending: tuple[OpState, ...] = ()
    completed: Mapping[str, int] = field(default_factory=dict)
    completed_ns: Mapping[str, int] = field(default_factory=dict)
    seen_ns: int = 0
    hidden_ops: bool = False
    history: tuple[OpState, ...] = ()


@dataclass(frozen=True, slots=True)
class HangInput:
    """Input of one hang analysis.

    Attributes:
        groups: the known groups; others are inferred from ``states``.
        states: one per rank that sent operations, also when it fell silent later.
        silent: ranks that gave no dump, or whose host fell silent.
        facts: rank -> ``FACT_STOPPED``, ``FACT_GONE`` or ``FACT_ALIVE_ELSEWHERE``.
        world_size: ranks in the job, 0 = unknown.
        settle_ns: a peer's completion counts against a rank only if the rank was seen unfinished so much later.
        unlisted_count: ranks without a dump that are not listed in ``silent``, because there are too many.
        host_of: rank -> its host, {} = all comes from one source (a folder of dumps).
    """

    groups: tuple[GroupInfo, ...]
    states: tuple[RankWait, ...]
    silent: frozenset[int] = frozenset()
    facts: Mapping[int, str] = field(default_factory=dict)
    world_size: int = 0
    settle_ns: int = 2_000_000_000
    unlisted_count: int = 0
    host_of: Mapping[int, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class BlockedGroup:
    """An operation in which ranks wait for others.

    Attributes:
        comm_id: the communicator.
        kind: the communicator's purpose.
        seq: the operation's sequence number.
        op_name: the operation's name.
        waiting: ranks that are in it.
        waits_for: members that have not reached it.
        inferred: whether the communicator's members were inferred.
    """

    comm_id: str
    kind: str
    seq: int
    op_name: str
    waiting: tuple[int, ...]
    waits_for: tuple[int, ...]
    inferred: bool = False


_NAMES_OF_NCCL: Mapping[str, str] = {
    "allreduce": "all_reduce",
    "allgather": "all_gather_base",
    "reducescatter": "reduce_scatter_base",
    "broadcast": "broadcast",
    "reduce": "reduce",
    "alltoall": "all_to_all",
}
"""NCCL's name -> PyTorch's name. NCCL wants the same size of all members; PyTorch's ``all_gather`` does not."""


def base_name(op_name: str) -> str:
    """Return an operation's plain PyTorch name.

    ``nccl:send 0->1`` becomes ``send``; ``_all_gather_base`` and ``AllGather`` become ``all_gather_base``.
    """
    name = op_name.rpartition(":")[2].partition(" ")[0].lstrip("_")
    return _NAMES_OF_NCCL.get(name.removeprefix("nccl").lower(), name) if "_" not in name else name


def unheard_ranks(world_size: int, heard: Collection[int]) -> list[int]:
    """Return the ranks below an announced world size that are not in ``heard``, at most ``MAX_LISTED_RANKS``."""
    return list(islice((rank for rank in range(world_size) if rank not in heard), MAX_LISTED_RANKS))


def sends(op: OpState) -> bool:
    """Return whether a point-to-point operation is a send, not a receive."""
    return "send" in base_name(op.op_name)
