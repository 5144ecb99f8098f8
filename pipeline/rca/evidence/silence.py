"""Silence of hosts: evidence only together with what the peers do.

All that passes through one agent is one source. A silent host is at fault only when
its peers stopped with it; when they go on, only monitoring is lost.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass

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
        missed_count: so many reports are missing (a host reports every metric slice, 5 s) ...
        silent_after_ns: ... and this much time beyond.
        stalled_after_ns: the peers made no step for this long (or three of their steps, if longer).
        same_time_ns: the silence began within this of the peers' last progress ...
        after_ns: ... and where steps tell of that, no later than this and two steps after it: who speaks for longer has
            not stopped them, as they wait for it in the step that follows.
        sure_ns: so long a silence is no restart of an agent while everybody writes an unannounced checkpoint.
        confirmed_ns: it is confirmed after this: where a job is taken down host by host within half a minute, the
            others are known to be silent, too, by then.
        long_silence_ns: a host that falls silent while the job stands anyway is accused after this; so is one in a job
            that ...
        known_factor: ... has stood for so long (times this) and gone on: agents restart in its checkpoints, too.
        late_ns: where nobody knows how long a step is, the peers may have gone on for so long without a host
            that has been silent for ``long_silence_ns``, and have stood for so long since.
        worked_on_factor: who was last heard so many windows before the peers stood has not stopped them at once: where
            no steps tell how long one is, they must stand for ``long_silence_ns``, as a checkpoint does not.
        lost_ratio: where more of the hosts than this fall silent later, while the job stands, it is ended host by host;
            one of a hundred agents may always be lost.
        taken_down_ns: ... and no later than this after it came to stand.
        max_suspect_ratio: more hosts silent together are no machine fault, unless they are all that hang on one
            switch or minipod.
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
    """Whether the host's agent said good-bye and nothing after it."""
    facts = graph.hosts[host]
    return facts.agent_stopped_ns >= facts.last_seen_ns


