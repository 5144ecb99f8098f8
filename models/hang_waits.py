"""The wait-for graph of a stalled job: which ranks wait for which operations and ranks.

``tocsin.models.hang`` judges the graph that is built here.

A rank issues its operations in one order. Its *front* is where it waits: its oldest unfinished operation. While the
oldest ones are point-to-point operations, which do not hold each other up, the front is all of them and the first
collective behind them.

A rank whose front is a collective waits for the members that have not *reached* it: they have not issued it, or wait
in an older one. So a program that ran ahead of its device (NCCL) does not put its rank ahead.

Lagging members are chained by sequence number. So the graph has about as many edges as there are (rank, group) pairs,
also with ten thousand ranks in one group.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from types import MappingProxyType

from tocsin.models.hang_input import (
    FROZEN_FACTS,
    ROOTED_NAMES,
    GroupInfo,
    HangInput,
    OpState,
    RankWait,
    base_name,
    sends,
)

NOTHING: Mapping[str, int] = MappingProxyType({})

_WITNESS_COUNT = 2
"""Hosts that must have finished a collective before another host's rank counts as lagging."""

Node = int
"""Node of the graph: a rank (>= 0), or an operation (< 0: -1 - index in ``WaitGraph.ops``)."""


@dataclass(slots=True)
class WaitingOp:
    """An operation of the graph.

    Attributes:
        comm_id: the communicator.
        seq: the operation's sequence number.
        op_name: the operation's name.
        waiting: ranks that are in it.
        lacks: members that have not reached it, without those that the older operation lacks.
        older: index of the next older operation of the communicator, -1 = none.
        blocked: whether it, or an older one, lacks members.
    """

    comm_id: str
    seq: int
    op_name: str
    waiting: list[int] = field(default_factory=list)
    lacks: list[int] = field(default_factory=list)
    older: int = -1
    blocked: bool = False


@dataclass(slots=True)
class WaitGraph:
    """Wait-for edges between ranks and operations.

    Attributes:
        groups: communicator -> group, the inferred ones included.
        ops: the operations.
        edges: node -> nodes that it waits for.
        waited: ranks that others wait for.
        lagging: ranks that have not finished a collective that their peers finished.
        fronts: rank -> its front; () for ranks that wait for nobody.
        unstarted: ranks whose device has not begun the collective that their peers' devices run.
    """

    groups: dict[str, GroupInfo]
    ops: list[WaitingOp]
    edges: dict[Node, list[Node]]
    waited: set[int]
    lagging: frozenset[int]
    fronts: dict[int, tuple[OpState, ...]]
    unstarted: frozenset[int] = frozenset()


def known_groups(data: HangInput) -> dict[str, GroupInfo]:
    """Return communicator -> group; unknown members are inferred: all ranks that show the communicator."""
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
    """Return a rank's front: its leading point-to-point operations and the first collective behind them."""
    front: list[OpState] = []
    for op in state.pending:
        front.append(op)
        if not op.is_p2p:
            break
    return tuple(front)


def lagging_ranks(data: HangInput) -> frozenset[int]:
    """Return the ranks that have not finished a collective that their peers have finished.

    A collective in which each member gives and takes ends on no member before all are in it. So such a rank waits
    for nobody: its own device or communication thread hangs. Where hosts are known, the word of one other host is
    not enough: two hosts must have finished the collective, or the rank's own host.
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
                finished = finishers[key] = _finishers(data, *key)
                first[key] = sorted(finished, key=lambda host: (finished[host], host))[:_WITNESS_COUNT]
            latest_ns = state.seen_ns - data.settle_ns
            hosts = (*first[key], own)
            ahead.update(
                h for h in hosts if h in finishers[key] and (not state.seen_ns or finishers[key][h] <= latest_ns)
            )
        if own in ahead or len(ahead) >= (_WITNESS_COUNT if data.host_of else 1):
            lagging.add(state.rank)
    return frozenset(lagging)


def _finishers(data: HangInput, comm_id: str, seq: int) -> dict[str, int]:
    """Return host -> when its first rank finished a collective, or a later one of the communicator."""
    found: dict[str, int] = {}
    for state in data.states:
        if state.completed.get(comm_id, -1) >= seq:
            host, when_ns = _host(data, state.rank), state.completed_ns.get(comm_id, 0)
            found[host] = min(when_ns, found.get(host, when_ns))
    return found


def _host(data: HangInput, rank: int) -> str:
    """Return a rank's host; the rank's number where hosts are unknown."""
    return data.host_of.get(rank) or str(rank)


def build_graph(data: HangInput) -> WaitGraph:
    """Build the wait-for graph; stopped, gone, silent and lagging ranks wait for nobody."""
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
    """Add an edge for each point-to-point operation whose other half is missing or has not begun.

    Args:
        fronts: rank -> its front.
        edges: node -> nodes that it waits for; edges between ranks are added.

    Returns:
        Ranks that posted the other half and whose device has begun nothing.
    """
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
    """Return the ranks whose device has not begun the collective that their peers' devices run."""
    running = {(op.comm_id, op.seq) for op in standing.values() if op.started}
    return [rank for rank, op in standing.items() if op.started is False and (op.comm_id, op.seq) in running]


def operations_of(
    standing: Mapping[int, OpState], states: Iterable[RankWait], groups: Mapping[str, GroupInfo]
) -> list[WaitingOp]:
    """Return one entry per operation in which ranks wait, with the members that lag behind it.

    Args:
        standing: rank -> the collective that it is in.
        states: what is known of each rank.
        groups: communicator -> group.

    Returns:
        The operations, by communicator and sequence number.
    """
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
    """Add the edges rank -> operation -> lagging rank, and operation -> older operation that blocks it."""
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
    """Return all members that have not reached an operation, ascending, those that older ones lack included."""
    lacking: list[int] = []
    while index >= 0:
        lacking.extend(graph.ops[index].lacks)
        index = graph.ops[index].older
    return sorted(set(lacking))


def strong_components(edges: Mapping[Node, Sequence[Node]]) -> list[tuple[Node, ...]]:
    """Return the strongly connected components of a graph (Tarjan's algorithm, without recursion)."""
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
