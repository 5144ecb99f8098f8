"""Find ranks that issued another operation, or another order of operations, than their peers.

Two checks of ``tocsin.models.hang``. Ranks of one communicator issue the same operations in the same
order. A rank that shows another name, size or type under one sequence number deviates (``mismatches``).
Where ranks wait for each other in a cycle, one of them skipped an operation or issued two in
the wrong order (``cycle_deviation``). In both checks the majority is right. Where there is none,
ranks of other groups of the same kind decide, then what each rank ran before. Where nothing
decides, nobody is named.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass
from itertools import combinations, pairwise

from tocsin.models.hang_input import HangInput, OpState, base_name
from tocsin.models.hang_waits import WaitGraph, WaitingOp, all_lacking

SIZED_NAMES = frozenset(
    {"all_reduce", "all_gather_base", "reduce_scatter_base", "broadcast", "all_reduce_coalesced", "reduce"}
)
"""Operations in which every member must bring the same size and type (all_to_all may be uneven)."""

MAX_RING_OPS = 48
"""Most operations of one cycle that are compared in pairs."""

Signature = tuple[str, int, str]
"""Name, message size in bytes and type of an operation, where equal on all members; -1 and "" otherwise."""
Word = tuple[str, Signature]
"""Kind of group and signature: an operation without its sequence number."""
Place = tuple[str, int]
"""(kind of group, sequence number): the same position in the order of all groups of one kind."""


@dataclass(frozen=True, slots=True)
class Deviation:
    """A deviation from the common order of operations.

    Attributes:
        ranks: ranks that deviate; empty if the evidence does not decide.
        candidates: ranks that may be the ones that deviate.
        text: one sentence for people.
    """

    ranks: tuple[int, ...]
    candidates: tuple[int, ...]
    text: str


def signature_of(op: OpState) -> Signature:
    """Return what must be equal on all members of an operation: its name, and size and type for ``SIZED_NAMES``."""
    name = base_name(op.op_name)
    return (name, op.msg_bytes, op.dtype) if name in SIZED_NAMES else (name, -1, "")


def mismatches(data: HangInput, graph: WaitGraph) -> list[Deviation]:
    """Find, for each communicator, the first sequence number under which ranks show different operations.

    Args:
        data: last known states of all ranks.
        graph: their groups.

    Returns:
        One deviation for each communicator with a mismatch.
    """
    shown: dict[tuple[str, int], dict[Signature, list[int]]] = {}
    for state in data.states:
        for op in state.pending:
            if not op.is_p2p and op.comm_id in graph.groups:
                shown.setdefault((op.comm_id, op.seq), {}).setdefault(signature_of(op), []).append(state.rank)
    found: list[Deviation] = []
    done: set[str] = set()
    for (comm_id, seq), by_signature in sorted(shown.items()):
        if len(_distinct(by_signature)) > 1 and comm_id not in done:
            done.add(comm_id)
            found.append(_judge_mismatch(data, graph, comm_id, seq, by_signature))
    return found


def _distinct(signatures: Iterable[Signature]) -> set[Signature]:
    """Return signatures without differences that come from an unknown size (below 0) or an unknown type ("")."""
    known = list(signatures)
    if any(size < 0 for name, size, _ in known if name in SIZED_NAMES):
        known = [(name, -1, dtype) for name, _, dtype in known]
    if any(not dtype for name, _, dtype in known if name in SIZED_NAMES):
        known = [(name, size, "") for name, size, _ in known]
    return set(known)


def _judge_mismatch(
    data: HangInput, graph: WaitGraph, comm_id: str, seq: int, by_signature: dict[Signature, list[int]]
) -> Deviation:
    """Decide which ranks of a communicator show the wrong operation under one sequence number.

    The majority of its ranks decides, then ranks of other groups of the same kind, then each rank's past operations.
    """
    kind = graph.groups[comm_id].kind
    everybody = tuple(sorted(rank for ranks in by_signature.values() for rank in ranks))
    sizes = {signature: len(ranks) for signature, ranks in by_signature.items()}
    right = _clear_winner(sizes)
    if right is None:
        votes = _sister_votes(data, graph, (kind, seq), frozenset(everybody))
        right = _clear_winner({signature: votes[signature] for signature in by_signature})
    shown = "; ".join(f"{_names(ranks)}: {_describe(signature)}" for signature, ranks in sorted(by_signature.items()))
    text = f"number {seq} of group {kind} {comm_id} is not the same operation everywhere: {shown}"
    if right is None:
        strange = strange_ranks(data, graph, everybody)
        return Deviation(tuple(strange) if len(strange) == 1 else (), everybody, text)
    wrong = sorted(r for signature, ranks in by_signature.items() if signature != right for r in ranks)
    return Deviation(tuple(wrong), everybody, text)


def _clear_winner(sizes: dict[Signature, int]) -> Signature | None:
    """Return the signature with more than half of the votes, None without one."""
    total = sum(sizes.values())
    for signature, size in sorted(sizes.items()):
        if 2 * size > total:
            return signature
    return None


def _sister_votes(data: HangInput, graph: WaitGraph, place: Place, but: frozenset[int]) -> Counter[Signature]:
    """Count the signatures that ranks outside ``but`` show at the same place in other groups of the same kind."""
    votes: Counter[Signature] = Counter()
    for state in data.states:
        if state.rank not in but and place[0]:
            votes.update(
                signature_of(op)
                for op in (*state.history, *state.pending)
                if op.seq == place[1] and not op.is_p2p and _kind(graph, op.comm_id) == place[0]
            )
    return votes


def _kind(graph: WaitGraph, comm_id: str) -> str:
    """Return the kind of a communicator's group, "" if unknown."""
    group = graph.groups.get(comm_id)
    return group.kind if group else ""