def silent_hosts(graph: JobGraph, now_ns: int, config: SilenceConfig) -> list[str]:
    """Hosts that have said nothing for too long; not those whose agent said good-bye, nor those in a later attempt.

    Time in which nobody listened does not count: the engine's own absence shows nothing of a host.
    """
    return sorted(
        host
        for host, facts in graph.hosts.items()
        if facts.report_interval_ns
        and now_ns - max(facts.last_seen_ns, facts.unheard_until_ns)
        >= config.missed_count * facts.report_interval_ns + config.silent_after_ns
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
    """What the silence of hosts means.

    Args:
        graph: what is known of the job.
        now_ns: the slice's end.
        pace: the job's pace.
        config: settings.
        silent: the hosts concerned, as ``silent_hosts`` finds them.
        emptied: hosts whose GPU memory is free while the others hold theirs.

    Returns:
        Findings, and for each silent host that is not accused the reason why not.
    """
    if not silent or graph.ended():
        return [], {}
    mute = set(silent)  # thousands, where a network is down
    speaking = {
        host
        for host, facts in graph.hosts.items()
        if host not in mute
        and host not in graph.moved_ns
        and facts.report_interval_ns
        and not monitoring_ended(graph, host)
    }
    if not speaking:
        if any(monitoring_ended(graph, host) for host in graph.hosts):
            # Agents that said good-bye: the monitoring was taken down, the last ones without a word.
            return [], dict.fromkeys(silent, Reason.MONITORING_LOST)
        return [_job_silent(graph, silent)], {}
    progress = _progress_of(graph, speaking, pace, config)
    if isinstance(progress, Reason):
        return [], dict.fromkeys(silent, progress)
    progress_ns, before_ns, after_ns = progress
    excuse = _excuse(graph, now_ns, pace, progress_ns, config)
    if excuse is not None:
        return [], dict.fromkeys(silent, excuse)
    late_ns = 0 if pace.median_step_ns else config.late_ns
    seen_ns = {host: graph.hosts[host].last_seen_ns for host in sorted(mute - graph.spare_hosts())}
    ended = _ended_before(graph, pace, seen_ns, progress_ns - before_ns)
    seen_ns = {host: last_ns for host, last_ns in seen_ns.items() if host not in ended}
    guilty = [host for host, last_ns in seen_ns.items() if -before_ns <= last_ns - progress_ns <= after_ns]
    if not guilty:
        # The job stood already (a checkpoint): it would have gone on by now.
        longest_ns = now_ns - config.long_silence_ns
        late_ns = late_ns if progress_ns <= longest_ns else 0  # its peers worked on: they stand for another reason yet
        guilty = [host for host, last_ns in seen_ns.items() if longest_ns >= last_ns > progress_ns - late_ns]
    reasons = dict.fromkeys(sorted(mute.difference(guilty)), Reason.MONITORING_LOST)
    reasons |= dict.fromkeys(ended, Reason.ENDED_WITH_OTHERS)
    needed_ns = config.sure_ns if set(emptied) & speaking else 0  # one that speaks has lost its processes
    if now_ns - progress_ns < config.known_factor * pace.longest_stall_ns:
        needed_ns = config.long_silence_ns
    short = {host for host in guilty if now_ns - seen_ns[host] < needed_ns}
    short |= {host for host in guilty if _peers_may_pause(graph.hosts[host], progress_ns, now_ns, pace, config)}
    reasons |= dict.fromkeys(short, Reason.WITHIN_PATIENCE)
    guilty = [host for host in guilty if host not in short]
    if not guilty or len(speaking) + len(guilty) < 2:  # a lone host has no peers to confirm it
        return [], reasons
    spared = _spares(graph, mute, guilty, progress_ns, config)
    if spared is not None:
        return [], reasons | dict.fromkeys(guilty, spared)
    return [_unreachable(graph, guilty, progress_ns, now_ns, config.confirmed_ns)], reasons


def _spares(
    graph: JobGraph, mute: Collection[str], guilty: Sequence[str], progress_ns: int, config: SilenceConfig
) -> Reason | None:
    """Why nobody is accused though some fell silent as the others stopped; None: they are.

    They are too many; or others fall silent, too, while the job stands, and no process told how it died: all is ended.
    """
    if len(guilty) > few_hosts(graph, config.max_suspect_ratio) and not is_whole(graph, guilty):
        return Reason.AMBIGUOUS
    begin_ns, end_ns = progress_ns, progress_ns + config.taken_down_ns
    later = [host for host in mute if host not in guilty and begin_ns < graph.hosts[host].last_seen_ns <= end_ns]
    told = any(not left_in_order(graph.ranks[rank]) for rank in graph.leaving)
    is_ended = len(later) > config.lost_ratio * len(graph.hosts) and not told
    return Reason.MONITORING_LOST if is_ended else None


def _peers_may_pause(facts: HostFacts, progress_ns: int, now_ns: int, pace: JobProgress, config: SilenceConfig) -> bool:
    """Whether the peers worked on for a window without the host, and stand no longer than a checkpoint takes."""
    worked_on = progress_ns - facts.last_seen_ns > config.worked_on_factor * facts.report_interval_ns
    return worked_on and not pace.median_step_ns and now_ns - progress_ns < config.long_silence_ns


def _ended_before(graph: JobGraph, pace: JobProgress, seen_ns: Mapping[str, int], since_ns: int) -> set[str]:
    """Hosts that lived when their processes were ended with all others', and fell silent later: they are replaced.

    Args:
        graph: what is known of the job.
        pace: the job's pace.
        seen_ns: silent hosts and when they were last heard.
        since_ns: what ended before that did not end the job: it went on.
    """
    found: set[str] = set()
    for ended in (ended_by_order(graph), pace.ended_at_once):
        found |= {host for host, last_ns in seen_ns.items() if since_ns <= ended.get(host, 0) <= last_ns}
    return found


def _excuse(graph: JobGraph, now_ns: int, pace: JobProgress, progress_ns: int, config: SilenceConfig) -> Reason | None:
    """Why the silence of a host says nothing of its job; None: the others stand."""
    stalled_ns = max(config.stalled_after_ns, 3 * pace.median_step_ns)
    if graph.max_step >= 0 and not pace.median_step_ns:  # nobody knows yet how long a step takes
        stalled_ns = config.sure_ns
    if now_ns - progress_ns < stalled_ns:
        return Reason.MONITORING_LOST
    if graph.in_announced_phase(now_ns - stalled_ns, now_ns):  # one that is over explains a standstill no longer
        return Reason.ANNOUNCED_PHASE
    return Reason.NON_TRAINING_PHASE if pace.work_goes_on else None


def _progress_of(
    graph: JobGraph, speaking: set[str], pace: JobProgress, config: SilenceConfig
) -> tuple[int, int, int] | Reason:
    """When the speaking hosts last made progress, and how long before and after that who stopped them fell silent.

    The reason where nobody knows.
    """
    hosts = {rank: graph.host_of(rank) for rank in graph.ranks}
    told = (rank for rank, host in hosts.items() if host in speaking or is_lone(host))  # they stop together
    steps_ns = max((graph.ranks[rank].last_step_ns for rank in told), default=0)
    if steps_ns:
        before_ns = config.same_time_ns + pace.median_step_ns
        return steps_ns, before_ns, min(before_ns, config.after_ns + 2 * pace.median_step_ns)
    if not pace.work_is_known:
        return Reason.NO_HOOK
    # No steps: their metrics tell whether they still work.
    standing_ns = pace.stalled_since_ns
    if not standing_ns:
        return Reason.MONITORING_LOST
    report_interval_ns = max(facts.report_interval_ns for facts in graph.hosts.values())
    margin_ns = config.same_time_ns + config.missed_count * report_interval_ns
    return standing_ns, margin_ns, margin_ns


def _unreachable(graph: JobGraph, guilty: list[str], progress_ns: int, now_ns: int, confirmed_ns: int) -> Finding:
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
            _standing_words(graph, now_ns - progress_ns),
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


def _standing_words(graph: JobGraph, for_ns: int) -> str:
    seconds = f"{for_ns / 1e9:.0f} s"
    if graph.max_step >= 0:
        return f"its peers finished their last step {seconds} ago and stand still since"
    return f"its peers have stood still for {seconds}, their metrics say (no steps are recorded)"


def _job_silent(graph: JobGraph, silent: Sequence[str]) -> Finding:
    first = min(graph.hosts[host].last_seen_ns for host in silent)
    last = max(graph.hosts[host].last_seen_ns for host in silent)
    who = f"all {len(silent)} hosts of the job" if len(silent) > 1 else f"{silent[0]}, the job's only host,"
    evidence = Evidence("silence", "host_silence", 1.0, first, last, f"{who} fell silent")
    return Finding(FaultKind.HANG, "unknown", (), last, 0.5, Reason.JOB_SILENT, (evidence,))
