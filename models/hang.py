"""Find the ranks that hold up a stalled job: the hang analysis, live and for Flight Recorder dumps.

API: ``analyse(HangInput) -> HangFinding``. Build the input from what is known (types in
``tocsin.models.hang_input``, re-exported here); nothing else is looked at, no clock, no I/O.

>>> groups = (GroupInfo("w", "world", (0, 1, 2, 3)),)
>>> waits = OpState("w", 21, "all_reduce", msg_bytes=4096)
>>> states = tuple(RankWait(r, (waits,), {"w": 20}) for r in (0, 1, 2)) + (RankWait(3, (), {"w": 20}),)
>>> finding = analyse(HangInput(groups, states))
>>> finding.culprits, finding.reason, finding.victims
((3,), 'never_arrived', (0, 1, 2))
>>> analyse(HangInput(groups, states[:3], silent=frozenset({3}))).reason
'silent_and_peers_stalled'
>>> analyse(HangInput(groups, states, facts={3: "stopped"})).reason
'process_stopped_peers_wait'

Live input: ``pending`` are a rank's ``state`` rows that no later ``completion`` of the same communicator
has overtaken, by ``start_ns``. ``completed`` is its last ``completion`` per communicator (collectives
only, with ``end_ns`` in ``completed_ns``), ``seen_ns`` the time when the newest of them was seen. Set
``hidden_ops`` on ranks that send and receive over gloo, which records nothing.

Evidence from strong to weak; weaker evidence accuses nobody where stronger evidence is present:

1. A stopped or exited process that others wait for.
2. A rank that others wait for and that waits for nobody. It is in no collective, or its device
   has not begun the one in which its peers are, or it has not finished one that its peers
   finished. Also a rank in another collective than its peers, or in another order.
3. A silent rank (no dump, no telemetry) that others wait for.

Where the evidence fits several ranks equally well nobody is accused and they are ``ambiguous``.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from tocsin.models.hang_input import (
    FACT_ALIVE_ELSEWHERE,
    FACT_GONE,
    FACT_STOPPED,
    FROZEN_FACTS,
    BlockedGroup,
    GroupInfo,
    HangInput,
    OpState,
    RankWait,
    unheard_ranks,
)
from tocsin.models.hang_order import Deviation, cycle_deviation, mismatches
from tocsin.models.hang_waits import WaitGraph, all_lacking, build_graph, strong_components
from tocsin.schemas.reasons import Reason

__all__ = [
    "FACT_ALIVE_ELSEWHERE",
    "FACT_GONE",
    "FACT_STOPPED",
    "NOBODY_WAITS",
    "STUCK_INSIDE",
    "STUCK_WHERE_PEERS_FINISHED",
    "BlockedGroup",
    "GroupInfo",
    "HangFinding",
    "HangInput",
    "OpState",
    "RankWait",
    "analyse",
]

NOBODY_WAITS = "nobody_waits"
"""Reason: no rank waits for another, so this is no hang in communication."""
STUCK_INSIDE = "stuck_inside_collective"
"""Reason: all members are in the operation and it does not end. The cause is network or device; no rank stands out."""
STUCK_WHERE_PEERS_FINISHED = "stuck_where_peers_finished"
"""Reason: the rank has not finished a collective that its peers finished. Its own device or process is stalled."""

SHOWN_RANKS = 12
"""Most ranks that a sentence of the evidence lists."""
SHOWN_GROUPS = 8
"""Most blocked operations that get a sentence of evidence."""


@dataclass(frozen=True, slots=True)
class HangFinding:
    """The result of the hang analysis.

    Attributes:
        culprits: ranks at fault according to the evidence, ascending; empty if the evidence singles out nobody.
        reason: a value of ``Reason`` or one of this module's reasons; with several culprits the most frequent one.
        reasons: (rank, reason) of each culprit.
        blocked: operations in which ranks wait, and for whom; those that wait for culprits first.
        victims: ranks that wait for others, ascending.
        missing_ranks: silent ranks and group members without any telemetry. Where only the job's announced size is
            known, the first 65,536 of them.
        ambiguous: ranks that may be at fault as well as others, and are therefore not accused.
        evidence: sentences for people, strongest evidence first.
    """

    culprits: tuple[int, ...]
    reason: str
    reasons: tuple[tuple[int, str], ...]
    blocked: tuple[BlockedGroup, ...]
    victims: tuple[int, ...]
    missing_ranks: tuple[int, ...]
    ambiguous: tuple[int, ...]
    evidence: tuple[str, ...]


@dataclass(slots=True)
class _Roots:
    """Ranks at which chains of waiting end, by kind of evidence.

    Attributes:
        frozen: process stopped or gone.
        proven: rank -> reason, by the rank's own records.
        unsure: in no recorded operation, but with operations that nobody records.
        silent: without any telemetry.
        inside: in an operation that all its members have entered.
        torn: in a mismatch or cycle that no evidence decides.
    """

    frozen: set[int]
    proven: dict[int, str]
    unsure: set[int]
    silent: set[int]
    inside: set[int]
    torn: set[int]


def analyse(data: HangInput) -> HangFinding:
    """Find the ranks that hold up the others in a stalled job.

    Args:
        data: groups, last known states of ranks, silent ranks, process facts.

    Returns:
        The finding; ``culprits`` is empty where the evidence does not single anybody out.
    """
    graph = build_graph(data)
    deviations = mismatches(data, graph)
    roots = _find_roots(data, graph, deviations)
    waiting = {node for node in graph.edges if node >= 0}
    culprits, ambiguous, reason = _decide(data, roots, waiting)
    blocked = _blocked(graph, set(culprits))
    evidence = [*_culprit_lines(data, graph, culprits, deviations), *_blocked_lines(blocked)]
    evidence += _other_lines(data, roots, culprits, ambiguous)
    return HangFinding(
        culprits=tuple(sorted(culprits)),
        reason=reason,
        reasons=tuple(sorted(culprits.items())),
        blocked=blocked,
        victims=tuple(sorted(waiting - set(culprits))),
        missing_ranks=_missing(data, graph),
        ambiguous=tuple(sorted(ambiguous)),
        evidence=tuple(evidence),
    )


def _missing(data: HangInput, graph: WaitGraph) -> tuple[int, ...]:
    """Return silent ranks and group members without any telemetry, ascending."""
    heard = {state.rank for state in data.states} | set(data.facts)
    members = {rank for group in graph.groups.values() for rank in group.ranks}
    absent = set(data.silent) | (members - heard)
    return tuple(sorted(absent.union(unheard_ranks(data.world_size, heard | absent))))


def _find_roots(data: HangInput, graph: WaitGraph, deviations: list[Deviation]) -> _Roots:
    """Sort the ranks at which chains of waiting end by kind of evidence.

    The roots are strongly connected components of the wait graph that wait for nobody outside. Cycles are added to
    ``deviations``.
    """
    roots = _Roots(set(), {}, set(), set(), set(), set())
    states = {state.rank: state for state in data.states}
    inner_rings: list[set[int]] = []
    for component in strong_components(graph.edges):
        inner = set(component)
        ranks = {node for node in component if node >= 0}
        is_end = all(target in inner for node in component for target in graph.edges.get(node, ()))
        if is_end and len(component) == 1 and ranks:
            _sort_root(roots, ranks.pop(), data, graph, states)
        elif is_end and ranks:
            deviations.append(_ring(data, graph, ranks))
        elif len(component) > 1:
            inner_rings.append(ranks)
    _add_deviations(roots, deviations)
    if not roots.frozen and not roots.proven:
        # In a right program waiting has no rings: one that leads on to a silent rank is the older trouble.
        found = [_ring(data, graph, ranks) for ranks in inner_rings]
        _add_deviations(roots, found)
        deviations += found
    roots.silent = _indispensable_silent(graph, roots.silent)
    if not (roots.frozen or roots.proven or roots.silent or roots.unsure):
        stuck = {rank for op in graph.ops if not op.blocked for rank in op.waiting}
        stuck |= {rank for rank, front in graph.fronts.items() if front and front[-1].is_p2p}
        roots.inside |= stuck - {node for node in graph.edges if node >= 0}
    return roots


def _ring(data: HangInput, graph: WaitGraph, ranks: set[int]) -> Deviation:
    """Return the deviation behind a cycle of waiting ranks; without guilty ranks if none are found."""
    text = f"{_rank_list(ranks)} wait for each other in a ring"
    return cycle_deviation(data, graph, ranks) or Deviation((), tuple(sorted(ranks)), text)


def _add_deviations(roots: _Roots, deviations: list[Deviation]) -> None:
    """Add ranks that deviate from the common order to the proven roots, undecided candidates to the torn ones."""
    for deviation in deviations:
        if deviation.ranks:
            roots.proven |= dict.fromkeys(deviation.ranks, Reason.ENTERED_OTHER_COLLECTIVE.value)
        else:
            roots.torn |= set(deviation.candidates)


def _indispensable_silent(graph: WaitGraph, silent: set[int]) -> set[int]:
    """Return the silent ranks that alone block some operation if these explain all blocked ones, else all of them."""
    by_op = [silent.intersection(all_lacking(graph, i)) for i, op in enumerate(graph.ops) if op.blocked]
    by_op += [silent.intersection(targets) for node, targets in graph.edges.items() if node >= 0]
    alone = {rank for ranks in by_op if len(ranks) == 1 for rank in ranks}
    return alone if all(ranks & alone for ranks in by_op if ranks) and alone else silent


def _sort_root(roots: _Roots, rank: int, data: HangInput, graph: WaitGraph, states: Mapping[int, RankWait]) -> None:
    """Add one rank that others wait for, and that waits for nobody, to the roots of its kind of evidence."""
    fact = data.facts.get(rank, "")
    state = states.get(rank)
    if fact in FROZEN_FACTS:
        roots.frozen.add(rank)
    elif fact == FACT_ALIVE_ELSEWHERE:
        roots.proven[rank] = Reason.NEVER_ARRIVED.value
    elif rank in data.silent or state is None:
        roots.silent.add(rank)
    elif rank in graph.lagging:
        roots.proven[rank] = STUCK_WHERE_PEERS_FINISHED
    elif rank in graph.unstarted:
        roots.proven[rank] = Reason.NEVER_ARRIVED.value
    elif state.pending and not _is_sole_member(graph, rank):
        roots.inside.add(rank)
    elif state.hidden_ops:
        roots.unsure.add(rank)
    else:
        roots.proven[rank] = Reason.NEVER_ARRIVED.value


def _is_sole_member(graph: WaitGraph, rank: int) -> bool:
    """Return whether a rank is in an operation whose group has no other member, so that nobody else can hold it up."""
    op = graph.fronts[rank][0]
    group = graph.groups.get(op.comm_id)
    return not op.is_p2p and group is not None and group.ranks == (rank,) and not group.inferred


def _in_other_collectives(roots: _Roots) -> dict[int, str]:
    """Return rank -> reason of the proven roots in another collective than their peers.

    These come before ranks that seem absent, because an absence may be a gap in telemetry.
    """
    entered_other = Reason.ENTERED_OTHER_COLLECTIVE.value
    return {rank: reason for rank, reason in roots.proven.items() if reason == entered_other}


def _decide(data: HangInput, roots: _Roots, waiting: set[int]) -> tuple[dict[int, str], set[int], str]:
    """Choose the culprits by the strongest kind of evidence that is present, if it singles somebody out.

    Returns:
        Rank -> reason of the culprits, ambiguous ranks, and the reason of the whole finding.
    """
    everybody = roots.frozen | set(roots.proven) | roots.unsure | roots.silent | roots.inside | roots.torn
    known = {state.rank for state in data.states} | set(data.silent) | set(data.facts)
    world = max(data.world_size, len(known))
    culprits: dict[int, str] = {}
    if roots.frozen:
        culprits = dict.fromkeys(roots.frozen, Reason.PROCESS_STOPPED_PEERS_WAIT.value)
    elif other := _in_other_collectives(roots):
        culprits = other
    elif roots.proven:
        # More ranks "absent" than waiting: the ones that wait came early, or went astray.
        if len(roots.proven) <= max(len(waiting), 1):
            culprits = dict(roots.proven)
    elif roots.silent:
        # Half of a job without a trace: dead, or never collected? Nothing here can tell.
        if not roots.torn and not data.unlisted_count and (len(roots.silent) == 1 or 2 * len(roots.silent) < world):
            culprits = dict.fromkeys(roots.silent, Reason.SILENT_AND_PEERS_STALLED.value)
    elif len(roots.unsure) == 1 and not roots.torn:
        culprits = dict.fromkeys(roots.unsure, Reason.NEVER_ARRIVED.value)
    ambiguous = everybody - set(culprits)
    if culprits:
        counts = Counter(culprits.values())
        reason = min(counts, key=lambda name: (-counts[name], name))
    elif ambiguous:
        only_inside = ambiguous == roots.inside and not roots.torn
        reason = STUCK_INSIDE if only_inside else Reason.AMBIGUOUS.value
    else:
        reason = NOBODY_WAITS
    return culprits, ambiguous, reason


def _blocked(graph: WaitGraph, culprits: set[int]) -> tuple[BlockedGroup, ...]:
    """Return the operations in which ranks wait, those that wait only for culprits first."""
    blocked = []
    for index, op in enumerate(graph.ops):
        if op.blocked:
            group = graph.groups[op.comm_id]
            lacking = tuple(all_lacking(graph, index))
            blocked.append(
                BlockedGroup(op.comm_id, group.kind, op.seq, op.op_name, tuple(op.waiting), lacking, group.inferred)
            )
    for rank, front in sorted(graph.fronts.items()):
        for op_state in front:
            peers = graph.edges.get(rank, ())
            if op_state.is_p2p and op_state.peer in peers:
                group_info = graph.groups.get(op_state.comm_id)
                kind, inferred = (group_info.kind, group_info.inferred) if group_info else ("", True)
                blocked.append(
                    BlockedGroup(
                        op_state.comm_id,
                        kind,
                        op_state.seq,
                        op_state.op_name,
                        (rank,),
                        (op_state.peer,),
                        inferred,
                    )
                )
    # The operations whose lack is the culprit alone say most; then those that hold up many.
    blocked.sort(key=lambda b: (not set(b.waits_for) <= culprits, -len(b.waiting), len(b.waits_for)))
    return tuple(blocked)


def _rank_list(ranks: Iterable[int]) -> str:
    """Return ``rank 3`` or ``ranks 0, 1, 2`` as text; beyond ``SHOWN_RANKS`` the rest is only counted."""
    ordered = sorted(ranks)
    shown = ", ".join(str(rank) for rank in ordered[:SHOWN_RANKS])
    more = f" and {len(ordered) - SHOWN_RANKS} more" if len(ordered) > SHOWN_RANKS else ""
    return f"rank{'s' if len(ordered) != 1 else ''} {shown}{more}"


def _culprit_lines(
    data: HangInput, graph: WaitGraph, culprits: Mapping[int, str], deviations: list[Deviation]
) -> list[str]:
    """Return the evidence sentences about the culprits, one or more per reason, and those of deviations."""
    lines = []
    by_reason: dict[str, list[int]] = {}
    for rank, reason in sorted(culprits.items()):
        by_reason.setdefault(reason, []).append(rank)
    for reason, ranks in sorted(by_reason.items()):
        who = _rank_list(ranks)
        if reason == Reason.PROCESS_STOPPED_PEERS_WAIT.value:
            facts = ", ".join(sorted({data.facts[rank] for rank in ranks}))
            lines.append(f"{who}: process {facts}, and others wait")
        elif reason == STUCK_WHERE_PEERS_FINISHED:
            lines.append(f"{who}: unfinished with collectives that peers have finished: own device or process")
        elif reason == Reason.SILENT_AND_PEERS_STALLED.value:
            lines.append(f"{who}: left no trace, and others wait")
        elif reason == Reason.NEVER_ARRIVED.value:
            begun = [rank for rank in ranks if rank in graph.unstarted]
            idle = [rank for rank in ranks if rank not in graph.unstarted]
            if begun:
                lines.append(f"{_rank_list(begun)}: issued the collective that the peers run, never began it")
            if idle:
                lines.append(f"{_rank_list(idle)}: in no collective with others, who wait in theirs")
    return lines + [deviation.text for deviation in deviations]


def _blocked_lines(blocked: tuple[BlockedGroup, ...]) -> list[str]:
    """Return a sentence for each of the first blocked operations, and one that counts the rest."""
    lines = []
    for group in blocked[:SHOWN_GROUPS]:
        name = f"{group.kind} {group.comm_id}".strip()
        guess = " (members guessed)" if group.inferred else ""
        lines.append(
            f"{_rank_list(group.waiting)} in {group.op_name} {group.seq} of group {name}{guess}"
            f" wait{'s' if len(group.waiting) == 1 else ''} for {_rank_list(group.waits_for)}"
        )
    if len(blocked) > SHOWN_GROUPS:
        lines.append(f"{len(blocked) - SHOWN_GROUPS} more operations are blocked")
    return lines


def _other_lines(data: HangInput, roots: _Roots, culprits: Mapping[int, str], ambiguous: set[int]) -> list[str]:
    """Return the evidence sentences about ranks that are not accused: silent, inside an operation, or ambiguous."""
    lines = []
    quiet = set(data.silent) - set(culprits)
    if quiet - ambiguous:
        lines.append(f"{_rank_list(quiet - ambiguous)}: silent, but nobody waits there: monitoring lost")
    if roots.inside and not culprits:
        lines.append(f"{_rank_list(roots.inside)}: in the operation with all its members, and it does not end")
    if ambiguous - roots.inside:
        beside = " beside the culprits" if culprits else ""
        lines.append(f"{_rank_list(ambiguous - roots.inside)}: may be at fault{beside}; not accused")
    return lines
