"""From step anomalies to explanations: a slow machine, a slow loader, or nobody."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from tocsin.pipeline.detect.peers.workload import POWER
from tocsin.pipeline.job.graph import JobGraph
from tocsin.pipeline.rca.common import (
    TOGETHER_NS,
    common_component,
    few_hosts,
    gpus_of,
    names_of,
    suspects_of,
)
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
from tocsin.pipeline.rca.rules.timing import TELLING_WINDOWS, longest_window_ns
from tocsin.schemas.job_key import is_lone
from tocsin.schemas.reasons import Reason
from tocsin.schemas.records import NS_PER_SECOND
from tocsin.schemas.verdicts import Anomaly, ComponentKind, Evidence, FaultKind

_TOGETHER_NS = 60 * NS_PER_SECOND
_LONE_PHASE_RATIO = 0.8
"""Garbage collection lengthens the forward pass alone: the backward pass is launched from C++ (What-if, OSDI'25)."""


@dataclass(frozen=True, slots=True)
class SlowRules:
    """Settings.

    Attributes:
        loader_share_ratio: from this share of the excess on, waiting for data explains it.
        shared_data_ratio: from this share of the job's growth on it is no machine that is only busier than others:
            nearly all ranks wait longer for data, and then for the last of them.
        from_start_strength_ratio: an excess below this that was there from the start is ``degraded``.
        stop_window_ns: a process that makes steps and was seen stopped within this time does not
            get the CPU it needs.
        max_host_ratio: more hosts that are slow together (of 16: two) are no machine fault.
        nobody_lasting_ns: a job-wide slowdown without a known reason is worth a word after this.
    """

    loader_share_ratio: float = 0.6
    shared_data_ratio: float = 0.3
    from_start_strength_ratio: float = 0.5
    stop_window_ns: int = 15 * NS_PER_SECOND
    max_host_ratio: float = 0.125
    nobody_lasting_ns: int = 30 * NS_PER_SECOND


def find_slow_findings(
    graph: JobGraph, now_ns: int, anomalies: Sequence[Anomaly], pace: JobProgress, rules: SlowRules
) -> tuple[list[Finding], list[Reason]]:
    """Explain the step anomalies of one slice; reasons where one is not worth a verdict."""
    hosts = [a for a in anomalies if a.component.kind is ComponentKind.HOST and a.metric == "own_seconds"]
    if hosts:
        return [_slow_hosts(graph, now_ns, together, rules) for together in _together(hosts)], []
    rotating = [_rotating(graph, anomaly) for anomaly in anomalies if anomaly.metric == "rotating_seconds"]
    if rotating:
        return rotating[:1], []
    findings: list[Finding] = []
    reasons: list[Reason] = []
    for anomaly in anomalies:
        if anomaly.metric != "step_seconds":
            continue
        finding = _slow_job(anomaly, rules, they_wait=pace.own_time_holds_waits)
        if finding is None:
            reasons.append(Reason.WITHIN_PATIENCE)
        else:
            findings.append(finding)
    return findings, reasons


def tells_later(anomalies: Sequence[Anomaly], rules: SlowRules) -> bool:
    """Whether the job's steps are longer for too short to tell why, and no host stands out."""
    lasting_ns = [a.end_ns - a.start_ns for a in anomalies if a.metric == "step_seconds"]
    named = any(a.metric == "own_seconds" and a.component.kind is ComponentKind.HOST for a in anomalies)
    return bool(lasting_ns) and not named and max(lasting_ns) < rules.nobody_lasting_ns


def _together(anomalies: Sequence[Anomaly]) -> list[list[Anomaly]]:
    """Slow hosts, those together that became slow together, the slowest of them first.

    What makes several slow at once is one thing: a switch, or a rank of one of them for which the others wait within
    what their timers measure. Who became slow minutes after another one is slow by itself.
    """
    found: list[list[Anomaly]] = []
    for anomaly in sorted(anomalies, key=lambda anomaly: (anomaly.start_ns, anomaly.component.name)):
        if found and anomaly.start_ns - found[-1][0].start_ns <= _TOGETHER_NS:
            found[-1].append(anomaly)
        else:
            found.append([anomaly])
    return [sorted(ones, key=lambda one: (-one.detail["excess_seconds"], one.component.name)) for ones in found]


def can_be_at_fault(graph: JobGraph, finding: Finding, rules: SlowRules) -> bool:
    """Whether the hosts that steps name together can be: they are few, or share a switch, and are no pipeline."""
    if finding.reason not in (Reason.SAME_RANK_SLOWEST, Reason.OWN_LOADER_SLOW) or len(finding.suspects) < 2:
        return True
    few = finding.common is not None or len(finding.suspects) <= few_hosts(graph, rules.max_host_ratio)
    return few and not _are_one_pipeline(graph, [rank for suspect in finding.suspects for rank in suspect.ranks])


def _are_one_pipeline(graph: JobGraph, ranks: Sequence[int]) -> bool:
    """Whether two of these are stages of one pipeline: one is slow, and the other waits for it within its own time."""
    stages: dict[tuple[int, int], set[int]] = {}
    for place in (graph.places[rank] for rank in ranks if rank in graph.places):
        stages.setdefault((place.dp, place.tp), set()).add(place.pp)
    return any(len(found) > 1 for found in stages.values())


def filter_shared_data(steps: Sequence[Anomaly], peers: Sequence[Anomaly], rules: SlowRules) -> list[Anomaly]:
    """What machines show, less those that are only busier or idler than others in a job that waits for its data."""
    shares = [anomaly.detail["data_ratio"] for anomaly in steps if anomaly.metric == "step_seconds"]
    if max(shares, default=0.0) < rules.shared_data_ratio:
        return list(peers)
    return [anomaly for anomaly in peers if families(anomaly) - SILENT_FAMILIES != {"activity"}]


def _rotating(graph: JobGraph, anomaly: Anomaly) -> Finding:
    """One host after another: the data (forward and backward grow together), or jitter of the program."""
    detail = anomaly.detail
    lone_forward = detail["phase"] == "forward" and detail["phase_share_ratio"] >= _LONE_PHASE_RATIO
    cause = "software_jitter" if lone_forward else "data_imbalance"
    before = ", ".join(detail["before"][:5])
    text = (
        f"the slowest is another one than before ({before}): now {names_of(graph, detail['ranks'])}, "
        f"{detail['own_seconds'] * 1e3:.0f} ms of its own a step, its peers {detail['peer_seconds'] * 1e3:.0f} ms"
    )
    evidence = Evidence(
        anomaly.detector,
        "own_seconds",
        anomaly.score,
        anomaly.start_ns,
        anomaly.end_ns,
        text,
        suspect_value=float(detail["own_seconds"]),
        peer_value=float(detail["peer_seconds"]),
    )
    return Finding(
        FaultKind.FAIL_SLOW,
        cause,
        (),
        anomaly.start_ns,
        0.7,
        Reason.SLOWEST_RANK_CHANGES,
        (evidence,),
        seen_ns=anomaly.end_ns,
    )


@dataclass(slots=True)
class WorkloadSkew:
    """Hosts that are slow because they have more to do: as long as they are so, and however that shows later.

    Attributes:
        since_ns: host -> since when its ranks are slow.
        reasons: host -> what showed it.
        asked: host -> the same, of those that were asked once whether they made anything slower.
        ailed: host -> the same, of those that differed meanwhile in more than how busy they are: as that fades, what is
            left of it shows no more work.
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
        """What is nobody's fault of the step anomalies, and those that are left: all of who reports a broken part."""
        slow = [anomaly for anomaly in steps if anomaly.metric == "own_seconds"]
        begins = {anomaly.component.name: anomaly.start_ns for anomaly in slow}
        for host in [h for h, since_ns in self.since_ns.items() if begins.get(h) != since_ns or h in broken]:
            del self.since_ns[host], self.reasons[host]
        self.asked = {host: since_ns for host, since_ns in self.asked.items() if begins.get(host) == since_ns}
        self.ailed = {host: since_ns for host, since_ns in self.ailed.items() if begins.get(host) == since_ns}
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

    def _take_back(self, slow: Sequence[Anomaly], now_ns: int, pace: JobProgress) -> None:
        """Who seemed to have made nothing slower by the first steps, and has by those that followed."""
        for anomaly in slow:
            host = anomaly.component.name
            is_young = now_ns - anomaly.start_ns <= _TOLD_WITHIN_NS
            if is_young and self.reasons.get(host) is Reason.SLOWEST_RANK_CHANGES and _grew(anomaly, now_ns, pace):
                del self.since_ns[host], self.reasons[host]

    def to_state(self) -> dict[str, list[list[Any]]]:
        """JSON-able state."""
        freed = [[host, since_ns, self.reasons[host].value] for host, since_ns in sorted(self.since_ns.items())]
        asked, ailed = ([[host, ns] for host, ns in sorted(known.items())] for known in (self.asked, self.ailed))
        return {"freed": freed, "asked": asked, "ailed": ailed}

    def load_state(self, state: Mapping[str, Sequence[Sequence[Any]]]) -> None:
        """Take back what ``to_state`` gave."""
        self.since_ns = {host: since_ns for host, since_ns, _ in state["freed"]}
        self.reasons = {host: Reason(reason) for host, _, reason in state["freed"]}
        self.asked, self.ailed = (dict(map(tuple, state[name])) for name in ("asked", "ailed"))


def _is_among(slow: Anomaly, harder: Mapping[str, Anomaly]) -> bool:
    """Whether a host is one that works harder; a rank whose host nobody knows, where one began to as it became slow."""
    name = slow.component.name
    if not is_lone(name):
        return name in harder
    return sum(abs(begin_ns(anomaly) - slow.start_ns) <= TOGETHER_NS for anomaly in harder.values()) == 1


_TOLD_WITHIN_NS = 60 * NS_PER_SECOND
"""What the first steps said is asked again for so long; later the job may be slower for another reason."""
_DATA_SHARE_RATIO = 0.6
_LOAD_WITHIN_NS = 180 * NS_PER_SECOND
"""Steps name a host half a minute to two minutes after it became slow; what shows later may be something else."""


def _waits_for_data(slow: Anomaly) -> bool:
    """Whether most of what a host takes longer is that it waits for its data: nobody has more to do by waiting."""
    return slow.detail.get("phase") == "data" and slow.detail["phase_share_ratio"] >= _DATA_SHARE_RATIO


def _more_load(slow: Anomaly, now_ns: int, pace: JobProgress) -> bool:
    """Whether a host that became slow draws more power than expected since, by too little to be an alarm by itself."""
    return now_ns - slow.start_ns <= _LOAD_WITHIN_NS and pace.more_work(slow.component.name) is not None


_SLOWER_SHARE_RATIO = 0.25
"""Of what a host's ranks take longer than their peers': the steps of jobs that wait for one grew by at least half of
it; where another one had been as slow before they did not grow."""


def _made_slower(slow: Anomaly, others: Sequence[Anomaly], now_ns: int, pace: JobProgress) -> bool | None:
    """Whether the job's steps are longer since a host became the slowest: else another one was, until then.

    It is asked once, as soon as steps tell (None: not yet): later another one may have recovered.
    """
    if slow.detail["from_start"] or any(other.start_ns < slow.start_ns for other in others):
        return True
    return _grew(slow, now_ns, pace)


def _grew(slow: Anomaly, now_ns: int, pace: JobProgress) -> bool | None:
    """Whether steps grew since by a share of what a host's ranks take longer; None: too few tell."""
    growth_seconds = pace.most_growth_seconds(slow.start_ns, now_ns)
    if growth_seconds is None:
        return None
    return growth_seconds >= _SLOWER_SHARE_RATIO * float(slow.detail["excess_seconds"])


def _more_work(
    graph: JobGraph, slow: Anomaly, reason: Reason, harder: Mapping[str, Anomaly], pace: JobProgress
) -> Finding:
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
    evidence = [Evidence(slow.detector, "own_seconds", slow.score, slow.start_ns, slow.end_ns, text)]
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
        exonerates=(slow.component,),
        seen_ns=slow.end_ns,
    )


