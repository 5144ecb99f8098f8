"""Who waits for whom in a job that stands still: types and the wait-for graph.

``tocsin.models.hang`` judges the graph that is built here.

A rank issues its operations in one order. What it stands in is its *front*: the
oldest unfinished operation, or, while the oldest are point-to-point operations
(which do not hold each other up), all of them up to the first collective. A rank
that stands in a collective waits for the members that have not *reached* it: they
have not issued it, or they stand in something older. So a rank whose program ran
ahead of its device (NCCL) is not taken to be where its program is.

Members that lag are chained by sequence number, so that the graph has about as many
edges as there are (rank, group) pairs, also with ten thousand ranks in one group.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import islice
from types import MappingProxyType

NOTHING: Mapping[str, int] = MappingProxyType({})

P2P_NAMES = ("send", "recv", "isend", "irecv")
ROOTED_NAMES = frozenset({"broadcast", "reduce", "gather", "scatter", "coalesced"})
"""Operations that may end on one member before another has entered them."""

_WORDS_NEEDED_COUNT = 2

FACT_STOPPED = "stopped"
FACT_GONE = "gone"
FACT_ALIVE_ELSEWHERE = "alive_not_in_collective"
FROZEN_FACTS = frozenset({FACT_STOPPED, FACT_GONE})


MAX_LISTED_RANKS = 65_536
"""Of ranks of which only the announced size of the job tells so many are listed, the others counted."""


@dataclass(frozen=True, slots=True)
class GroupInfo:
    """A communication group.

    Attributes:
        comm_id: the communicator.
        kind: what it is for (``world dp pp tp`` ..., or any text that groups of one purpose share).
        ranks: its members (global ranks).
        inferred: the members were guessed from who showed the communicator.
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
        seq: its number there; collectives and point-to-point operations count apart.
        op_name: ``all_reduce``, ``send`` ...
        msg_bytes: message size, -1: unknown.
        dtype: element type, "" = unknown.
        peer: global rank of the other side of a point-to-point operation, -1: none or unknown.
        is_p2p: whether it is a point-to-point operation.
        started: whether the device runs it; None: nobody knows.
        start_ns: when the rank issued it, 0: unknown.
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
    """What is known of one rank.

    Attributes:
        rank: global rank.
        pending: its unfinished operations, oldest first (its own order).
        completed: communicator -> number of the last finished **collective**.
        completed_ns: communicator -> when that one finished on this rank.
        seen_ns: when ``pending`` was seen, 0: not known (no check of freshness).
        hidden_ops: it also runs operations that nobody records (gloo: send and receive), so that
            no pending operation does not prove that it waits for nobody.
        history: its last finished operations in its own order, the newest last; () = not known.
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
    """All that the analysis looks at.

    Attributes:
        groups: the groups that are known; others are inferred from ``states``.
        states: one per rank that is known to speak (or spoke last before it fell silent).
        silent: ranks that gave no dump, or whose host fell silent.
        facts: rank -> ``stopped``, ``gone`` or ``alive_not_in_collective``.
        world_size: ranks in the job, 0: unknown.
        unlisted_count: ranks that gave no dump and do not stand in ``silent``: there are too many.
        settle_ns: a peer's completion is held against a rank only when it was seen unfinished so much later (lateness).
        host_of: rank -> its host, {}: all that is known comes from one hand (dumps of a folder).
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
    """One operation in which ranks wait for others.

    Attributes:
        comm_id: the communicator.
        kind: its purpose.
        seq: the operation's number.
        op_name: its name.
        waiting: ranks that stand in it.
        waits_for: members that have not reached it.
        inferred: the members were guessed.
    """

    comm_id: str
    kind: str
    seq: int
    op_name: str
    waiting: tuple[int, ...]
    waits_for: tuple[int, ...]
    inferred: bool = False


Node = int
"""A rank (>= 0) or an operation (< 0: -1 - index in ``WaitGraph.ops``)."""


@dataclass(slots=True)
class WaitingOp:
    """An operation of the graph: who stands in it, and whom it newly lacks beside ``older``."""

    comm_id: str
    seq: int
    op_name: str
    waiting: list[int] = field(default_factory=list)
    lacks: list[int] = field(default_factory=list)
    older: int = -1
    blocked: bool = False


@dataclass(slots=True)
class WaitGraph:
    """Edges between ranks and the operations in which they stand.

    Attributes:
        groups: communicator -> group, the inferred ones included.
        ops: the operations.
        edges: node -> nodes that it waits for.
        waited: ranks that somebody waits for.
        lagging: ranks unfinished with what their peers finished.
        fronts: rank -> where it stands; () for ranks that wait for nobody.
        unstarted: ranks whose device has not begun the collective that their peers' devices run.
    """

    groups: dict[str, GroupInfo]
    ops: list[WaitingOp]
    edges: dict[Node, list[Node]]
    waited: set[int]
    lagging: frozenset[int]
    fronts: dict[int, tuple[OpState, ...]]
    unstarted: frozenset[int] = frozenset()


