"""Information that groups across minipods transfer longer than equal ones within one, and what that costs the job."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import astuple, replace
from typing import Any, Final

from tocsin.models.groups_across import GroupsAcross
from tocsin.pipeline.detect.whatif.config import CostLine
from tocsin.pipeline.rca.evidence.network import NetworkTracker
from tocsin.pipeline.rca.finding import Finding
from tocsin.pipeline.rca.job_progress import JobProgress
from tocsin.pipeline.rca.slower_groups import PLACEMENT, is_unexplained
from tocsin.schemas.reasons import Reason
from tocsin.schemas.records import NS_PER_SECOND
from tocsin.schemas.verdicts import Anomaly, Evidence, FaultKind

_EVERY_NS: Final = 5 * NS_PER_SECOND
"""Time between two comparisons: transfers of a thousand groups are compared in each."""
_LINK: Final = "network_slow"


class PlacementCost:
    """What a job's placement costs it: groups across minipods beside groups within one, at the same time.

    It needs no past, so it also tells a placement that was bad from the job's begin on. It names nobody. A cost that
    has lasted is told until it falls below the line.
    """

    def __init__(self, config: CostLine) -> None:
        """Start without a cost.

        Args:
            config: from which cost on the placement is told.
        """
        self._config = config
        self._judged_ns = 0
        """Time of the newest comparison, in nanoseconds."""
        self._since_ns = self._seen_ns = 0
        """Oldest transfer that shows the cost, and the newest one when it was first seen, in nanoseconds. 0: none."""
        self._told: tuple[GroupsAcross, float] | None = None
        """What is told, and its cost as a share of the job's time; None: nothing yet."""

    def add(
        self,
        findings: Sequence[Finding],
        network: NetworkTracker,
        steps: Sequence[Anomaly],
        pace: JobProgress,
        now_ns: int,
    ) -> list[Finding]:
        """Return the findings with that of the placement, unless one of them tells it or the slow link of a machine.

        A slowdown of the whole job without a reason that began with the cost gets it as its cause. Where such a one may
        still be found, the placement is not told by itself.

        Args:
            findings: what was found so far.
            network: the groups' transfer times.
            steps: anomalies of the job's steps.
            pace: the job's progress.
            now_ns: end of the slice.
        """
        if now_ns - self._judged_ns >= _EVERY_NS:
            self._judged_ns = now_ns
            self._judge(network.across(now_ns), pace.least_communication_ratio)
        if self._told is None or any(one.cause == PLACEMENT or _accuses_link(one) for one in findings):
            return list(findings)
        told = _finding(*self._told, self._since_ns)
        if any(self._is_begin(one) for one in findings):
            return [_explained(one, told) if self._is_begin(one) else one for one in findings]
        may_come = any(one.metric == "step_seconds" and self._began_with(one.start_ns) for one in steps)
        return list(findings) if may_come else [*findings, told]

    def _judge(self, across: GroupsAcross | None, waited_ratio: float | None) -> None:
        """Follow the cost by what groups across minipods take longer.

        Args:
            across: how much longer they take; None: they do not.
            waited_ratio: the share of its time that the rank waits for others which does so least.
        """
        costs_ratio = 0.0 if across is None or waited_ratio is None else min(across.excess_ratio, waited_ratio)
        if across is None or not self._config.is_over_line(costs_ratio, is_told=self._told is not None):
            self._since_ns = self._seen_ns = 0
            self._told = None
            return
        if not self._seen_ns:
            self._since_ns, self._seen_ns = across.since_ns, across.last_ns
        if across.last_ns - self._seen_ns >= self._config.lasting_ns:
            self._told = across, costs_ratio

    def _began_with(self, onset_ns: int) -> bool:
        """Return whether the cost was first seen at an onset or soon after it."""
        return self._since_ns - self._config.lasting_ns <= onset_ns <= self._seen_ns

    def _is_begin(self, finding: Finding) -> bool:
        """Return whether a finding is a slowdown of the whole job without a reason that began with the cost."""
        return is_unexplained(finding) and self._began_with(finding.onset_ns)

    def to_state(self) -> list[Any]:
        """Return the state as JSON-serialisable values, for a snapshot."""
        told = None if self._told is None else [*astuple(self._told[0]), self._told[1]]
        return [self._judged_ns, self._since_ns, self._seen_ns, told]

    def load_state(self, state: list[Any]) -> None:
        """Replace the state by values that ``to_state`` returned."""
        self._judged_ns, self._since_ns, self._seen_ns, told = state
        self._told = None if told is None else (GroupsAcross(*told[:-1]), told[-1])


def _accuses_link(finding: Finding) -> bool:
    """Return whether a finding accuses a machine of a slow link, which makes its groups slow wherever they lie."""
    return bool(finding.suspects) and finding.cause == _LINK


def _explained(finding: Finding, told: Finding) -> Finding:
    """Return a slowdown without a reason with the placement as its cause."""
    return replace(finding, cause=told.cause, reason=told.reason, evidence=(*told.evidence, *finding.evidence))


def _finding(across: GroupsAcross, costs_ratio: float, since_ns: int) -> Finding:
    """Return the finding about the placement, as information.

    Args:
        across: how much longer groups across minipods take.
        costs_ratio: what that costs, as a share of the job's time.
        since_ns: oldest transfer that showed it, in nanoseconds.
    """
    text = (
        f"transfers of groups across minipods ({across.count}) take {across.ratio:.1f} times as long as equal ones of "
        f"groups within one ({across.other_count}), or longer; that costs up to {100 * costs_ratio:.0f} % of the time"
    )
    span = since_ns, across.last_ns
    evidence = Evidence("transfers", "communication_seconds", across.ratio, *span, text)
    return Finding(
        FaultKind.DEGRADED,
        PLACEMENT,
        (),
        since_ns,
        0.7,
        Reason.GROUPS_ACROSS_SLOW,
        (evidence,),
        seen_ns=across.last_ns,
        costs_ratio=costs_ratio,
    )
