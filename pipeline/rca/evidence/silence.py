"""Silent hosts: a silence is evidence only together with what the peers do.

All records of a host pass through one agent. So a silent host is at fault only when its peers stopped with it. When
they go on, only its monitoring is lost.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from tocsin.pipeline.job.facts import HostFacts, left_in_order
from tocsin.pipeline.job.graph import JobGraph
from tocsin.pipeline.rca.common import (
    common_component,
    few_hosts,
    is_whole,
    suspects_of,
)
from tocsin.pipeline.rca.evidence.stop import ended_by_order
from tocsin.pipeline.rca.finding import Finding
from tocsin.pipeline.rca.job_progress import JobProgress
from tocsin.schemas.job_key import is_lone
from tocsin.schemas.reasons import Reason
from tocsin.schemas.records import NS_PER_SECOND
from tocsin.schemas.verdicts import Component, ComponentKind, Evidence, FaultKind, Suspect


@dataclass(frozen=True, slots=True)
class SilenceConfig:
    """Settings.

    Attributes:
        missed_count: reports that must be missing before a host counts as silent; it reports every metric slice (5 s).
        silent_after_ns: further time before a host counts as silent.
        stalled_after_ns: the peers stand when they made no step for this long, or for three steps if that is longer.
        same_time_ns: most time between the begin of the silence and the peers' last progress.
        after_ns: where steps are known, the silence begins at most this and two steps after the peers' last step. A
            host that reports for longer did not stop them: they wait for it in the step that follows.
        sure_ns: a shorter silence may be an agent's restart during an unannounced checkpoint.
        confirmed_ns: silence after which a finding can be confirmed. Where a job is taken down host by host within half
            a minute, the other hosts are known to be silent by then.
        long_silence_ns: silence after which a host is accused that fell silent while the job stood anyway. The same
            holds where the job may only pause (``known_factor``).
        known_factor: a standstill shorter than this times the longest one that the job recovered from may be a pause.
            Agents restart during checkpoints, too.
        late_ns: where no step time is known, the time for which peers may have gone on without a host that has been
            silent for ``long_silence_ns``. They must have stood for ``long_silence_ns``, too.
        worked_on_factor: a host that was last heard more than this many reports before the peers stood did not stop
            them at once. Where no step time is known, they must then stand for ``long_silence_ns``, longer than a
            checkpoint takes.
        lost_ratio: where more than this share of the hosts falls silent later while the job stands, the job is being
            taken down host by host. One of a hundred agents may always be lost.
        taken_down_ns: such later silences begin at most this long after the job came to stand.
        max_suspect_ratio: more than this share of the hosts, silent together, is no machine fault, unless they are all
            hosts of one switch or minipod.
    """

    missed_count: int = 2
    silent_after_ns: int = NS_PER_SECOND
    stalled_after_ns: int = 8 * NS_PER_SECOND
    same_time_ns: int = 7 * NS_PER_SECOND
    after_ns: int = 2 * NS_PER_SECOND
    sure_ns: int = 30 * NS_PER_SECOND
    confirmed_ns: int = 45 * NS_PER_SECOND
    long_silence_ns: int = 45 * NS_PER_SECOND
    known_factor: float = 1.25
    late_ns: int = 60 * NS_PER_SECOND
    worked_on_factor: float = 1.5
    lost_ratio: float = 0.03
    taken_down_ns: int = 120 * NS_PER_SECOND
    max_suspect_ratio: float = 0.25


def monitoring_ended(graph: JobGraph, host: str) -> bool:
    """Return whether a host's agent announced its end and sent nothing afterwards."""
    facts = graph.hosts[host]
    return facts.agent_stopped_ns >= facts.last_seen_ns


