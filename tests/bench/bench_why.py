"""Is a slow job's reason found? ``make bench ARGS=why``: synthetic jobs that are slow for a known reason.

The generator (``why_job.py``, ``why_causes.py``, ``why_cases.py``) knows the physics of training and nothing of the
detectors. Ten reasons are judged online (step records through the embedded engine), seven from traces of operations
(``tocsin whatif --json``). For each reason: how many are right, how far the told share of the time is from the true
one, machines accused where they are not at fault. ``TOCSIN_BENCH_CASES`` (340), ``TOCSIN_BENCH_SECONDS``,
``TOCSIN_BENCH_SEEDS`` (some seeds only, with commas).
"""

from __future__ import annotations

import contextlib
import io
import json
import multiprocessing
import os
import statistics
import tempfile
import time
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

from tests.bench.why_cases import FIRST_SEED, LOWEST_SHARE, NONE, ORDERS, TWO, WhyCase, draw_case
from tests.bench.why_causes import COMMUNICATION, DATA, JITTER, LOADER, MACHINE, PLACEMENT, SERVICE, STAGE
from tests.bench.why_records import host_name, recording_of, write_trace
from tocsin.cli.main import main as tocsin
from tocsin.pipeline.recording.replay import ReplayConfig, replay
from tocsin.schemas.verdicts import FaultKind, Verdict, VerdictState

CASE_COUNT = 20 * len(ORDERS)
NOBODY = frozenset({STAGE, DATA, JITTER, SERVICE, COMMUNICATION, PLACEMENT})
"""Reasons whose word stands in an incident as it does here."""
LOADER_WORD = "loader_stall"
WITHIN_POINTS = 10.0
NAMED_SHARE = LOWEST_SHARE / 2
"""A cause of a trace counts as named from half of the smallest share that is drawn."""


@dataclass(frozen=True, slots=True)
class Said:
    """What was answered.

    Attributes:
        shares: word -> told share of the job's time, None = none was told.
        accused: hosts that are accused at the end.
        withdrawn: hosts that were accused and cleared.
        cause: the one word of a trace's answer; "" online, and where a trace has none.
    """

    shares: dict[str, float | None]
    accused: frozenset[str]
    withdrawn: frozenset[str] = frozenset()
    cause: str = ""


@dataclass(frozen=True, slots=True)
class Judged:
    """One case and what was answered.

    Attributes:
        seed: of the case.
        way: ``online`` or ``trace``.
        reason: what it was.
        true_shares: cause -> share.
        culprits: hosts at fault.
        said: the answer.
        hosts: size of the job.
        seconds: how long the answer took.
    """

    seed: int
    way: str
    reason: str
    true_shares: dict[str, float]
    culprits: frozenset[str]
    said: Said
    hosts: int
    seconds: float

    @property
    def wrongly_accused(self) -> frozenset[str]:
        """Hosts that are accused and not at fault."""
        return self.said.accused - self.culprits

    @property
    def right(self) -> bool:
        """Whether the answer names what it was, and no machine that is not at fault."""
        shares = self.said.shares
        if self.wrongly_accused:
            return False
        if self.reason == NONE:
            return not shares
        if any(word not in shares for word in self.true_shares):
            return False
        if MACHINE in self.true_shares and self.said.accused != self.culprits:
            return False
        return self.reason == TWO or shares[self.reason] == max(shares.values(), key=lambda one: one or 0.0)

    def errors(self) -> list[float]:
        """Distances between told and true shares, in points."""
        pairs = ((self.said.shares.get(word), share) for word, share in self.true_shares.items())
        return [100 * abs(told - share) for told, share in pairs if told is not None]


def online(case: WhyCase) -> Said:
    """What the embedded engine's incidents say at the end of the recording."""
    last: dict[str, Verdict] = {}
    ever = set[str]()
    for verdict in replay(recording_of(case), ReplayConfig()):
        last[verdict.verdict_id] = verdict
        ever |= _accused(verdict)
    shares: dict[str, float | None] = {}
    accused = set[str]()
    for verdict in last.values():
        if verdict.state is not VerdictState.CANCELLED:
            accused |= _accused(verdict)
            shares |= _told(verdict)
    return Said(shares, frozenset(accused), frozenset(ever - accused))


def _accused(verdict: Verdict) -> set[str]:
    """Hosts that a verdict accuses: as ``tocsin score`` counts."""
    if verdict.fault is FaultKind.DEGRADED or verdict.state is VerdictState.CANCELLED:
        return set()
    return {suspect.component.name for suspect in verdict.suspects}


def _told(verdict: Verdict) -> dict[str, float | None]:
    """The words of a verdict and their shares."""
    parts: dict[str, float | None] = {
        one.metric: one.suspect_value for one in verdict.evidence if one.detector == "whatif" and one.metric in NOBODY
    }
    if verdict.cause == LOADER_WORD:
        return {**parts, LOADER: verdict.costs_ratio}
    if verdict.suspects:
        return {**parts, MACHINE: verdict.costs_ratio}
    return {verdict.cause: verdict.costs_ratio, **parts}


