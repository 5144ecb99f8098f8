"""What deviates on which machine: families of metrics, whom they single out, and their words."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from tocsin.pipeline.detect.peers.anomalies import JAM_METRICS
from tocsin.pipeline.job.graph import JobGraph
from tocsin.pipeline.rca.common import common_component, few_hosts, is_whole
from tocsin.schemas.records import NS_PER_SECOND
from tocsin.schemas.verdicts import Anomaly, ComponentKind, Evidence

SHOWN_METRICS = 6


@dataclass(frozen=True, slots=True)
class MachineRules:
    """Settings.

    Attributes:
        present_ratio: what deviates for less of the time since it began is a row of jitters.
        steady_ratio: in such a job something must differ for this share of that time.
        max_host_ratio: more hosts that differ together (of 16: two) are no machine's fault.
        most_ratio: where more of the hosts differ, it is the job that is not as usual.
        first_by_ns: of two that differ, the first is suspected when it was first by this.
        lasting_ns: without step records, where nobody knows the pace, several far deviations must last so long ...
        few_steps_ns: with step records, but too few of them before the deviation, it must last so long.
        undecided_ns: ... and so long where the machines' work is too noisy to say whether it hurts, where nobody knows
            the pace and little differs, or where too few steps were before it, but several things differ by far.
        before_onset_ns: steps may have become slower this long before the metrics showed it (a
            metric slice).
        cpu_lasting_ns: a CPU that alone differs must do so for so long: daemons run for 10 s; twice as
            long where no rank's own time shows that it matters.
        standing_ns: patience with machines that stand (an unannounced checkpoint).
        busy_ns: patience with one that is busy meanwhile.
        leaning_ns: who fell first fell within this before the others.
        ill_ns: who began to differ no longer before the machines stood may be why they do.
        sure_standing_ns: what is said of machines that stand is confirmed after this (or twice the patience): rank 0
            may write a checkpoint alone, and nobody announced it.
        sure_busy_ns: ... and after this of one that is only busier than those that wait: half of the time after which
            PyTorch's watchdog ends a collective.
        restart_ns: and a restart is proposed, by metrics alone, after this: PyTorch's watchdog ends a job that waits so
            long. A pause that nobody announced (all load, and one was done first) may be longer than what confirms.
        odd_ns: the only machine that differs in whatever way, where nothing else tells, is told after this.
        unexplained_ns: a standstill that nothing explains is told after this: half of the watchdog's time, too.
        ended_ns: where all processes end within this of the begin of a standstill, nobody stood before that.
        fresh_ns: what a machine showed longer ago confirms nothing.
        cleared_after_ns: a deviation that has not slowed the job after this, and ...
        cleared_step_count: ... after so many of its steps, is not why it is slower later: the first was under way.
        sure_ns: what the metrics alone say is confirmed when they have said it for so long.
        learned_factor: patience is at least this many times the longest such time that ended.
        max_patience_ns: learned patience ends here.
        max_pause_ns: and here where no step ends, and the machines seem to work: few checkpoints take longer.
    """

    present_ratio: float = 0.4
    steady_ratio: float = 0.7
    max_host_ratio: float = 0.125
    most_ratio: float = 0.5
    first_by_ns: int = 10 * NS_PER_SECOND
    lasting_ns: int = 40 * NS_PER_SECOND
    few_steps_ns: int = 300 * NS_PER_SECOND
    undecided_ns: int = 75 * NS_PER_SECOND
    before_onset_ns: int = 5 * NS_PER_SECOND
    cpu_lasting_ns: int = 13 * NS_PER_SECOND
    standing_ns: int = 25 * NS_PER_SECOND
    busy_ns: int = 60 * NS_PER_SECOND
    leaning_ns: int = 10 * NS_PER_SECOND
    ill_ns: int = 300 * NS_PER_SECOND
    sure_standing_ns: int = 180 * NS_PER_SECOND
    sure_busy_ns: int = 300 * NS_PER_SECOND
    restart_ns: int = 600 * NS_PER_SECOND
    odd_ns: int = 90 * NS_PER_SECOND
    unexplained_ns: int = 300 * NS_PER_SECOND
    ended_ns: int = 12 * NS_PER_SECOND
    fresh_ns: int = 15 * NS_PER_SECOND
    cleared_after_ns: int = 60 * NS_PER_SECOND
    cleared_step_count: int = 3
    sure_ns: int = 40 * NS_PER_SECOND
    learned_factor: float = 1.5
    max_patience_ns: int = 600 * NS_PER_SECOND
    max_pause_ns: int = 180 * NS_PER_SECOND


FAMILIES: dict[str, str] = {
    "cpu_util_ratio": "cpu",
    "gpu_temperature_celsius": "temperature",
    "memory_used_ratio": "memory",
    "gpu_memory_used_bytes": "memory",
    "disk_used_ratio": "disk",
    "tcp_bytes_per_second": "tcp",
    "ecn_packets_per_second": "congestion",
    "cnp_packets_per_second": "congestion",
    "pfc_tx_packets_per_second": "link",
    "rdma_bytes_per_second": "link",
    "nvlink_bytes_per_second": "link",
    "pcie_bytes_per_second": "link",
    "pcie_usage_ratio": "link",
    "gpu_samples_ratio": "samples",
    "gpu_power_watts": "power",
    "gpu_sm_clock_hertz": "power",
}
"""Metrics that move together; all others of a GPU are "activity", a user's own is a family of its own."""


