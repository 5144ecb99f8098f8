"""Slow hosts that have more work to do than their peers: uneven data, and no fault."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from tocsin.pipeline.detect.peers.workload import POWER
from tocsin.pipeline.job.graph import JobGraph
from tocsin.pipeline.rca.common import TOGETHER_NS, names_of
from tocsin.pipeline.rca.costs import longer_by_ratio
from tocsin.pipeline.rca.finding import Finding
from tocsin.pipeline.rca.job_progress import JobProgress
from tocsin.pipeline.rca.rules.deviations import (
    SHOWN_METRICS,
    SILENT_FAMILIES,
    begin_ns,
    evidence_of,
    families,
    is_only_busier,
)
from tocsin.pipeline.rca.rules.more_work import shows_more_work
from tocsin.schemas.job_key import is_lone
from tocsin.schemas.reasons import Reason
from tocsin.schemas.records import NS_PER_SECOND
from tocsin.schemas.verdicts import Anomaly, Evidence, FaultKind

_TOLD_WITHIN_NS = 60 * NS_PER_SECOND
"""Time for which the result of the first steps is checked again; later the job may be slower for another reason."""
_DATA_SHARE_RATIO = 0.6
"""From this share of a host's excess on, waiting for data explains it."""
_LOAD_WITHIN_NS = 180 * NS_PER_SECOND
"""Steps name a host 30 to 120 s after it became slow; a load that shows later may be something else."""
_SLOWER_SHARE_RATIO = 0.25
"""Share of a host's excess by which the job's steps grow at least when the job waits for this host.

Such steps grow by half of the excess or more. They do not grow where another host had been as slow before.
"""


@dataclass(slots=True)
class WorkloadSkew:
    """Hosts that are slow because they have more work to do, for as long as they are slow.

    Attributes:
        since_ns: host with more work -> since when its ranks are slow.
        reasons: host with more work -> the reason to name.
        asked: host -> since when its ranks are slow, for hosts whose effect on the job's steps was asked once.
        ailed: host -> since when its ranks are slow, for hosts that meanwhile deviated in more than their load. When
            that fades, a remaining higher load shows no more work.
    """

    since_ns: dict[str, int] = field(default_factory=dict)
    reasons: dict[str, Reason] = field(default_factory=dict)
    asked: dict[str, int] = field(default_factory=dict)
    ailed: dict[str, int] = field(default_factory=dict)

    def judge(  # what is known, and who reports that it is broken
        self,
        graph: JobGraph,
        now_ns: int,
        steps: Sequence[Anomaly],
        peers: Sequence[Anomaly],
        pace: JobProgress,
        broken: Collection[str] = (),
    ) -> tuple[list[Finding], list[Anomaly]]:
        """Split step anomalies into slow hosts with more work and the others.

        Args:
            graph: the job.
            now_ns: the slice's end.
            steps: step anomalies.
            peers: anomalies of the machines' metrics.
            pace: the job's progress.
            broken: hosts that report a broken part; their anomalies stay.

        Returns:
            Findings without suspects that clear hosts with more work; and the anomalies that are left.
        """
        slow = [anomaly for anomaly in steps if anomaly.metric == "own_seconds"]
        begins = {anomaly.component.name: anomaly.start_ns for anomaly in slow}
        self._forget_others(begins, broken)
        self._take_back(slow, now_ns, pace)
        harder = {anomaly.component.name: anomaly for anomaly in peers if shows_more_work(graph, anomaly, pace)}
        ailing = {anomaly.component.name for anomaly in peers if families(anomaly) - SILENT_FAMILIES} - harder.keys()
        ill = {anomaly.component.name for anomaly in peers if not is_only_busier(anomaly)}
        self.ailed.update({host: since_ns for host, since_ns in begins.items() if host in ill})
        for anomaly in slow:
            host = anomaly.component.name
            if host in self.since_ns or host in broken:
                continue
            has_more = _is_among(anomaly, harder) or (host not in self.ailed and _more_load(anomaly, now_ns, pace))
            if has_more and not _waits_for_data(anomaly):
                self.since_ns[host], self.reasons[host] = anomaly.start_ns, Reason.HIGHER_WORKLOAD
            elif host not in self.asked and (known := _made_slower(anomaly, slow, now_ns, pace)) is not None:
                self.asked[host] = anomaly.start_ns
                if not known and host not in ailing:
                    self.since_ns[host], self.reasons[host] = anomaly.start_ns, Reason.SLOWEST_RANK_CHANGES
        freed = [anomaly for anomaly in slow if anomaly.component.name in self.since_ns]
        found = [_more_work(graph, one, self.reasons[one.component.name], harder, pace) for one in freed]
        return found, [anomaly for anomaly in steps if anomaly not in freed]

    def _forget_others(self, begins: Mapping[str, int], broken: Collection[str]) -> None:
        """Forget hosts that are slow no more, or since another time, and hosts that report a broken part.

        Args:
            begins: host -> since when its ranks are slow.
            broken: hosts that report a broken part.
        """
        for host in [h for h, since_ns in self.since_ns.items() if begins.get(h) != since_ns or h in broken]:
            del self.since_ns[host], self.reasons[host]
        self.asked = {host: since_ns for host, since_ns in self.asked.items() if begins.get(host) == since_ns}
        self.ailed = {host: since_ns for host, since_ns in self.ailed.items() if begins.get(host) == since_ns}

    def _take_back(self, slow: Sequence[Anomaly], now_ns: int, pace: JobProgress) -> None:
        """Forget hosts that slowed nothing down by the first steps, and did by those that followed."""
        for anomaly in slow:
            host = anomaly.component.name
            is_young = now_ns - anomaly.start_ns <= _TOLD_WITHIN_NS
            if is_young and self.reasons.get(host) is Reason.SLOWEST_RANK_CHANGES and _grew(anomaly, now_ns, pace):
                del self.since_ns[host], self.reasons[host]

    def to_state(self) -> dict[str, list[list[Any]]]:
        """Return the state as a JSON-able object."""
        freed = [[host, since_ns, self.reasons[host].value] for host, since_ns in sorted(self.since_ns.items())]
        asked, ailed = ([[host, ns] for host, ns in sorted(known.items())] for known in (self.asked, self.ailed))
        return {"freed": freed, "asked": asked, "ailed": ailed}

    def load_state(self, state: Mapping[str, Sequence[Sequence[Any]]]) -> None:
        """Restore the state that ``to_state`` returned."""
        self.since_ns = {host: since_ns for host, since_ns, _ in state["freed"]}
        self.reasons = {host: Reason(reason) for host, _, reason in state["freed"]}
        self.asked, self.ailed = (dict(map(tuple, state[name])) for name in ("asked", "ailed"))


