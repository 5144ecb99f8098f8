"""Conversion of a hang analysis of ranks into a finding about hosts, with cause, reason, onset and evidence."""

from __future__ import annotations

from dataclasses import dataclass

from tocsin.models.hang import STUCK_WHERE_PEERS_FINISHED, HangFinding
from tocsin.pipeline.job.graph import JobGraph
from tocsin.pipeline.rca.common import names_of, suspects_of
from tocsin.pipeline.rca.finding import Finding
from tocsin.schemas import events
from tocsin.schemas.reasons import Reason
from tocsin.schemas.verdicts import Evidence, FaultKind
from tocsin.schemas.wire.event_payloads import number

_DIRECT = frozenset({Reason.PROCESS_STOPPED_PEERS_WAIT.value, Reason.ENTERED_OTHER_COLLECTIVE.value})
"""Reasons that prove a fault which cannot right itself."""
_SHOWN_LINES = 6
"""Number of evidence lines of the hang analysis that are kept."""


def is_direct(found: HangFinding) -> bool:
    """Return whether all culprits have a stopped process or entered a wrong collective, which cannot right itself."""
    return all(reason in _DIRECT for _, reason in found.reasons)


@dataclass(frozen=True, slots=True)
class HangReport:
    """Builder of findings from hang analyses.

    Attributes:
        graph: the job's ranks and hosts.
        detector: detector name written into the evidence.
        mute_after_seconds: age of a rank's last heartbeat from which on the rank counts as mute.
    """

    graph: JobGraph
    detector: str
    mute_after_seconds: float

    def finding(self, found: HangFinding, start_ns: int, now_ns: int) -> Finding:
        """Return the hang finding that accuses the analysed culprits, with their agents' facts as evidence."""
        cause, reason = self._cause(found)
        onset_ns = self._onset_ns(found, start_ns)
        # A rank in a wrong collective is described by where it stands, not by what its agent says of it.
        facts = [] if cause == "collective_mismatch" else self._facts(found, onset_ns, now_ns)
        return Finding(
            FaultKind.HANG,
            cause,
            suspects_of(self.graph, found.culprits),
            onset_ns,
            0.97 if is_direct(found) else 0.85,
            reason,
            (*facts, *self._evidence(found, start_ns, now_ns)),
        )

    def unexplained(self, found: HangFinding, start_ns: int, now_ns: int) -> Finding:
        """Return a hang finding without suspects: the job is stalled and no rank stands out."""
        evidence = self._evidence(found, start_ns, now_ns)
        return Finding(FaultKind.HANG, "unknown", (), start_ns, 0.5, Reason.JOB_STALLED_UNEXPLAINED, evidence)

    def is_mute(self, rank: int) -> bool:
        """Return whether the last heartbeat of a rank's hook is older than ``mute_after_seconds``."""
        facts = self.graph.ranks.get(rank)
        stall = facts.stall if facts is not None else None
        return bool(stall) and number(stall or {}, "beat_age_seconds", 0.0) >= self.mute_after_seconds

    def _cause(self, found: HangFinding) -> tuple[str, Reason]:
        """Return cause and reason of a hang, from the reasons and last reported state of its culprits."""
        reasons = {reason for _, reason in found.reasons}
        if Reason.PROCESS_STOPPED_PEERS_WAIT.value in reasons:
            killed_last = self.graph.killed_last()
            if all(self._is_gone(rank) and rank not in killed_last for rank in found.culprits):
                return "process_exit", Reason.PROCESS_STOPPED_PEERS_WAIT
            return "process_frozen", Reason.PROCESS_STOPPED_PEERS_WAIT
        if Reason.ENTERED_OTHER_COLLECTIVE.value in reasons:
            return "collective_mismatch", Reason.ENTERED_OTHER_COLLECTIVE
        if reasons == {STUCK_WHERE_PEERS_FINISHED}:
            return "unknown", Reason.STUCK_WHERE_PEERS_FINISHED
        if reasons == {Reason.SILENT_AND_PEERS_STALLED.value}:
            return "unknown", Reason.SILENT_AND_PEERS_STALLED
        if all(self.is_mute(rank) for rank in found.culprits):
            return "process_frozen", Reason.NEVER_ARRIVED
        stalls = [self.graph.ranks[rank].stall for rank in found.culprits if rank in self.graph.ranks]
        if stalls and all(stall is not None and stall.get("phase") == "data" for stall in stalls):
            return "loader_stall", Reason.NEVER_ARRIVED
        return "unknown", Reason.NEVER_ARRIVED

    def _is_gone(self, rank: int) -> bool:
        """Return whether a rank's process exited or said good-bye."""
        facts = self.graph.ranks.get(rank)
        return facts is not None and (facts.exit is not None or facts.bye_ns > 0)

    def _onset_ns(self, found: HangFinding, start_ns: int) -> int:
        """Return the earlier of ``start_ns`` and the first time at which a culprit's process was stopped."""
        stopped = [
            self.graph.ranks[rank].stopped_since_ns
            for rank in found.culprits
            if rank in self.graph.ranks and self.graph.ranks[rank].stopped_since_ns
        ]
        return min([start_ns, *stopped])

    def _facts(self, found: HangFinding, onset_ns: int, now_ns: int) -> list[Evidence]:
        """Return up to five pieces of evidence: what the culprits' own agents report about them."""
        lines = []
        killed_last = self.graph.killed_last()
        for rank in found.culprits:
            facts = self.graph.ranks.get(rank)
            if facts is None:
                continue
            who = names_of(self.graph, [rank])
            if facts.stopped_since_ns:
                text = f"{who}: its process is stopped since {(now_ns - facts.stopped_since_ns) / 1e9:.0f} s"
                lines.append(Evidence(self.detector, events.STOPPED, 3.0, facts.stopped_since_ns, now_ns, text))
            elif facts.exit is not None and rank in killed_last:
                text = f"{who}: its process was there until all others had left, and had to be killed"
                lines.append(Evidence(self.detector, events.EXIT, 3.0, facts.exit.ts_ns, now_ns, text))
            elif facts.stall is not None:
                phase = facts.stall.get("phase") or "its own code"
                text = f"{who}: in step {facts.stall.get('step')}, in {phase}, in no collective"
                if self.is_mute(rank):
                    text += f"; no sign of life for {number(facts.stall, 'beat_age_seconds', 0):.0f} s"
                lines.append(Evidence(self.detector, events.STALL, 2.0, onset_ns, now_ns, text))
        return lines[:5]

    def _evidence(self, found: HangFinding, start_ns: int, now_ns: int) -> tuple[Evidence, ...]:
        """Return the first lines of the hang analysis as evidence."""
        metric = found.blocked[0].comm_id if found.blocked else "collectives"
        return tuple(
            Evidence(self.detector, metric, 2.0, start_ns, now_ns, text) for text in found.evidence[:_SHOWN_LINES]
        )