_TRAFFIC = frozenset({"rdma_bytes_per_second", "nvlink_bytes_per_second", "pcie_bytes_per_second"})
"""Whoever moves more bytes than its peers is not held up by that: it carries more, or was sampled when it did."""
SILENT_FAMILIES = frozenset({"temperature", "memory", "disk", "tcp", "congestion", "samples", "traffic"})
"""They differ between healthy machines for many reasons: alone they accuse nobody."""


_POWER = "gpu_power_watts"
_STRONG_SIGMAS = 20.0
"""A single metric counts no more: a daemon's CPU lies fifty sigmas out and hurts nobody."""


NOW_SIGMAS = 4.0


def differs_now(anomaly: Anomaly) -> bool:
    """Whether it does so in the last window: a daemon runs for some seconds, processes end one after the other."""
    return any(metric.get("sigmas", 0.0) >= NOW_SIGMAS for metric in anomaly.detail["metrics"])


def family_of(metric: Mapping[str, Any]) -> str:
    """The family of a deviating metric."""
    name = str(metric["metric"])
    if name in _TRAFFIC and metric["direction"] == "high":
        return "traffic"
    return FAMILIES.get(name, "activity" if name.startswith("gpu_") else name)


def reported_metrics(*anomalies: Anomaly) -> list[dict[str, Any]]:
    """The metrics that are beyond their alarm line: what speaks against a machine, not what hardly does."""
    return [metric for anomaly in anomalies for metric in anomaly.detail["metrics"] if metric["score"] >= 1.0]


def families(anomaly: Anomaly) -> set[str]:
    """Families of the metrics that are beyond their alarm line."""
    return {family_of(metric) for metric in reported_metrics(anomaly)}


def begin_ns(anomaly: Anomaly) -> int:
    """Since when what may accuse deviates: a machine that is warm for an hour is not slow for an hour."""
    told = [
        int(metric["since_ns"])
        for metric in anomaly.detail["metrics"]
        if metric["score"] >= 1.0 and family_of(metric) not in SILENT_FAMILIES
    ]
    return min(told, default=anomaly.start_ns)


_JAM_FACTOR = 10.0
"""A port of its own is marked by an order of magnitude more packets than its peers'; hosts of a congested minipod lie
within one of each other."""

_NEIGHBOURS_RATIO = 0.15
"""Behind a congested switch the median of the others had a third to a half of the most jammed one's packets, behind
that of a port that jams alone nothing (levels drift by some percent of a burst)."""