def _slow_hosts(graph: JobGraph, now_ns: int, anomalies: Sequence[Anomaly], rules: SlowRules) -> Finding:
    """One slow host, or several behind one component: by what the slowest of them shows."""
    anomaly = anomalies[0]
    detail = anomaly.detail
    ranks = tuple(sorted(rank for one in anomalies for rank in one.detail["ranks"]))
    phase, share = str(detail["phase"]), float(detail["phase_share_ratio"])
    stopped = _stopped_ratio(graph, ranks, now_ns, rules)
    cause, reason = "unknown", Reason.SAME_RANK_SLOWEST
    if stopped is not None:
        cause = "cpu_contention"
    elif phase == "data" and share >= rules.loader_share_ratio:
        cause, reason = "loader_stall", Reason.OWN_LOADER_SLOW
    # What was always a little slower may be how the work is split: said, but no accusation.
    weak = detail["from_start"] and detail["strength_ratio"] < rules.from_start_strength_ratio
    suspects = suspects_of(graph, ranks)
    return Finding(
        FaultKind.DEGRADED if weak else FaultKind.FAIL_SLOW,
        cause,
        suspects,
        min(one.start_ns for one in anomalies),
        min(0.97, 0.6 + 0.2 * min(anomaly.score, 1.8)),
        reason,
        _slow_evidence(graph, now_ns, anomaly, ranks, stopped, rules),
        common=common_component(graph, {graph.host_of(rank) for rank in ranks}),
        seen_ns=anomaly.end_ns,
        is_soft=bool(detail["from_start"]),
        hard_ns=TELLING_WINDOWS * longest_window_ns(graph, {graph.host_of(rank) for rank in ranks}),
    )