def silent_hosts(graph: JobGraph, now_ns: int, config: SilenceConfig) -> list[str]:
    """Return the names of hosts that have sent nothing for too long, sorted.

    Hosts whose agent announced its end, and hosts that moved to a later attempt, are left out. Time in which the engine
    itself was away does not count.

    Args:
        graph: the job.
        now_ns: the slice's end.
        config: settings.
    """
    missed_count, last_ns = config.missed_count, now_ns - config.silent_after_ns
    return sorted(
        host
        for host, facts in graph.hosts.items()  # ten thousand, of which nearly all were heard
        if facts.last_seen_ns <= last_ns - missed_count * facts.report_interval_ns
        and facts.unheard_until_ns <= last_ns - missed_count * facts.report_interval_ns
        and facts.report_interval_ns
        and host not in graph.moved_ns
        and not monitoring_ended(graph, host)
    )


def find_silence(
    graph: JobGraph,
    now_ns: int,
    pace: JobProgress,
    config: SilenceConfig,
    silent: Sequence[str],
    emptied: Collection[str] = (),
) -> tuple[list[Finding], dict[str, Reason]]:
    """Return findings about silent hosts that their peers stopped with.

    Args:
        graph: the job.
        now_ns: the slice's end.
        pace: the job's progress.
        config: settings.
        silent: the silent hosts, as ``silent_hosts`` returns them.
        emptied: hosts whose GPU memory is free while the others hold theirs.

    Returns:
        Findings; and for each silent host that is not accused the reason why not.
    """
    if not silent or graph.ended():
        return [], {}
    mute = set(silent)  # thousands, where a network is down
    speaking = _speaking_hosts(graph, mute)
    if not speaking:
        if any(monitoring_ended(graph, host) for host in graph.hosts):
            # Some agents announced their end: the monitoring was taken down, the last agents without a word.
            return [], dict.fromkeys(silent, Reason.MONITORING_LOST)
        return [_job_silent(graph, silent)], {}
    stop = _last_progress(graph, speaking, pace, config)
    if isinstance(stop, Reason):
        return [], dict.fromkeys(silent, stop)
    excuse = _excuse(graph, now_ns, pace, stop.progress_ns, config)
    if excuse is not None:
        return [], dict.fromkeys(silent, excuse)
    seen_ns = {host: graph.hosts[host].last_seen_ns for host in sorted(mute - graph.spare_hosts())}
    ended = _ended_before(graph, pace, seen_ns, stop.progress_ns - stop.before_ns)
    seen_ns = {host: last_ns for host, last_ns in seen_ns.items() if host not in ended}
    guilty = _silent_since_stop(seen_ns, now_ns, pace, stop, config)
    reasons = dict.fromkeys(sorted(mute.difference(guilty)), Reason.MONITORING_LOST)
    reasons |= dict.fromkeys(ended, Reason.ENDED_WITH_OTHERS)
    needed_ns = _needed_ns(now_ns - stop.progress_ns, pace, config, has_lost_processes=bool(set(emptied) & speaking))
    short = {host for host in guilty if now_ns - seen_ns[host] < needed_ns}
    short |= {host for host in guilty if _peers_may_pause(graph.hosts[host], stop.progress_ns, now_ns, pace, config)}
    reasons |= dict.fromkeys(short, Reason.WITHIN_PATIENCE)
    guilty = [host for host in guilty if host not in short]
    if not guilty or len(speaking) + len(guilty) < 2:  # a lone host has no peers to confirm it
        return [], reasons
    spared = _spares(graph, mute, guilty, stop.progress_ns, config)
    if spared is not None:
        return [], reasons | dict.fromkeys(guilty, spared)
    return [_unreachable(graph, guilty, stop.progress_ns, now_ns, config.confirmed_ns)], reasons


def _speaking_hosts(graph: JobGraph, mute: Collection[str]) -> set[str]:
    """Return the hosts that report by themselves, except silent ones and those that left this attempt."""
    return {
        host
        for host, facts in graph.hosts.items()
        if host not in mute
        and host not in graph.moved_ns
        and facts.report_interval_ns
        and not monitoring_ended(graph, host)
    }


def _needed_ns(stood_ns: int, pace: JobProgress, config: SilenceConfig, *, has_lost_processes: bool) -> int:
    """Return how long a host must be silent before it is accused, ns.

    Args:
        stood_ns: how long the others have stood.
        pace: the job's progress.
        config: settings.
        has_lost_processes: whether a host that still reports has lost its processes.
    """
    if stood_ns < config.known_factor * pace.longest_stall_ns:
        return config.long_silence_ns
    return config.sure_ns if has_lost_processes else 0


