"""Finding about a lasting decline of a job's model FLOPs utilization that nothing else explains; it names nobody."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

from tocsin.pipeline.detect.mfu.detector import DETECTOR
from tocsin.pipeline.rca.finding import Finding
from tocsin.schemas.reasons import Reason
from tocsin.schemas.verdicts import Anomaly, Evidence, FaultKind

_TERA: Final = 1e12
_STEP_CAUSES: Final = frozenset(
    {"gradual_slowdown", "stage_imbalance", "data_imbalance", "software_jitter", "communication", "placement"}
)
"""Causes of slower steps whose findings are ``degraded``."""


def split_declines(anomalies: Sequence[Anomaly]) -> tuple[list[Anomaly], list[Anomaly]]:
    """Return the declines of the job's model FLOPs utilization, and all other anomalies."""
    declines = [anomaly for anomaly in anomalies if anomaly.detector == DETECTOR]
    return declines, [anomaly for anomaly in anomalies if anomaly.detector != DETECTOR]


class MfuDecline:
    """Tells a decline of one job as an incident of its own, unless another finding explains the slower steps."""

    def __init__(self) -> None:
        """Start without a decline."""
        self._told_ns = 0
        """Onset of the decline that was told last."""
        self._explained_ns = 0
        """Onset of the decline that something else explained last."""

    def add(
        self, findings: Sequence[Finding], declines: Sequence[Anomaly], steps: Sequence[Anomaly]
    ) -> tuple[Finding, ...]:
        """Return the findings with that of a decline which none of them explains.

        A decline that was explained once is never told later: the explanation was told.

        Args:
            findings: what was found.
            declines: anomalies of the job's model FLOPs utilization.
            steps: anomalies of the job's steps; while there are any, they tell of the slowness.
        """
        if not declines:
            return tuple(findings)
        [decline] = declines
        onset_ns = decline.start_ns
        if steps or any(_is_of_slowness(finding) for finding in findings):
            self._explained_ns = onset_ns
        is_told = self._told_ns == onset_ns
        if self._explained_ns == onset_ns:
            self._told_ns = 0
            return (*findings, _finding(decline, Reason.MFU_EXPLAINED)) if is_told else tuple(findings)
        self._told_ns = onset_ns
        return (*findings, _finding(decline, Reason.NEW_NORMAL if decline.detail["is_accepted"] else None))

    def to_state(self) -> list[Any]:
        """Return the state as JSON-serialisable values, for a snapshot."""
        return [self._told_ns, self._explained_ns]

    def load_state(self, state: list[Any]) -> None:
        """Replace the state by values that ``to_state`` returned."""
        self._told_ns, self._explained_ns = state


def _is_of_slowness(finding: Finding) -> bool:
    """Return whether a finding explains slower steps: any but a deviation that does the job no harm."""
    return finding.fault is not FaultKind.DEGRADED or finding.cause in _STEP_CAUSES


def _finding(decline: Anomaly, ends: Reason | None) -> Finding:
    """Return the finding of a decline.

    Args:
        decline: its anomaly.
        ends: why it is over; None: it goes on.
    """
    costs_ratio = float(decline.detail["costs_ratio"])
    evidence = _evidence(decline)
    return Finding(
        FaultKind.DEGRADED,
        "unknown",
        (),
        decline.start_ns,
        0.7,
        Reason.MFU_DECLINED,
        (evidence,),
        seen_ns=decline.end_ns,
        ends=ends,
        costs_ratio=costs_ratio,
    )


def _evidence(decline: Anomaly) -> Evidence:
    """Return the evidence of a decline: the utilization of now, and the best one that the job held."""
    before, now = float(decline.detail["level_flops_per_second"]), float(decline.detail["flops_per_second"])
    peak = float(decline.detail["peak_flops_per_second"])
    if peak:
        before, now = before / peak, now / peak
        figures = f"the job's MFU is {100 * now:.1f} %, the best level that it held was {100 * before:.1f} %"
    else:
        figures = (
            f"each GPU does {now / _TERA:.3g} TFLOP/s of the model's work, the best level was {before / _TERA:.3g}"
        )
    text = f"{figures}; batch, model and machines are the same, and nothing that was found explains it"
    span = decline.start_ns, decline.end_ns
    return Evidence(decline.detector, decline.metric, decline.score, *span, text, now, before)
