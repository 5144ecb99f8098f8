"""The process that ended first for a reason of its own, among those that only followed it.

When one process ends, the others lose their connections and exit, too: they are victims. So is a process that was
ended by SIGTERM, SIGINT or SIGHUP, or whose last words name a lost peer or a timeout. Every other exit is a candidate
for the root cause.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass

from tocsin.pipeline.job.facts import ExitFact, left_in_order
from tocsin.pipeline.job.graph import JobGraph
from tocsin.pipeline.rca.common import names_of, suspects_of
from tocsin.pipeline.rca.evidence.exit_words import (
    exit_evidence,
    is_ended_by_watchdog,
    is_victim,
    last_words,
    says_why,
    tells_of_timeout,
    was_asked_to_end,
    why_victims,
)
from tocsin.pipeline.rca.finding import Finding
from tocsin.schemas import events
from tocsin.schemas.formats.last_words import cause_of_words
from tocsin.schemas.reasons import Reason
from tocsin.schemas.records import NS_PER_SECOND
from tocsin.schemas.verdicts import Anomaly, Evidence, FaultKind, Suspect, WitnessKind


@dataclass(frozen=True, slots=True)
class StopConfig:
    """Settings.

    Attributes:
        settle_ns: an exit is judged at this age. Exits of the same cause (a scheduler that kills all processes) are
            known by then.
        lonely_ns: age at which exits are judged where all of them name a lost peer.
        ended_within_ns: when more than half of the job's ranks end on their own within this time, somebody ended it.
        gave_up_ns: an exit by a signal and without words belongs to the collective timeouts that follow within this
            time. So it does after timeouts of the last ``ended_within_ns``.
        watchdog_ns: such an exit this long after the job came to stand is a watchdog's.
        stood_ns: a job whose machines did no work for this long before the first exit did not stop because of it.
        same_time_ns: exits within this time of each other, plus clock error, happened together.
    """

    settle_ns: int = NS_PER_SECOND
    lonely_ns: int = 15 * NS_PER_SECOND
    ended_within_ns: int = 10 * NS_PER_SECOND
    gave_up_ns: int = 2 * NS_PER_SECOND
    watchdog_ns: int = 20 * NS_PER_SECOND
    stood_ns: int = 12 * NS_PER_SECOND
    same_time_ns: int = NS_PER_SECOND // 2


def _not_with_timeouts(graph: JobGraph, dead: dict[int, ExitFact], roots: list[int], config: StopConfig) -> list[int]:
    """Return the candidates without those that a watchdog ended while others reported a collective's timeout.

    What the others waited for, for minutes, had stopped long before.

    Args:
        graph: the job.
        dead: rank -> its exit.
        roots: candidates for the first exit.
        config: settings.
    """
    gave_up = [graph.corrected_ns(rank, fact.ts_ns) for rank, fact in dead.items() if tells_of_timeout(fact)]
    found = []
    for rank in roots:
        died_ns = graph.corrected_ns(rank, dead[rank].ts_ns)
        near = any(died_ns - config.ended_within_ns <= at_ns <= died_ns + config.gave_up_ns for at_ns in gave_up)
        if not (near and is_ended_by_watchdog(dead[rank])):
            found.append(rank)
    return found


def ended_by_order(graph: JobGraph) -> dict[str, int]:
    """Return host -> time of the first exit of one of its processes by a request to end, ns.

    A host that reports such an exit was alive then. The result is empty unless more than half of the hosts report one.
    """
    asked: dict[str, int] = {}
    for rank in graph.leaving:
        facts = graph.ranks[rank]
        if facts.exit is not None and facts.exit.reported and was_asked_to_end(facts.exit):
            asked[facts.host] = min(asked.get(facts.host, facts.exit.ts_ns), facts.exit.ts_ns)
    if not asked:
        return {}
    return asked if 2 * len(asked) > len({facts.host for facts in graph.ranks.values()}) else {}


def find_stop(
    graph: JobGraph,
    now_ns: int,
    config: StopConfig,
    stood_since_ns: int = 0,
    belied: Collection[int] = (),
    reported_ns: Callable[[int], int] = lambda _rank: 0,
) -> tuple[Finding | None, Reason | None]:
    """Return a finding about the first exit that is no other's consequence, or the reason why there is none.

    Args:
        graph: the job.
        now_ns: the slice's end.
        config: settings.
        stood_since_ns: since when the job made no progress while its processes lived; 0: not known.
        belied: ranks without which the job went on; their exits count only where no other rank ended.
        reported_ns: returns when a rank last reported the operations it waits in; 0: never.

    Returns:
        The finding and None; or None and the reason, which is also None where no process ended.
    """
    if not graph.leaving:  # nobody ended: nearly always so, and asked every second
        return None, None
    dead = _dead(graph)
    if not dead:
        return None, None
    dead = {rank: fact for rank, fact in dead.items() if rank not in belied} or dead
    first_ns = _first_ns(graph, dead)
    if now_ns - first_ns < config.settle_ns:
        return None, Reason.WITHIN_PATIENCE
    if sum(left_in_order(graph.ranks[rank]) for rank in graph.leaving) > len(dead):
        return None, Reason.ENDED_WITH_OTHERS  # the work is done: one stumbles as it cleans up
    stood = 0 < stood_since_ns < first_ns - config.watchdog_ns
    own = [r for r, fact in dead.items() if not is_victim(fact) and not (stood and is_ended_by_watchdog(fact))]
    candidates = _not_with_timeouts(graph, dead, own, config)
    roots = _before_the_order(graph, dead, candidates, config)
    if not roots:
        lonely, went_on = now_ns - first_ns > config.lonely_ns, not 0 < stood_since_ns < first_ns
        return _no_root(graph, dead, reported_ns, lonely=lonely, went_on=went_on)
    at_ns = {rank: graph.corrected_ns(rank, dead[rank].ts_ns) for rank in roots}
    earliest = min(at_ns.values())
    if _one_after_another(graph, at_ns, config):
        return _together(graph, dead, sorted(roots), earliest), None
    margin = config.same_time_ns + graph.clock_error_ns(roots)
    together = sorted(rank for rank in roots if at_ns[rank] - earliest <= margin)
    if len({graph.host_of(rank) for rank in together}) == 1:
        return _finding(graph, dead, together, earliest), None
    reported = [rank for rank in together if dead[rank].reported]
    if len(reported) != len(together) and len({graph.host_of(rank) for rank in reported}) == 1:
        # Those that were only seen to be gone may have gone because of the one that said why.
        return _finding(graph, dead, reported, earliest), None
    return _together(graph, dead, together, earliest), None


def find_gone_first(graph: JobGraph, anomaly: Anomaly, config: StopConfig, stood_since_ns: int = 0) -> Finding | None:
    """Return a finding about the machine whose GPU memory was free before any other process ended.

    Call it where all reported exits are victims'.

    Args:
        graph: the job.
        anomaly: an anomaly of the detector ``exits`` that names the first machine with free GPU memory.
        config: settings.
        stood_since_ns: since when the job made no progress while its processes lived; 0: not known.

    Returns:
        The finding. None where no other process ended, this machine reported an exit itself, another process ended
        earlier, one reported a collective's timeout, or the job had stood for long: a job that hung is ended.
    """
    name = anomaly.component.name
    others = _dead(graph)
    if not others or any(graph.host_of(rank) == name for rank in others):
        return None
    stood = 0 < stood_since_ns < anomaly.start_ns - config.watchdog_ns
    if stood or _first_ns(graph, others) < anomaly.start_ns or any(map(tells_of_timeout, others.values())):
        return None
    text = f"{name}: its GPU memory was free before anybody died, and the others held theirs"
    freed = Evidence(anomaly.detector, anomaly.metric, 2.0, anomaly.start_ns, anomaly.end_ns, text)
    first = sorted(others, key=lambda rank: (graph.corrected_ns(rank, others[rank].ts_ns), rank))
    return Finding(
        FaultKind.FAIL_STOP,
        "process_exit",
        (Suspect(anomaly.component),),
        anomaly.start_ns,
        0.85,
        Reason.PROCESSES_GONE_FIRST,
        (freed, *(exit_evidence(graph, rank, others[rank]) for rank in first[:3])),
        seen_ns=anomaly.end_ns,
    )


def dies_in_vain(graph: JobGraph, belied: Collection[int]) -> bool:
    """Return whether processes ended, and the job went on without each of these ranks (``belied``)."""
    return bool(belied) and not _dead(graph).keys() - set(belied)


def first_death_ns(graph: JobGraph) -> int:
    """Return when the first process ended, ns by the engine's clock; 0: none did."""
    dead = _dead(graph) if graph.leaving else {}
    return _first_ns(graph, dead) if dead else 0