def alarming(anomalies: Sequence[Anomaly], rules: MachineRules) -> list[Anomaly]:
    """The deviations that may accuse; where there are none, lasting marks of congestion (its neighbours show them)."""
    steady = [a for a in anomalies if not a.detail.get("leaning") and present_ratio(a) >= rules.present_ratio]
    loud = [anomaly for anomaly in steady if families(anomaly) - SILENT_FAMILIES]
    quiet = [anomaly for anomaly in steady if anomaly not in loud and _jams(anomaly, rules)]
    alone = loud or quiet
    if len(alone) == 1 and _is_only_jammed(alone[0]) and (len(quiet) > 1 or _neighbours_are_jammed(alone[0])):
        return []  # one of several that are jammed together: by a switch, or a job beside this one
    return alone


def _is_only_jammed(anomaly: Anomaly) -> bool:
    """Whether nothing but its port speaks against it."""
    loud = [metric for metric in reported_metrics(anomaly) if family_of(metric) not in SILENT_FAMILIES]
    return all(metric["metric"] == "pfc_tx_packets_per_second" for metric in loud)


def is_wider_than_switch(graph: JobGraph, chosen: Sequence[Anomaly], seen: Sequence[Anomaly]) -> bool:
    """Whether several that are only jammed are so with hosts behind other switches: it is not theirs."""
    if len(chosen) < 2 or not all(map(_is_only_jammed, chosen)):
        return False
    behind = {anomaly.component.name for anomaly in chosen}
    behind.update(*(graph.placement.neighbours_of(anomaly.component.name) for anomaly in chosen))
    outside = {anomaly.component.name for anomaly in seen if _shows_jam(anomaly)} - behind
    return len(outside) > 1


def may_be_switch(graph: JobGraph, chosen: Sequence[Anomaly]) -> bool:
    """Whether the switch that several share may be why, and they are healthy: only its traffic speaks against them.

    Or all that hang on a leaf, three or more, are jammed, whatever follows from that.
    """
    hosts = {anomaly.component.name for anomaly in chosen}
    if common_component(graph, hosts) is None or not all(map(_shows_jam, chosen)):
        return False
    return all(map(_is_of_network, chosen)) or (len(chosen) > 2 and is_whole(graph, hosts))  # a pair


def _is_of_network(anomaly: Anomaly) -> bool:
    """Whether nothing but its port, and what it moves less, or has to wait for with it, speaks against it."""
    loud = [metric for metric in reported_metrics(anomaly) if family_of(metric) not in SILENT_FAMILIES]
    return all(metric["metric"] == "pfc_tx_packets_per_second" or metric["metric"] in _TRAFFIC for metric in loud)


def _shows_jam(anomaly: Anomaly) -> bool:
    return any(m["metric"] in JAM_METRICS and m["score"] >= _FAINT_SCORE for m in anomaly.detail["metrics"])


def _neighbours_are_jammed(anomaly: Anomaly) -> bool:
    """Whether the hosts behind its switch are jammed too, if less: one port that jams leaves theirs as they were."""
    jams = [metric for metric in reported_metrics(anomaly) if metric["metric"] in JAM_METRICS]
    return max((metric.get("neighbours_ratio", 0.0) for metric in jams), default=0.0) >= _NEIGHBOURS_RATIO


def _jams(anomaly: Anomaly, rules: MachineRules) -> bool:
    """Whether it is longer than a burst, and its peers are not jammed too: then one is always jammed the most."""
    alone = any(
        family_of(metric) == "congestion"
        and metric["score"] >= 1.0
        and metric.get("value", 0.0) >= _JAM_FACTOR * metric.get("expected", 0.0)
        for metric in anomaly.detail["metrics"]
    )
    return alone and anomaly.end_ns - anomaly.start_ns >= 2 * rules.cpu_lasting_ns


