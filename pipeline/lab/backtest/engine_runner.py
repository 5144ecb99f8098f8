"""Backtest runner of our own detectors: the operators that judge running jobs, fed by a replay."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field

from tocsin.models.model_formats import accept
from tocsin.pipeline.lab.backtest.runner import Opinion
from tocsin.pipeline.recording.judged_range import BEFORE_START_NS
from tocsin.pipeline.recording.replay import ReplayConfig, replay_whole
from tocsin.pipeline.recording.tables import Recording
from tocsin.schemas.model_announcement import BOUNDARY_NS, NOTICE_NS, ModelAnnouncement, content_hash


@dataclass(frozen=True, slots=True)
class EngineRunner:
    """Runner that gives the verdicts of ``tocsin replay``.

    Attributes:
        models: detector -> payload of the model used from the recording's start; others use their default settings.
    """

    models: Mapping[str, bytes] = field(default_factory=dict)

    @property
    def name(self) -> str:
        """Name of the detector set."""
        return "ours"

    def judge(self, recording: Recording) -> Opinion:
        """Return the verdict lines of a replay, or why nothing could be judged."""
        config = ReplayConfig(announcements=announced_from(self.models, recording.manifest.start_ns))
        refused = Counter[str]()  # single records; 'tocsin replay' tells them
        replayed = replay_whole(recording, config, refused=refused)
        return Opinion(tuple(verdict.to_line() for verdict in replayed.verdicts), replayed.reason)


def announced_from(models: Mapping[str, bytes], start_ns: int) -> tuple[ModelAnnouncement, ...]:
    """Return announcements of models that are effective from a recording's first slice.

    Args:
        models: detector -> payload of its model.
        start_ns: start of the recording.

    Raises:
        ModelRefusedError: a model cannot be used; the error says why.
    """
    found = tuple(announced_from_start(name, payload, start_ns) for name, payload in sorted(models.items()))
    for announcement in found:
        accept(announcement)  # a replay goes on without a model that is refused: the figures would be another one's
    return found


def announced_from_start(detector: str, payload: bytes, start_ns: int, version: str = "") -> ModelAnnouncement:
    """Return the announcement of a model that is effective for all slices of a recording.

    Args:
        detector: detector of the model.
        payload: the model in the newest format.
        start_ns: start of the recording.
        version: version that anomalies carry; "": part of the payload's hash.
    """
    first_ns = max(0, start_ns - BEFORE_START_NS) // BOUNDARY_NS * BOUNDARY_NS
    effective_ns = max(NOTICE_NS, first_ns)
    name = content_hash(payload)
    return ModelAnnouncement(
        effective_ns - NOTICE_NS, detector, version or name[:12], f"{detector}/1", name, payload, effective_ns
    )