def _slow_evidence(
    graph: JobGraph, now_ns: int, anomaly: Anomaly, ranks: Sequence[int], stopped: float | None, rules: SlowRules
) -> tuple[Evidence, ...]:
    detail = anomaly.detail
    phase = str(detail["phase"])
    slow = Evidence(
        anomaly.detector,
        f"{phase}_seconds" if phase else "own_seconds",
        anomaly.score,
        anomaly.start_ns,
        anomaly.end_ns,
        f"{names_of(graph, ranks)}{gpus_of(graph, ranks)}: {detail['own_seconds'] * 1e3:.0f} ms of its own a step, its "
        f"peers {detail['peer_seconds'] * 1e3:.0f} ms; slowest in {detail['share_ratio']:.0%} of the steps"
        + (f", mostly in {phase}" if phase else ""),
        suspect_value=float(detail["own_seconds"]),
        peer_value=float(detail["peer_seconds"]),
    )
    if stopped is None:
        return (slow,)
    text = f"its process is stopped and continued from outside, {stopped:.0%} of the time"
    return slow, Evidence("process", "stopped", 1.0 + stopped, now_ns - rules.stop_window_ns, now_ns, text)


def _stopped_ratio(graph: JobGraph, ranks: Sequence[int], now_ns: int, rules: SlowRules) -> float | None:
    """The largest share of time that one of these ranks was stopped, None where none was of late."""
    ratios = [
        facts.stopped_ratio
        for rank in ranks
        if (facts := graph.ranks.get(rank)) is not None
        and (facts.stopped_since_ns or any(now_ns - edge <= rules.stop_window_ns for edge in facts.stop_edges_ns))
    ]
    return max(ratios, default=None)


