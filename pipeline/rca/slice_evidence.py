"""The end of one slice as the rules see it: the time, the job's progress and the detectors' anomalies."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from tocsin.pipeline.detect.peers.anomalies import DETECTOR as PEERS
from tocsin.pipeline.detect.peers.exits import EXITS
from tocsin.pipeline.detect.peers.leaf_congestion import SWITCHES
from tocsin.pipeline.rca.job_progress import JobProgress
from tocsin.pipeline.rca.rules.standstill_outlier import STANDSTILL_OUTLIER
from tocsin.schemas.reasons import Reason
from tocsin.schemas.verdicts import Anomaly


@dataclass(frozen=True, slots=True)
class SliceEvidence:
    """The time, the job's progress and the sorted anomalies at the end of one slice.

    Attributes:
        now_ns: the slice's end.
        pace: the job's progress.
        exits: anomalies of machines whose GPU memory was freed first.
        switches: anomalies of congested leaf switches and minipods.
        outliers: anomalies that only the rule for standstill outliers asks for.
        anomalies: all other anomalies.
        silent: hosts that have sent nothing for too long, sorted.
        reasons: why something that looked wrong is no finding; rules add to it.
    """

    now_ns: int
    pace: JobProgress
    exits: Sequence[Anomaly]
    switches: Sequence[Anomaly]
    outliers: Sequence[Anomaly]
    anomalies: Sequence[Anomaly]
    silent: Sequence[str]
    reasons: list[Reason]

    @property
    def peers(self) -> list[Anomaly]:
        """Anomalies of the machines' metrics."""
        return [anomaly for anomaly in self.anomalies if anomaly.detector == PEERS]

    @property
    def steps(self) -> list[Anomaly]:
        """Anomalies of steps and traces."""
        return [anomaly for anomaly in self.anomalies if anomaly.detector != PEERS]

    def note(self, reason: Reason | None) -> None:
        """Add a reason why something is no finding; None adds nothing."""
        if reason is not None:
            self.reasons.append(reason)


def sort_evidence(now_ns: int, pace: JobProgress, anomalies: Sequence[Anomaly], silent: Sequence[str]) -> SliceEvidence:
    """Return the evidence at the end of a slice, with its anomalies sorted by the rules that ask for them.

    Args:
        now_ns: the slice's end.
        pace: the job's progress.
        anomalies: all anomalies of slices that end with this one.
        silent: hosts that have sent nothing for too long, sorted.
    """
    return SliceEvidence(
        now_ns,
        pace,
        exits=[anomaly for anomaly in anomalies if anomaly.detector == EXITS],
        switches=[anomaly for anomaly in anomalies if anomaly.detector == SWITCHES],
        outliers=[anomaly for anomaly in anomalies if anomaly.detail.get(STANDSTILL_OUTLIER)],
        anomalies=[
            a for a in anomalies if a.detector not in (EXITS, SWITCHES) and not a.detail.get(STANDSTILL_OUTLIER)
        ],
        silent=silent,
        reasons=[],
    )
