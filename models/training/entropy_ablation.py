"""Ablation of runtime entropy: a shallow decision tree with and without it (E6 of ``seed-systems-b.md`` 5.4)."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from sklearn.metrics import roc_auc_score
from sklearn.tree import DecisionTreeClassifier

from tocsin.models.entropy import EntropyConfig, against_peers, measure
from tocsin.models.op_features import OpWindow
from tocsin.models.robust import median
from tocsin.schemas.errors import ConfigError

FloatArray = NDArray[np.float64]

TREE_DEPTH = 4
"""Depth of the tree (``seed-systems-b.md`` 5.3)."""
WORTH_AUC = 0.01
"""Least gain of the area under the ROC curve that counts (5.4 E6)."""
_TINY_SECONDS = 1e-6


@dataclass(frozen=True, slots=True)
class Ablation:
    """Areas under the ROC curve on held-out jobs, with and without entropy features.

    Attributes:
        without_ratio: area of the tree over plain times, each class relative to the role's median.
        with_ratio: area of the tree that also has the two entropies and the two divergences.
        faulty_count: judged windows of faulty ranks.
        all_count: all judged windows.
    """

    without_ratio: float
    with_ratio: float
    faulty_count: int
    all_count: int

    @property
    def gain_ratio(self) -> float:
        """Growth of the area by entropy."""
        return self.with_ratio - self.without_ratio

    @property
    def sentence(self) -> str:
        """A sentence for the report: both areas, the counts, and whether entropy adds less than ``WORTH_AUC``."""
        text = f"AUC {self.without_ratio:.3f} without entropy, {self.with_ratio:.3f} with it"
        text += f" ({self.faulty_count} of {self.all_count} windows are faulty)"
        return text if self.gain_ratio >= WORTH_AUC else f"{text}: entropy adds less than {WORTH_AUC}"


def features_of(window: OpWindow, config: EntropyConfig) -> tuple[FloatArray, FloatArray]:
    """Return plain time features and entropy features of one role's window, a row per rank each.

    Plain features are log2 of time over the role's median, shape (ranks, classes). Entropy features are those of
    ``against_peers``, shape (ranks, 4), zeros for a rank that cannot be measured.
    """
    usual = np.maximum(median(window.seconds, 0), _TINY_SECONDS)
    plain = np.log2(np.maximum(window.seconds, _TINY_SECONDS) / usual[None, :])
    return plain, np.nan_to_num(against_peers(measure(window.seconds, window.counts, config)))


def ablate(plain: FloatArray, entropies: FloatArray, faulty: NDArray[np.bool_], jobs: NDArray[np.int64]) -> Ablation:
    """Train both trees on jobs with an even number and measure them on the others.

    Args:
        plain: features without entropy, one row for each rank and window.
        entropies: the four ``FEATURES``, same rows.
        faulty: whether the rank was at fault in this window, shape (rows,).
        jobs: job number of each row.

    Raises:
        ConfigError: one of the halves holds only faulty or only healthy rows.
    """
    trained = jobs % 2 == 0
    for half in (trained, ~trained):
        if not 0 < faulty[half].sum() < half.sum():
            raise ConfigError("faulty", f"{faulty[half].sum()} of {half.sum()}", "some of each half's rows, not all")
    found = []
    for table in (plain, np.concatenate([plain, entropies], axis=1)):
        tree = DecisionTreeClassifier(max_depth=TREE_DEPTH, class_weight="balanced", min_samples_leaf=5, random_state=0)
        tree.fit(table[trained], faulty[trained])
        found.append(float(roc_auc_score(faulty[~trained], tree.predict_proba(table[~trained])[:, 1])))
    return Ablation(found[0], found[1], int(faulty[~trained].sum()), int((~trained).sum()))
