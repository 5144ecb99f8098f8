"""The dependency model: which operation waits for which, from one step of one data-parallel rank.

Streams of one worker run in the order of the trace: computation, data-parallel collectives, and one stream for each
kind of transfer between stages. Across streams, a received activation lets a computation start, a computation lets its
result be sent. Across workers, a transfer moves when both ends were launched (``seed-systems-a.md`` 4.4).
"""

from __future__ import annotations

from collections import defaultdict, deque
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from tocsin.models.whatif import optypes
from tocsin.models.whatif.trace import TemplateOp
from tocsin.schemas.errors import FieldError

CLOCK_ERROR_SECONDS = 5e-5
"""Two times that differ by less count as equal: the profiler's clocks are no better."""


class Node(NamedTuple):
    """Operations that begin to move together: one computation, or the members of one transfer or collective.

    Attributes:
        members: rows of the operations.
        waits_for: rows of the operations that must have ended before.
        is_synchronised: whether all data-parallel ranks must have come as well.
    """

    members: tuple[int, ...]
    waits_for: tuple[int, ...]
    is_synchronised: bool


@dataclass(frozen=True, slots=True)
class DependencyPlan:
    """The dependency model, ready to be simulated.

    Attributes:
        op_count: number of operations.
        nodes: in an order in which each one stands behind all that it waits for.
        last: rows of the operations that nobody waits for: with them a step ends as traced.
        optimizers: rows of the optimizer's operations: with them a simulated step ends. ``last`` if there are none.
    """

    op_count: int
    nodes: tuple[Node, ...]
    last: tuple[int, ...]
    optimizers: tuple[int, ...]


class _Stage:
    """The operations of one stage by type, in the order in which they were launched."""

    def __init__(self, number: int, ops: Iterable[TemplateOp]) -> None:
        """Sort the operations of one stage by start."""
        self.number = number
        self.by_type: dict[str, list[TemplateOp]] = defaultdict(list)
        for op in sorted(ops, key=lambda op: (op.start_seconds, op.seq_id, op.optype)):
            self.by_type[op.optype].append(op)
        self.compute = sorted(
            (op for kind in optypes.COMPUTE for op in self.by_type.get(kind, ())),
            key=lambda op: (op.start_seconds, op.seq_id, op.optype),
        )
        if not self.compute:
            raise FieldError(f"stage {number}", "no computation", "a stage that computes")

    def of(self, *kinds: str) -> list[TemplateOp]:
        """Return the operations of some types in the order of their starts."""
        found = [op for kind in kinds for op in self.by_type.get(kind, ())]
        return sorted(found, key=lambda op: (op.start_seconds, op.seq_id, op.optype))


class _Builder:
    """Collects dependencies and groups."""

    def __init__(self, ops: Sequence[TemplateOp]) -> None:
        """Sort the operations by stage."""
        self.ops = ops
        self.waits_for: list[dict[int, None]] = [{} for _ in ops]
        self.groups: list[tuple[int, ...]] = []
        self.stage_count = max(op.stage for op in ops) + 1
        by_stage: list[list[TemplateOp]] = [[] for _ in range(self.stage_count)]
        for op in ops:
            by_stage[op.stage].append(op)
        self.stages = [_Stage(number, found) for number, found in enumerate(by_stage)]
        self.chunk_count = self.stage_count * max(1, *(op.mc + 1 for op in ops))
        self.overlaps = any(op.optype == optypes.SEPARATE_ALL_REDUCE for op in ops)
        self.ends: dict[tuple[str, int], list[TemplateOp]] = {}
        """Type and stage -> transfers that have another end, in order."""

    def wait(self, later: TemplateOp, earlier: TemplateOp) -> None:
        """Let one operation wait for another one."""
        self.waits_for[later.index][earlier.index] = None

    def chain(self, ops: Sequence[TemplateOp], after: Sequence[TemplateOp] = ()) -> None:
        """Let each operation wait for the one before it, the first one for ``after``."""
        before = list(after)
        for op in ops:
            for earlier in before:
                self.wait(op, earlier)
            before = [op]


def build_plan(ops: Sequence[TemplateOp]) -> DependencyPlan:
    """Return the dependency model of a step.

    Args:
        ops: the operations of all stages in one step of one data-parallel rank; ``index`` counts from 0.

    Raises:
        FieldError: transfers do not fit the computations, or the dependencies run in a circle.
    """
    builder = _Builder(ops)
    for stage in builder.stages:
        _within_streams(builder, stage)
        for direction in optypes.DIRECTIONS:
            _sends(builder, stage, direction)
            _receives(builder, stage, direction)
        _first_backward_transfer(builder, stage)
        _gathers_and_scatters(builder, stage)
        _tail(builder, stage)
    _pair_transfers(builder)
    _collectives(builder)
    return _ordered(builder)