def single_out(graph: JobGraph, anomalies: Sequence[Anomaly], rules: MachineRules) -> list[Anomaly]:
    """Whom the anomalies name: one host, or the few that share a switch; [] = nobody in particular."""
    few = few_hosts(graph, rules.max_host_ratio)
    ordered = sorted(anomalies, key=lambda anomaly: (begin_ns(anomaly), anomaly.component.name))
    if len(ordered) == 1:
        return ordered
    if len(ordered) > max(2.0, rules.most_ratio * len(graph.hosts)):
        return []  # all of the job is disturbed, one a little more than the others
    strongest = sorted(anomalies, key=lambda anomaly: -_strength(anomaly))
    if _strength(strongest[0]) >= 2 * _strength(strongest[1]):
        return [strongest[0]]
    if len(ordered) == 2 and begin_ns(ordered[1]) - begin_ns(ordered[0]) >= rules.first_by_ns:  # a pair
        return [ordered[0]]
    hosts = {anomaly.component.name for anomaly in ordered}
    common = common_component(graph, hosts)
    return ordered if len(ordered) <= few and common is not None and common.kind is ComponentKind.LEAF else []


def _strength(anomaly: Anomaly) -> float:
    """How far the metrics of an anomaly lie out now, all together, and in how many ways they did."""
    sigmas = (min(_STRONG_SIGMAS, metric.get("sigmas", 0.0)) for metric in anomaly.detail["metrics"])
    return float(sum(sigmas)) + anomaly.score * max(1, len(families(anomaly)))


def only_cpu(chosen: Sequence[Anomaly]) -> bool:
    """Whether a CPU alone speaks for it."""
    return all(families(anomaly) - SILENT_FAMILIES == {"cpu"} for anomaly in chosen)


def may_have_more_work(graph: JobGraph, chosen: Sequence[Anomaly]) -> bool:
    """Whether hosts that are alone in their pipeline stages only work harder: their stage may have more to do since.

    An auxiliary loss does that to a last stage. Nobody has the same role, so nobody can say what it should show.
    """
    roles = graph.placement.roles_of_hosts()
    counts = Counter(roles.values())
    if len(counts) < 2 or any(counts[roles.get(anomaly.component.name, ())] != 1 for anomaly in chosen):
        return False
    told = [metric for metric in reported_metrics(*chosen) if family_of(metric) not in SILENT_FAMILIES]
    harder = [m["direction"] == "high" and (family_of(m) == "activity" or m["metric"] == _POWER) for m in told]
    return bool(told) and all(harder)


_WORK_METRICS = ("gpu_tensor_active_ratio", "gpu_fp_active_ratio", "gpu_dram_active_ratio")
_OCCUPIED, _MORE_BESIDE_RATIO = "gpu_sm_active_ratio", 1.04
"""Time in which anything runs, no work: it counts where power is as clearly higher."""
_MORE_RATIO, _MORE_POWER_RATIO = 1.07, 1.06
"""Of one of them, or of power. Hosts with a hot expert: activity 10 to 20 % and power 4 to 10 % above what peers that
wait for them show; machines of which one GPU of eight is slow: by up to 6 % in single windows."""
_MORE_BYTES, _AS_MUCH_RATIO = "gpu_dram_active_ratio", 1.02
"""At a low clock activity is higher; power is not, nor do more bytes go to memory."""
_FAINT_SCORE = 0.5
_SHOWS_WITHIN_NS = 90 * NS_PER_SECOND
"""Three half minutes."""


_REPORTS = "reports_broken_part"


def annotate_reported(anomalies: Sequence[Anomaly], hosts: Collection[str]) -> list[Anomaly]:
    """The same, marked where the machine said of itself that a part of it is broken."""
    return [
        replace(anomaly, detail={**anomaly.detail, _REPORTS: True}) if anomaly.component.name in hosts else anomaly
        for anomaly in anomalies
    ]