def stalled_before_deaths_ns(graph: JobGraph, stalled_since_ns: int, config: StopConfig) -> int:
    """Return when the first process ended of a job that had stood for ``stood_ns``; 0: it had not, or none ended."""
    dead = _dead(graph)
    first_ns = _first_ns(graph, dead) if dead else 0
    return first_ns if 0 < stalled_since_ns <= first_ns - config.stood_ns else 0


def gave_up_waiting_ns(graph: JobGraph) -> int | None:
    """Return when the first process ended with a collective's timeout, ns: the job hung, and made no pause.

    Returns:
        0 where all processes live. None where processes ended without naming a timeout, or one was asked to end: its
        words prove nothing.
    """
    if not graph.leaving:  # nobody ended: nearly always so, and asked every second
        return 0
    dead = _dead(graph)
    if any(was_asked_to_end(fact) for fact in dead.values()):
        return None
    waited = [graph.corrected_ns(rank, fact.ts_ns) for rank, fact in dead.items() if tells_of_timeout(fact)]
    return min(waited, default=None if dead else 0)


def who_lost_peers(graph: JobGraph, accused: Collection[str], since_ns: int) -> dict[str, WitnessKind]:
    """Return the other hosts whose processes ended by a lost peer or a collective's timeout, each with what it saw.

    Args:
        graph: the job.
        accused: hosts that a finding names.
        since_ns: earlier exits do not count.

    Returns:
        Host -> what its exits are a witness of. Empty where a process elsewhere ended for a reason of its own before
        those of the accused: the others lost that one.
    """
    own: dict[bool, list[int]] = {True: [], False: []}
    for rank, death in _dead(graph).items():
        if not is_victim(death):
            own[graph.host_of(rank) in accused].append(graph.corrected_ns(rank, death.ts_ns))
    if own[False] and (not own[True] or min(own[False]) < min(own[True])):
        return {}
    found: dict[str, WitnessKind] = {}
    for rank in sorted(graph.leaving):
        fact, host = graph.ranks[rank].exit, graph.host_of(rank)
        if fact is None or not fact.reported or host in accused or graph.corrected_ns(rank, fact.ts_ns) < since_ns:
            continue
        if is_victim(fact) and not was_asked_to_end(fact):
            lost = not tells_of_timeout(fact)
            found[host] = WitnessKind.CONNECTION_LOST if lost else found.get(host, WitnessKind.PEERS_WAIT)
    return found


