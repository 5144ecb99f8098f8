"""The protocol of learned detectors: operators with a trained model, driven beside ``peers`` and ``steps``."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final

from tocsin.models.documents import Model
from tocsin.models.metric_means import MetricMeans
from tocsin.pipeline.detect.abstaining import Abstaining
from tocsin.schemas.metrics import MetricTable
from tocsin.schemas.records import NS_PER_SECOND, Slice
from tocsin.schemas.verdicts import Anomaly

Judged = Sequence[Anomaly] | None
"""Anomalies that stand from this slice on; None: nothing new was judged, and the last ones still stand."""
LONGEST_NS: Final = 120 * NS_PER_SECOND
"""After so long an anomaly that nothing new confirms is withdrawn: its records may have stopped, not its fault."""


class LearnedOperator(Abstaining):
    """Base of a learned detector of one job; it takes 1 s slices, metric slices or both.

    The state of an operator belongs to one model. An operator that is given another model begins anew; the same model
    again, as after a restart, changes nothing. Models are the same if their ``content_hash`` is.
    """

    def on_model(self, model: Model | None) -> None:
        """Judge with an announced model from the next slice on.

        Args:
            model: the model; None, or one without ``trained``: the model that ships, if any.
        """
        raise NotImplementedError

    def on_slice(self, data: Slice) -> Judged:
        """Take the records of one 1 s slice."""
        del data
        return None

    def on_means(self, data: Slice, means: MetricMeans | None, table: MetricTable) -> Judged:
        """Take the means of one metric slice.

        Args:
            data: the metric slice.
            means: means of its frames, None = it has none.
            table: the metrics of the means' columns.
        """
        del data, means, table
        return None

    def card(self) -> Mapping[str, Any]:
        """Return what is to be known of the model in use, as JSON values: version, hash, what it looks at, its line."""
        raise NotImplementedError

    def snapshot(self) -> dict[str, bytes]:
        """Return the state as named parts; their names begin with the detector's."""
        raise NotImplementedError

    def restore(self, parts: Mapping[str, bytes]) -> None:
        """Replace the state by the parts that ``snapshot`` returned, other ones among them ignored."""
        raise NotImplementedError
