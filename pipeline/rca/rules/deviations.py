"""Deviating metrics of machines: their families, which machines they single out, and their evidence sentences."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from tocsin.pipeline.detect.peers.anomalies import CONGESTION_METRICS
from tocsin.pipeline.job.graph import JobGraph
from tocsin.pipeline.rca.common import common_component, few_hosts, is_whole
from tocsin.schemas.records import NS_PER_SECOND
from tocsin.schemas.verdicts import Anomaly, ComponentKind, Evidence

SHOWN_METRICS = 6
"""Most metrics that a finding quotes."""


@dataclass(frozen=True, slots=True)
class MachineRules:
    """Thresholds of the rules about machines.

    Attributes:
        present_ratio: least share of the time since its start in which a deviation must be present; less is jitter.
        steady_ratio: least such share for a steady deviation.
        max_host_ratio: largest share of hosts that may be at fault together; more have a cause outside.
        most_ratio: share of deviating hosts above which the whole job is unusual.
        first_by_ns: lead by which the first of two deviating hosts is suspected alone.
        lasting_ns: least duration of several far deviations where no steps are recorded.
        few_steps_ns: least duration with too few steps before the deviation.
        undecided_ns: least duration where noisy work hides the harm, or where few steps precede several far deviations.
        before_onset_ns: how long before its metrics a slowdown may have begun: a metric slice.
        cpu_lasting_ns: least duration where only CPU deviates, as daemons run for 10 s; doubled without self time.
        stalled_ns: patience before a stalled machine is suspected, for unannounced checkpoints.
        busy_ns: patience with a machine that is busy during a stall.
        early_dip_ns: greatest lead of an early dip: a machine that slows this long before the others.
        ill_ns: greatest age of a deviation at the start of a stall that it may explain.
        sure_stalled_ns: duration that confirms a stall finding (or twice the patience); rank 0 may write a checkpoint.
        sure_busy_ns: the same for a machine that is only busier than others: half of PyTorch's watchdog timeout.
        restart_ns: duration after which metrics alone may propose a restart: PyTorch's watchdog timeout.
        standstill_outlier_ns: patience before the only deviating machine of a stall is named.
        unexplained_ns: patience before an unexplained stall is reported: half of PyTorch's watchdog timeout.
        ended_ns: if all processes end within this of a stall's start, the stall is their end.
        fresh_ns: age from which on an observation confirms nothing.
        cleared_after_ns: duration without slowdown after which a deviation is harmless ...
        cleared_step_count: ... and the number of steps that must have passed, as the first was already running.
        sure_ns: duration after which a finding from metrics alone is confirmed.
        learned_factor: patience is at least this multiple of the longest such pause that ended.
        max_patience_ns: upper limit of learned patience.
        max_pause_ns: the same limit where no step ends but machines seem to work; few checkpoints take longer.
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
    stalled_ns: int = 25 * NS_PER_SECOND
    busy_ns: int = 60 * NS_PER_SECOND
    early_dip_ns: int = 10 * NS_PER_SECOND
    ill_ns: int = 300 * NS_PER_SECOND
    sure_stalled_ns: int = 180 * NS_PER_SECOND
    sure_busy_ns: int = 300 * NS_PER_SECOND
    restart_ns: int = 600 * NS_PER_SECOND
    standstill_outlier_ns: int = 90 * NS_PER_SECOND
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
"""Metric -> family of metrics that move together; other GPU metrics are "activity", a user's own is its own family."""
_TRAFFIC = frozenset({"rdma_bytes_per_second", "nvlink_bytes_per_second", "pcie_bytes_per_second"})
"""Metrics of bytes moved; a high value does not slow a machine."""
SILENT_FAMILIES = frozenset({"temperature", "memory", "disk", "tcp", "congestion", "samples", "traffic"})
"""Families that often differ between healthy machines; they never accuse a machine by themselves."""
_POWER = "gpu_power_watts"
_STRONG_SIGMAS = 20.0
"""Most standard deviations that one metric adds to an anomaly's strength; a daemon's CPU reaches fifty."""
NOW_SIGMAS = 4.0
"""Least deviation in the last window, in standard deviations, for a metric to deviate now."""


def differs_now(anomaly: Anomaly) -> bool:
    """Return whether any metric of the anomaly deviates by at least 4 standard deviations in the last window."""
    return any(metric.get("sigmas", 0.0) >= NOW_SIGMAS for metric in anomaly.detail["metrics"])