def _is_among(slow: Anomaly, harder: Mapping[str, Anomaly]) -> bool:
    """Return whether a slow host is one that does more work.

    A rank of an unknown host counts where exactly one host began to do more work as the rank became slow.

    Args:
        slow: the step anomaly.
        harder: host -> the anomaly that shows its more work.
    """
    name = slow.component.name
    if not is_lone(name):
        return name in harder
    return sum(abs(begin_ns(anomaly) - slow.start_ns) <= TOGETHER_NS for anomaly in harder.values()) == 1


def _waits_for_data(slow: Anomaly) -> bool:
    """Return whether a slow host mostly waits longer for its data, which is no more work."""
    return slow.detail.get("phase") == "data" and slow.detail["phase_share_ratio"] >= _DATA_SHARE_RATIO


def _more_load(slow: Anomaly, now_ns: int, pace: JobProgress) -> bool:
    """Return whether a host draws more power than expected since it became slow, even if too little for an alarm."""
    return now_ns - slow.start_ns <= _LOAD_WITHIN_NS and pace.more_work(slow.component.name) is not None


def _made_slower(slow: Anomaly, others: Sequence[Anomaly], now_ns: int, pace: JobProgress) -> bool | None:
    """Return whether the job's steps are longer since a host became the slowest; None: steps do not tell yet.

    If not, the job waited for another host until then. The answer counts once, because another host may recover later.

    Args:
        slow: the step anomaly of the host.
        others: all hosts' step anomalies.
        now_ns: the slice's end.
        pace: the job's progress.
    """
    if slow.detail["from_start"] or any(other.start_ns < slow.start_ns for other in others):
        return True
    return _grew(slow, now_ns, pace)


def _grew(slow: Anomaly, now_ns: int, pace: JobProgress) -> bool | None:
    """Return whether the job's steps grew by enough of a slow host's excess since its onset; None: too few steps."""
    growth_seconds = pace.most_growth_seconds(slow.start_ns, now_ns)
    if growth_seconds is None:
        return None
    return growth_seconds >= _SLOWER_SHARE_RATIO * float(slow.detail["excess_seconds"])


def _more_work(
    graph: JobGraph, slow: Anomaly, reason: Reason, harder: Mapping[str, Anomaly], pace: JobProgress
) -> Finding:
    """Return a finding that clears a slow host, with the evidence of its more work."""
    detail = slow.detail
    why = (
        "it does more work a second than they: it has more to do"
        if reason is Reason.HIGHER_WORKLOAD
        else "the job's steps are as long as before: until then they waited for another one"
    )
    text = (
        f"{names_of(graph, detail['ranks'])}: {detail['own_seconds'] * 1e3:.0f} ms of its own a step, its peers "
        f"{detail['peer_seconds'] * 1e3:.0f} ms, and {why}"
    )
    span = slow.start_ns, slow.end_ns
    own = Evidence(slow.detector, "own_seconds", slow.score, *span, text, model_version=slow.model_version)
    evidence = [own]
    if shown := harder.get(slow.component.name):
        evidence.extend(evidence_of(shown, metric) for metric in shown.detail["metrics"][:SHOWN_METRICS])
    elif load := pace.more_work(slow.component.name):
        host = slow.component.name
        text = f"{host}: {load.power_ratio:.3f} times the power that is expected, {load.work_ratio:.3f} times the work"
        evidence.append(Evidence("peers", POWER, 0.5, slow.start_ns, slow.end_ns, text))
    return Finding(
        FaultKind.FAIL_SLOW,
        "data_imbalance",
        (),
        slow.start_ns,
        0.7,
        reason,
        tuple(evidence),
        clears=(slow.component,),
        seen_ns=slow.end_ns,
        costs_ratio=longer_by_ratio(slow),
    )
