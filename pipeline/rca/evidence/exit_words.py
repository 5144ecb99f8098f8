"""Explanation of one process's exit by its signal, its exit code and its last words on stderr."""

from __future__ import annotations

import re
import signal
from collections.abc import Sequence

from tocsin.pipeline.job.facts import ExitFact
from tocsin.pipeline.job.graph import JobGraph
from tocsin.pipeline.rca.common import names_of
from tocsin.schemas import events
from tocsin.schemas.formats.last_words import cause_of_words, telling_part
from tocsin.schemas.verdicts import Evidence

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
"""Words of a collective's own timeout, by default after minutes. A socket's timeout may be short."""
_LOST_NUMBER = re.compile(r"\bnans?\b|\binf(s|inity|inite)?\b|not finite|non-?finite", re.IGNORECASE)
_LAST_ERROR = re.compile(r"^(?:[\w.]+\.)?(\w*(?:Error|Exception|Interrupt|Exit|Warning)\b.*)$", re.MULTILINE)


def is_victim(fact: ExitFact) -> bool:
    """Return whether a process ended because of something outside of it: a signal on request, or a lost peer."""
    if was_asked_to_end(fact):
        return True
    if fact.signal and fact.signal != signal.SIGABRT:
        return False
    words = last_words(fact.stderr_tail)
    # NCCL's watchdog also tells of the own GPU's error: "watchdog thread terminated with exception: CUDA error …".
    return bool(_LOST_PEER.search(words)) and not cause_of_words(words)


def is_ended_by_watchdog(fact: ExitFact) -> bool:
    """Return whether a process ended as a watchdog ends it: by SIGABRT or SIGKILL, without any words on stderr.

    This means a watchdog only in a job that stood already.
    """
    return fact.signal in (signal.SIGABRT, signal.SIGKILL) and not fact.stderr_tail.strip()


def tells_of_timeout(fact: ExitFact) -> bool:
    """Return whether a process's last words name a collective's timeout."""
    return bool(_TIMEOUT.search(last_words(fact.stderr_tail)))


def was_asked_to_end(fact: ExitFact) -> bool:
    """Return whether a process ended by SIGTERM, SIGINT or SIGHUP.

    Shells and signal handlers report that as an exit code of 128 plus the signal's number, such as 143.
    """
    return fact.signal in _ASKED_FOR or (fact.signal == 0 and abs(fact.code) - 128 in _ASKED_FOR)


def last_words(stderr_tail: str) -> str:
    """Return the text from the last error line of a stderr tail on; without an error line, the last 1000 characters.

    An earlier harmless warning must not explain an exit.
    """
    errors = list(_LAST_ERROR.finditer(stderr_tail))
    if errors:
        return stderr_tail[errors[-1].start() :]
    return stderr_tail[-1000:]


def error_line(fact: ExitFact) -> str:
    """Return the last line on stderr that names an error, else the last line, shortened for a reader; "": none."""
    errors = list(_LAST_ERROR.finditer(fact.stderr_tail))
    if errors:
        return telling_part(errors[-1].group(1).strip())
    lines = [line.strip() for line in fact.stderr_tail.splitlines() if line.strip()]
    return telling_part(lines[-1]) if lines else ""


def says_why(fact: ExitFact) -> bool:
    """Return whether an exit has an explanation of its own: a signal, or words about something else than lost numbers.

    A job ends itself when it meets NaN or infinity. Such an exit explains nothing.
    """
    words = last_words(fact.stderr_tail).strip()
    return bool(fact.signal) or (bool(words) and not _LOST_NUMBER.search(words))


def why_victims(facts: Sequence[ExitFact]) -> str:
    """Return half a sentence that says why these exits only followed others."""
    asked_count = sum(map(was_asked_to_end, facts))
    if not asked_count:
        return "their last words name a lost peer"
    return "as they were asked to" if asked_count == len(facts) else "asked to, or their last words name a lost peer"


def exit_evidence(graph: JobGraph, rank: int, fact: ExitFact) -> Evidence:
    """Return evidence that says how a rank's process ended, with its last error line."""
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
    """Return a signal's name; "unknown" for a number that is none."""
    try:
        return signal.Signals(number).name
    except ValueError:
        return "unknown"