def family_of(metric: Mapping[str, Any]) -> str:
    """Return the family of a deviating metric; "traffic" for bytes moved that are high."""
    name = str(metric["metric"])
    if name in _TRAFFIC and metric["direction"] == "high":
        return "traffic"
    return FAMILIES.get(name, "activity" if name.startswith("gpu_") else name)


def reported_metrics(*anomalies: Anomaly) -> list[dict[str, Any]]:
    """Return the metrics of these anomalies whose score reaches the alarm threshold (1.0)."""
    return [metric for anomaly in anomalies for metric in anomaly.detail["metrics"] if metric["score"] >= 1.0]


def families(anomaly: Anomaly) -> set[str]:
    """Return the families of an anomaly's metrics that reach the alarm threshold."""
    return {family_of(metric) for metric in reported_metrics(anomaly)}


def begin_ns(anomaly: Anomaly) -> int:
    """Return the earliest time in nanoseconds since when a metric outside ``SILENT_FAMILIES`` alarms.

    The anomaly's start if there is none.
    """
    begins = [
        int(metric["since_ns"])
        for metric in anomaly.detail["metrics"]
        if metric["score"] >= 1.0 and family_of(metric) not in SILENT_FAMILIES
    ]
    return min(begins, default=anomaly.start_ns)


_CONGESTION_FACTOR = 10.0
"""Ratio of a host's congestion packets to the expected ones that marks its own port; hosts of one congested minipod
differ by less."""

_NEIGHBOURS_RATIO = 0.15
"""Ratio of the neighbours' median excess packets to the host's own, from which on they are congested too. Behind a
congested switch it was a third or more."""


def alarming(anomalies: Sequence[Anomaly], rules: MachineRules) -> list[Anomaly]:
    """Return the anomalies that may accuse a machine.

    They are steady and have an alarming metric outside ``SILENT_FAMILIES``. Failing that: hosts whose own port is
    congested for long. [] for one host that is congested only along with its neighbours.
    """
    steady = [a for a in anomalies if not a.detail.get("leaning") and present_ratio(a) >= rules.present_ratio]
    accusing = [anomaly for anomaly in steady if families(anomaly) - SILENT_FAMILIES]
    congested = [anomaly for anomaly in steady if anomaly not in accusing and _is_congested_alone(anomaly, rules)]
    chosen = accusing or congested
    if (
        len(chosen) == 1
        and _is_only_congested(chosen[0])
        and (len(congested) > 1 or _neighbours_are_congested(chosen[0]))
    ):
        return []  # one of several that are congested together: by a switch, or a job beside this one
    return chosen


def _is_only_congested(anomaly: Anomaly) -> bool:
    """Return whether PFC pause frames are the only alarming metric of a host, silent families aside."""
    accusing = [metric for metric in reported_metrics(anomaly) if family_of(metric) not in SILENT_FAMILIES]
    return all(metric["metric"] == "pfc_tx_packets_per_second" for metric in accusing)


def is_wider_than_switch(graph: JobGraph, chosen: Sequence[Anomaly], seen: Sequence[Anomaly]) -> bool:
    """Return whether several merely congested hosts share their congestion with hosts behind other switches.

    Their switch is not at fault then. At least two such hosts are needed elsewhere.
    """
    if len(chosen) < 2 or not all(map(_is_only_congested, chosen)):
        return False
    behind = {anomaly.component.name for anomaly in chosen}
    behind.update(*(graph.placement.neighbours_of(anomaly.component.name) for anomaly in chosen))
    outside = {anomaly.component.name for anomaly in seen if _shows_congestion(anomaly)} - behind
    return len(outside) > 1


def may_be_switch(graph: JobGraph, chosen: Sequence[Anomaly]) -> bool:
    """Return whether a switch that these hosts share may be at fault, and the hosts healthy.

    All must be congested, and either deviate in nothing but traffic, or be all three or more hosts behind the switch.
    """
    hosts = {anomaly.component.name for anomaly in chosen}
    if common_component(graph, hosts) is None or not all(map(_shows_congestion, chosen)):
        return False
    return all(map(_is_of_network, chosen)) or (len(chosen) > 2 and is_whole(graph, hosts))  # a pair


def _is_of_network(anomaly: Anomaly) -> bool:
    """Return whether a host's alarming metrics, silent families aside, are only pause frames and reduced traffic."""
    accusing = [metric for metric in reported_metrics(anomaly) if family_of(metric) not in SILENT_FAMILIES]
    return all(metric["metric"] == "pfc_tx_packets_per_second" or metric["metric"] in _TRAFFIC for metric in accusing)