def has_higher_workload(anomaly: Anomaly) -> bool:
    """Whether a machine does more work a second than its peers, and nothing of it is low.

    In a synchronous job all do the same work in each step, and the steps of all are as long as those of the slowest:
    whoever is slow does no more work a second than those who wait for it. Whoever does has more to do: a hot expert,
    longer sequences. Activity alone does not show it: at a low clock the same work takes more of the cycles. It shows
    from the begin on: what one window shows minutes later takes nothing back. Nor does it of a machine that reports a
    broken part (``annotate_reported``): a failing link keeps GPUs busy.
    """
    if not may_have_higher_workload(anomaly, anomaly.end_ns):
        return False
    above = {m["metric"]: _above(m) for m in _seen(anomaly)}
    power, more_bytes = above.get(_POWER, 0.0), above.get(_MORE_BYTES, 0.0)
    counted = max(above.get(name, 0.0) for name in _WORK_METRICS) >= _MORE_RATIO
    occupied = above.get(_OCCUPIED, 0.0) >= _MORE_RATIO and power >= _MORE_BESIDE_RATIO
    as_fast = max(power, more_bytes) >= _AS_MUCH_RATIO
    return (counted and as_fast) or occupied or power >= _MORE_POWER_RATIO


def may_have_higher_workload(anomaly: Anomaly, seen_ns: int) -> bool:
    """Whether nothing speaks against it: busier only, as was seen soon, and no report of a broken part."""
    is_soon = seen_ns - begin_ns(anomaly) <= _SHOWS_WITHIN_NS
    return is_soon and not anomaly.detail.get(_REPORTS) and is_only_busier(anomaly)


def is_only_busier(anomaly: Anomaly) -> bool:
    """Whether nothing of a machine is low, and nothing else than its activity and power is high."""
    return all(m["direction"] == "high" and family_of(m) in ("activity", "power") for m in _seen(anomaly))


def _seen(anomaly: Anomaly) -> list[Mapping[str, Any]]:
    metrics = anomaly.detail["metrics"]
    return [m for m in metrics if m["score"] >= _FAINT_SCORE and family_of(m) not in SILENT_FAMILIES]


def _above(metric: Mapping[str, Any]) -> float:
    """What a metric shows over what is expected, 0: not known."""
    value, expected = metric.get("value"), metric.get("expected")
    return value / expected if value is not None and expected else 0.0


def other_program(chosen: Sequence[Anomaly]) -> bool:
    """Whether all that speaks for it is that more of a CPU is used: other programs do that every day."""
    used = [metric for metric in reported_metrics(*chosen) if family_of(metric) == "cpu"]
    return only_cpu(chosen) and all(metric["direction"] == "high" for metric in used)


def present_ratio(anomaly: Anomaly) -> float:
    """Share of the time since it began in which the most steady of its metrics deviated."""
    return max(float(metric["present_ratio"]) for metric in anomaly.detail["metrics"])


def evidence_of(anomaly: Anomaly, metric: dict[str, Any]) -> Evidence:
    """One deviating metric as evidence."""
    name = str(metric["metric"])
    value, expected = metric.get("value"), metric.get("expected")
    return Evidence(
        anomaly.detector,
        name,
        float(metric["score"]),
        int(metric["since_ns"]),
        anomaly.end_ns,
        f"{anomaly.component.name}: {name} {_differs(metric)}{_on_gpu(metric)}",
        suspect_value=value,
        peer_value=expected,
    )


def _differs(metric: Mapping[str, Any]) -> str:
    """What has added up, and the last window's numbers: it may be over by then."""
    value, expected, direction = metric.get("value"), metric.get("expected"), metric["direction"]
    if value is None or expected is None:
        return f"is {direction}"
    numbers = f"{value:.4g} where {expected:.4g} is expected"
    goes_on = value < expected if direction == "low" else value > expected
    return f"is {direction}: {numbers}" if goes_on else f"was {direction} (just now {numbers})"


def _on_gpu(metric: Mapping[str, Any]) -> str:
    """Which of a machine's GPUs it is, where one alone differs."""
    gpu = metric.get("gpu")
    if gpu is None:
        return ""
    return f", by GPU {gpu['name']} alone ({gpu['value']:.4g} where {gpu['expected']:.4g} is expected)"


def lost_gpu(anomaly: Anomaly) -> bool:
    """Whether a GPU of the machine gives no samples any more."""
    return any(metric["metric"] == "gpu_samples_ratio" for metric in anomaly.detail["metrics"])
