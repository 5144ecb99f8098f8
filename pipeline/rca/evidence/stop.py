"""Which process died first of its own accord, and which ones only followed.

The others lose their connections and exit too: they are victims. A death is
*explained* when its stderr speaks of lost peers or timeouts, or when somebody asked
for it (SIGTERM, SIGINT, SIGHUP). What is left are root candidates.
"""

from __future__ import annotations

import re
import signal
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass

from tocsin.pipeline.job.facts import ExitFact, left_in_order
from tocsin.pipeline.job.graph import JobGraph
from tocsin.pipeline.rca.common import names_of, suspects_of
from tocsin.pipeline.rca.finding import Finding
from tocsin.schemas import events
from tocsin.schemas.formats.last_words import cause_of_words, telling_part
from tocsin.schemas.reasons import Reason
from tocsin.schemas.records import NS_PER_SECOND
from tocsin.schemas.verdicts import Anomaly, Evidence, FaultKind, Suspect, WitnessKind

_ASKED_FOR = frozenset({signal.SIGTERM, signal.SIGINT, signal.SIGHUP})
_LOST_PEER = re.compile(
    r"connection (was )?(reset|closed|refused|aborted)|broken pipe|closed by peer|reset by peer"
    r"|remote (worker|process|error)|ncclremoteerror|ncclsystemerror|socket ?timeout|timed out"
    r"|collective operation timeout|watchdog|peer .{0,40}(died|closed|exited)|heartbeat"
    r"|gloo.{0,200}(read|write) error|store.{0,40}(timeout|disconnected)|recvvalue failed"
    r"|distbackenderror|distnetworkerror|diststoreerror|sigterm|received .{0,20}death signal",
    re.IGNORECASE | re.DOTALL,
)
_TIMEOUT = re.compile(r"watchdog caught|collective operation timeout", re.IGNORECASE)
"""A collective's own timeout: minutes of waiting, by default. A socket's may be short."""
_LOST_NUMBER = re.compile(r"\bnans?\b|\binf(s|inity|inite)?\b|not finite|non-?finite", re.IGNORECASE)
_LAST_ERROR = re.compile(r"^(?:[\w.]+\.)?(\w*(?:Error|Exception|Interrupt|Exit|Warning)\b.*)$", re.MULTILINE)


@dataclass(frozen=True, slots=True)
class StopConfig:
    """Settings.

    Attributes:
        settle_ns: an exit is judged when it is this old: others of the same cause
            (a scheduler that kills everybody) must have had the time to be heard.
        lonely_ns: a death that speaks of lost peers, but nobody else died or hangs, is
            judged after this.
        ended_within_ns: when more than half of the job dies of its own within this, somebody ended it.
        gave_up_ns: who dies by a signal and without a word less than this before others tell of a collective's timeout,
            or shortly after them, is ended as they are.
        watchdog_ns: who dies by a signal so long after the job came to stand is ended by a watchdog.
        stood_ns: a job whose machines did no work for so long before the first death did not stop because of it.
        same_time_ns: deaths within this of each other happened together (plus clock error).
    """

    settle_ns: int = NS_PER_SECOND
    lonely_ns: int = 15 * NS_PER_SECOND
    ended_within_ns: int = 10 * NS_PER_SECOND
    gave_up_ns: int = 2 * NS_PER_SECOND
    watchdog_ns: int = 20 * NS_PER_SECOND
    stood_ns: int = 12 * NS_PER_SECOND
    same_time_ns: int = NS_PER_SECOND // 2


def is_victim(fact: ExitFact) -> bool:
    """Whether this death is explained by something outside of the process."""
    if _asked_for(fact):
        return True
    if fact.signal and fact.signal != signal.SIGABRT:
        return False
    words = _last_words(fact.stderr_tail)
    # NCCL's watchdog also tells of the own GPU's error: "watchdog thread terminated with exception: CUDA error …".
    return bool(_LOST_PEER.search(words)) and not cause_of_words(words)


def _is_watchdog(fact: ExitFact) -> bool:
    """Ended by a signal and without a word, in a job that stood already: a watchdog ended what hung."""
    return fact.signal in (signal.SIGABRT, signal.SIGKILL) and not fact.stderr_tail.strip()


def _speaks_of_timeout(fact: ExitFact) -> bool:
    return bool(_TIMEOUT.search(_last_words(fact.stderr_tail)))


