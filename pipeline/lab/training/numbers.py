"""The numbers of the rules that judge running jobs (``peers``, ``steps``) that are fitted, and their candidate values.

They are few on purpose, because with each one sensitivity is bought with false accusations. The others (how much a
host may differ from its own past, how many windows are learned) follow from their meaning, about which a week of
recordings says less. Values are about a third apart, because nearer ones do the same on some hundred faults.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final

from tocsin.models.documents import Numbers, write_numbers
from tocsin.models.steps import SlowConfig
from tocsin.pipeline.detect.peers.config import PeersConfig
from tocsin.pipeline.detect.peers.cusum import SumConfig
from tocsin.pipeline.detect.steps.config import StepsConfig
from tocsin.pipeline.lab.backtest.detector_sets import OURS
from tocsin.pipeline.lab.backtest.model_comparison import scores_of
from tocsin.pipeline.lab.backtest.trace_runner import READS
from tocsin.pipeline.lab.parallel import Executor, Progress
from tocsin.pipeline.lab.training.recordings import TrainingSet
from tocsin.pipeline.lab.training.search import Coordinate, SearchResult, search
from tocsin.pipeline.recording.score import Score
from tocsin.schemas.errors import RecordingError

_SUMS, _PEERS, _SLOW, _STEPS = SumConfig(), PeersConfig(), SlowConfig(), StepsConfig()

COORDINATES: Final[Mapping[str, tuple[Coordinate, ...]]] = {
    "peers": (
        Coordinate("working", "alarm_sum", (_SUMS.alarm_sum, 5.5, 7.5, 13.0, 17.5)),
        Coordinate("working", "drift_sigmas", (_SUMS.drift_sigmas, 2.3, 4.0)),
        Coordinate("standing", "alarm_sum", (_SUMS.alarm_sum, 5.5, 7.5, 13.0, 17.5)),
        Coordinate("lines", "lone_gpu_ratio", (_PEERS.lone_gpu_ratio, 0.6, 1.0)),
    ),
    "steps": (
        Coordinate("slow", "min_strength_ratio", (_SLOW.min_strength_ratio, 0.055, 0.075, 0.135, 0.18)),
        Coordinate("slow", "spread_factor", (_SLOW.spread_factor, 3.7, 6.7, 9.0)),
        Coordinate("lines", "min_lasting_seconds", (_STEPS.min_lasting_seconds, 1.0, 2.2, 3.3, 5.0)),
        Coordinate("lines", "lasting_scale_seconds", (_STEPS.lasting_scale_seconds, 0.22, 0.3, 0.55, 0.75)),
    ),
}
"""Detector -> its fitted numbers. ``working``: host metrics while the job runs. ``standing``: while it is stalled."""

NEEDS: Final[Mapping[str, tuple[str, ...]]] = {
    "peers": ("host_metrics",),
    "steps": ("steps",),
    "entropy": READS,
    "bilstm": READS,
}
"""Detector -> tables of which a recording must have one to say anything about it."""


def fit_numbers(
    data: TrainingSet,
    detector: str,
    budget_per_machine_day: float,
    executor: Executor,
    *,
    seed: int = 0,
    on_progress: Progress | None = None,
) -> SearchResult:
    """Choose the numbers of ``peers`` or ``steps`` under a budget.

    Args:
        data: recordings, each with its truth; healthy ones too.
        detector: ``peers`` or ``steps``.
        budget_per_machine_day: allowed false accusations per machine-day; infinite: the best F1.
        executor: distributes the replays to processes.
        seed: seed of the order in which numbers are searched.
        on_progress: called with the progress.

    Raises:
        RecordingError: a recording has no truth, none has the detector's input, or one cannot be replayed.
    """
    check_all_labelled(data)
    check_tables(data, detector)

    def evaluate(candidates: Sequence[Numbers]) -> Sequence[Score]:
        models = [{detector: write_numbers(candidate)} for candidate in candidates]
        return scores_of(data.folders, OURS, models, executor, on_progress)

    return search(COORDINATES[detector], evaluate, budget_per_machine_day, seed=seed, on_progress=on_progress)


def check_all_labelled(data: TrainingSet) -> None:
    """Check that every recording has a truth.

    Raises:
        RecordingError: one has none; the error names the first.
    """
    lacking = [one.folder for one in data.members if one.fault_count is None]
    if lacking:
        more = f" (and in {len(lacking) - 1} others)" if len(lacking) > 1 else ""
        text = f"missing in {lacking[0]}{more}: without it nobody knows which accusations are false"
        raise RecordingError("truth.json", f'{text}; {{"faults": []}} says that nothing happened')


def check_labelled(data: TrainingSet) -> None:
    """Check that at least one recording has a truth.

    Raises:
        RecordingError: no recording has a truth.
    """
    if not data.labelled:
        count = len(data.members)
        text = f"missing in all {count} recordings: thresholds need to know what happened"
        raise RecordingError("truth.json", f'{text} ({{"faults": []}} says that nothing did)')


def check_tables(data: TrainingSet, detector: str) -> None:
    """Check that at least one recording has input for the detector.

    Raises:
        RecordingError: no recording has a row, or for ``peers`` a sample, of its input.
    """
    names = NEEDS[detector]
    if not any(one.tables.intersection(names) for one in data.members):
        files = " or ".join(f"{name}.parquet" for name in names)
        raise RecordingError(
            files, f"not a row in all {len(data.members)} recordings: {detector} looks at nothing else"
        )
    if detector == "peers" and not any(one.metrics for one in data.members):
        text = f"not a sample of a metric in all {len(data.members)} recordings: all values are missing or infinite"
        raise RecordingError("host_metrics.parquet", text)
