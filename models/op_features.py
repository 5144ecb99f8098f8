"""Distributions of operation times per rank and window: the features of the trace detectors.

What DistAD counts was not recovered (the preprint is withdrawn), so the features are our own choice. For each class
of operations there is a histogram of log2(time / the role's median time of that class in the same window). The
shares of time and of calls are added. The features are relative to peers: a change of the workload (a longer
sequence, another batch) or of the machine's generation moves all ranks together and cancels. So a model that was
trained on one job can judge another one.

One ``OpRows`` holds the operations of ranks that carry the same load (one pipeline stage).
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

from tocsin.models.entropy import shares
from tocsin.models.robust import median
from tocsin.schemas.errors import FieldError

FloatArray = npt.NDArray[np.float64]
IntArray = npt.NDArray[np.int64]

PHASES = ("data", "forward", "backward", "optimizer", "communication", "rest")
"""Operation classes of ``steps.parquet`` and ``StepBatch``: the exclusive phases; ``rest`` is the time outside all
phases."""
COMMUNICATION = PHASES[-2]
"""The phase of waiting for peers and moving data; steps without it are not compared."""
REST = PHASES[-1]
"""The phase that takes what no other measured phase of a step does; every vocabulary of phases has it."""
FAMILIES = ("phases", "collectives", "ops")
"""Sources of operations: phases of steps, collectives by name, traced operations by type. A window holds one source
only."""
OTHER = "other"
"""Class of operations that the vocabulary does not know (``seed-systems-b.md`` 4.3)."""

BIN_EDGES = (-1.0, -0.5, -0.25, -0.1, 0.1, 0.25, 0.5, 1.0)
"""Edges of the histograms, log2 of time over the role's median: half, 0.71, 0.84, 0.93, 1.07, 1.19, 1.41, double.