def _silent_since_stop(
    seen_ns: Mapping[str, int], now_ns: int, pace: JobProgress, stop: _LastProgress, config: SilenceConfig
) -> list[str]:
    """Return the hosts that fell silent as their peers stopped; without any, those that fell silent in the standstill.

    Args:
        seen_ns: silent hosts, and when each was last heard.
        now_ns: the slice's end.
        pace: the job's progress.
        stop: the peers' last progress.
        config: settings.
    """
    near = [host for host, at_ns in seen_ns.items() if -stop.before_ns <= at_ns - stop.progress_ns <= stop.after_ns]
    if near:
        return near
    # The job stood already (a checkpoint): it would have gone on by now.
    longest_ns = now_ns - config.long_silence_ns
    late_ns = 0 if pace.median_step_ns else config.late_ns
    # Peers that worked on until lately stand for another reason.
    late_ns = late_ns if stop.progress_ns <= longest_ns else 0
    return [host for host, at_ns in seen_ns.items() if longest_ns >= at_ns > stop.progress_ns - late_ns]


def _spares(
    graph: JobGraph, mute: Collection[str], guilty: Sequence[str], progress_ns: int, config: SilenceConfig
) -> Reason | None:
    """Return the reason why hosts are not accused that fell silent as the others stopped; None: they are accused.

    Either they are too many. Or more hosts fall silent while the job stands, and no process reported a failure: the job
    is being taken down.

    Args:
        graph: the job.
        mute: all silent hosts.
        guilty: those that fell silent as the others stopped.
        progress_ns: when the others last made progress.
        config: settings.
    """
    if len(guilty) > few_hosts(graph, config.max_suspect_ratio) and not is_whole(graph, guilty):
        return Reason.AMBIGUOUS
    begin_ns, end_ns = progress_ns, progress_ns + config.taken_down_ns
    later = [host for host in mute if host not in guilty and begin_ns < graph.hosts[host].last_seen_ns <= end_ns]
    has_failure = any(not left_in_order(graph.ranks[rank]) for rank in graph.leaving)
    is_ended = len(later) > config.lost_ratio * len(graph.hosts) and not has_failure
    return Reason.MONITORING_LOST if is_ended else None


def _peers_may_pause(facts: HostFacts, progress_ns: int, now_ns: int, pace: JobProgress, config: SilenceConfig) -> bool:
    """Return whether the peers worked on without a host, and stand no longer than a checkpoint takes."""
    worked_on = progress_ns - facts.last_seen_ns > config.worked_on_factor * facts.report_interval_ns
    return worked_on and not pace.median_step_ns and now_ns - progress_ns < config.long_silence_ns


def _ended_before(graph: JobGraph, pace: JobProgress, seen_ns: Mapping[str, int], since_ns: int) -> set[str]:
    """Return the hosts that still reported when their processes ended with all others', and fell silent later.

    Such hosts are replaced after the end of the job.

    Args:
        graph: the job.
        pace: the job's progress.
        seen_ns: silent hosts, and when each was last heard.
        since_ns: an earlier end of processes did not end the job.
    """
    found: set[str] = set()
    for ended in (ended_by_order(graph), pace.ended_at_once):
        found |= {host for host, last_ns in seen_ns.items() if since_ns <= ended.get(host, 0) <= last_ns}
    return found


def _excuse(graph: JobGraph, now_ns: int, pace: JobProgress, progress_ns: int, config: SilenceConfig) -> Reason | None:
    """Return the reason why silent hosts cannot have stopped the job; None: the others stand."""
    stalled_ns = max(config.stalled_after_ns, 3 * pace.median_step_ns)
    if graph.max_step >= 0 and not pace.median_step_ns:  # nobody knows yet how long a step takes
        stalled_ns = config.sure_ns
    if now_ns - progress_ns < stalled_ns:
        return Reason.MONITORING_LOST
    if graph.in_announced_phase(now_ns - stalled_ns, now_ns):  # one that is over explains a standstill no longer
        return Reason.ANNOUNCED_PHASE
    return Reason.NON_TRAINING_PHASE if pace.work_goes_on else None