_NAMES_OF_NCCL: Mapping[str, str] = {
    "allreduce": "all_reduce",
    "allgather": "all_gather_base",
    "reducescatter": "reduce_scatter_base",
    "broadcast": "broadcast",
    "reduce": "reduce",
    "alltoall": "all_to_all",
}
"""NCCL's own words, which want the same count of all members; PyTorch's lists (``all_gather``) may be uneven."""


def base_name(op_name: str) -> str:
    """``nccl:send 0->1`` -> ``send``; ``_all_gather_base`` -> ``all_gather_base``, ``AllGather`` as well."""
    name = op_name.rpartition(":")[2].partition(" ")[0].lstrip("_")
    return _NAMES_OF_NCCL.get(name.removeprefix("nccl").lower(), name) if "_" not in name else name


def unheard_ranks(world_size: int, heard: Collection[int]) -> list[int]:
    """Ranks below an announced size of which nobody heard; the first ``MAX_LISTED_RANKS`` of them."""
    return list(islice((rank for rank in range(world_size) if rank not in heard), MAX_LISTED_RANKS))


def sends(op: OpState) -> bool:
    """Whether a point-to-point operation sends."""
    return "send" in base_name(op.op_name)


def known_groups(data: HangInput) -> dict[str, GroupInfo]:
    """Communicator -> group; where membership is unknown, the union of the ranks that show it."""
    groups = {group.comm_id: group for group in data.groups if group.ranks}
    kinds = {group.comm_id: group.kind for group in data.groups}
    shown: dict[str, set[int]] = {}
    for state in data.states:
        for comm_id in {op.comm_id for op in state.pending} | set(state.completed):
            if comm_id not in groups:
                shown.setdefault(comm_id, set()).add(state.rank)
    for comm_id, ranks in sorted(shown.items()):
        groups[comm_id] = GroupInfo(comm_id, kinds.get(comm_id, ""), tuple(sorted(ranks)), inferred=True)
    return groups


def front_of(state: RankWait) -> tuple[OpState, ...]:
    """Where a rank stands: leading point-to-point operations, and the first collective."""
    front: list[OpState] = []
    for op in state.pending:
        front.append(op)
        if not op.is_p2p:
            break
    return tuple(front)


def lagging_ranks(data: HangInput) -> frozenset[int]:
    """Ranks that are unfinished with a collective that their peers have finished.

    A collective in which everybody gives and takes ends nowhere before everybody is in it.
    So such a rank waits for nobody: its own device, or its own communication thread, stands.
    Where hosts are known one host's word is not enough: two must have finished what the rank has not, or its own.
    """
    newest: dict[str, int] = {}
    for state in data.states:
        for comm_id, seq in state.completed.items():
            newest[comm_id] = max(seq, newest.get(comm_id, -1))
    finishers: dict[tuple[str, int], dict[str, int]] = {}
    first: dict[tuple[str, int], list[str]] = {}
    lagging = set()
    for state in data.states:
        own, ahead = _host(data, state.rank), set[str]()
        for op in state.pending:
            if op.is_p2p or op.seq > newest.get(op.comm_id, -1) or base_name(op.op_name) in ROOTED_NAMES:
                continue
            key = op.comm_id, op.seq
            if key not in finishers:
                told = finishers[key] = _finishers(data, *key)
                first[key] = sorted(told, key=lambda host: (told[host], host))[:_WORDS_NEEDED_COUNT]
            latest_ns = state.seen_ns - data.settle_ns
            hosts = (*first[key], own)
            ahead.update(
                h for h in hosts if h in finishers[key] and (not state.seen_ns or finishers[key][h] <= latest_ns)
            )
        if own in ahead or len(ahead) >= (_WORDS_NEEDED_COUNT if data.host_of else 1):
            lagging.add(state.rank)
    return frozenset(lagging)


def _finishers(data: HangInput, comm_id: str, seq: int) -> dict[str, int]:
    """The hosts on which a rank finished a collective, or a later one, and when the first of it did."""
    found: dict[str, int] = {}
    for state in data.states:
        if state.completed.get(comm_id, -1) >= seq:
            host, when_ns = _host(data, state.rank), state.completed_ns.get(comm_id, 0)
            found[host] = min(when_ns, found.get(host, when_ns))
    return found


def _host(data: HangInput, rank: int) -> str:
    return data.host_of.get(rank) or str(rank)


def build_graph(data: HangInput) -> WaitGraph:
    """Build the wait-for graph. Stopped, gone, silent and lagging ranks wait for nobody."""
    groups = known_groups(data)
    lagging = lagging_ranks(data)
    sinks = set(lagging) | set(data.silent) | {r for r, fact in data.facts.items() if fact in FROZEN_FACTS}
    fronts = {state.rank: () if state.rank in sinks else front_of(state) for state in data.states}
    edges: dict[Node, list[Node]] = {}
    unstarted = set(link_p2p(fronts, edges))
    # A collective behind a point-to-point operation that waits is not reached: the device keeps the order.
    standing = {
        rank: front[-1]
        for rank, front in fronts.items()
        if front and not front[-1].is_p2p and front[-1].comm_id in groups and rank not in edges
    }
    for rank in not_begun(standing):
        # Behind a point-to-point operation it may well be that one that holds it up.
        if not fronts[rank][0].is_p2p:
            unstarted.add(rank)
        del standing[rank]
    ops = operations_of(standing, data.states, groups)
    link_operations(ops, edges)
    waited = {node for nodes in edges.values() for node in nodes if node >= 0}
    return WaitGraph(groups, ops, edges, waited, lagging, fronts, frozenset(unstarted))


