"""Operator around Minder's published procedure, used as a baseline for comparison and not for verdicts.

With frames it sees every sample, as in the paper; with means (``on_means``) it sees one sample per slice. It is
evaluated every 8 minutes and names at most one machine.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from tocsin.models.metric_means import MetricMeans
from tocsin.models.minder import PRIORITY, MinderConfig, MinderModel
from tocsin.models.minder_calls import Call, MinderCalls
from tocsin.pipeline.core.arrays import array_from, array_state
from tocsin.pipeline.core.frame_blocks import BUILTIN_TABLES, MetricSlice, join_blocks
from tocsin.pipeline.core.operator import pack_state, unpack_state
from tocsin.pipeline.detect.abstaining import Abstaining
from tocsin.pipeline.detect.baselines.minder_ticks import Ticks, ticks_of_frames, ticks_of_means
from tocsin.pipeline.detect.peers.rows import table_from, table_state
from tocsin.schemas.metrics import BUILTIN_TABLE, MetricTable
from tocsin.schemas.records import Slice, TableAnnouncement
from tocsin.schemas.verdicts import Anomaly, Component, ComponentKind

DETECTOR = "minder"


@dataclass(frozen=True, slots=True, eq=False)
class MinderDetectorConfig:
    """Settings of the operator.

    Attributes:
        model: trained model.
        procedure: settings of the published procedure, or of an ablation.
    """

    model: MinderModel
    procedure: MinderConfig = field(default_factory=MinderConfig)


class MinderDetector(Abstaining):
    """Detector of the machine that is farthest from all others for more than four minutes.

    All machines of the job are compared with each other regardless of their role, as in the paper.
    """

    def __init__(self, config: MinderDetectorConfig) -> None:
        """Start without samples."""
        self._config = config
        self._metrics = tuple(dict.fromkeys((*config.model.priority, *_integrated(config.model)))) or PRIORITY
        self._calls = MinderCalls(config.procedure, config.model, self._metrics)
        self._table = BUILTIN_TABLE
        self.abstained: dict[str, int] = {}
        """Reason -> number of abstentions."""

    def on_slice(self, data: Slice) -> Sequence[Anomaly]:
        """Take one metric slice and return its anomalies: at most one, and only when a call is due at its end."""
        for record in data.records:
            if isinstance(record, TableAnnouncement):
                self.take_table(record.table)
        ticks = ticks_of_frames(data, {**BUILTIN_TABLES, self._table.table_id: self._table}, self._metrics)
        if ticks is None and isinstance(data, MetricSlice) and data.blocks:
            return self.on_means(data, join_blocks(data.blocks, self._table))
        return self._judge(data, ticks)

    def on_means(self, data: Slice, means: MetricMeans | None) -> Sequence[Anomaly]:
        """Take one metric slice as means (None: no data) and return its anomalies, as ``on_slice`` does."""
        return self._judge(data, None if means is None else ticks_of_means(data, means, self._table, self._metrics))

    @property
    def table(self) -> MetricTable:
        """Table of user-defined metrics in use."""
        return self._table

    def take_table(self, table: MetricTable) -> None:
        """Use a table of user-defined metrics from now on."""
        self._table = table

    def _judge(self, data: Slice, ticks: Ticks | None) -> list[Anomaly]:
        """Store the samples, run a call if one is due, and return its anomalies."""
        if ticks is not None:
            self._calls.take(ticks.hosts, ticks.values, ticks.start_ns, ticks.tick_ns)
        call = self._calls.due(data.end_ns)
        if call is None:
            return []
        for reason in sorted(set(call.outcome.reasons.values())):
            self._abstain(reason)
        return self._anomalies(data, call)

    def _anomalies(self, data: Slice, call: Call) -> list[Anomaly]:
        """Return the alert of one call as an anomaly; [] if there was no alert."""
        alert = call.outcome.alert
        if alert is None:
            return []
        score = alert.mean_sigmas / alert.threshold_sigmas if alert.threshold_sigmas > 0 else 1.0
        return [
            Anomaly(
                job=data.job,
                slice_end_ns=data.end_ns,
                component=Component(ComponentKind.HOST, call.hosts[alert.row]),
                metric=alert.metric,
                start_ns=call.time_of(alert.onset_index),
                end_ns=call.time_of(alert.end_index),
                score=max(1.0, score),
                detector=DETECTOR,
                model_version=self._config.model.version,
                detail={
                    "variant": self._config.procedure.variant,
                    "sigmas": round(alert.mean_sigmas, 4),
                    "threshold_sigmas": round(alert.threshold_sigmas, 4),
                },
            )
        ]

    def snapshot(self) -> dict[str, bytes]:
        """Return the state as a single part: 15 minutes of samples, 25 kB a machine."""
        calls = self._calls
        state = {
            "table": table_state(self._table),
            "metrics": list(self._metrics),
            "hosts": calls.hosts,
            "values": array_state(calls.values),
            "start_ns": calls.start_ns,
            "tick_ns": calls.tick_ns,
            "next_call_ns": calls.next_call_ns,
            "abstained": self.abstained,
        }
        return {DETECTOR: pack_state(state)}

    def restore(self, parts: Mapping[str, bytes]) -> None:
        """Restore the state from the parts that ``snapshot`` returned; samples of other metrics are dropped."""
        state = unpack_state(parts, DETECTOR)
        self._table, self.abstained = table_from(state["table"]), state["abstained"]
        calls = self._calls
        calls.next_call_ns = state["next_call_ns"]
        if tuple(state["metrics"]) == self._metrics:
            calls.hosts, calls.values = state["hosts"], array_from(state["values"])
            calls.start_ns, calls.tick_ns = state["start_ns"], state["tick_ns"]


def _integrated(model: MinderModel) -> tuple[str, ...]:
    """Return the metrics of the model's integrated network; () if it has none."""
    return () if model.integrated is None else model.integrated.metrics
