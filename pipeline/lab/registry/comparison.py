"""Is a new model worse than the current one? Both were scored on the same recordings.

What counts as worse, and why the tolerances are what they are:

* **F1 lower, or more false accusations: by any amount.** The recordings are the same and a replay always gives the
  same answer, so a difference is the model's. A tolerance would be spent again with each promotion.
* **Causes clearly worse**: on the faults that both found, fewer right ones than before, beyond 2 % of them and beyond
  one. Which of two causes is named hangs on ties in the evidence; one that flips says nothing. Only the faults that
  both found: a model that also finds hard ones must not look worse for it.
* **Clearly slower**: on the same faults the median delay is longer by more than a tenth, and by more than a second:
  verdicts come with the end of a slice, and the shortest has a second.
* **Too few recordings to tell**: fewer than ten faults (a model that loses none of ten may still lose a quarter of all:
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
"""Two ways to the same figure may differ by a rounding."""


@dataclass(frozen=True, slots=True)
class Shortfall:
    """Why a model is not promoted.

    Attributes:
        reason: which rule.
        text: what was found, and by how much it is worse.
    """

    reason: PromotionRefusal
    text: str


@dataclass(frozen=True, slots=True)
class Shared:
    """The faults that both models found.

    Attributes:
        fault_count: how many.
        cause_right_counts: current, new.
        median_seconds: delays, current, new; None without any.
    """

    fault_count: int
    cause_right_counts: tuple[int, int]
    median_seconds: tuple[float, float] | None

    def to_object(self) -> dict[str, Any]:
        """For ``current.json``."""
        return {
            "faults": self.fault_count,
            "cause_right": list(self.cause_right_counts),
            "median_seconds": None if self.median_seconds is None else list(self.median_seconds),
        }


@dataclass(frozen=True, slots=True)
class Comparison:
    """Two models on the same recordings.

    Attributes:
        recording_count: how many.
        current: figures of the current model; None: there is none to compare with.
        new: figures of the new one.
        shared: both, on the faults that both found.
        shortfalls: why the new one is not promoted; none: it may be.
    """

    recording_count: int
    current: Score | None
    new: Score
    shared: Shared | None
    shortfalls: tuple[Shortfall, ...]

    def to_object(self) -> dict[str, Any]:
        """For ``current.json``."""
        return {
            "recordings": self.recording_count,
            "machine_days": self.new.machine_days,
            "current": None if self.current is None else self.current.to_object(),
            "new": self.new.to_object(),
            "found_by_both": None if self.shared is None else self.shared.to_object(),
            "shortfalls": {one.reason.value: one.text for one in self.shortfalls},
        }


def compare(current: Sequence[FolderScore] | None, new: Sequence[FolderScore]) -> Comparison:
    """Compare two models.

    Args:
        current: recording by recording; None: there is no current model.
        new: the same recordings, in the same order.
    """
    after = add_up(new)[0]
    if current is None:
        return Comparison(len(new), None, after, None, (*_too_few(after),))
    before, shared = add_up(current)[0], _shared(current, new)
    found = (*_fewer_right(before, after), *_causes(shared), *_delays(shared), *_too_few(after))
    return Comparison(len(new), before, after, shared, found)


def _shared(current: Sequence[FolderScore], new: Sequence[FolderScore]) -> Shared:
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
    return statistics.median(fault.delay_seconds for fault in faults if fault.delay_seconds is not None)


def _fewer_right(before: Score, after: Score) -> list[Shortfall]:
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
    old, new = shared.cause_right_counts
    if old - new <= max(1.0, CAUSE_TOLERANCE_RATIO * shared.fault_count):
        return []
    text = f"cause right {new} times instead of {old} of the {shared.fault_count} faults that both found:"
    text += f" lower by {(old - new) / shared.fault_count:.3f}, more than {CAUSE_TOLERANCE_RATIO:g}"
    return [Shortfall(PromotionRefusal.CAUSES_WORSE, text)]


def _delays(shared: Shared) -> list[Shortfall]:
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
    return too_few(Extent(score.hit_count + score.missed_count, score.machine_days))


def too_few(extent: Extent) -> list[Shortfall]:
    """Whether recordings are too few to tell: known before they are judged."""
    if extent.fault_count >= MIN_FAULT_COUNT and extent.machine_days >= MIN_MACHINE_DAYS:
        return []
    text = f"{counted(extent.fault_count, 'fault')} and {extent.machine_days:.2f} machine-days: at least"
    text += f" {MIN_FAULT_COUNT} faults and"
    text += f" {MIN_MACHINE_DAYS:g} machine-day are needed to tell"
    return [Shortfall(PromotionRefusal.TOO_FEW_RECORDINGS, text)]
