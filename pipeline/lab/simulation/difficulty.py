"""Difficulty of the simulator: the score of the plain detector on many cases.

The rules are those of ``tocsin score``. An accusation is a hit if its host is the faulty one and it comes between the
onset (2 s of tolerance) and 120 s after the fault's end. A second one on the same fault counts neither way; any other
is false.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

import numpy as np

from tocsin.pipeline.lab.simulation.baseline import (
    Accusation,
    BaselineConfig,
    Floats,
    first_above,
    streak_scores,
)
from tocsin.pipeline.lab.simulation.case import HEALTHY, Case, draw_case
from tocsin.pipeline.lab.simulation.draw import Half
from tocsin.schemas.records import NS_PER_SECOND

THRESHOLDS = tuple(float(value) for value in np.round(np.geomspace(3.0, 60.0, 31), 2))
"""Alarm lines that are tried."""


@dataclass(frozen=True, slots=True)
class Scored:
    """One case with the plain detector's scores.

    Attributes:
        kind: fault kind or ``healthy``.
        hosts: host of each column of ``scores``.
        scores: streak scores, shape (windows, hosts).
        start_ns: start of the case.
        machine_days_count: number of machines times days.
        suspect: faulty host, "" for none.
        onset_ns: begin of the fault.
        end_ns: end of the fault.
    """

    kind: str
    hosts: tuple[str, ...]
    scores: Floats
    start_ns: int
    machine_days_count: float
    suspect: str
    onset_ns: int
    end_ns: int


@dataclass(frozen=True, slots=True)
class DifficultyTally:
    """Counts of hits and false accusations over many cases.

    Attributes:
        hit_count: number of faults found.
        fault_count: number of faults.
        false_count: number of accusations of healthy hosts.
        delays_seconds: time from onset to detection of each fault found.
        machine_days_count: number of machines times days.
    """

    hit_count: int
    fault_count: int
    false_count: int
    delays_seconds: tuple[float, ...]
    machine_days_count: float

    @property
    def precision(self) -> float:
        """Share of the accusations that are hits."""
        return self.hit_count / max(1, self.hit_count + self.false_count)

    @property
    def recall(self) -> float:
        """Share of the faults that are found."""
        return self.hit_count / max(1, self.fault_count)

    @property
    def f1(self) -> float:
        """Harmonic mean of precision and recall."""
        return 2 * self.hit_count / max(1, self.hit_count + self.false_count + self.fault_count)

    @property
    def median_seconds(self) -> float:
        """Median time from onset to detection, NaN without a hit."""
        return float(np.median(self.delays_seconds)) if self.delays_seconds else float("nan")


def scored(case: Case) -> Scored:
    """Simulate a case and score it with the plain detector."""
    recording = case.recording()
    scores, hosts = streak_scores(recording, BaselineConfig())
    faults = case.truth()["faults"]
    fault = faults[0] if faults else None
    days = len(hosts) * (case.end_ns - case.shape.start_ns) / NS_PER_SECOND / 86400.0
    suspect = fault["suspects"][0]["name"] if fault else ""
    onset, end = (fault["onset_ns"], fault["end_ns"]) if fault else (0, 0)
    return Scored(case.kind, hosts, scores, case.shape.start_ns, days, suspect, onset, end)


def sample(seeds: Iterable[int], hosts: tuple[int, int], half: Half) -> list[Scored]:
    """Return for each seed one scored faulty case and one scored healthy case."""
    cases = ((seed, kind) for seed in seeds for kind in (None, HEALTHY))
    return [scored(draw_case(seed, hosts, kind, half)) for seed, kind in cases]


def tally(cases: Sequence[Scored], threshold: float) -> DifficultyTally:
    """Return the plain detector's counts over the cases at one alarm line."""
    config = replace(BaselineConfig(), z_threshold=threshold)
    hits, false, delays = 0, 0, list[float]()
    for case in cases:
        hit = False
        for one in first_above(case.scores, case.hosts, case.start_ns, config):
            if _hits(one, case):
                hit = True
                delays.append((one.detected_ns - case.onset_ns) / NS_PER_SECOND)
            else:
                false += 1
        hits += hit
    fault_count = sum(bool(case.suspect) for case in cases)
    return DifficultyTally(hits, fault_count, false, tuple(delays), sum(case.machine_days_count for case in cases))


def _hits(one: Accusation, case: Scored) -> bool:
    """Return whether an accusation hits the case's fault."""
    early, late = case.onset_ns - 2 * NS_PER_SECOND, case.end_ns + 120 * NS_PER_SECOND
    return one.host == case.suspect and early <= one.detected_ns <= late


def best_threshold(cases: Sequence[Scored]) -> float:
    """Return the alarm line with the highest F1 on these cases."""
    return max(THRESHOLDS, key=lambda threshold: tally(cases, threshold).f1)


def table(cases: Sequence[Scored], threshold: float) -> str:
    """Return a Markdown table of the results: all cases, then by kind."""
    lines = ["| kind | cases | precision | recall | F1 | median s | false |", "|---|---|---|---|---|---|---|"]
    kinds = sorted({case.kind for case in cases})
    for name in ("all", *kinds):
        chosen = [case for case in cases if name in ("all", case.kind)]
        result = tally(chosen, threshold)
        figures = ["", "", "", ""]
        if result.fault_count:
            numbers = (result.precision, result.recall, result.f1)
            figures = [*(f"{number:.2f}" for number in numbers), f"{result.median_seconds:.0f}"]
        lines.append(f"| {name} | {len(chosen)} | {' | '.join(figures)} | {result.false_count} |")
    return "\n".join(lines)