def _not_with_timeouts(graph: JobGraph, dead: dict[int, ExitFact], roots: list[int], config: StopConfig) -> list[int]:
    """The root candidates that did not die without a word as others gave up waiting.

    What those waited for, for minutes, had stopped long before.
    """
    gave_up = [graph.corrected_ns(rank, fact.ts_ns) for rank, fact in dead.items() if _speaks_of_timeout(fact)]
    found = []
    for rank in roots:
        died_ns = graph.corrected_ns(rank, dead[rank].ts_ns)
        near = any(died_ns - config.ended_within_ns <= at_ns <= died_ns + config.gave_up_ns for at_ns in gave_up)
        if not (near and _is_watchdog(dead[rank])):
            found.append(rank)
    return found


def _asked_for(fact: ExitFact) -> bool:
    """Ended by a signal that somebody sends to end it: as a signal, or as a shell or handler tells it (143)."""
    return fact.signal in _ASKED_FOR or (fact.signal == 0 and abs(fact.code) - 128 in _ASKED_FOR)


def ended_by_order(graph: JobGraph) -> dict[str, int]:
    """Host -> when somebody first asked a process of it to end; empty where that is told of no more than half of them.

    Whoever tells so lived then: a machine that died does not.
    """
    asked: dict[str, int] = {}
    for rank in graph.leaving:
        facts = graph.ranks[rank]
        if facts.exit is not None and facts.exit.reported and _asked_for(facts.exit):
            asked[facts.host] = min(asked.get(facts.host, facts.exit.ts_ns), facts.exit.ts_ns)
    if not asked:
        return {}
    return asked if 2 * len(asked) > len({facts.host for facts in graph.ranks.values()}) else {}


def _last_words(stderr_tail: str) -> str:
    """The final error and what stands around it: an earlier harmless warning must not excuse a death."""
    errors = list(_LAST_ERROR.finditer(stderr_tail))
    if errors:
        return stderr_tail[errors[-1].start() :]
    return stderr_tail[-1000:]


def error_line(fact: ExitFact) -> str:
    """The last line that names an error, for a human."""
    errors = list(_LAST_ERROR.finditer(fact.stderr_tail))
    if errors:
        return telling_part(errors[-1].group(1).strip())
    lines = [line.strip() for line in fact.stderr_tail.splitlines() if line.strip()]
    return telling_part(lines[-1]) if lines else ""


def find_stop(
    graph: JobGraph,
    now_ns: int,
    config: StopConfig,
    stood_since_ns: int = 0,
    belied: Collection[int] = (),
    told_ns: Callable[[int], int] = lambda _rank: 0,
) -> tuple[Finding | None, Reason | None]:
    """The root of the deaths seen so far, or the reason why there is none (yet).

    Args:
        graph: what is known of the job.
        now_ns: the slice's end.
        config: settings.
        stood_since_ns: since when the job made no progress when its processes still lived; 0: not known.
        belied: ranks without which the job went on: they count where nobody else died.
        told_ns: when a rank last told itself in which operations it stands, 0: never.
    """
    if not graph.leaving:  # nobody ended: nearly always so, and asked every second
        return None, None
    dead = _dead(graph)
    dead = {rank: fact for rank, fact in dead.items() if rank not in belied} or dead
    if not dead:
        return None, None
    first_ns = _first_ns(graph, dead)
    if now_ns - first_ns < config.settle_ns:
        return None, Reason.WITHIN_PATIENCE
    if sum(left_in_order(graph.ranks[rank]) for rank in graph.leaving) > len(dead):
        return None, Reason.ENDED_WITH_OTHERS  # the work is done: one stumbles as it cleans up
    stood = 0 < stood_since_ns < first_ns - config.watchdog_ns
    candidates = [rank for rank, fact in dead.items() if not is_victim(fact) and not (stood and _is_watchdog(fact))]
    candidates = _not_with_timeouts(graph, dead, candidates, config)
    roots = _before_the_order(graph, dead, candidates, config)
    if not roots:
        return _no_root(graph, dead, told_ns, lonely=now_ns - first_ns > config.lonely_ns)
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
    """All who reported how they died are victims, and one machine had given its GPU memory back before: its processes.

    Not where it reported a death too (then that tells), nor where the job had stood for long (what hung is ended).

    Args:
        graph: what is known of the job.
        anomaly: of ``peer_exits``: who was the first.
        config: settings.
        stood_since_ns: since when the job made no progress when its processes still lived; 0: not known.
    """
    name = anomaly.component.name
    others = _dead(graph)
    if not others or any(graph.host_of(rank) == name for rank in others):
        return None
    stood = 0 < stood_since_ns < anomaly.start_ns - config.watchdog_ns
    if stood or _first_ns(graph, others) < anomaly.start_ns or any(map(_speaks_of_timeout, others.values())):
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
        (freed, *(_evidence(graph, rank, others[rank]) for rank in first[:3])),
        seen_ns=anomaly.end_ns,
    )


