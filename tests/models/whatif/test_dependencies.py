"""The dependency model at its edges: what profilers record that was never launched, and circles."""

from __future__ import annotations

from dataclasses import replace

import pytest

from tests.models.whatif.plain import Layout
from tests.models.whatif.traces import Effects, make
from tocsin.models.whatif.dependencies import build_plan
from tocsin.models.whatif.scenarios import model_of
from tocsin.models.whatif.trace import TemplateOp
from tocsin.schemas.errors import FieldError


def ops_of(layout: Layout) -> list[TemplateOp]:
    return list(model_of(make(layout, Effects(), 1, step_count=1).trace).arrays.ops)


def with_more(ops: list[TemplateOp], kind: str, stage: int, start: float) -> list[TemplateOp]:
    """One more short operation, numbered by its start."""
    extra = replace(ops[0], optype=kind, stage=stage, start_seconds=start, end_seconds=start + 1e-5, mc=-1, gmc=-1)
    same = sorted(
        [*(op for op in ops if (op.optype, op.stage) == (kind, stage)), extra], key=lambda op: op.start_seconds
    )
    rest = [op for op in ops if (op.optype, op.stage) != (kind, stage)]
    found = [*rest, *(replace(op, seq_id=number) for number, op in enumerate(same))]
    return [replace(op, index=index) for index, op in enumerate(found)]


@pytest.mark.parametrize(
    ("kind", "stage", "at"), [("forward-send", 0, 0.0), ("forward-recv", 1, 99.0), ("backward-recv", 0, 99.0)]
)
def test_a_transfer_that_was_never_launched_waits_alone(kind: str, stage: int, at: float) -> None:
    ops = ops_of(Layout(1, 2))
    more = with_more(ops, kind, stage, at)
    plan = build_plan(more)
    pairs = {
        tuple(sorted((more[a].name, more[b].name))) for a, b in (n.members for n in plan.nodes if len(n.members) == 2)
    }

    assert len(pairs) == sum(len(node.members) == 2 for node in build_plan(ops).nodes)
    extra = next(op for op in more if (op.optype, op.stage) == (kind, stage) and op.start_seconds == at)
    alone = next(node for node in plan.nodes if extra.index in node.members)
    assert alone.members == (extra.index,)


def test_each_operation_stands_behind_what_it_waits_for() -> None:
    plan = build_plan(ops_of(Layout(1, 4, vpp=2, microbatches=8, overlaps=True)))
    seen: set[int] = set()
    for node in plan.nodes:
        assert seen.issuperset(node.waits_for)
        seen.update(node.members)

    assert len(seen) == plan.op_count


def waits_of(ops: list[TemplateOp], kind: str, sequence: int, stage: int) -> set[str]:
    """Names of what an operation and those that move with it wait for."""
    index = next(op.index for op in ops if (op.optype, op.seq_id, op.stage) == (kind, sequence, stage))
    node = next(node for node in build_plan(ops).nodes if index in node.members)
    return {ops[row].name for row in node.waits_for}


def test_the_first_backward_receive_waits_for_the_second_last_forward_computation_before_it() -> None:
    ops = ops_of(Layout(1, 4, microbatches=6))

    assert "forward-compute 2 of stage 0" in waits_of(ops, "backward-recv", 0, 0)
    assert "forward-compute 1 of stage 1" in waits_of(ops, "backward-recv", 0, 1)


def test_of_several_gatherings_of_a_chunk_the_last_one_counts() -> None:
    ops = with_more(ops_of(Layout(2, 1)), "params-all-gather", 0, 0.01)
    ops = [replace(op, mc=0) if op.optype == "params-all-gather" else op for op in ops]

    waits = waits_of(ops, "forward-compute", 0, 0)
    assert waits == {"params-all-gather 1 of stage 0"}


def test_dependencies_in_a_circle_are_refused_by_name() -> None:
    ops = ops_of(Layout(1, 2))
    first = next(op for op in ops if op.optype == "backward-compute" and op.stage == 1)
    turned = [
        replace(op, start_seconds=-1.0) if op.optype == "backward-compute" and op.stage == 0 and op.seq_id == 0 else op
        for op in ops
    ]

    assert first.stage == 1
    with pytest.raises(FieldError, match="free of circles"):
        build_plan(turned)