def _dead(graph: JobGraph) -> dict[int, ExitFact]:
    """Return rank -> exit of all processes that ended by a signal or with another code than 0."""
    return {
        rank: facts.exit
        for rank, facts in graph.ranks.items()
        if facts.exit is not None and (facts.exit.code != 0 or facts.exit.signal != 0)
    }


def _first_ns(graph: JobGraph, dead: dict[int, ExitFact]) -> int:
    """Return the time of the first of these exits, ns by the engine's clock."""
    return min(graph.corrected_ns(rank, fact.ts_ns) for rank, fact in dead.items())


def _one_after_another(graph: JobGraph, at_ns: dict[int, int], config: StopConfig) -> bool:
    """Return whether most ranks of the job ended on their own within seconds: somebody ended it, rank by rank."""
    first = min(at_ns.values())
    near = [rank for rank, ts_ns in at_ns.items() if ts_ns - first <= config.ended_within_ns]
    return len({graph.host_of(rank) for rank in near}) > 1 and 2 * len(near) > graph.world_size


def _before_the_order(graph: JobGraph, dead: dict[int, ExitFact], roots: list[int], config: StopConfig) -> list[int]:
    """Return the candidates that ended before the first request to end (SIGTERM, then SIGKILL)."""
    asked = {rank: graph.corrected_ns(rank, fact.ts_ns) for rank, fact in dead.items() if was_asked_to_end(fact)}
    if not asked:
        return roots
    first = min(asked, key=lambda rank: asked[rank])
    return [
        rank
        for rank in roots
        if graph.corrected_ns(rank, dead[rank].ts_ns)
        <= asked[first] + config.same_time_ns + graph.clock_error_ns([rank, first])
    ]


