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