def _describe(signature: Signature) -> str:
    """Return a signature as text, e.g. ``all_reduce 4096 bytes float32``."""
    name, size, dtype = signature
    return " ".join(filter(None, (name, f"{size} bytes" if size >= 0 else "", dtype)))


def _names(ranks: Iterable[int]) -> str:
    """Return ``rank 3`` or ``ranks 0, 1``, at most twelve."""
    ordered = sorted(ranks)
    return ("rank " if len(ordered) == 1 else "ranks ") + ", ".join(map(str, ordered[:12]))


def cycle_deviation(data: HangInput, graph: WaitGraph, ring: set[int]) -> Deviation | None:
    """Find which ranks of a wait cycle issued operations in the wrong order; None where no two operations conflict.

    Two operations conflict where some ranks are in the first and have not been in the second, and others the
    other way round.

    Args:
        data: last known states of all ranks.
        graph: who waits for whom.
        ring: the ranks of the cycle.

    Returns:
        The deviation; without ``ranks`` where nothing decides which side is wrong.
    """
    indices = [i for i, op in enumerate(graph.ops) if op.blocked and not ring.isdisjoint(op.waiting)]
    lacking = {i: set(all_lacking(graph, i)) for i in indices[:MAX_RING_OPS]}
    guilty: set[int] = set()
    torn: set[int] = set()
    texts: list[str] = []
    for i, j in combinations(lacking, 2):
        one, two = graph.ops[i], graph.ops[j]
        at_one = ring.intersection(one.waiting) & lacking[j]
        at_two = ring.intersection(two.waiting) & lacking[i]
        if one.comm_id == two.comm_id or not at_one or not at_two:
            continue
        wrong = _wrong_side(data, graph, (one, at_one), (two, at_two))
        guilty |= wrong
        torn |= set() if wrong else at_one | at_two
        texts.append(
            f"{_names(at_one)} in {_label(graph, one)} and {_names(at_two)} in {_label(graph, two)} wait for each other"
        )
    if not guilty and len(strange := strange_ranks(data, graph, ring)) == 1:
        guilty = strange
        texts.append(f"{_names(strange)} made a step from one operation to the next that no peer ever made")
    if not texts:
        return None
    return Deviation(tuple(sorted(guilty)), tuple(sorted(guilty | torn)), "; ".join(texts[:4]))


def _label(graph: WaitGraph, op: WaitingOp) -> str:
    """Return an operation as text: name, sequence number and group."""
    return f"{op.op_name} {op.seq} of group {_kind(graph, op.comm_id)} {op.comm_id}"


def _wrong_side(
    data: HangInput,
    graph: WaitGraph,
    one: tuple[WaitingOp, set[int]],
    two: tuple[WaitingOp, set[int]],
) -> set[int]:
    """Return the ranks that issued two conflicting operations in the wrong order; empty if undecided.

    Args:
        data: last known states of all ranks.
        graph: groups and operations.
        one: an operation and the ranks in it.
        two: the other operation and the ranks in it.
    """
    first_place = (_kind(graph, one[0].comm_id), one[0].seq)
    second_place = (_kind(graph, two[0].comm_id), two[0].seq)
    involved = frozenset(one[1] | two[1])
    second_first, first_first = _order_votes(data, graph, involved, first_place, second_place)
    if second_first != first_first:
        # Others had been in ``two`` when they came to ``one``: who is in ``one`` without it went astray.
        return one[1] if second_first > first_first else two[1]
    if len(one[1]) != len(two[1]):
        return one[1] if len(one[1]) < len(two[1]) else two[1]
    return set()


def _order_votes(
    data: HangInput, graph: WaitGraph, involved: frozenset[int], one: Place, two: Place
) -> tuple[int, int]:
    """Count uninvolved ranks that finished ``two`` before ``one``, and those that finished ``one`` before ``two``."""
    second_first = first_first = 0
    if not one[0] or not two[0] or one[0] == two[0]:
        return 0, 0
    for state in data.states:
        front = next((op for op in state.pending if not op.is_p2p), None)
        if state.rank in involved or front is None:
            continue
        place = (_kind(graph, front.comm_id), front.seq)
        if place == one and _been_in(graph, state.completed, two):
            second_first += 1
        if place == two and _been_in(graph, state.completed, one):
            first_first += 1
    return second_first, first_first


def _been_in(graph: WaitGraph, completed: Mapping[str, int], place: Place) -> bool:
    """Return whether a rank finished this place of the order, in its only group of that kind."""
    seqs = [seq for comm_id, seq in completed.items() if _kind(graph, comm_id) == place[0]]
    return len(seqs) == 1 and seqs[0] >= place[1]


def strange_ranks(data: HangInput, graph: WaitGraph, among: Collection[int]) -> set[int]:
    """Return ranks that made a transition between two operations that no rank, themselves included, ever made before.

    Args:
        data: states with each rank's history of operations.
        graph: groups of the communicators.
        among: the ranks to judge.

    Returns:
        The ranks; empty unless the history of all of ``among`` is known.
    """
    made: Counter[tuple[Word, Word]] = Counter()
    steps: dict[int, list[tuple[Word, Word]]] = {}
    for state in data.states:
        if state.history:
            # The next pending operation is where it stands; what it issued beyond may be anything.
            own = list(pairwise(_word(graph, op) for op in (*state.history, *state.pending[:1])))
            made.update(own)
            if state.rank in among:
                steps[state.rank] = own
    if len(steps) < len(among):
        return set()
    return {rank for rank, own in steps.items() if any(made[step] == 1 for step in own)}


def _word(graph: WaitGraph, op: OpState) -> Word:
    """Return an operation without its sequence number: kind of group and signature."""
    return _kind(graph, op.comm_id), signature_of(op)
