"""Simulated jobs whose ranks tell their steps: normal sequences to train on, cases to be judged."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from tocsin.models.bilstm_ocnn import OcnnModel
from tocsin.models.entropy import EntropyConfig
from tocsin.models.op_features import COMMUNICATION, phase_vocabulary, sum_up
from tocsin.models.training.bilstm_ocnn_training import NormalData
from tocsin.models.training.entropy_ablation import Ablation, ablate, features_of
from tocsin.pipeline.detect.traces.detector import (
    BILSTM,
    ENTROPY,
    TraceDetector,
    TracesConfig,
)
from tocsin.pipeline.detect.traces.training import second_slices, sequences_of
from tocsin.pipeline.detect.traces.windows import TraceWindows, WindowConfig
from tocsin.pipeline.job.graph import JobGraph
from tocsin.pipeline.lab.simulation.case import (
    HEALTHY,
    Case,
    case_seed,
    draw_case,
)
from tocsin.pipeline.lab.simulation.draw import Half
from tocsin.pipeline.recording.stream import records_of
from tocsin.schemas.records import NS_PER_SECOND
from tocsin.schemas.verdicts import Anomaly

SEQUENCE_COUNT = 6
"""Windows that the network looks back over: a minute of a job with short steps. Half of what seed-systems-b.md 4.3
proposes, because a fault is half as long in coming into view."""
VOCABULARY = phase_vocabulary(("data", COMMUNICATION))
"""Phases that all of these jobs measure. A network of all phases learns from few of them, and is silent in the others.
"""
HOSTS = (4, 24)
DETECTORS = (ENTROPY, BILSTM)
_MOST_SEQUENCES_COUNT = 300
"""Of one job: a large one must not outweigh the others."""


def cases(seed: int, count: int, kind: str | None, half: Half, duration_seconds: float | None = None) -> Iterator[Case]:
    """The first so many cases of a set whose ranks tell at least how long they wait."""
    index = found = 0
    while found < count:
        case = draw_case(case_seed(seed, index), HOSTS, kind, half, duration_seconds=duration_seconds)
        index += 1
        if case.shape.step_detail in ("waits", "full"):
            found += 1
            yield case


def normal_sequences(seed: int, count: int) -> tuple[np.ndarray[tuple[int, ...], np.dtype[np.float32]], int]:
    """Sequences of healthy jobs of the half that may be fitted on, and how many of them share no window."""
    draw, parts, independent = np.random.default_rng(seed), [], 0
    for case in cases(seed, count, HEALTHY, "fit", 900.0):
        slices = second_slices(records_of(case.recording()))
        found, own = sequences_of(slices, SEQUENCE_COUNT, WindowConfig(), vocabulary=VOCABULARY)
        keep = draw.permutation(len(found))[:_MOST_SEQUENCES_COUNT]
        parts.append(found[np.sort(keep)])
        independent += own
    return np.concatenate(parts), independent


def normal_data(count: int) -> NormalData:
    """Training jobs and a third as many others, held out."""
    training, _ = normal_sequences(601, count)
    held_out, independent = normal_sequences(602, max(1, count // 3))
    return NormalData(training, held_out, independent)


def ablation(seed: int, count: int) -> Ablation:
    """What entropy adds to plain times (E6), on windows of jobs with a fault; a rank is odd while its host is."""
    plain, entropies, odd, jobs = [], [], [], []
    for job, case in enumerate(cases(seed, count, None, "fit")):
        [fault] = case.truth()["faults"]
        guilty = {suspect["name"] for suspect in fault["suspects"]}
        windows = TraceWindows(WindowConfig(), graph := JobGraph())
        for data in second_slices(records_of(case.recording())):
            graph.take(data.records)
            for role in windows.close(data.end_ns) if windows.take(data) else ():
                summed = sum_up(role.rows, role.vocabulary.class_count)
                if role.family != "phases" or summed.ranks.size < EntropyConfig().min_peer_count:
                    continue
                left, right = features_of(summed, EntropyConfig())
                struck = fault["onset_ns"] <= role.begin_ns and role.end_ns <= fault["end_ns"]
                plain.append(left)
                entropies.append(right)
                odd += [struck and graph.host_of(rank) in guilty for rank in summed.ranks.tolist()]
                jobs += [job] * summed.ranks.size
    return ablate(np.concatenate(plain), np.concatenate(entropies), np.array(odd), np.array(jobs))


@dataclass(frozen=True, slots=True)
class Reported:
    """What the detectors said of one case.

    Attributes:
        kind: the fault's, or ``healthy``.
        hits: detectors that named the host at fault while it was.
        wrong: by detector, anomalies' hosts that were not at fault.
        delay_seconds: of the first to name it, by detector.
        machine_days: how long how many hosts were watched.
    """

    kind: str
    hits: frozenset[str]
    wrong: Counter[str]
    delay_seconds: dict[str, float]
    machine_days: float


def told_of(case: Case, model: OcnnModel | None) -> Reported:
    """Play a case and compare with its truth."""
    graph = JobGraph()
    detector = TraceDetector(TracesConfig(), graph, {} if model is None else {"phases": model})
    said: list[Anomaly] = []
    for data in second_slices(records_of(case.recording())):
        graph.take(data.records)
        said += detector.on_slice(data)
    faults = case.truth()["faults"]
    guilty = {suspect["name"] for fault in faults for suspect in fault["suspects"]}
    onset_ns = min((fault["onset_ns"] for fault in faults), default=case.end_ns)
    delays: dict[str, float] = {}
    wrong: Counter[str] = Counter()
    for anomaly in said:
        if anomaly.component.name in guilty and anomaly.slice_end_ns >= onset_ns:
            delays.setdefault(anomaly.detector, (anomaly.slice_end_ns - onset_ns) / NS_PER_SECOND)
    for name in DETECTORS:
        wrong[name] = len({a.component.name for a in said if a.detector == name and a.component.name not in guilty})
    days = (case.end_ns - case.shape.start_ns) / NS_PER_SECOND / 86_400 * len(case.shape.host_names)
    kind = faults[0]["cause"] if faults else HEALTHY
    return Reported(kind, frozenset(delays), wrong, delays, days)
