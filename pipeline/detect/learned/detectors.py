"""The learned detectors of one job: which run, with which model, and the anomalies that stand."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import asdict
from typing import Any

from tocsin.models.metric_means import MetricMeans
from tocsin.pipeline.core.operator import anomaly_from, pack_state, unpack_state
from tocsin.pipeline.detect.learned.config import DetectorMode, LearnedConfig
from tocsin.pipeline.detect.learned.operator import LONGEST_NS, Judged, LearnedOperator
from tocsin.pipeline.detect.learned.registry import LEARNED
from tocsin.pipeline.job.graph import JobGraph
from tocsin.schemas.metrics import MetricTable
from tocsin.schemas.records import Slice
from tocsin.schemas.verdicts import Anomaly

PART = "learned"
"""Name of the snapshot part with the standing anomalies; a job without learned detectors has none."""
Choose = Callable[[str, LearnedOperator, Slice], None]
"""Function that gives a detector the model of a slice, if it changed."""
Timed = Callable[[str], AbstractContextManager[None]]
"""Function that measures the running time of a detector."""


class LearnedDetectors:
    """Drives the learned detectors of one job that are not switched off."""

    def __init__(self, config: LearnedConfig, graph: JobGraph, choose: Choose, timed: Timed) -> None:
        """Start without history.

        Args:
            config: the detectors' modes.
            graph: facts of the job, fed with each slice before the detectors are.
            choose: gives a detector the model of a slice.
            timed: measures running times.
        """
        self._config = config
        self._choose = choose
        self._timed = timed
        self.operators: dict[str, LearnedOperator] = {
            name: make(graph) for name, make in LEARNED.items() if config.mode_of(name) is not DetectorMode.OFF
        }
        """Detector -> its operator, of those that run."""
        self._standing: dict[str, tuple[Anomaly, ...]] = {}

    def on_slice(self, data: Slice) -> None:
        """Let the detectors take one 1 s slice."""
        for name, operator in self.operators.items():
            self._choose(name, operator, data)
            with self._timed(name):
                self._take(name, operator.on_slice(data), data.end_ns)

    def on_means(self, data: Slice, means: MetricMeans | None, table: MetricTable) -> None:
        """Let the detectors take one metric slice."""
        for name, operator in self.operators.items():
            self._choose(name, operator, data)
            with self._timed(name):
                self._take(name, operator.on_means(data, means, table), data.end_ns)

    def _take(self, name: str, judged: Judged, now_ns: int) -> None:
        """Remember what a detector said; where it judged nothing new, what it said lately stands."""
        found = self._standing.get(name, ()) if judged is None else judged
        self._standing[name] = tuple(one for one in found if now_ns - one.slice_end_ns <= LONGEST_NS)

    @property
    def anomalies(self) -> tuple[Anomaly, ...]:
        """The anomalies that stand, of all detectors."""
        return tuple(anomaly for name in self.operators for anomaly in self._standing.get(name, ()))

    @property
    def accusers(self) -> frozenset[str]:
        """Names of the detectors whose anomalies may open a verdict alone."""
        return frozenset(name for name in self.operators if self._config.mode_of(name) is DetectorMode.ACCUSE)

    def status(self) -> list[dict[str, Any]]:
        """Return each detector of this program with its mode, its model and why it judged nothing, for display."""
        return list(self._states())

    def _states(self) -> Iterator[dict[str, Any]]:
        for name in LEARNED:
            operator = self.operators.get(name)
            state: dict[str, Any] = {"detector": name, "mode": self._config.mode_of(name).value}
            if operator is not None:
                standing = [anomaly.component.name for anomaly in self._standing.get(name, ())]
                state |= {"card": dict(operator.card()), "abstained": dict(operator.abstained), "names": standing}
            yield state

    def snapshot(self) -> dict[str, bytes]:
        """Return the state as named parts; {} if no learned detector runs."""
        if not self.operators:
            return {}
        standing = {name: [asdict(anomaly) for anomaly in found] for name, found in self._standing.items()}
        parts = {PART: pack_state(standing)}
        for operator in self.operators.values():
            parts.update(operator.snapshot())
        return parts

    def restore(self, parts: Mapping[str, bytes]) -> None:
        """Replace the state by the parts that ``snapshot`` returned.

        A detector that did not run when the snapshot was taken begins anew.
        """
        standing: Mapping[str, Sequence[Mapping[str, Any]]] = unpack_state(parts, PART) if PART in parts else {}
        self._standing = {
            name: tuple(anomaly_from(fields) for fields in found)
            for name, found in standing.items()
            if name in self.operators
        }
        for name, operator in self.operators.items():
            own = {part: data for part, data in parts.items() if part.startswith(name)}
            if own:
                operator.restore(own)
