"""Backtest runner of one of our detectors alone: a replay in which only its anomalies reach the diagnosis."""

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
"""Detector -> its input table, and the reason if that is missing."""
_WORDS: Final = {"peers": ("peers", EXITS), "steps": ("steps",)}
"""Detector -> names of its anomalies. The metric comparison also sees whose processes released their memory first."""


@dataclass(frozen=True, slots=True)
class SingleDetectorRunner:
    """Runner of one detector's anomalies through ``diagnose`` and ``decide``.

    Those still see the rest of the recording (places of ranks, announced phases, step times and so the impact of a
    deviation). A verdict counts only from the line that first has this detector's evidence, so verdicts from events,
    waits and silence are left out.

    Attributes:
        detector: ``peers`` or ``steps``.
        models: detector -> payload of the model used from the recording's start.
    """

    detector: str
    models: Mapping[str, bytes] = field(default_factory=dict)

    @property
    def name(self) -> str:
        """Name of the detector set."""
        return self.detector

    def judge(self, recording: Recording) -> Opinion:
        """Return the verdict lines with this detector's evidence, or why there are none."""
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
    """Yield the lines of each verdict from the first one with evidence of these anomaly names."""
    known: set[str] = set()
    for line in lines:
        if any(one["detector"] in words for one in line["evidence"]):
            known.add(line["id"])
        if line["id"] in known:
            yield line