def _within_streams(builder: _Builder, stage: _Stage) -> None:
    """Let each stream of a stage run one operation after the other."""
    builder.chain(stage.compute)
    for kind in optypes.P2P:
        builder.chain(stage.of(kind))
    builder.chain(stage.of(optypes.ALL_GATHER, optypes.REDUCE_SCATTER))


def _sends(builder: _Builder, stage: _Stage, direction: str) -> None:
    """Let each send wait for the computation whose result it sends.

    A send that ended before the first computation did was recorded without being launched.
    """
    computations = _by_sequence(stage, direction)
    first_end = min(op.end_seconds for op in computations.values())
    kind = f"{direction}-send"
    launched = [op for op in stage.of(kind) if op.end_seconds >= first_end - CLOCK_ERROR_SECONDS]
    _check_count(builder, stage, kind, len(launched), len(computations))
    for number, op in enumerate(launched):
        builder.wait(op, computations[number])
    step = 1 if direction == "forward" else -1
    builder.ends[kind, stage.number] = _with_other_end(builder, launched, list(computations.values()), step)


def _receives(builder: _Builder, stage: _Stage, direction: str) -> None:
    """Let each computation wait for what it receives, each receive for the computation before that one.

    A receive that started after the last computation did was recorded without being launched. The receive of the
    first computation may be missing, as it receives nothing on the first stage.
    """
    computations = _by_sequence(stage, direction)
    last_start = max(op.start_seconds for op in computations.values())
    kind = f"{direction}-recv"
    launched = [op for op in stage.of(kind) if op.start_seconds <= last_start + CLOCK_ERROR_SECONDS]
    _check_count(builder, stage, kind, len(launched), len(computations))
    skipped_count = len(computations) - len(launched) if launched else 0
    matched = [computations[number + skipped_count] for number in range(len(launched))]
    for number, (op, computation) in enumerate(zip(launched, matched, strict=True)):
        builder.wait(computation, op)
        if number + skipped_count > 0:
            builder.wait(op, computations[number + skipped_count - 1])
    step = -1 if direction == "forward" else 1
    builder.ends[kind, stage.number] = _with_other_end(builder, launched, matched, step)


def _by_sequence(stage: _Stage, direction: str) -> dict[int, TemplateOp]:
    """Return sequence number -> computation of one direction, ascending."""
    found = {op.seq_id: op for op in stage.by_type.get(f"{direction}-compute", ())}
    if sorted(found) != list(range(len(found))) or not found:
        numbers = sorted(found)
        raise FieldError(f"seq_id of {direction}-compute on stage {stage.number}", numbers, "0 and all up to the last")
    return dict(sorted(found.items()))


def _check_count(builder: _Builder, stage: _Stage, kind: str, launched: int, computations: int) -> None:
    """Check that each computation has its transfer; the outer stages may have none, or one less.

    Raises:
        FieldError: they do not fit.
    """
    is_outer = stage.number in (0, builder.stage_count - 1)
    if launched != computations and not (is_outer and launched in (0, computations - 1)):
        raise FieldError(f"{kind} of stage {stage.number}", launched, f"as many as its computations ({computations})")


def _with_other_end(
    builder: _Builder, transfers: Sequence[TemplateOp], computations: Sequence[TemplateOp], step: int
) -> list[TemplateOp]:
    """Return the transfers that have another end.

    The model's first chunk has nobody before it, its last chunk nobody behind it.

    Args:
        builder: tells the number of chunks.
        transfers: in order.
        computations: that of each transfer; may be longer.
        step: 1 where the other end is the next chunk, -1 where it is the previous one.
    """
    found = []
    for transfer, computation in zip(transfers, computations, strict=False):
        chunk = computation.gmc
        if chunk < 0:
            chunk = max(computation.mc, 0) * builder.stage_count + computation.stage
        if 0 <= chunk + step < builder.chunk_count:
            found.append(transfer)
    return found


def _first_backward_transfer(builder: _Builder, stage: _Stage) -> None:
    """Let the first backward transfers wait for the second-last forward computation before the first backward one."""
    first = next((at for at, op in enumerate(stage.compute) if op.optype == optypes.BACKWARD), 0)
    if first < 2:  # there is no second-last one
        return
    for kind in ("backward-recv", "backward-send"):
        for op in stage.of(kind):
            if op.seq_id == 0:
                builder.wait(op, stage.compute[first - 2])