def _shows_congestion(anomaly: Anomaly) -> bool:
    """Return whether a congestion metric of the host has reached half of its alarm threshold."""
    return any(m["metric"] in CONGESTION_METRICS and m["score"] >= _FAINT_SCORE for m in anomaly.detail["metrics"])


def _neighbours_are_congested(anomaly: Anomaly) -> bool:
    """Return whether the hosts behind the same switch show congestion as well, if less."""
    metrics = [metric for metric in reported_metrics(anomaly) if metric["metric"] in CONGESTION_METRICS]
    return max((metric.get("neighbours_ratio", 0.0) for metric in metrics), default=0.0) >= _NEIGHBOURS_RATIO


def _is_congested_alone(anomaly: Anomaly, rules: MachineRules) -> bool:
    """Return whether a host's congestion is ten times the expected one and lasts longer than a burst."""
    alone = any(
        family_of(metric) == "congestion"
        and metric["score"] >= 1.0
        and metric.get("value", 0.0) >= _CONGESTION_FACTOR * metric.get("expected", 0.0)
        for metric in anomaly.detail["metrics"]
    )
    return alone and anomaly.end_ns - anomaly.start_ns >= 2 * rules.cpu_lasting_ns


def single_out(graph: JobGraph, anomalies: Sequence[Anomaly], rules: MachineRules) -> list[Anomaly]:
    """Return the anomalies of the hosts to suspect: one host, or the few that share a leaf switch; [] = none.

    Of several, a host twice as strong as the next is chosen; of two, the one that began clearly first.
    """
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
    """Return how strongly a host deviates.

    Sum of its metrics' standard deviations (each at most 20), plus its score times its number of families.
    """
    sigmas = (min(_STRONG_SIGMAS, metric.get("sigmas", 0.0)) for metric in anomaly.detail["metrics"])
    return float(sum(sigmas)) + anomaly.score * max(1, len(families(anomaly)))


def only_cpu(chosen: Sequence[Anomaly]) -> bool:
    """Return whether CPU use is all that alarms on every chosen host, ``SILENT_FAMILIES`` aside."""
    return all(families(anomaly) - SILENT_FAMILIES == {"cpu"} for anomaly in chosen)


def may_have_more_work(graph: JobGraph, chosen: Sequence[Anomaly]) -> bool:
    """Return whether these hosts are only busier and each alone in its pipeline stage, which may have more work.

    An auxiliary loss does that to a last stage; no peer has the same role to compare with.
    """
    roles = graph.placement.roles_of_hosts()
    counts = Counter(roles.values())
    if len(counts) < 2 or any(counts[roles.get(anomaly.component.name, ())] != 1 for anomaly in chosen):
        return False
    metrics = [metric for metric in reported_metrics(*chosen) if family_of(metric) not in SILENT_FAMILIES]
    harder = [m["direction"] == "high" and (family_of(m) == "activity" or m["metric"] == _POWER) for m in metrics]
    return bool(metrics) and all(harder)


_WORK_METRICS = ("gpu_tensor_active_ratio", "gpu_fp_active_ratio", "gpu_dram_active_ratio")
"""Metrics of arithmetic and memory work of a GPU."""
_OCCUPIED, _OCCUPIED_POWER_RATIO = "gpu_sm_active_ratio", 1.04
"""Metric of the time in which any kernel runs, and the ratio of power to the expected power that must accompany it."""
_MORE_RATIO, _MORE_POWER_RATIO = 1.07, 1.06
"""Least ratio to the expected value, of a work metric or of power, that shows more work. A hot expert gave 10 to 20 %
more activity and 4 to 10 % more power; one slow GPU of eight up to 6 %."""
_MORE_BYTES, _AS_MUCH_RATIO = "gpu_dram_active_ratio", 1.02
"""Metric of memory traffic, and the least ratio of it or of power. A low clock raises activity, but neither of
these."""
_FAINT_SCORE = 0.5
"""Share of the alarm threshold from which on a metric is considered at all."""
_SHOWS_WITHIN_NS = 90 * NS_PER_SECOND
"""Time in nanoseconds within which more work must show: three half minutes."""
_REPORTS = "reports_broken_part"
"""Key in an anomaly's ``detail`` that marks hosts which report a broken part."""


def annotate_reported(anomalies: Sequence[Anomaly], hosts: Collection[str]) -> list[Anomaly]:
    """Return the anomalies, marked in ``detail`` where the host itself reports a broken part."""
    return [
        replace(anomaly, detail={**anomaly.detail, _REPORTS: True}) if anomaly.component.name in hosts else anomaly
        for anomaly in anomalies
    ]