def from_trace(case: WhyCase) -> Said:
    """What ``tocsin whatif --json`` says."""
    output = io.StringIO()
    with tempfile.TemporaryDirectory(prefix="tocsin-why-") as folder:
        trace, meta = write_trace(case, Path(folder))
        with contextlib.redirect_stdout(output):
            status = tocsin(["whatif", str(trace), "--meta", str(meta), "--json"])
    if status:
        raise AssertionError(f"seed {case.seed}: tocsin whatif ended with {status}")
    found = json.loads(output.getvalue())
    shares = {word: float(share) for word, share in found["costs_ratio"].items() if share >= NAMED_SHARE}
    ranks = {int(one["name"]) for one in found["verdict_on_machines"]}
    hosts = frozenset(host_name(rank // case.layout.gpus_per_host) for rank in ranks)
    return Said(dict(shares), hosts, cause=found["cause"] or "")


def judge(seed: int) -> Judged:
    """Draw a case and let it be judged."""
    case = draw_case(seed)
    begin = time.perf_counter()
    said = online(case) if case.way == "online" else from_trace(case)
    seconds = time.perf_counter() - begin
    culprits = frozenset(host_name(host) for host in case.culprits)
    return Judged(seed, case.way, case.reason, case.shares, culprits, said, case.layout.hosts, seconds)


def wanted_seeds() -> list[int]:
    """The seeds to judge."""
    named = os.environ.get("TOCSIN_BENCH_SEEDS")
    if named:
        return [int(one) for one in named.split(",")]
    return list(range(FIRST_SEED, FIRST_SEED + int(os.environ.get("TOCSIN_BENCH_CASES", CASE_COUNT))))


def judged(seeds: Sequence[int]) -> list[Judged]:
    """All cases; where ``TOCSIN_BENCH_SECONDS`` is over, those that are done until then."""
    seconds, begin = float(os.environ.get("TOCSIN_BENCH_SECONDS", "inf")), time.monotonic()
    found = list[Judged]()
    # spawn: numpy's threads do not survive a fork
    with multiprocessing.get_context("spawn").Pool(os.cpu_count()) as pool:
        for one in pool.imap_unordered(judge, seeds):
            found.append(one)
            if time.monotonic() - begin > seconds:
                print(f"time is over: {len(found)} of {len(seeds)} cases", flush=True)
                break
    return sorted(found, key=lambda one: one.seed)


def line_of(name: str, cases: Sequence[Judged]) -> str:
    """One reason's line."""
    errors = [error for one in cases for error in one.errors()]
    right = sum(one.right for one in cases)
    shares = (
        f"{statistics.mean(errors):6.1f} {sum(e <= WITHIN_POINTS for e in errors):4}/{len(errors):<4}"
        if errors
        else " " * 16
    )
    accused = sum(len(one.wrongly_accused) for one in cases)
    return f"{name:24} {right:3}/{len(cases):<3} {right / len(cases):5.2f}  {shares} {accused:4}"


def table(cases: Sequence[Judged]) -> Iterable[str]:
    """Right answers, errors of the shares and false accusations, by way and reason."""
    yield f"{'':24} {'right':>7} {'ratio':>5}  {'points':>6} {'<= 10':>9} {'false accusations':>4}"
    for way in ("online", "trace"):
        ratios = []
        own = [one for one in cases if one.way == way]
        for reason in dict.fromkeys(reason for of_way, reason in ORDERS if of_way == way):
            members = [one for one in own if one.reason == reason]
            if members:
                ratios.append(sum(one.right for one in members) / len(members))
                yield line_of(f"{way} {reason}", members)
        if own:
            yield line_of(f"{way}, all", own) + f"  mean of the reasons {statistics.mean(ratios):.2f}"
    single = [one for one in cases if one.way == "trace" and one.reason not in (TWO, NONE)]
    if single:
        same = sum(one.said.cause == one.reason for one in single)
        yield f"the one word `cause` of a trace's answer is the reason in {same}/{len(single)} (none below 10 % lost)"


def _words(shares: dict[str, float] | dict[str, float | None]) -> str:
    """Words with their shares."""
    return ", ".join(word if share is None else f"{word} {share:.0%}" for word, share in shares.items()) or "nothing"


def remarks(cases: Sequence[Judged]) -> Iterable[str]:
    """Each case that was not right, with its seed, and each false accusation."""
    for one in cases:
        accused = ", ".join(sorted(one.wrongly_accused))
        if not one.right:
            end = f"; falsely accused: {accused}" if accused else ""
            truth = f"{one.way} {one.reason}, {one.hosts} hosts, {_words(one.true_shares)}"
            yield f"seed {one.seed}: {truth}; said {_words(one.said.shares)}{end}"
        withdrawn = one.said.withdrawn - one.culprits
        if withdrawn:
            yield f"seed {one.seed}: {one.way} {one.reason}; accused and withdrawn: {', '.join(sorted(withdrawn))}"


def main() -> None:
    """Print the table and what was not right."""
    cases = judged(wanted_seeds())
    print(f"{len(cases)} cases, {sum(one.seconds for one in cases):.0f} s of judging")
    for line in (*table(cases), "", *remarks(cases)):
        print(line)
