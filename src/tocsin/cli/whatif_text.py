"""What a what-if simulation found, as one sentence and tables, and as JSON."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np

from tocsin.models.whatif import optypes
from tocsin.models.whatif.causes import Reasons, SlowdownCause
from tocsin.models.whatif.machines import SlowWorker
from tocsin.models.whatif.scenarios import Slowdowns, WhatIfModel
from tocsin.models.whatif.trace import FloatArray
from tocsin.pipeline.recording.op_trace import TraceMeta
from tocsin.schemas.printable import counted, plain

MOST_ROWS = 8
"""Most lines of a table; of data-parallel ranks, the slowest are shown."""


@dataclass(frozen=True, slots=True)
class WhatIf:
    """All that is known of one trace.

    Attributes:
        shape: the job's sizes.
        model: the trace.
        found: slowdowns.
        reasons: causes.
        notes: what must be known beside the figures, a sentence each.
    """

    shape: TraceMeta
    model: WhatIfModel
    found: Slowdowns
    reasons: Reasons
    notes: tuple[str, ...] = ()

    @property
    def waste_ratio(self) -> float:
        """Share of the job's time that is lost."""
        return 1.0 - 1.0 / self.found.slowdown_ratio

    def rank_of(self, worker: SlowWorker) -> int:
        """Return the global rank of a worker."""
        return int(self.model.arrays.ranks[worker.dp, worker.stage])


def as_json(what: WhatIf) -> dict[str, object]:
    """Return the findings as a JSON object; lists are indexed by data-parallel rank or stage."""
    found, reasons, steps = what.found, what.reasons, [str(step) for step in what.model.arrays.steps.tolist()]
    correlated = reasons.correlation
    return {
        "S": found.slowdown_ratio,
        "T_seconds": float(found.real_seconds.mean()),
        "T_ideal_seconds": float(found.ideal_seconds.mean()),
        "S_t": dict(found.optype_ratios),
        "S_by_dp_rank": found.dp_rank_ratios.tolist(),
        "S_by_stage": found.stage_ratios.tolist(),
        "S_by_worker": found.worker_ratios.tolist(),
        "M_W": found.workers.removed_ratio,
        "M_S": found.last_stage.removed_ratio if found.last_stage else 0.0,
        "M_W_added": found.workers.added_ratio,
        "M_S_added": found.last_stage.added_ratio if found.last_stage else 0.0,
        "cause": reasons.cause,
        "shares": dict(reasons.shares),
        "costs_ratio": dict(reasons.costs),
        "verdict_on_machines": [_machine(what, worker) for worker in reasons.machines],
        "step_slowdown": dict(zip(steps, found.step_ratios.tolist(), strict=True)),
        "S_t_by_step": _by_step(steps, {name: values.tolist() for name, values in found.by_optype.items()}),
        "S_by_dp_rank_by_step": dict(zip(steps, found.by_dp_rank.T.tolist(), strict=True)),
        "S_by_stage_by_step": dict(zip(steps, found.by_stage.T.tolist(), strict=True)),
        "step_seconds": dict(zip(steps, found.traced_seconds.tolist(), strict=True)),
        "step_T_seconds": dict(zip(steps, found.real_seconds.tolist(), strict=True)),
        "step_T_ideal_seconds": dict(zip(steps, found.ideal_seconds.tolist(), strict=True)),
        "step_discrepancy": dict(zip(steps, found.step_discrepancies.tolist(), strict=True)),
        "waste": what.waste_ratio,
        "discrepancy": found.discrepancy_ratio,
        "forward_backward_r": correlated.median_r,
        "forward_backward_r_by_worker": [[_number(r) for r in row] for row in correlated.r.tolist()],
        "forward_variation_by_worker": correlated.variation_ratio.tolist(),
        "dp_ranks": what.model.arrays.dp_ranks.tolist(),
        "notes": list(what.notes),
        "left_out_steps": what.model.arrays.left_out_steps.tolist(),
        "summary": sentence_of(what),
    }


def _by_step(steps: Sequence[str], values: dict[str, list[float]]) -> dict[str, dict[str, float]]:
    """Return step -> name -> value."""
    return {step: {name: row[at] for name, row in values.items()} for at, step in enumerate(steps)}


def _number(value: float) -> float | None:
    """Return a number, None for NaN."""
    return value if np.isfinite(value) else None


def _machine(what: WhatIf, worker: SlowWorker) -> dict[str, object]:
    """Return what JSON says of a worker that is slow on its own."""
    return {
        "kind": "rank",
        "name": str(what.rank_of(worker)),
        "dp_rank": int(what.model.arrays.dp_ranks[worker.dp]),
        "stage": worker.stage,
        "slower_ratio": worker.excess_ratio,
        "steps_share": worker.slow_steps_ratio,
        "S_w": float(what.found.worker_ratios[worker.dp, worker.stage]),
    }


