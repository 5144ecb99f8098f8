"""Fitting of the entropy detector's alarm line; every anomaly counts as an accusation here."""

from __future__ import annotations

from dataclasses import replace

from tocsin.models.entropy import EntropyConfig
from tocsin.models.entropy_file import encode_entropy
from tocsin.pipeline.detect.traces.detector import ENTROPY
from tocsin.pipeline.lab.backtest.model_comparison import scores_of
from tocsin.pipeline.lab.parallel import Executor, Progress
from tocsin.pipeline.lab.training.budget import BudgetTrial, Choice, choose
from tocsin.pipeline.lab.training.numbers import check_all_labelled, check_tables
from tocsin.pipeline.lab.training.recordings import TrainingSet

OWN = EntropyConfig()
LINES = (OWN.max_sigmas, 3.0, 5.3, 7.1, 9.5, 12.6)
"""Alarm lines that are tried, about a third apart; the program's default first, which is kept among equally good ones.
"""


def fit_entropy(
    data: TrainingSet, budget_per_machine_day: float, executor: Executor, on_progress: Progress | None = None
) -> Choice[EntropyConfig]:
    """Choose the alarm line of the entropy detector under a budget.

    Args:
        data: recordings, each with its truth; healthy ones too.
        budget_per_machine_day: allowed false accusations per machine-day; infinite: the best F1.
        executor: distributes the recordings to processes.
        on_progress: called with the progress.

    Raises:
        RecordingError: a recording has no truth, none has operations, or one cannot be read.
    """
    check_all_labelled(data)
    check_tables(data, ENTROPY)
    configs = [replace(OWN, max_sigmas=line) for line in LINES]
    models = [{ENTROPY: encode_entropy(config)} for config in configs]
    scores = scores_of(data.folders, ENTROPY, models, executor, on_progress)
    return choose(
        [BudgetTrial(config, score) for config, score in zip(configs, scores, strict=True)], budget_per_machine_day
    )