The middle bin is +-7 %: ranks of a quiet job scatter by 2 to 8 % within a step (``StepsConfig``), and a job straggles
from 10 % (what-if study).
"""
BIN_COUNT = len(BIN_EDGES) + 1
"""Number of bins of a histogram."""
_TINY_SECONDS = 1e-6
"""Shorter times count as this: clocks do not resolve them, and zero has no logarithm."""
_NOTHING_RATIO = 1e-3
"""An operation class that takes at most this share of the role's time gets no distribution: all its operations go to
the middle bin."""


@dataclass(frozen=True, slots=True)
class Vocabulary:
    """The operation classes that a model knows, fixed at training; any other name is ``other``.

    Attributes:
        words: class names, all different, without ``other``.
        codes: class name -> its number.
    """

    words: tuple[str, ...]
    codes: Mapping[str, int] = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        """Check the words and number them."""
        if len(set(self.words)) != len(self.words) or OTHER in self.words:
            raise FieldError("vocabulary", self.words, f"different words, none of them {OTHER!r}")
        object.__setattr__(self, "codes", {word: code for code, word in enumerate(self.words)})

    @property
    def class_count(self) -> int:
        """Number of classes, ``other`` included."""
        return len(self.words) + 1

    @property
    def classes(self) -> tuple[str, ...]:
        """Names of the classes, ``other`` last."""
        return (*self.words, OTHER)

    def encode(self, names: Iterable[str]) -> IntArray:
        """Return the class number of each name, shape (names,)."""
        other = len(self.words)
        return np.array([self.codes.get(name, other) for name in names], np.int64)


def phase_vocabulary(measured: Collection[str]) -> Vocabulary:
    """Return the vocabulary of steps of which only these phases are measured; ``rest`` is always among its words."""
    return Vocabulary(tuple(name for name in PHASES if name in measured or name == REST))


def is_phase_vocabulary(words: tuple[str, ...]) -> bool:
    """Return whether these are words of ``phase_vocabulary``: phases in their order, ``rest`` among them."""
    return words == phase_vocabulary(words).words


@dataclass(frozen=True, slots=True)
class OpRows:
    """Operations of one window, one per row.

    Attributes:
        ranks: rank of each operation, in any order.
        classes: class number in the vocabulary.
        seconds: exclusive time of each operation.
    """

    ranks: IntArray
    classes: IntArray
    seconds: FloatArray

    def __post_init__(self) -> None:
        """Check the columns.

        Raises:
            FieldError: columns of different length, or a time that is negative, infinite or NaN.
        """
        if not self.ranks.shape == self.classes.shape == self.seconds.shape:
            raise FieldError("ops", [self.ranks.size, self.classes.size, self.seconds.size], "columns of one length")
        bad = np.flatnonzero(~(np.isfinite(self.seconds) & (self.seconds >= 0)))
        if bad.size:
            row = int(bad[0])
            raise FieldError(f"ops.seconds[{row}]", float(self.seconds[row]), "finite and at least 0")

    def of_ranks(self, ranks: IntArray) -> OpRows:
        """Return only the rows of these ranks."""
        mask = np.isin(self.ranks, ranks)
        return OpRows(self.ranks[mask], self.classes[mask], self.seconds[mask])


@dataclass(frozen=True, slots=True)
class OpWindow:
    """The operations of one window, summed up by rank.

    Attributes:
        ranks: ascending; the rows of the arrays.
        seconds: exclusive time by class, shape (ranks, classes).
        counts: number of operations by class, same shape.
        histograms: share of each class's operations in each bin, shape (ranks, classes, bins); zeros where a rank has
            none of a class.
    """

    ranks: IntArray
    seconds: FloatArray
    counts: FloatArray
    histograms: FloatArray

    @property
    def features(self) -> FloatArray:
        """Features of each rank, shape (ranks, ``feature_count``).

        Histograms first (class by class), then time shares and call shares minus the median rank's.
        """
        flat = self.histograms.reshape(len(self.ranks), -1)
        return np.concatenate([flat, _minus_median(self.seconds), _minus_median(self.counts)], axis=1)

    def has_enough(self, operations_factor: float) -> npt.NDArray[np.bool_]:
        """Return for each rank whether it has enough operations to be judged, shape (ranks,).

        Args:
            operations_factor: least number of operations for each used class; also some time must be spent.
        """
        used_count = max(1, int((self.counts.sum(axis=0) > 0).sum()))
        counted: npt.NDArray[np.bool_] = self.counts.sum(axis=1) >= operations_factor * used_count
        timed: npt.NDArray[np.bool_] = self.seconds.sum(axis=1) > 0
        return np.logical_and(counted, timed)


def feature_count(class_count: int) -> int:
    """Return the number of columns of ``OpWindow.features`` for so many classes."""
    return class_count * (BIN_COUNT + 2)


def sum_up(rows: OpRows, class_count: int) -> OpWindow:
    """Sum up the operations of one window by rank and class.

    Args:
        rows: of ranks that carry the same load.
        class_count: number of classes of the vocabulary, ``other`` included.
    """
    ranks, row_of = np.unique(rows.ranks, return_inverse=True)
    shape = (ranks.size, class_count)
    cell = row_of * class_count + rows.classes
    summed = np.bincount(cell, rows.seconds, shape[0] * shape[1])
    seconds = summed.astype(np.float64).reshape(shape)  # without a row numpy counts in integers
    counts = np.bincount(cell, minlength=shape[0] * shape[1]).astype(np.float64).reshape(shape)
    bins = _bins(rows, class_count, float(rows.seconds.sum()))
    size = shape[0] * shape[1] * BIN_COUNT
    histograms = np.bincount(cell * BIN_COUNT + bins, minlength=size).reshape(*shape, BIN_COUNT).astype(np.float64)
    return OpWindow(ranks.astype(np.int64), seconds, counts, histograms / np.maximum(counts, 1.0)[:, :, None])


def _bins(rows: OpRows, class_count: int, total_seconds: float) -> IntArray:
    """Return the histogram bin of each operation: its time relative to the role's median time of its class."""
    found = np.full(rows.seconds.size, BIN_COUNT // 2, np.int64)
    for number in range(class_count):
        of_class = np.flatnonzero(rows.classes == number)
        seconds = rows.seconds[of_class]
        if not of_class.size or seconds.sum() <= _NOTHING_RATIO * total_seconds:
            continue
        usual = max(float(np.median(seconds)), _TINY_SECONDS)
        ratios = np.log2(np.maximum(seconds, _TINY_SECONDS) / usual)
        found[of_class] = np.searchsorted(BIN_EDGES, ratios, side="right")
    return found


def _minus_median(amounts: FloatArray) -> FloatArray:
    """Return each row's shares minus the median row's shares."""
    own = shares(amounts)
    return np.nan_to_num(own - median(own, 0)[None, :])