def sentence_of(what: WhatIf) -> str:
    """Return why the job is slow and what helps, in one sentence or two."""
    reasons = what.reasons
    longer = f"the job takes {_percent(what.found.slowdown_ratio - 1)} longer than if nobody were slow"
    if reasons.cause is None:
        return f"No straggler: {longer}, and a job counts as slow from 10 %."
    cost = f"{_percent(reasons.costs[reasons.cause])} of the job's time"
    if reasons.cause is SlowdownCause.STAGE:
        stage, excess = reasons.long_stage
        is_last = stage == what.model.arrays.stage_count - 1
        name = "the last stage" if is_last else "the first stage" if stage == 0 else f"stage {stage}"
        moved = _percent(excess / (1 + excess))
        return (
            f"{_capital(name)} is the reason: {cost} ({longer}); it computes {_percent(excess)} longer than the mean "
            f"stage on every replica; balance it by moving {moved} of its work (layers, the loss) to the other stages."
        )
    if reasons.cause is SlowdownCause.MACHINE:
        who = ", ".join(f"rank {what.rank_of(worker)}" for worker in reasons.machines[:MOST_ROWS])
        excess = reasons.machines[0].excess_ratio
        words = ("are", "they compute", "their") if len(reasons.machines) > 1 else ("is", "it computes", "its")
        is_are, compute, peers = words
        return (
            f"{_capital(who)} {is_are} the reason: {cost} ({longer}); {compute} {_percent(excess)} longer than {peers} "
            "peers in nearly every step, forward and backward; check or replace the machine."
        )
    return _without_place(reasons.cause, cost, longer, what.found)


def _without_place(cause: SlowdownCause, cost: str, longer: str, found: Slowdowns) -> str:
    """Return the sentence for causes that lie at no fixed place."""
    if cause is SlowdownCause.DATA:
        return (
            f"The data are the reason: {cost} ({longer}); long sequences move from rank to rank and are long forward "
            "and backward; share them out among the data-parallel ranks by the sum of their squared lengths."
        )
    if cause is SlowdownCause.JITTER:
        return (
            f"Pauses of the program are the reason: {cost} ({longer}); single forward computations take longer, on "
            "changing ranks; collect garbage at the same planned step on all ranks."
        )
    if cause is SlowdownCause.COMMUNICATION:
        moved = {optypes.MERGED.get(kind, kind) for kind in optypes.COMMUNICATION}
        ratios = {name: ratio for name, ratio in found.optype_ratios.items() if name in moved}
        slowest = max(ratios, key=lambda name: ratios[name])
        return (
            f"Communication is the reason: {cost} ({longer}); it is mostly {slowest} "
            f"({_percent(ratios[slowest] - 1)}), whose transfers take longer than usual in some steps."
        )
    return f"No single reason: {longer}, and no known cause explains a quarter of it."


def text_of(what: WhatIf) -> str:
    """Return the sentence and the tables."""
    found, reasons, arrays = what.found, what.reasons, what.model.arrays
    operations = len(arrays.ops) * arrays.steps.size * arrays.dp_ranks.size
    lines = [
        sentence_of(what),
        "",
        plain(
            f"{what.shape.name or 'job'}: {counted(arrays.steps.size, 'step')}, {counted(operations, 'operation')}, "
            f"{arrays.dp_ranks.size} data-parallel ranks x {counted(arrays.stage_count, 'stage')}"
        ),
    ]
    if arrays.left_out_steps.size:
        lines.append(f"left out: {counted(arrays.left_out_steps.size, 'step')} without the operations of the others")
    lines += [plain(note) for note in what.notes]
    r = reasons.correlation.median_r
    m_s = "-" if found.last_stage is None else f"{found.last_stage.removed_ratio:.3f}"
    times = f"T {found.real_seconds.mean():.3f} s  T_ideal {found.ideal_seconds.mean():.3f} s"
    waste, unexplained = _percent(what.waste_ratio), _percent(found.discrepancy_ratio - 1, digits=1)
    lines += [
        f"{times}  S {found.slowdown_ratio:.3f}  waste {waste}  discrepancy {unexplained}",
        f"M_W {found.workers.removed_ratio:.3f}  M_S {m_s}  F-B correlation {'-' if r is None else f'{r:.2f}'}",
        "",
        *_table("cause", [(str(cause), share, reasons.costs[cause]) for cause, share in reasons.shares.items()]),
        "",
        *_ratios("operation", found.optype_ratios.items()),
        "",
        *_ratios("stage", ((str(at), float(value)) for at, value in enumerate(found.stage_ratios))),
        "",
        *_ratios(
            "data-parallel rank", zip(map(str, arrays.dp_ranks.tolist()), found.dp_rank_ratios.tolist(), strict=True)
        ),
    ]
    return "\n".join(lines)


def _table(title: str, rows: Iterable[tuple[str, float, float]]) -> list[str]:
    """Return lines of a table of causes, the largest first."""
    ordered = sorted(rows, key=lambda row: -row[1])
    width = max(len(title), *(len(name) for name, _, _ in ordered))
    head = f"{title:{width}}  of the lost time  of the job's time"
    return [head, *(f"{name:{width}}  {_percent(share):>16}  {_percent(cost):>17}" for name, share, cost in ordered)]


def _ratios(title: str, rows: Iterable[tuple[str, float]]) -> list[str]:
    """Return lines of a table of slowdowns, the largest first."""
    ordered = sorted(rows, key=lambda row: -row[1])
    width = max(len(title), *(len(name) for name, _ in ordered))
    lines = [f"{title:{width}}  slowdown if only this were real"]
    lines += [f"{name:{width}}  {value:.3f}" for name, value in ordered[:MOST_ROWS]]
    if len(ordered) > MOST_ROWS:
        lines.append(f"… {len(ordered) - MOST_ROWS} more")
    return lines


def worker_steps(found: Slowdowns) -> FloatArray:
    """Return the slowdown of each worker in each step: the smaller one of rank and stage; (dp, stages, steps)."""
    return np.minimum(found.by_dp_rank[:, None, :], found.by_stage[None, :, :])


def _percent(ratio: float, digits: int = 0) -> str:
    """Return a ratio in percent."""
    return f"{100 * ratio:.{digits}f} %"


def _capital(text: str) -> str:
    """Return a text with a capital first letter."""
    return text[:1].upper() + text[1:]
