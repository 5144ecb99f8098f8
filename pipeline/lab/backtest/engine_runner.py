"""Our own detectors: the operators that judge running jobs, fed by a replay."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field

from tocsin.models.documents import accept
from tocsin.pipeline.lab.backtest.runner import Opinion
from tocsin.pipeline.recording.judged_range import BEFORE_START_NS
from tocsin.pipeline.recording.replay import ReplayConfig, replay_whole
from tocsin.pipeline.recording.tables import Recording
from tocsin.schemas.model_announcement import BOUNDARY_NS, NOTICE_NS, ModelAnnouncement, content_hash


@dataclass(frozen=True, slots=True)
class EngineRunner:
    """What ``tocsin replay`` says.

    Attributes:
        models: detector -> payload of the model that it has from the recording's begin; others have their own numbers.
    """

    models: Mapping[str, bytes] = field(default_factory=dict)

    @property
    def name(self) -> str:
        """For tables."""
        return "ours"

    def judge(self, recording: Recording) -> Opinion:
        """The verdict lines of a replay, or why it could judge nothing."""
        config = ReplayConfig(announcements=announced_from(self.models, recording.manifest.start_ns))
        refused = Counter[str]()  # single records; 'tocsin replay' tells them
        replayed = replay_whole(recording, config, refused=refused)
        return Opinion(tuple(verdict.to_line() for verdict in replayed.verdicts), replayed.reason)


def announced_from(models: Mapping[str, bytes], start_ns: int) -> tuple[ModelAnnouncement, ...]:
    """Announcements of models that count from a recording's first slice on.

    Args:
        models: detector -> payload.
        start_ns: the recording's begin.

    Raises:
        ModelRefusedError: one of them cannot be used; says why.
    """
    found = tuple(announced_from_start(name, payload, start_ns) for name, payload in sorted(models.items()))
    for announcement in found:
        accept(announcement)  # a replay goes on without a model that is refused: the figures would be another one's
    return found


def announced_from_start(detector: str, payload: bytes, start_ns: int, version: str = "") -> ModelAnnouncement:
    """An announcement that all slices of a recording are judged with.

    Args:
        detector: whom it is for.
        payload: the model, in the newest format.
        start_ns: of the recording.
        version: for people; what anomalies carry.
    """
    first_ns = max(0, start_ns - BEFORE_START_NS) // BOUNDARY_NS * BOUNDARY_NS
    effective_ns = max(NOTICE_NS, first_ns)
    name = content_hash(payload)
    return ModelAnnouncement(
        effective_ns - NOTICE_NS, detector, version or name[:12], f"{detector}/1", name, payload, effective_ns
    )
