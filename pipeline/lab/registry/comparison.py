"""Comparison of a new model with the current one, by their scores on the same recordings.

A new model is worse in these cases:

* **F1 lower, or more false accusations, by any amount.** The recordings are the same and a replay always gives the
  same answer, so a difference is the model's. A tolerance would be used up again with each promotion.
* **Causes clearly worse**: fewer right causes on the faults that both found, beyond 2 % of them and beyond one. The
  choice between two causes often depends on near-ties in the evidence, so a single change proves nothing. Only common
  faults count, so that a model that also finds hard ones is not punished for it.
* **Clearly slower**: on the same faults the median delay is longer by more than a tenth, and by more than a second.
  Verdicts come at the end of a slice, and the shortest slice is a second.
* **Too few recordings**: fewer than ten faults (a model that misses none of ten may still miss a quarter of all:
  1 - 0.05^(1/10) = 26 %, at 95 %) or less than a machine-day (none false in a day: less than three a day, at 95 %).
"""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final

from tocsin.pipeline.recording.score import Extent, FaultScore, FolderScore, Score, add_up
from tocsin.schemas.printable import counted
from tocsin.schemas.reasons import PromotionRefusal

CAUSE_TOLERANCE_RATIO: Final = 0.02
DELAY_TOLERANCE_RATIO: Final = 0.1
DELAY_TOLERANCE_SECONDS: Final = 1.0
MIN_FAULT_COUNT: Final = 10
MIN_MACHINE_DAYS: Final = 1.0
_SAME: Final = 1e-9
"""Largest difference of figures that counts as rounding."""


@dataclass(frozen=True, slots=True)
class Shortfall:
    """A reason not to promote a model.

    Attributes:
        reason: the rule that it fails.
        text: what was found, and by how much it is worse.
    """

    reason: PromotionRefusal
    text: str


@dataclass(frozen=True, slots=True)
class Shared:
    """Figures on the faults that both models found.

    Attributes:
        fault_count: number of these faults.
        cause_right_counts: number with the right cause, by the current and the new model.
        median_seconds: median delay of the current and the new model, None without such faults.
    """

    fault_count: int
    cause_right_counts: tuple[int, int]
    median_seconds: tuple[float, float] | None

    def to_object(self) -> dict[str, Any]:
        """Return the figures as a JSON object for ``current.json``."""
        return {
            "faults": self.fault_count,
            "cause_right": list(self.cause_right_counts),
            "median_seconds": None if self.median_seconds is None else list(self.median_seconds),
        }


@dataclass(frozen=True, slots=True)
class Comparison:
    """The comparison of two models on the same recordings.

    Attributes:
        recording_count: number of recordings.
        current: figures of the current model, None if there is none.
        new: figures of the new model.
        shared: figures of both on the faults that both found.
        shortfalls: reasons not to promote the new model; empty if it may be promoted.
    """

    recording_count: int
    current: Score | None
    new: Score
    shared: Shared | None
    shortfalls: tuple[Shortfall, ...]

    def to_object(self) -> dict[str, Any]:
        """Return the comparison as a JSON object for ``current.json``."""
        return {
            "recordings": self.recording_count,
            "machine_days": self.new.machine_days,
            "current": None if self.current is None else self.current.to_object(),
            "new": self.new.to_object(),
            "found_by_both": None if self.shared is None else self.shared.to_object(),
            "shortfalls": {one.reason.value: one.text for one in self.shortfalls},
        }


def compare(current: Sequence[FolderScore] | None, new: Sequence[FolderScore]) -> Comparison:
    """Compare a new model with the current one.

    Args:
        current: scores of the current model by recording; None: there is none.
        new: scores of the new model on the same recordings, in the same order.
    """
    after = add_up(new)[0]
    if current is None:
        return Comparison(len(new), None, after, None, (*_too_few(after),))
    before, shared = add_up(current)[0], _shared(current, new)
    found = (*_fewer_right(before, after), *_causes(shared), *_delays(shared), *_too_few(after))
    return Comparison(len(new), before, after, shared, found)


