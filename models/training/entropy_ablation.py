"""Does entropy add anything? A shallow tree with and without it (statement E6 of ``seed-systems-b.md`` 5.4)."""

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
"""``seed-systems-b.md`` 5.3: a tree of at most this depth."""
WORTH_AUC = 0.01
"""Less is nothing (5.4 E6)."""
_TINY_SECONDS = 1e-6


@dataclass(frozen=True, slots=True)
class Ablation:
    """Areas under the ROC curve on jobs that were not trained on.

    Attributes:
        without_ratio: of the tree over plain times: each class against the role's median.
        with_ratio: of the tree that has the two entropies and the two divergences, too.
        odd_count: windows of faulty ranks among those that were judged.
        all_count: windows that were judged.
    """

    without_ratio: float
    with_ratio: float
    odd_count: int
    all_count: int

    @property
    def gain_ratio(self) -> float:
        """What entropy adds."""
        return self.with_ratio - self.without_ratio

    @property
    def sentence(self) -> str:
        """For the report: the figures, and the words where entropy adds nothing."""
        told = f"AUC {self.without_ratio:.3f} without entropy, {self.with_ratio:.3f} with it"
        told += f" ({self.odd_count} of {self.all_count} windows are faulty)"
        return told if self.gain_ratio >= WORTH_AUC else f"{told}: entropy adds less than {WORTH_AUC}"


def features_of(window: OpWindow, config: EntropyConfig) -> tuple[FloatArray, FloatArray]:
    """Plain times and entropies of one role's window, a row a rank; a rank that cannot be measured is zeros."""
    usual = np.maximum(median(window.seconds, 0), _TINY_SECONDS)
    plain = np.log2(np.maximum(window.seconds, _TINY_SECONDS) / usual[None, :])
    return plain, np.nan_to_num(against_peers(measure(window.seconds, window.counts, config)))


def ablate(plain: FloatArray, entropies: FloatArray, odd: NDArray[np.bool_], jobs: NDArray[np.int64]) -> Ablation:
    """Train on the jobs of even number, judge the others.

    Args:
        plain: features without entropy, a row a rank and window.
        entropies: the four of ``FEATURES``, same rows.
        odd: whether the rank was at fault in this window.
        jobs: which job a row is of.

    Raises:
        ConfigError: one of the halves holds only one kind of rows.
    """
    trained = jobs % 2 == 0
    for half in (trained, ~trained):
        if not 0 < odd[half].sum() < half.sum():
            raise ConfigError("odd", f"{odd[half].sum()} of {half.sum()}", "some of each half's rows, not all")
    found = []
    for table in (plain, np.concatenate([plain, entropies], axis=1)):
        tree = DecisionTreeClassifier(max_depth=TREE_DEPTH, class_weight="balanced", min_samples_leaf=5, random_state=0)
        tree.fit(table[trained], odd[trained])
        found.append(float(roc_auc_score(odd[~trained], tree.predict_proba(table[~trained])[:, 1])))
    return Ablation(found[0], found[1], int(odd[~trained].sum()), int((~trained).sum()))
