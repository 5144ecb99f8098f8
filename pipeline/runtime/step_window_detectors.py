"""The detectors that look at the newest judged steps of one job: causes of slowness, MFU, forward passes."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from typing import Final, Protocol

from tocsin.pipeline.detect.forward.detector import DETECTOR as FORWARD
from tocsin.pipeline.detect.forward.detector import ForwardDetector, ForwardDetectorConfig
from tocsin.pipeline.detect.mfu.config import MfuConfig
from tocsin.pipeline.detect.mfu.detector import DETECTOR as MFU
from tocsin.pipeline.detect.mfu.detector import MfuDetector
from tocsin.pipeline.detect.steps.detector import StepDetector
from tocsin.pipeline.detect.steps.rows import StepRows
from tocsin.pipeline.detect.whatif.config import WhatIfConfig
from tocsin.pipeline.detect.whatif.detector import DETECTOR as WHATIF
from tocsin.pipeline.detect.whatif.detector import WhatIfDetector
from tocsin.pipeline.job.graph import JobGraph
from tocsin.schemas.records import Slice
from tocsin.schemas.verdicts import Anomaly

NAMES: Final = (WHATIF, MFU, FORWARD)
"""Names of the detectors, in the order in which they run."""


class _Detector(Protocol):
    """What the detectors have alike."""

    def on_steps(self, data: Slice, steps: Sequence[StepRows], judged_count: int) -> Sequence[Anomaly]:
        """Take the newest judged steps, and return what is found at a slice's end."""
        ...

    def restore(self, parts: Mapping[str, bytes]) -> None:
        """Replace the state by that of a snapshot."""
        ...


@dataclass(frozen=True, slots=True)
class StepWindowConfig:
    """Settings of each detector."""

    whatif: WhatIfConfig = field(default_factory=WhatIfConfig)
    mfu: MfuConfig = field(default_factory=MfuConfig)
    forward: ForwardDetectorConfig = field(default_factory=ForwardDetectorConfig)


class StepWindowDetectors:
    """The detectors of one job."""

    def __init__(self, config: StepWindowConfig, graph: JobGraph) -> None:
        """Start without history.

        Args:
            config: settings.
            graph: the job.
        """
        self.whatif = WhatIfDetector(config.whatif, graph)
        self.mfu = MfuDetector(config.mfu, graph)
        self.forward = ForwardDetector(config.forward, graph)
        self._all: dict[str, _Detector] = dict(zip(NAMES, (self.whatif, self.mfu, self.forward), strict=True))

    def on_steps(
        self, data: Slice, steps: StepDetector, timed: Callable[[str], AbstractContextManager[None]]
    ) -> dict[str, Sequence[Anomaly]]:
        """Take the steps that were judged by a slice's end; return detector -> its anomalies.

        Args:
            data: the slice.
            steps: the step detector, which has taken the slice.
            timed: returns a context that adds its time to that of a detector.
        """
        found: dict[str, Sequence[Anomaly]] = {}
        for name, detector in self._all.items():
            with timed(name):
                found[name] = detector.on_steps(data, steps.window, steps.judged_count)
        return found

    def snapshot(self) -> dict[str, bytes]:
        """Return the state as named parts, one for each detector."""
        return {**self.whatif.snapshot(), **self.mfu.snapshot(), **self.forward.snapshot()}

    def restore(self, parts: Mapping[str, bytes]) -> None:
        """Replace the state by that of a snapshot; other parts are left out."""
        for detector in self._all.values():
            detector.restore(parts)