def _shared(current: Sequence[FolderScore], new: Sequence[FolderScore]) -> Shared:
    """Return the figures on the faults that both models found."""
    both = [
        (before, after)
        for old_score, new_score in zip(current, new, strict=True)
        for before, after in zip(old_score.faults, new_score.faults, strict=True)
        if before.delay_seconds is not None and after.delay_seconds is not None
    ]
    olds, news = [old for old, _ in both], [new for _, new in both]
    medians = (_median_seconds(olds), _median_seconds(news)) if both else None
    return Shared(len(both), (sum(bool(f.cause_right) for f in olds), sum(bool(f.cause_right) for f in news)), medians)


def _median_seconds(faults: Sequence[FaultScore]) -> float:
    """Return the median delay of found faults."""
    return statistics.median(fault.delay_seconds for fault in faults if fault.delay_seconds is not None)


def _fewer_right(before: Score, after: Score) -> list[Shortfall]:
    """Return the shortfalls in F1 and false accusations."""
    found = []
    # None: no faults and nobody accused, which cannot be done better.
    old_f1, new_f1 = (1.0 if score.f1 is None else score.f1 for score in (before, after))
    if new_f1 < old_f1 - _SAME:
        text = f"F1 {new_f1:.4f} instead of {old_f1:.4f}: lower by {old_f1 - new_f1:.4f}"
        found.append(Shortfall(PromotionRefusal.F1_LOWER, text))
    more = after.false_count - before.false_count
    if more > 0:
        text = f"{after.false_count} false accusations instead of {before.false_count} in {after.machine_days:.2f}"
        text += f" machine-days: {more} more"
        text += f", {more / after.machine_days:.3f} per machine-day" if after.machine_days else ""
        found.append(Shortfall(PromotionRefusal.MORE_FALSE_ACCUSATIONS, text))
    return found


def _causes(shared: Shared) -> list[Shortfall]:
    """Return the shortfall in right causes, if any."""
    old, new = shared.cause_right_counts
    if old - new <= max(1.0, CAUSE_TOLERANCE_RATIO * shared.fault_count):
        return []
    text = f"cause right {new} times instead of {old} of the {shared.fault_count} faults that both found:"
    text += f" lower by {(old - new) / shared.fault_count:.3f}, more than {CAUSE_TOLERANCE_RATIO:g}"
    return [Shortfall(PromotionRefusal.CAUSES_WORSE, text)]


def _delays(shared: Shared) -> list[Shortfall]:
    """Return the shortfall in delay, if any."""
    if shared.median_seconds is None:
        return []
    old, new = shared.median_seconds
    tolerance = max(DELAY_TOLERANCE_SECONDS, DELAY_TOLERANCE_RATIO * old)
    if new - old <= tolerance + _SAME:
        return []
    text = f"median onset to detection {new:.2f} s instead of {old:.2f} s on the {shared.fault_count} faults that both"
    text += f" found: later by {new - old:.2f} s, more than {tolerance:.2f} s"
    return [Shortfall(PromotionRefusal.SLOWER, text)]


def _too_few(score: Score) -> list[Shortfall]:
    """Return the shortfall of a score with too few faults or machine-days, if any."""
    return too_few(Extent(score.hit_count + score.missed_count, score.machine_days))


def too_few(extent: Extent) -> list[Shortfall]:
    """Return the shortfall of recordings that are too few for a comparison, if any; needs no judging."""
    if extent.fault_count >= MIN_FAULT_COUNT and extent.machine_days >= MIN_MACHINE_DAYS:
        return []
    text = f"{counted(extent.fault_count, 'fault')} and {extent.machine_days:.2f} machine-days: at least"
    text += f" {MIN_FAULT_COUNT} faults and"
    text += f" {MIN_MACHINE_DAYS:g} machine-day are needed to tell"
    return [Shortfall(PromotionRefusal.TOO_FEW_RECORDINGS, text)]