class _LastProgress(NamedTuple):
    """The last progress of the hosts that still report.

    Attributes:
        progress_ns: when they last made progress.
        before_ns: a host that stopped them fell silent at most this long before it.
        after_ns: and at most this long after it.
    """

    progress_ns: int
    before_ns: int
    after_ns: int


def _last_progress(
    graph: JobGraph, speaking: set[str], pace: JobProgress, config: SilenceConfig
) -> _LastProgress | Reason:
    """Return when the speaking hosts last made progress; a reason where that is not known."""
    hosts = {rank: graph.host_of(rank) for rank in graph.ranks}
    speaking_ranks = (rank for rank, host in hosts.items() if host in speaking or is_lone(host))  # they stop together
    steps_ns = max((graph.ranks[rank].last_step_ns for rank in speaking_ranks), default=0)
    if steps_ns:
        before_ns = config.same_time_ns + pace.median_step_ns
        return _LastProgress(steps_ns, before_ns, min(before_ns, config.after_ns + 2 * pace.median_step_ns))
    if not pace.work_is_known:
        return Reason.NO_HOOK
    # No steps: their metrics tell whether they still work.
    stalled_ns = pace.stalled_since_ns
    if not stalled_ns:
        return Reason.MONITORING_LOST
    report_interval_ns = max(facts.report_interval_ns for facts in graph.hosts.values())
    margin_ns = config.same_time_ns + config.missed_count * report_interval_ns
    return _LastProgress(stalled_ns, margin_ns, margin_ns)


def _unreachable(graph: JobGraph, guilty: list[str], progress_ns: int, now_ns: int, confirmed_ns: int) -> Finding:
    """Return a finding that accuses silent hosts of the standstill."""
    onset_ns = min(graph.hosts[host].last_seen_ns for host in guilty)
    suspects: list[Suspect] = []
    for host in guilty:
        found = suspects_of(graph, graph.ranks_of_host(host))
        suspects.extend(found or (Suspect(Component(ComponentKind.HOST, host)),))
    evidence = [
        Evidence(
            "silence",
            "host_silence",
            (now_ns - graph.hosts[host].last_seen_ns) / (2 * graph.hosts[host].report_interval_ns + NS_PER_SECOND),
            graph.hosts[host].last_seen_ns,
            now_ns,
            f"{host} has said nothing for {(now_ns - graph.hosts[host].last_seen_ns) / 1e9:.0f} s",
        )
        for host in guilty
    ]
    evidence.append(
        Evidence(
            "silence",
            "peer_progress",
            1.0,
            progress_ns,
            now_ns,
            _stalled_words(graph, now_ns - progress_ns),
        )
    )
    return Finding(
        FaultKind.FAIL_STOP,
        "machine_unreachable",
        tuple(suspects),
        onset_ns,
        0.9,
        Reason.SILENT_AND_PEERS_STALLED,
        tuple(evidence),
        tentative=now_ns - onset_ns < confirmed_ns,
        common=common_component(graph, guilty),
    )


def _stalled_words(graph: JobGraph, for_ns: int) -> str:
    """Return the evidence text about peers that have stood for a time."""
    seconds = f"{for_ns / 1e9:.0f} s"
    if graph.max_step >= 0:
        return f"its peers finished their last step {seconds} ago and stand still since"
    return f"its peers have stood still for {seconds}, their metrics say (no steps are recorded)"


def _job_silent(graph: JobGraph, silent: Sequence[str]) -> Finding:
    """Return a finding without suspects about a job all of whose hosts fell silent."""
    first = min(graph.hosts[host].last_seen_ns for host in silent)
    last = max(graph.hosts[host].last_seen_ns for host in silent)
    who = f"all {len(silent)} hosts of the job" if len(silent) > 1 else f"{silent[0]}, the job's only host,"
    evidence = Evidence("silence", "host_silence", 1.0, first, last, f"{who} fell silent")
    return Finding(FaultKind.HANG, "unknown", (), last, 0.5, Reason.JOB_SILENT, (evidence,))
