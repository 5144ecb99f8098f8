"""The trace detectors of a running job: runtime entropy and the Bi-LSTM one-class network, each as an operator.

Both judge windows of step phases and of collectives, role by role, as backtests do (``detect.traces``), and abstain
where the job sends neither (``no_hook``). ``entropy`` judges without a model; an announced one sets its alarm line.
``bilstm`` judges with the networks that ship until others are announced, and abstains where the job does not measure
what they were trained on (``sources_missing``).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from functools import cache
from typing import Any

from tocsin.models.bilstm_file import decode_bilstm
from tocsin.models.bilstm_ocnn import OcnnModel
from tocsin.models.documents import Model, version_of
from tocsin.models.entropy import EntropyConfig
from tocsin.pipeline.core.operator import pack_state, unpack_state
from tocsin.pipeline.detect.learned.operator import Judged, LearnedOperator
from tocsin.pipeline.detect.learned.shipped import shipped_model
from tocsin.pipeline.detect.traces.detector import BILSTM, ENTROPY, TraceDetector, TracesConfig
from tocsin.pipeline.job.graph import JobGraph
from tocsin.schemas.errors import ConfigError
from tocsin.schemas.model_announcement import BUILTIN_VERSION, content_hash
from tocsin.schemas.reasons import Reason
from tocsin.schemas.records import Slice, StepBatch

_FAMILIES = ("phases", "collectives")
"""Families of operations that running jobs send; traced operations are only in recordings."""


class _StreamingTraces(LearnedOperator):
    """Base of both operators: windows, standing anomalies, and the model that the state belongs to."""

    name: str
    """Name of the detector."""

    def __init__(self, config: TracesConfig, graph: JobGraph) -> None:
        """Start without history, with the model that ships, if any.

        Args:
            config: settings.
            graph: facts of the job, fed with each slice before the detector is.
        """
        self._window_ns, self._longest_ns = config.windows.window_ns, config.windows.longest_ns
        self._graph = graph
        self._detector = TraceDetector(replace(config, detectors=(self.name,)), graph)
        self.abstained = self._detector.abstained
        """Reason -> how often nothing was judged for it."""
        self._version = self._hash = self._learned_hash = ""
        self._standing_ns = 0
        """End of the window whose anomalies stand, 0 = none stand."""

    def on_slice(self, data: Slice) -> Judged:
        """Take the records of one 1 s slice; return the anomalies of the window that it completes, None if none.

        Anomalies of a window stand until the next one, and are withdrawn where none is completed for ``longest_ns``.
        """
        if not self._is_ready(data):
            return None
        found = self._detector.judge(data)
        if found is None:
            self._note_missing_sources(data)
            if not self._standing_ns or data.end_ns - self._standing_ns < self._longest_ns:
                return None
            self._standing_ns = 0
            return ()
        self._standing_ns = data.end_ns if found else 0
        return [replace(anomaly, model_version=self._version) for anomaly in found]

    def _note_missing_sources(self, data: Slice) -> None:
        """Abstain once for each least length of a window while the job has sent neither steps nor collectives.

        The turns are those of the clock, and not of a counter, so that a restart changes nothing.
        """
        if self._detector.has_sources or data.start_ns // self._window_ns == data.end_ns // self._window_ns:
            return
        is_announced = self._graph.in_announced_phase(data.start_ns, data.end_ns)
        self._abstain(Reason.ANNOUNCED_PHASE if is_announced else Reason.NO_HOOK)

    def _is_ready(self, data: Slice) -> bool:
        """Return whether the detector can judge this slice; a changed model is taken into use here."""
        raise NotImplementedError

    def snapshot(self) -> dict[str, bytes]:
        """Return the state as three parts."""
        own = {"hash": self._learned_hash, "standing_ns": self._standing_ns}
        return {self.name: pack_state(own), **self._detector.snapshot(f"{self.name}_")}

    def restore(self, parts: Mapping[str, bytes]) -> None:
        """Replace the state by the parts that ``snapshot`` returned."""
        own = unpack_state(parts, self.name)
        self._learned_hash, self._standing_ns = own["hash"], own["standing_ns"]
        self._detector.restore(parts, f"{self.name}_")
        self.abstained = self._detector.abstained


class StreamingEntropy(_StreamingTraces):
    """Finds ranks whose operation times are spread unlike their peers' and unlike their own past, by entropy."""

    name = ENTROPY

    def __init__(self, config: TracesConfig, graph: JobGraph) -> None:
        """Start without history, with the program's own alarm line."""
        super().__init__(config, graph)
        self._own_sigmas = self._max_sigmas = config.entropy.max_sigmas

    def on_model(self, model: Model | None) -> None:
        """Judge by the alarm line of an announced model from the next slice on; what was learned of ranks stays.

        Raises:
            ConfigError: the model is of another detector.
        """
        if model is None or model.trained is None:
            self._max_sigmas, self._hash, self._version = self._own_sigmas, "", ""
        elif isinstance(model.trained, EntropyConfig):
            self._max_sigmas = model.trained.max_sigmas
            self._hash, self._version = model.content_hash, version_of(model)
        else:
            raise ConfigError("model", type(model.trained).__name__, "a model of entropy")
        self._detector.use_line(self._max_sigmas)

    def _is_ready(self, data: Slice) -> bool:
        """Return True: it judges without a model, too."""
        del data
        self._learned_hash = self._hash
        return True

    def card(self) -> Mapping[str, Any]:
        """Return version, hash, sources and alarm line of the model in use, or of the program's own settings."""
        sources = {"version": self._version or BUILTIN_VERSION, "content_hash": self._hash, "sources": list(_FAMILIES)}
        return {**sources, "line_sigmas": self._max_sigmas}