def dies_in_vain(graph: JobGraph, belied: Collection[int]) -> bool:
    """Whether ranks died, and the job went on without each of them."""
    return bool(belied) and not _dead(graph).keys() - set(belied)


def first_death_ns(graph: JobGraph) -> int:
    """When the first rank died, by the engine's clock; 0: nobody did."""
    dead = _dead(graph) if graph.leaving else {}
    return _first_ns(graph, dead) if dead else 0


def stalled_before_deaths_ns(graph: JobGraph, stalled_since_ns: int, config: StopConfig) -> int:
    """When the first rank died of a job that had stood for a while; 0: it had not, or nobody died."""
    dead = _dead(graph)
    first_ns = _first_ns(graph, dead) if dead else 0
    return first_ns if 0 < stalled_since_ns <= first_ns - config.stood_ns else 0


def gave_up_waiting_ns(graph: JobGraph) -> int | None:
    """When the first rank told that a collective took too long: the job hung, and made no pause.

    Returns:
        0 where all live; None where ranks died and none told so, or somebody asked them to: who was may tell anything.
    """
    if not graph.leaving:  # nobody ended: nearly always so, and asked every second
        return 0
    dead = _dead(graph)
    if any(_asked_for(fact) for fact in dead.values()):
        return None
    waited = [graph.corrected_ns(rank, fact.ts_ns) for rank, fact in dead.items() if _speaks_of_timeout(fact)]
    return min(waited, default=None if dead else 0)


def who_lost_peers(graph: JobGraph, accused: Collection[str], since_ns: int) -> dict[str, WitnessKind]:
    """Other hosts whose processes ended since then and tell that they lost their peers, or waited too long for them.

    None where somebody else died of its own before the accused did: then that is whom they lost.
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
        if is_victim(fact) and not _asked_for(fact):
            lost = not _speaks_of_timeout(fact)
            found[host] = WitnessKind.CONNECTION_LOST if lost else found.get(host, WitnessKind.PEERS_WAIT)
    return found


def _dead(graph: JobGraph) -> dict[int, ExitFact]:
    return {
        rank: facts.exit
        for rank, facts in graph.ranks.items()
        if facts.exit is not None and (facts.exit.code != 0 or facts.exit.signal != 0)
    }


def _first_ns(graph: JobGraph, dead: dict[int, ExitFact]) -> int:
    return min(graph.corrected_ns(rank, fact.ts_ns) for rank, fact in dead.items())


def _one_after_another(graph: JobGraph, at_ns: dict[int, int], config: StopConfig) -> bool:
    """Whether most of the job died of its own within seconds: somebody ended it, rank by rank."""
    first = min(at_ns.values())
    near = [rank for rank, ts_ns in at_ns.items() if ts_ns - first <= config.ended_within_ns]
    return len({graph.host_of(rank) for rank in near}) > 1 and 2 * len(near) > graph.world_size


def _before_the_order(graph: JobGraph, dead: dict[int, ExitFact], roots: list[int], config: StopConfig) -> list[int]:
    """The root candidates that did not die after somebody had begun to end the job (SIGTERM, then SIGKILL)."""
    asked = {rank: graph.corrected_ns(rank, fact.ts_ns) for rank, fact in dead.items() if _asked_for(fact)}
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
    graph: JobGraph, dead: dict[int, ExitFact], told_ns: Callable[[int], int], *, lonely: bool
) -> tuple[Finding | None, Reason | None]:
    """Everybody speaks of lost peers or was asked to stop: the root has not been heard."""
    if any(_asked_for(fact) for fact in dead.values()) or not lonely:
        return None, Reason.VICTIM
    alive = [rank for rank, facts in graph.ranks.items() if facts.exit is None and facts.bye_ns == 0]
    hosts = {graph.host_of(rank) for rank in alive}
    if alive and (len(hosts) > 1 or not graph.speaks(next(iter(hosts)))):
        return None, Reason.VICTIM  # more may follow; a machine that is silent is another matter
    onset_ns = min(fact.ts_ns for fact in dead.values())
    evidence = tuple(_evidence(graph, rank, dead[rank]) for rank in sorted(dead)[:5])
    others = {graph.host_of(rank) for rank in dead} - hosts
    if len(others) > 1 and alive and all(_heard_ns(graph, rank, told_ns) < onset_ns for rank in alive):
        return _left_behind(graph, alive, onset_ns, evidence), None
    return (
        Finding(FaultKind.FAIL_STOP, "unknown", (), onset_ns, 0.5, Reason.AMBIGUOUS, evidence, certain=True),
        None,
    )


def _heard_ns(graph: JobGraph, rank: int, told_ns: Callable[[int], int]) -> int:
    """When a rank's process last gave a sign of life by itself."""
    facts = graph.ranks[rank]
    return max(facts.last_step_ns, facts.stall_ns, told_ns(rank))