def _gathers_and_scatters(builder: _Builder, stage: _Stage) -> None:
    """Tie the data-parallel collectives to the computations of their model chunk.

    A chunk's first forward computation waits for the last gathering of its parameters. Where gradients are scattered
    while the backward pass goes on, the first scattering of a chunk waits for its last backward computation.
    """
    gathers = {op.mc: op for op in sorted(stage.of(optypes.ALL_GATHER), key=lambda op: op.seq_id)}
    for chunk, gather in gathers.items():
        forward = [op for op in stage.by_type[optypes.FORWARD] if op.mc == chunk]
        if forward:
            builder.wait(forward[0], gather)
    if not builder.overlaps:
        return
    scatters = {op.mc: op for op in sorted(stage.of(optypes.REDUCE_SCATTER), key=lambda op: -op.seq_id)}
    for chunk, scatter in scatters.items():
        backward = [op for op in stage.by_type[optypes.BACKWARD] if op.mc == chunk]
        if backward:
            builder.wait(scatter, max(backward, key=lambda op: op.end_seconds))


def _tail(builder: _Builder, stage: _Stage) -> None:
    """Chain what follows the last computation: gradients of shared layers, scattering, clipping, optimizer."""
    last = max(stage.compute, key=lambda op: op.end_seconds)
    builder.chain(_sorted(stage, optypes.GC), [last])
    after = _sorted(stage, optypes.GC)[-1:] or [last]
    scatters = _sorted(stage, optypes.REDUCE_SCATTER)
    if builder.overlaps:
        after += scatters[-1:]
        reductions = _sorted(stage, optypes.SEPARATE_ALL_REDUCE)
    else:
        reductions = scatters
    shared = [*_sorted(stage, optypes.LAYERNORM), *_sorted(stage, optypes.EMBEDDING)]
    builder.chain([*shared, *reductions, *_sorted(stage, optypes.CLIP), *_sorted(stage, optypes.OPTIMIZER)], after)


def _sorted(stage: _Stage, kind: str) -> list[TemplateOp]:
    """Return the operations of one type by sequence number."""
    return sorted(stage.by_type.get(kind, ()), key=lambda op: op.seq_id)


def _pair_transfers(builder: _Builder) -> None:
    """Group the two ends of each transfer; what has no other end stays alone.

    Raises:
        FieldError: a stage sends more or less than its neighbour receives.
    """
    for direction, step in (("forward", 1), ("backward", -1)):
        for number in range(builder.stage_count):
            other = (number + step) % builder.stage_count
            sends = builder.ends.get((f"{direction}-send", number), [])
            receives = builder.ends.get((f"{direction}-recv", other), [])
            if len(sends) != len(receives):
                must = f"as many as stage {other} receives ({len(receives)})"
                raise FieldError(f"{direction}-send of stage {number}", len(sends), must)
            builder.groups += [(send.index, receive.index) for send, receive in zip(sends, receives, strict=True)]


def _collectives(builder: _Builder) -> None:
    """Group the members of collectives that span stages: embedding gradients, clipping."""
    outer = {0, builder.stage_count - 1}
    for kind in (optypes.EMBEDDING, optypes.CLIP):
        by_sequence: dict[int, list[int]] = defaultdict(list)
        for op in builder.ops:
            if op.optype == kind and (kind == optypes.CLIP or op.stage in outer):
                by_sequence[op.seq_id].append(op.index)
        builder.groups += [tuple(members) for members in by_sequence.values()]


def _ordered(builder: _Builder) -> DependencyPlan:
    """Return the plan with its nodes in a possible order.

    Raises:
        FieldError: the dependencies run in a circle.
    """
    grouped = {member for group in builder.groups for member in group}
    members = [*builder.groups, *((op.index,) for op in builder.ops if op.index not in grouped)]
    node_of = {member: number for number, group in enumerate(members) for member in group}
    waits = [tuple(dict.fromkeys(row for member in group for row in builder.waits_for[member])) for group in members]
    before = [{node_of[row] for row in rows} for rows in waits]
    behind: list[list[int]] = [[] for _ in members]
    for number, earlier in enumerate(before):
        for node in earlier:
            behind[node].append(number)
    open_count = [len(earlier) for earlier in before]
    ready = deque(number for number, count in enumerate(open_count) if not count)
    nodes = []
    while ready:
        number = ready.popleft()
        is_synchronised = builder.ops[members[number][0]].optype in optypes.SYNCHRONISED
        nodes.append(Node(members[number], waits[number], is_synchronised))
        for later in behind[number]:
            open_count[later] -= 1
            if not open_count[later]:
                ready.append(later)
    if len(nodes) < len(members):
        circle = next(number for number, count in enumerate(open_count) if count)
        raise FieldError("dependencies", builder.ops[members[circle][0]].name, "free of circles")
    waited_for = {row for rows in waits for row in rows}
    last = tuple(op.index for op in builder.ops if op.index not in waited_for)
    optimizers = tuple(op.index for op in builder.ops if op.optype == optypes.OPTIMIZER)
    return DependencyPlan(len(builder.ops), tuple(nodes), last, optimizers or last)