@cache
def _shipped() -> tuple[Mapping[str, OcnnModel], str]:
    """Return the networks that ship and the hash of their file; ({}, "") if none ship."""
    data = shipped_model(BILSTM)
    return ({}, "") if data is None else (decode_bilstm(data), content_hash(data))


class StreamingBilstm(_StreamingTraces):
    """Finds ranks whose sequences of windows are unlike those that a Bi-LSTM one-class network was trained on."""

    name = BILSTM

    def __init__(self, config: TracesConfig, graph: JobGraph) -> None:
        """Start without history, with the networks that ship, if any."""
        super().__init__(config, graph)
        self._networks: Mapping[str, OcnnModel] = {}
        self.on_model(None)

    def on_model(self, model: Model | None) -> None:
        """Judge with announced networks, None = with those that ship, from the next slice on.

        Raises:
            ConfigError: the model is of another detector.
        """
        if model is None or model.trained is None:
            self._networks, self._hash = _shipped()
            self._version = BUILTIN_VERSION if self._networks else ""
        elif isinstance(model.trained, dict) and all(isinstance(one, OcnnModel) for one in model.trained.values()):
            self._networks, self._hash, self._version = model.trained, model.content_hash, version_of(model)
        else:
            raise ConfigError("model", type(model.trained).__name__, "a model of bilstm")
        self._is_in_use = False

    def _is_ready(self, data: Slice) -> bool:
        """Return whether there are networks, after taking new ones into use."""
        if not self._is_in_use:
            self._detector.use_networks(self._networks, are_same=self._hash == self._learned_hash)
            self._learned_hash, self._is_in_use = self._hash, True
        if not self._networks and any(isinstance(record, StepBatch) for record in data.records):
            self._abstain(Reason.NO_MODEL)
        return bool(self._networks)

    def restore(self, parts: Mapping[str, bytes]) -> None:
        """Replace the state by the parts that ``snapshot`` returned."""
        super().restore(parts)
        self._is_in_use = False

    def card(self) -> Mapping[str, Any]:
        """Return version, hash, and by family the sources and alarm line of the networks in use."""
        families = {
            family: {"sources": list(one.vocabulary.words), "line_factor": round(one.line_factor, 6)}
            for family, one in self._networks.items()
        }
        return {"version": self._version, "content_hash": self._hash, "families": families}