def _left_behind(graph: JobGraph, ranks: Sequence[int], onset_ns: int, evidence: tuple[Evidence, ...]) -> Finding:
    """All others lost a peer and left; these ranks alone told nothing since, and nobody told what became of them."""
    text = f"{names_of(graph, ranks)}: no step and no word since; all others died of a lost connection"
    mute = Evidence("stop", events.EXIT, 1.5, onset_ns, onset_ns, text)
    suspects = suspects_of(graph, ranks)
    cause = "process_frozen" if all(graph.ranks[rank].stopped_since_ns for rank in ranks) else "process_exit"
    return Finding(FaultKind.FAIL_STOP, cause, suspects, onset_ns, 0.7, Reason.LOST_BY_ALL_OTHERS, (mute, *evidence))


def _finding(graph: JobGraph, dead: dict[int, ExitFact], roots: Sequence[int], onset_ns: int) -> Finding:
    victims = sorted(rank for rank in dead if rank not in roots)
    evidence = [_evidence(graph, rank, dead[rank]) for rank in roots]
    if victims:
        first = min(dead[rank].ts_ns for rank in victims)
        text = f"{len(victims)} other ranks exited afterwards, {_why_victims([dead[rank] for rank in victims])}"
        evidence.append(Evidence("stop", events.EXIT, 1.0, first, max(dead[r].ts_ns for r in victims), text))
    told = {cause_of_words(_last_words(dead[rank].stderr_tail)) for rank in roots} - {""}
    by_words = len(told) == 1
    return Finding(
        FaultKind.FAIL_STOP,
        told.pop() if by_words else "process_exit",
        suspects_of(graph, roots),
        onset_ns,
        0.99 if all(dead[rank].reported for rank in roots) else 0.9,
        Reason.FIRST_FATAL_EXIT,
        tuple(evidence),
        certain=True,
        is_by_words=by_words,
        is_wordless=not any(_says_why(dead[rank]) for rank in roots),
    )


def _says_why(fact: ExitFact) -> bool:
    """Whether a death is more than the end of a job that had lost its numbers: a signal, or words of anything else."""
    words = _last_words(fact.stderr_tail).strip()
    return bool(fact.signal) or (bool(words) and not _LOST_NUMBER.search(words))


def _why_victims(facts: Sequence[ExitFact]) -> str:
    asked_count = sum(map(_asked_for, facts))
    if not asked_count:
        return "their last words name a lost peer"
    return "as they were asked to" if asked_count == len(facts) else "asked to, or their last words name a lost peer"


def _together(graph: JobGraph, dead: dict[int, ExitFact], roots: Sequence[int], onset_ns: int) -> Finding:
    """Several hosts at about the same time: nobody is singled out."""
    evidence = tuple(_evidence(graph, rank, dead[rank]) for rank in roots[:5])
    everywhere = 2 * len(roots) > max(1, graph.world_size)
    reason = Reason.PROGRAM_ERROR_EVERYWHERE if everywhere else Reason.AMBIGUOUS
    return Finding(FaultKind.FAIL_STOP, "unknown", (), onset_ns, 0.6, reason, evidence, certain=True)


def _evidence(graph: JobGraph, rank: int, fact: ExitFact) -> Evidence:
    if fact.signal:
        how = f"killed by signal {fact.signal} ({_signal_name(fact.signal)})"
    elif not fact.reported:
        how = "is gone, nobody reported how"
    else:
        how = f"exited with code {fact.code}"
    words = error_line(fact)
    text = f"{names_of(graph, [rank])} {how}" + (f": {words}" if words else "")
    return Evidence("stop", events.EXIT, 2.0, fact.ts_ns, fact.ts_ns, text)


def _signal_name(number: int) -> str:
    try:
        return signal.Signals(number).name
    except ValueError:
        return "unknown"
