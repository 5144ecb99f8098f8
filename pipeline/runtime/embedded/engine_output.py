"""The result of one tick of an engine."""

from __future__ import annotations

from dataclasses import dataclass, field

from tocsin.pipeline.detect.align import AlignedHealth
from tocsin.pipeline.job.rank_filter import RefusedRecords
from tocsin.pipeline.runtime.job_failure import JobFailure
from tocsin.pipeline.runtime.job_pipeline import BundleResult
from tocsin.schemas.records import JobKey
from tocsin.schemas.verdicts import Anomaly, Verdict


@dataclass(frozen=True, slots=True)
class EngineOutput:
    """The result of one tick.

    Attributes:
        verdicts: new verdict lines, in stream order.
        health: job, and what its hosts' metric slices held.
        anomalies: anomalies of all jobs' detectors.
        turn_count: how many job seconds were worked off.
        failures: jobs whose operators raised and started without state.
        refused: job, and what its hosts said of ranks that are not theirs; these become dead letters.
    """

    verdicts: tuple[Verdict, ...]
    health: tuple[tuple[JobKey, AlignedHealth], ...]
    anomalies: tuple[Anomaly, ...]
    turn_count: int
    failures: tuple[JobFailure, ...] = ()
    refused: tuple[tuple[JobKey, RefusedRecords], ...] = ()


@dataclass(slots=True)
class TickResult:
    """The result of one tick while its turns are worked off.

    Attributes:
        verdicts: new verdict lines so far, in stream order.
        health: job, and what its hosts' metric slices held.
        anomalies: anomalies of all jobs' detectors.
        failures: jobs whose operators raised.
        refused: job, and what its hosts said of ranks that are not theirs.
    """

    verdicts: list[Verdict] = field(default_factory=list)
    health: list[tuple[JobKey, AlignedHealth]] = field(default_factory=list)
    anomalies: list[Anomaly] = field(default_factory=list)
    failures: list[JobFailure] = field(default_factory=list)
    refused: list[tuple[JobKey, RefusedRecords]] = field(default_factory=list)

    def add(self, job: JobKey, turn: BundleResult) -> None:
        """Add the result of one job's turn."""
        self.refused.extend((job, entry) for entry in turn.refused)
        self.verdicts.extend(turn.verdicts)
        self.health.extend((job, entry) for entry in turn.health)
        self.anomalies.extend(turn.anomalies)

    def output(self, turn_count: int) -> EngineOutput:
        """Return the result of the whole tick.

        Args:
            turn_count: how many job seconds were worked off.
        """
        said = tuple(self.verdicts), tuple(self.health), tuple(self.anomalies)
        return EngineOutput(*said, turn_count, tuple(self.failures), tuple(self.refused))
