"""Which model each detector of one job uses, and since when."""

from __future__ import annotations

import logging
from typing import Any, Protocol

from tocsin.models.documents import Model, version_of
from tocsin.pipeline.runtime.model_schedule import ModelSchedule
from tocsin.schemas.model_announcement import DEFAULT_VERSION
from tocsin.schemas.records import JobKey, Slice

_LOG = logging.getLogger("tocsin.models")


class TakesModels(Protocol):
    """A detector that can be given a model."""

    def on_model(self, model: Model | None) -> None:
        """Judge with a model from the next slice on, None = with the detector's own settings."""
        ...


class ModelsInUse:
    """Gives the detectors of one job the models that are in effect."""

    def __init__(self, job: JobKey, schedule: ModelSchedule) -> None:
        """Start with the detectors' own settings.

        Args:
            job: the job and attempt, for the log.
            schedule: the announced models; read at each slice, never modified.
        """
        self._job = job
        self._schedule = schedule
        self._in_use: dict[str, Model | None] = {}
        self._since_ns: dict[str, int] = {}
        """Detector -> ``effective_ns`` of the model in use."""
        self._chosen: set[str] = set()
        """Detectors whose model was chosen at least once since this object was created."""
        self.changed_ns = 0
        """Time at which a detector last switched to another model, 0 = never."""

    def choose(self, name: str, detector: TakesModels, data: Slice) -> None:
        """Switch a detector to the model that is in effect at the start of this slice, if it changed."""
        model, is_first = self._schedule.at(name, data.start_ns), name not in self._chosen
        self._chosen.add(name)
        self._since_ns[name] = self._schedule.since_ns(name, data.start_ns)
        if model == self._in_use.get(name):
            return
        self._in_use[name] = model
        if not is_first:
            self.changed_ns = data.start_ns
        detector.on_model(model)
        fields = {"job": self._job.job_id, "model": name, "version": version_of(model) or DEFAULT_VERSION}
        _LOG.info("model in use", extra={**fields, "since_ns": data.start_ns})

    def versions(self) -> dict[str, str]:
        """Return detector -> version of its announced model; detectors with default settings are left out."""
        return {name: version_of(model) for name, model in sorted(self._in_use.items()) if version_of(model)}

    def states(self) -> dict[str, dict[str, Any]]:
        """Return detector -> version, hash and first use of its announced model, for display; as ``versions``."""
        return {
            name: {"version": version, "content_hash": self._hash_of(name), "since_ns": self._since_ns[name]}
            for name, version in self.versions().items()
        }

    def _hash_of(self, name: str) -> str:
        model = self._in_use[name]
        return "" if model is None else model.content_hash