def link_p2p(fronts: Mapping[int, tuple[OpState, ...]], edges: dict[Node, list[Node]]) -> list[int]:
    """Add an edge to each peer that has not posted the other half; return who posted it and never began."""
    posted = {
        (op.comm_id, rank, op.peer, sends(op)): op.started
        for rank, front in fronts.items()
        for op in reversed(front)
        if op.is_p2p
    }
    never_began = []
    for rank, front in fronts.items():
        for op in front:
            half = (op.comm_id, op.peer, rank, not sends(op))
            if not op.is_p2p or op.peer < 0:
                continue
            if half not in posted:
                edges.setdefault(rank, []).append(op.peer)
            elif op.started and posted[half] is False:
                edges.setdefault(rank, []).append(op.peer)
                if not fronts[op.peer][0].started:
                    never_began.append(op.peer)
    return never_began


def not_begun(standing: Mapping[int, OpState]) -> list[int]:
    """Ranks whose device has not begun the collective that the devices of their peers run."""
    running = {(op.comm_id, op.seq) for op in standing.values() if op.started}
    return [rank for rank, op in standing.items() if op.started is False and (op.comm_id, op.seq) in running]


def operations_of(
    standing: Mapping[int, OpState], states: Iterable[RankWait], groups: Mapping[str, GroupInfo]
) -> list[WaitingOp]:
    """One entry per operation in which a rank stands, with the members that it newly lacks."""
    by_group: dict[str, dict[int, WaitingOp]] = {}
    for rank, op in sorted(standing.items()):
        waiting = by_group.setdefault(op.comm_id, {})
        entry = waiting.setdefault(op.seq, WaitingOp(op.comm_id, op.seq, op.op_name))
        entry.waiting.append(rank)
    completed = {state.rank: state.completed for state in states}
    ops: list[WaitingOp] = []
    for comm_id, waiting in sorted(by_group.items()):
        seqs = sorted(waiting)
        first = len(ops)
        for index, seq in enumerate(seqs):
            waiting[seq].older = first + index - 1 if index else -1
            ops.append(waiting[seq])
        for member in groups[comm_id].ranks:
            front = standing.get(member)
            reached = completed.get(member, NOTHING).get(comm_id, -1)
            if front is not None and front.comm_id == comm_id:
                reached = max(reached, front.seq)
            place = bisect_right(seqs, reached)
            if place < len(seqs):
                waiting[seqs[place]].lacks.append(member)
    return ops


def link_operations(ops: Sequence[WaitingOp], edges: dict[Node, list[Node]]) -> None:
    """Add rank -> operation -> lacking rank, and operation -> the older one that blocks it, too."""
    for index, op in enumerate(ops):
        op.blocked = bool(op.lacks) or (op.older >= 0 and ops[op.older].blocked)
        if not op.blocked:
            continue
        targets = list(op.lacks)
        if op.older >= 0 and ops[op.older].blocked:
            targets.append(-1 - op.older)
        edges[-1 - index] = targets
        for rank in op.waiting:
            edges.setdefault(rank, []).append(-1 - index)


def all_lacking(graph: WaitGraph, index: int) -> list[int]:
    """Every member that has not reached an operation, ascending (what the older ones lack, it lacks)."""
    lacking: list[int] = []
    while index >= 0:
        lacking.extend(graph.ops[index].lacks)
        index = graph.ops[index].older
    return sorted(set(lacking))


def strong_components(edges: Mapping[Node, Sequence[Node]]) -> list[tuple[Node, ...]]:
    """Tarjan's strongly connected components, without recursion."""
    low: dict[Node, int] = {}
    number: dict[Node, int] = {}
    stack: list[Node] = []
    closed: set[Node] = set()
    components: list[tuple[Node, ...]] = []
    for start in sorted(edges):
        walk: list[tuple[Node, int]] = [] if start in number else [(start, 0)]
        while walk:
            node, child = walk.pop()
            if node not in number:
                number[node] = low[node] = len(number)
                stack.append(node)
            targets = edges.get(node, ())
            while child < len(targets) and targets[child] in number:
                if targets[child] not in closed:
                    low[node] = min(low[node], low[targets[child]])
                child += 1
            if child < len(targets):
                walk += [(node, child), (targets[child], 0)]
            elif low[node] == number[node]:
                component = [stack.pop()]
                while component[-1] != node:
                    component.append(stack.pop())
                closed.update(component)
                components.append(tuple(sorted(component)))
    return components
