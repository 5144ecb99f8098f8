"""One detector of ours alone: the engine's replay, in which only this detector's anomalies reach ``diagnose``."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, Final

from tocsin.pipeline.detect.peers.exits import EXITS
from tocsin.pipeline.lab.backtest.engine_runner import announced_from
from tocsin.pipeline.lab.backtest.runner import Opinion
from tocsin.pipeline.recording.replay import ReplayConfig, replay_whole
from tocsin.pipeline.recording.tables import Recording
from tocsin.pipeline.runtime.embedded.engine import EngineConfig
from tocsin.pipeline.runtime.job_pipeline import JobConfig
from tocsin.schemas.reasons import Reason

_INPUT: Final = {"peers": ("host_metrics", Reason.METRIC_MISSING), "steps": ("steps", Reason.NO_HOOK)}
"""Detector -> its table, and why it judges nothing without."""
_WORDS: Final = {"peers": ("peers", EXITS), "steps": ("steps",)}
"""Detector -> names of its anomalies: who compares metrics also sees whose processes let go of their memory first."""


@dataclass(frozen=True, slots=True)
class SingleDetectorRunner:
    """What ``diagnose`` and ``decide`` make of one detector's anomalies.

    They still see the rest of the recording (who runs where, announced phases, the pace of the steps: whether a
    deviation costs time), but a verdict counts only from the line on that has this detector's evidence. So what
    events, waits and silence say is left out.

    Attributes:
        detector: ``peers`` or ``steps``.
        models: detector -> payload of the model that it has from the recording's begin.
    """

    detector: str
    models: Mapping[str, bytes] = field(default_factory=dict)

    @property
    def name(self) -> str:
        """For tables."""
        return self.detector

    def judge(self, recording: Recording) -> Opinion:
        """The verdict lines that stand on its evidence."""
        table, reason = _INPUT[self.detector]
        if not len(next(iter(recording.tables.get(table, {}).values()), ())):
            return Opinion((), reason)
        engine = EngineConfig(history=None, job=JobConfig(detectors=(self.detector,)))
        config = ReplayConfig(engine, announcements=announced_from(self.models, recording.manifest.start_ns))
        refused = Counter[str]()  # single records; 'tocsin replay' tells them
        replayed = replay_whole(recording, config, refused=refused, detector=self.detector)
        lines = (verdict.to_line() for verdict in replayed.verdicts)
        own = tuple(_own(lines, _WORDS[self.detector]))
        return Opinion(own, None if own else replayed.reason)


def _own(lines: Iterable[Mapping[str, Any]], words: tuple[str, ...]) -> Iterator[Mapping[str, Any]]:
    """Of each verdict the lines from the first on that has the detector's evidence."""
    known: set[str] = set()
    for line in lines:
        if any(one["detector"] in words for one in line["evidence"]):
            known.add(line["id"])
        if line["id"] in known:
            yield line