def has_higher_workload(anomaly: Anomaly) -> bool:
    """Return whether a machine does more work a second than its peers, and no metric of it is low.

    In a synchronous job a slow machine never does more work a second than those that wait for it. One that does has
    more to do: a hot expert, or longer sequences. Activity alone proves nothing, as a low clock raises it too. The work
    must show soon after the start; machines that report a broken part do not count.
    """
    if not may_have_higher_workload(anomaly, anomaly.end_ns):
        return False
    ratios = {m["metric"]: _value_ratio(m) for m in _relevant_metrics(anomaly)}
    power, more_bytes = ratios.get(_POWER, 0.0), ratios.get(_MORE_BYTES, 0.0)
    counted = max(ratios.get(name, 0.0) for name in _WORK_METRICS) >= _MORE_RATIO
    occupied = ratios.get(_OCCUPIED, 0.0) >= _MORE_RATIO and power >= _OCCUPIED_POWER_RATIO
    as_fast = max(power, more_bytes) >= _AS_MUCH_RATIO
    return (counted and as_fast) or occupied or power >= _MORE_POWER_RATIO


def may_have_higher_workload(anomaly: Anomaly, seen_ns: int) -> bool:
    """Return whether higher workload is possible: the host is only busier, soon enough, and reports no broken part."""
    is_soon = seen_ns - begin_ns(anomaly) <= _SHOWS_WITHIN_NS
    return is_soon and not anomaly.detail.get(_REPORTS) and is_only_busier(anomaly)


def is_only_busier(anomaly: Anomaly) -> bool:
    """Return whether all metrics of a machine that deviate noticeably are high, and of GPU activity or power."""
    return all(m["direction"] == "high" and family_of(m) in ("activity", "power") for m in _relevant_metrics(anomaly))


def _relevant_metrics(anomaly: Anomaly) -> list[Mapping[str, Any]]:
    """Return an anomaly's metrics that reach half of the alarm threshold and are not of silent families."""
    metrics = anomaly.detail["metrics"]
    return [m for m in metrics if m["score"] >= _FAINT_SCORE and family_of(m) not in SILENT_FAMILIES]


def _value_ratio(metric: Mapping[str, Any]) -> float:
    """Return a metric's value divided by its expected value; 0.0 if unknown."""
    value, expected = metric.get("value"), metric.get("expected")
    return value / expected if value is not None and expected else 0.0


def other_program(chosen: Sequence[Anomaly]) -> bool:
    """Return whether higher CPU use is all that alarms, as other programs on a host cause every day."""
    used = [metric for metric in reported_metrics(*chosen) if family_of(metric) == "cpu"]
    return only_cpu(chosen) and all(metric["direction"] == "high" for metric in used)


def present_ratio(anomaly: Anomaly) -> float:
    """Return the share of time since its start in which the anomaly's steadiest metric deviated."""
    return max(float(metric["present_ratio"]) for metric in anomaly.detail["metrics"])


def evidence_of(anomaly: Anomaly, metric: dict[str, Any]) -> Evidence:
    """Return one deviating metric of an anomaly as evidence."""
    name = str(metric["metric"])
    value, expected = metric.get("value"), metric.get("expected")
    return Evidence(
        anomaly.detector,
        name,
        float(metric["score"]),
        int(metric["since_ns"]),
        anomaly.end_ns,
        f"{anomaly.component.name}: {name} {_direction_text(metric)}{_gpu_text(metric)}",
        suspect_value=value,
        peer_value=expected,
        model_version=anomaly.model_version,
    )


def _direction_text(metric: Mapping[str, Any]) -> str:
    """Return text for a metric's deviation, with its last value and the expected one; "was" where it is over."""
    value, expected, direction = metric.get("value"), metric.get("expected"), metric["direction"]
    if value is None or expected is None:
        return f"is {direction}"
    numbers = f"{value:.4g} where {expected:.4g} is expected"
    goes_on = value < expected if direction == "low" else value > expected
    return f"is {direction}: {numbers}" if goes_on else f"was {direction} (just now {numbers})"


def _gpu_text(metric: Mapping[str, Any]) -> str:
    """Return text that names the single GPU of a machine that deviates; "" where there is no single one."""
    gpu = metric.get("gpu")
    if gpu is None:
        return ""
    return f", by GPU {gpu['name']} alone ({gpu['value']:.4g} where {gpu['expected']:.4g} is expected)"


def lost_gpu(anomaly: Anomaly) -> bool:
    """Return whether a GPU of the machine has stopped sending samples."""
    return any(metric["metric"] == "gpu_samples_ratio" for metric in anomaly.detail["metrics"])
