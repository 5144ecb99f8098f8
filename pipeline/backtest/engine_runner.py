"""Our own detectors: the operators that judge running jobs, fed by a replay."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field

from tocsin.models.documents import accept
from tocsin.pipeline.backtest.runner import Opinion
from tocsin.pipeline.recording.replay import ReplayConfig, replay
from tocsin.pipeline.recording.tables import Recording
from tocsin.pipeline.training.replays import announced_from_start
from tocsin.schemas.model_announcement import ModelAnnouncement
from tocsin.schemas.reasons import Reason

_INPUTS = ("host_metrics", "steps", "collectives", "events", "probes")


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
        """The verdict lines of a replay."""
        config = ReplayConfig(announcements=announced_from(self.models, recording.manifest.start_ns))
        refused = Counter[str]()  # single records; 'tocsin replay' tells them
        lines = [verdict.to_line() for verdict in replay(recording, config, refused=refused)]
        tables = (recording.tables[name] for name in _INPUTS if name in recording.tables)
        nothing = not recording.dumps and not any(len(next(iter(table.values()), ())) for table in tables)
        return Opinion(tuple(lines), Reason.NOTHING_RECORDED if nothing else None)


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
