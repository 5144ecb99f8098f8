"""What learned detectors add: ``make bench ARGS=learned``. The engine with and without each, on fresh held cases.

First the verdicts: without learned detectors (``ours``), and with each allowed to accuse alone; in ``evidence`` the
verdicts are those of ``ours``. Then what each detector's anomalies say by themselves: of how many faults it names the
machine before the verdict does, or where no verdict does, and how many other machines it names.
``TOCSIN_BENCH_CASES`` (120), ``TOCSIN_BENCH_HOSTS`` (4-16), ``TOCSIN_BENCH_SECONDS``.
"""

from __future__ import annotations

import multiprocessing
import os
import statistics
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from tests.bench.judged import case_count, host_range, print_sets
from tocsin.pipeline.detect.learned.registry import LEARNED, learned_config
from tocsin.pipeline.lab.backtest.runner import Opinion
from tocsin.pipeline.lab.backtest.trial import Trial, judge
from tocsin.pipeline.lab.simulation.case import HEALTHY, draw_case
from tocsin.pipeline.recording.replay import ReplayConfig, seconds_with_models
from tocsin.pipeline.recording.tables import Recording
from tocsin.pipeline.runtime.embedded.engine import EmbeddedEngine, EngineConfig, played
from tocsin.pipeline.runtime.job_pipeline import JobConfig
from tocsin.schemas.errors import SchemaError
from tocsin.schemas.records import NS_PER_SECOND
from tocsin.schemas.verdicts import ComponentKind, Verdict

FIRST_SEED = 9_800_000
CASE_COUNT, HOSTS = 120, (4, 16)


@dataclass(frozen=True, slots=True)
class Said:
    """What one detector's anomalies say of one case.

    Attributes:
        detector: its name.
        fault: the kind of the fault, "" in a healthy case.
        after_seconds: from the onset until it first names a machine at fault, None = never.
        verdict_seconds: the same of the first verdict without learned detectors.
        others: healthy machines that it names.
    """

    detector: str
    fault: str
    after_seconds: float | None
    verdict_seconds: float | None
    others: int


class LearnedRunner:
    """A replay with learned detectors in these modes, which remembers whom each of them names, and when."""

    def __init__(self, modes: Sequence[str]) -> None:
        self.name = ", ".join(("ours", *modes))
        self._modes = modes
        self.named_ns: dict[tuple[str, str], int] = {}
        """(detector, host) -> when it was first named."""

    def judge(self, recording: Recording) -> Opinion:
        """The verdict lines."""
        config = EngineConfig(history=None, job=JobConfig(learned=learned_config(self._modes)))
        engine, lines = EmbeddedEngine(played(config)), list[Verdict]()
        for tick_ns, records in seconds_with_models(recording, ReplayConfig(config)):
            for record in records:
                try:
                    engine.take_record(record)
                except SchemaError:
                    continue
            found = engine.tick(tick_ns)
            lines += found.verdicts
            for anomaly in found.anomalies:
                if anomaly.detector in LEARNED and anomaly.component.kind is ComponentKind.HOST:
                    self.named_ns.setdefault((anomaly.detector, anomaly.component.name), tick_ns)
        return Opinion(tuple(line.to_line() for line in lines), None)


def judge_case(order: tuple[int, str | None, tuple[int, int]]) -> tuple[Trial, list[Said]]:
    """One case with and without."""
    seed, kind, hosts = order
    recording = draw_case(seed, hosts, kind, "held").recording()
    without, *accusing = (LearnedRunner(modes) for modes in ((), *((f"{name}=accuse",) for name in LEARNED)))
    evidence = LearnedRunner([f"{name}=evidence" for name in LEARNED])
    evidence.judge(recording)
    trial = judge(recording, (without, *accusing))
    return trial, list(_said(recording, evidence, trial))


def _said(recording: Recording, runner: LearnedRunner, trial: Trial) -> Iterator[Said]:
    """What each detector's anomalies say of a case, beside its verdicts without them."""
    faults = (recording.truth or {})["faults"]
    hosts = {suspect["name"] for fault in faults for suspect in fault["suspects"]}
    onset_ns = min((int(fault["onset_ns"]) for fault in faults), default=0)
    score = trial.answers[0].score
    delays = [fault.delay_seconds for fault in (score.faults if score else ()) if fault.delay_seconds is not None]
    for name in LEARNED:
        named = {host: at for (detector, host), at in runner.named_ns.items() if detector == name}
        at_ns = min((at for host, at in named.items() if host in hosts and at >= onset_ns), default=None)
        after = None if at_ns is None else (at_ns - onset_ns) / NS_PER_SECOND
        kind = str(faults[0]["kind"]) if faults else ""
        yield Said(name, kind, after, min(delays, default=None), len(named.keys() - hosts))


def _orders(count: int, hosts: tuple[int, int]) -> list[tuple[int, str | None, tuple[int, int]]]:
    """Half of the cases with a fault, half healthy."""
    seeds = range(FIRST_SEED, FIRST_SEED + count // 2)
    return [(seed, kind, hosts) for seed in seeds for kind in (None, HEALTHY)]


def judged(count: int, hosts: tuple[int, int]) -> tuple[list[Trial], list[Said]]:
    """All cases; where ``TOCSIN_BENCH_SECONDS`` is over, those that are done until then."""
    seconds, begin = float(os.environ.get("TOCSIN_BENCH_SECONDS", "inf")), time.monotonic()
    trials, said = list[Trial](), list[Said]()
    # spawn: numpy's threads do not survive a fork
    with multiprocessing.get_context("spawn").Pool(os.cpu_count()) as pool:
        for trial, found in pool.imap(judge_case, _orders(count, hosts)):
            trials.append(trial)
            said += found
            if time.monotonic() - begin > seconds:
                print(f"time is over: {len(trials)} of {count} cases", flush=True)
                break
    return trials, said


def line_of(name: str, said: Sequence[Said]) -> str:
    """What one detector's anomalies add."""
    own = [one for one in said if one.detector == name]
    faults = [one for one in own if one.fault]
    hits = [one.after_seconds for one in faults if one.after_seconds is not None]
    alone = [one for one in faults if one.after_seconds is not None and one.verdict_seconds is None]
    sooner = [one for one in faults if (one.after_seconds or 1e9) < (one.verdict_seconds or 0.0)]
    middle = f"{statistics.median(hits):.0f}" if hits else "-"
    return (
        f"{name}: names the machine of {len(hits)} of {len(faults)} faults, median {middle} s; {len(alone)} of them no"
        f" verdict names, {len(sooner)} it names before the verdict; others: {sum(one.others for one in own)} machines,"
        f" {sum(one.others for one in own if not one.fault)} in healthy jobs"
    )


def main() -> None:
    """Print the tables."""
    count, hosts = case_count(CASE_COUNT), host_range(HOSTS)
    trials, said = judged(count, hosts)
    days = sum(answer.score.machine_days for trial in trials for answer in trial.answers[:1] if answer.score)
    print(f"{len(trials)} held cases, half of them healthy, {hosts[0]} to {hosts[1]} hosts, {days:.1f} machine-days")
    print_sets(trials)
    for name in LEARNED:
        print(line_of(name, said))
