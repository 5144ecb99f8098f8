"""Whether recordings hold enough to train Minder's models: machines, windows and seconds, each beside its limit.

Each limit is one principle. Machines: as many as the running detector compares with each other. Windows: together they
have as many samples as a network has weights, or it could learn them by heart; windows that share a sample count once.
Seconds: as long as a running engine looks before it judges, or nothing can be said of the model on these recordings.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Final

import numpy as np

from tocsin.models.minder import PRIORITY
from tocsin.models.minder_stream import LEAST_MACHINES
from tocsin.models.training.lstm_vae_training import VaeTrainingConfig, weight_count
from tocsin.pipeline.detect.learned.minder import StreamingMinderConfig
from tocsin.pipeline.lab.training.minder_training import TrainingRecording
from tocsin.schemas.errors import ModelRefusedError
from tocsin.schemas.printable import counted
from tocsin.schemas.reasons import NamedReason
from tocsin.schemas.records import NS_PER_SECOND, metric_slice_ns

_NAMED_FOLDERS: Final = 3


class TooLittle(NamedReason):
    """Reason for which recordings teach no model of Minder."""

    TOO_FEW_MACHINES = "too_few_machines", "Fewer machines have samples at the same time than are compared."
    TOO_FEW_WINDOWS = (
        "too_few_windows",
        "Of each metric, windows have fewer samples together than a network has weights.",
    )
    TOO_SHORT = "too_short", "They end before a running engine would judge."


@dataclass(frozen=True, slots=True)
class Amount:
    """What the recordings hold.

    Attributes:
        machine_count: most machines with a sample of the same metric at the same time, in the best recording.
        seconds: length of the longest recording.
        needed_seconds: how long a running engine looks before it judges, at that recording's sampling period.
        window_counts: metric -> windows without a missing sample that share none.
    """

    machine_count: int
    seconds: float
    needed_seconds: float
    window_counts: Mapping[str, int]


def amount_of(recordings: Sequence[TrainingRecording], config: VaeTrainingConfig) -> Amount:
    """Return what these recordings hold."""
    windows, machines = dict.fromkeys(PRIORITY, 0), 0
    longest, needed = 0.0, _needed_seconds(NS_PER_SECOND, config)
    for one in recordings:
        known = np.isfinite(one.series.values)
        machines = max(machines, int(known.sum(axis=0).max(initial=0)))
        whole = known.shape[2] // config.window_ticks
        cut = known[:, :, : whole * config.window_ticks].reshape(*known.shape[:2], whole, config.window_ticks)
        for row, count in enumerate(cut.all(axis=3).sum(axis=(0, 2)).tolist()):
            windows[PRIORITY[row]] += count
        seconds = known.shape[2] * one.series.tick_ns / NS_PER_SECOND
        if seconds > longest:
            longest, needed = seconds, _needed_seconds(one.series.tick_ns, config)
    return Amount(machines, longest, needed, windows)


def _needed_seconds(tick_ns: int, config: VaeTrainingConfig) -> float:
    """Return for how long a running engine looks before it judges: a window of slices, then the warm-up."""
    return (config.window_ticks + StreamingMinderConfig().warmup_count) * metric_slice_ns(tick_ns) / NS_PER_SECOND


def with_enough(
    recordings: Sequence[TrainingRecording], folders: Sequence[Path], config: VaeTrainingConfig
) -> tuple[list[TrainingRecording], tuple[str, ...]]:
    """Return the recordings without the metrics that have too few windows for a network, and a note for each of those.

    Args:
        recordings: all that were read.
        folders: where they are from, for the error.
        config: size of the networks.

    Raises:
        ModelRefusedError: there are too few machines or windows, or no recording is long enough; with its figures.
    """
    amount, weights = amount_of(recordings, config), weight_count(config)
    least = -(-weights // config.window_ticks)
    if not amount.machine_count:
        return list(recordings), ()  # not a sample of any of the metrics: training names them
    if amount.machine_count < LEAST_MACHINES:
        text = f"{counted(amount.machine_count, 'machine')} with samples at the same time at most, it takes"
        raise _refused(TooLittle.TOO_FEW_MACHINES, f"{text} {LEAST_MACHINES}: fewer are not compared", folders)
    if amount.seconds < amount.needed_seconds:
        text = f"the longest has {amount.seconds:g} s of samples, it takes {amount.needed_seconds:g} s"
        raise _refused(TooLittle.TOO_SHORT, f"{text}: an engine judges nothing before", folders)
    few = {name: count for name, count in amount.window_counts.items() if 0 < count < least}
    if max(amount.window_counts.values()) < least:
        best = max(amount.window_counts, key=lambda name: amount.window_counts[name])
        text = f"{amount.window_counts[best]} windows of {config.window_ticks} samples of {best}, it takes {least}"
        raise _refused(TooLittle.TOO_FEW_WINDOWS, f"{text}: a network has {weights} weights", folders)
    notes = tuple(f"{name}: no LSTM-VAE: {count} windows, it takes {least}" for name, count in few.items())
    return [_without(one, few) for one in recordings], notes


def _without(recording: TrainingRecording, metrics: Mapping[str, int]) -> TrainingRecording:
    """Return the recording without the samples of some metrics."""
    if not metrics:
        return recording
    values = recording.series.values.copy()
    values[:, [PRIORITY.index(name) for name in metrics]] = np.nan
    return replace(recording, series=replace(recording.series, values=values))


def _refused(reason: TooLittle, text: str, folders: Sequence[Path]) -> ModelRefusedError:
    """Return the error for recordings that hold too little, naming them."""
    named = ", ".join(map(str, folders[:_NAMED_FOLDERS]))
    more = f" and {len(folders) - _NAMED_FOLDERS} more" if len(folders) > _NAMED_FOLDERS else ""
    return ModelRefusedError(reason, f"no model of minder ({reason}): {named}{more}: {text}")