def _slow_job(anomaly: Anomaly, rules: SlowRules, *, they_wait: bool) -> Finding | None:
    """The whole job slowed down: what all ranks share is to blame, never one of them."""
    detail = anomaly.detail
    lasting_ns = anomaly.end_ns - anomaly.start_ns
    if detail["data_ratio"] >= rules.loader_share_ratio:
        cause, reason, what = "shared_service", Reason.ALL_LOADERS_SLOW, "all ranks wait longer for data"
    elif detail["own_ratio"] >= rules.loader_share_ratio and lasting_ns >= rules.nobody_lasting_ns and not they_wait:
        cause, reason, what = "workload_change", Reason.JOB_WIDE_SLOWDOWN, "all ranks compute longer"
    elif lasting_ns >= rules.nobody_lasting_ns:
        cause, reason, what = "unknown", Reason.JOB_WIDE_SLOWDOWN, "the steps take longer and no rank stands out"
        if not detail.get("is_compared", True):
            what = "the steps take longer, and too few ranks have the same role to say which one is slow"
    else:
        return None
    text = f"{what}: {detail['step_seconds'] * 1e3:.0f} ms a step, before {detail['baseline_seconds'] * 1e3:.0f} ms"
    evidence = Evidence(
        anomaly.detector,
        "data_seconds" if cause == "shared_service" else "step_seconds",
        anomaly.score,
        anomaly.start_ns,
        anomaly.end_ns,
        text,
        suspect_value=float(detail["step_seconds"]),
        peer_value=float(detail["baseline_seconds"]),
    )
    return Finding(FaultKind.FAIL_SLOW, cause, (), anomaly.start_ns, 0.8, reason, (evidence,))