def _no_root(
    graph: JobGraph, dead: dict[int, ExitFact], reported_ns: Callable[[int], int], *, lonely: bool, went_on: bool
) -> tuple[Finding | None, Reason | None]:
    """Return what follows where all exits are victims': ranks that were left behind, nobody, or a reason to wait.

    Args:
        graph: the job.
        dead: rank -> its exit.
        reported_ns: as in ``find_stop``.
        lonely: whether the first exit is older than ``lonely_ns``.
        went_on: whether the job made progress until the first exit.
    """
    asked = sorted(rank for rank, fact in dead.items() if was_asked_to_end(fact))
    if asked and went_on and _was_lost(graph, dead, asked):
        return _finding(graph, dead, asked, min(graph.corrected_ns(rank, dead[rank].ts_ns) for rank in asked)), None
    if asked or not lonely:
        return None, Reason.VICTIM
    alive = [rank for rank, facts in graph.ranks.items() if facts.exit is None and facts.bye_ns == 0]
    hosts = {graph.host_of(rank) for rank in alive}
    if alive and (len(hosts) > 1 or not graph.speaks(next(iter(hosts)))):
        return None, Reason.VICTIM  # more may follow; a machine that is silent is another matter
    onset_ns = min(fact.ts_ns for fact in dead.values())
    evidence = tuple(exit_evidence(graph, rank, dead[rank]) for rank in sorted(dead)[:5])
    others = {graph.host_of(rank) for rank in dead} - hosts
    if len(others) > 1 and alive and all(_heard_ns(graph, rank, reported_ns) < onset_ns for rank in alive):
        return _left_behind(graph, alive, onset_ns, evidence), None
    return (
        Finding(FaultKind.FAIL_STOP, "unknown", (), onset_ns, 0.5, Reason.AMBIGUOUS, evidence, certain=True),
        None,
    )


def _was_lost(graph: JobGraph, dead: dict[int, ExitFact], asked: Sequence[int]) -> bool:
    """Return whether only ranks of one machine were asked to end, and a rank of another one ended later without them.

    Somebody took that machine out of a running job: a person, or a scheduler that needs it.
    """
    hosts = {graph.host_of(rank) for rank in asked}
    last_ns = max(graph.corrected_ns(rank, dead[rank].ts_ns) for rank in asked)
    return len(hosts) == 1 and any(
        graph.host_of(rank) not in hosts and graph.corrected_ns(rank, fact.ts_ns) > last_ns
        for rank, fact in dead.items()
        if rank not in asked
    )


def _heard_ns(graph: JobGraph, rank: int, reported_ns: Callable[[int], int]) -> int:
    """Return when a rank's process last gave a sign of life by itself, ns."""
    facts = graph.ranks[rank]
    return max(facts.last_step_ns, facts.stall_ns, reported_ns(rank))


def _left_behind(graph: JobGraph, ranks: Sequence[int], onset_ns: int, evidence: tuple[Evidence, ...]) -> Finding:
    """Return a finding about ranks that reported nothing since all others ended by a lost connection."""
    text = f"{names_of(graph, ranks)}: no step and no word since; all others died of a lost connection"
    mute = Evidence("stop", events.EXIT, 1.5, onset_ns, onset_ns, text)
    suspects = suspects_of(graph, ranks)
    cause = "process_frozen" if all(graph.ranks[rank].stopped_since_ns for rank in ranks) else "process_exit"
    return Finding(FaultKind.FAIL_STOP, cause, suspects, onset_ns, 0.7, Reason.LOST_BY_ALL_OTHERS, (mute, *evidence))


def _finding(graph: JobGraph, dead: dict[int, ExitFact], roots: Sequence[int], onset_ns: int) -> Finding:
    """Return a finding about the ranks of one host that ended first."""
    victims = sorted(rank for rank in dead if rank not in roots)
    evidence = [exit_evidence(graph, rank, dead[rank]) for rank in roots]
    if victims:
        first = min(dead[rank].ts_ns for rank in victims)
        text = f"{len(victims)} other ranks exited afterwards, {why_victims([dead[rank] for rank in victims])}"
        evidence.append(Evidence("stop", events.EXIT, 1.0, first, max(dead[r].ts_ns for r in victims), text))
    reported = {cause_of_words(last_words(dead[rank].stderr_tail)) for rank in roots} - {""}
    by_words = len(reported) == 1
    return Finding(
        FaultKind.FAIL_STOP,
        reported.pop() if by_words else "process_exit",
        suspects_of(graph, roots),
        onset_ns,
        0.99 if all(dead[rank].reported for rank in roots) else 0.9,
        Reason.FIRST_FATAL_EXIT,
        tuple(evidence),
        certain=True,
        is_by_words=by_words,
        is_wordless=not any(says_why(dead[rank]) for rank in roots),
    )


def _together(graph: JobGraph, dead: dict[int, ExitFact], roots: Sequence[int], onset_ns: int) -> Finding:
    """Return a finding without suspects about processes of several hosts that ended together."""
    evidence = tuple(exit_evidence(graph, rank, dead[rank]) for rank in roots[:5])
    everywhere = 2 * len(roots) > max(1, graph.world_size)
    reason = Reason.PROGRAM_ERROR_EVERYWHERE if everywhere else Reason.AMBIGUOUS
    return Finding(FaultKind.FAIL_STOP, "unknown", (), onset_ns, 0.6, reason, evidence, certain=True)
