"""Training of the networks of ``bilstm`` on healthy time of recordings, and fitting of their alarm line to the budget.

There is one network per family of operations. Windows that overlap a fault of ``truth.json`` are not used; a recording
without that file counts as healthy. Some recordings are held out of the training, to detect a network that learned
nothing.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Final, NamedTuple

import numpy as np

from tocsin.models.bilstm_bounds import MAX_WORDS
from tocsin.models.bilstm_file import encode_bilstm
from tocsin.models.bilstm_ocnn import OcnnModel
from tocsin.models.op_features import COMMUNICATION, FAMILIES, OTHER, PHASES, Vocabulary, phase_vocabulary
from tocsin.models.training.bilstm_ocnn_training import AlternationRound, NormalData, OcnnTraining, train
from tocsin.pipeline.detect.traces.detector import BILSTM
from tocsin.pipeline.detect.traces.training import Singles, role_windows, sequences_in
from tocsin.pipeline.detect.traces.windows import WindowConfig
from tocsin.pipeline.lab.backtest.model_comparison import scores_of
from tocsin.pipeline.lab.backtest.trace_runner import op_windows, slices_of
from tocsin.pipeline.lab.parallel import Executor, Progress, for_each
from tocsin.pipeline.lab.training.budget import BudgetTrial, Choice, choose
from tocsin.pipeline.lab.training.numbers import check_labelled, check_tables
from tocsin.pipeline.lab.training.recordings import TrainingSet
from tocsin.pipeline.recording.ops import read_with_ops
from tocsin.pipeline.recording.tables import Recording, Text
from tocsin.schemas.errors import ModelRefusedError, RecordingError, TocsinError

SEQUENCE_COUNT: Final = 6
"""Windows in an input sequence. Half of what seed-systems-b.md 4.3 proposes, so that a fault fills the sequence sooner.
"""
LINE_FACTORS: Final = (1.0, 0.56, 0.75, 1.33, 1.78, 2.37)
"""Factors of the trained alarm line that are tried, about a third apart. The first one is kept among equally good ones.
"""
TRIES: Final = ((1.0, 0), (3.0, 0), (1.0, 1_000_003), (3.0, 1_000_003))
"""Retries after a network that learned nothing: (factor of the auto-encoder's loss, offset of the seed). With a factor
above three the network sees little else and is blind to shuffled sequences."""
_HELD_OUT_SHARE: Final = 4
"""One recording of this many is held out, at least one."""
_MOST_SEQUENCES: Final = 300
"""Most sequences of one recording and family, so that a large one does not outweigh the others."""
_WORD_COLUMNS: Final = {"collectives": "op_name", "ops": "optype"}

Networks = Mapping[str, OcnnModel]
"""Operation family -> its network."""


class FamilyCut(NamedTuple):
    """The healthy time of one recording, cut into sequences of one family of operations.

    Attributes:
        sequences: shape (sequences, windows, features).
        independent_count: number of sequences that share no window.
        role_count: number of roles that were compared.
    """

    sequences: Singles
    independent_count: int
    role_count: int


Cut = Mapping[str, FamilyCut]
"""Operation family -> what was cut of a recording."""


@dataclass(frozen=True, slots=True)
class FittedNetworks:
    """The result of a training of ``bilstm``.

    Attributes:
        choice: networks with their alarm lines.
        line_factor: chosen one of ``LINE_FACTORS``.
        notes: for each family, how much data it was trained on, or why it has no network; one sentence each.
        operations: for each family with a network, its ``sources`` (words of the vocabulary), ``recordings``,
            ``roles`` and ``sequences``, for the card.
    """

    choice: Choice[Networks]
    line_factor: float
    notes: tuple[str, ...]
    operations: Mapping[str, Mapping[str, Any]]


@dataclass(frozen=True, slots=True)
class Cutting:
    """One recording to be cut into sequences; sent to a worker process.

    Attributes:
        folder: folder of the recording.
        words: operation family -> words of its vocabulary.
        seed: seed of the choice among too many sequences.
    """

    folder: Path
    words: Mapping[str, tuple[str, ...]]
    seed: int


def fit_bilstm(
    data: TrainingSet,
    budget_per_machine_day: float,
    executor: Executor,
    *,
    config: OcnnTraining | None = None,
    on_progress: Progress | None = None,
) -> FittedNetworks:
    """Train the networks on all recordings, and fit the alarm line on those with a truth.

    Args:
        data: recordings, mostly without a fault.
        budget_per_machine_day: allowed false accusations per machine-day; infinite: the best F1.
        executor: distributes the work to processes.
        config: settings of each network; the seed also chooses the held-out recordings.
        on_progress: called with the progress.

    Raises:
        RecordingError: a recording cannot be read, none has a truth or operations, or there is too little healthy time.
        ModelRefusedError: no network learned anything; the error carries the reason.
    """
    config = OcnnTraining() if config is None else config
    check_labelled(data)
    check_tables(data, BILSTM)
    words = vocabularies(list(for_each(executor, words_at, data.folders, on_progress, "operation names")))
    orders = [Cutting(folder, words, config.seed) for folder in data.folders]
    cuts: list[Cut] = list(for_each(executor, cut_at, orders, on_progress, "windows"))
    networks, notes = train_networks(cuts, words, config, on_progress)
    candidates = [_with_line(networks, factor) for factor in LINE_FACTORS]
    models = [{BILSTM: encode_bilstm(one)} for one in candidates]
    scores = scores_of(data.labelled, BILSTM, models, executor, on_progress)
    tried = [BudgetTrial(factor, score) for factor, score in zip(LINE_FACTORS, scores, strict=True)]
    best = choose(tried, budget_per_machine_day)
    chosen: Networks = candidates[LINE_FACTORS.index(best.thing)]
    choice = Choice(chosen, best.score, best.reason, best.budget_per_machine_day)
    return FittedNetworks(choice, best.thing, notes, {family: _operations(cuts, chosen, family) for family in chosen})


def _operations(cuts: Sequence[Cut], networks: Networks, family: str) -> dict[str, Any]:
    """Return what one network was trained on, for the card."""
    parts = [cut[family] for cut in cuts if len(cut[family].sequences)]
    return {
        "sources": list(networks[family].vocabulary.words),
        "recordings": len(parts),
        "roles": sum(part.role_count for part in parts),
        "sequences": sum(len(part.sequences) for part in parts),
    }


def words_at(folder: Path) -> dict[str, tuple[str, ...]] | str:
    """Return the operation names in a recording by family, or a text that says why it cannot be read."""
    try:
        recording = read_with_ops(folder)
    except (TocsinError, OSError) as error:
        return str(error)
    words = {family: _words(recording, family, column) for family, column in _WORD_COLUMNS.items()}
    return {"phases": _measured_phases(recording), **words}


def cut_at(order: Cutting) -> dict[str, FamilyCut] | str:
    """Return the sequences of a recording's healthy time by family, or a text that says why it cannot be read."""
    try:
        recording = read_with_ops(order.folder)
        windows = [*role_windows(slices_of(recording), WindowConfig()), *op_windows(recording)]
    except (TocsinError, OSError) as error:
        return str(error)
    truth = recording.truth
    fault_spans = [(int(fault["onset_ns"]), int(fault["end_ns"])) for fault in (truth["faults"] if truth else ())]
    draw, found = np.random.default_rng(order.seed), {}
    for family, words in order.words.items():
        own = [window for window in windows if window.family == family]
        sequences, independent = sequences_in(own, Vocabulary(words), SEQUENCE_COUNT, struck=fault_spans)
        keep = np.sort(draw.permutation(len(sequences))[:_MOST_SEQUENCES])
        roles = max(Counter(window.begin_ns for window in own).values(), default=0)
        found[family] = FamilyCut(sequences[keep], independent, roles)
    return found


def _measured_phases(recording: Recording) -> tuple[str, ...]:
    """Return the phases that steps of a recording measure; () without a step that has its communication time."""
    columns = recording.tables.get("steps", {})
    waits = columns.get(f"{COMMUNICATION}_seconds")
    if not isinstance(waits, np.ndarray) or not (told := np.isfinite(waits)).any():
        return ()
    found = {name: columns.get(f"{name}_seconds") for name in PHASES}
    measured = [n for n, column in found.items() if isinstance(column, np.ndarray) and np.isfinite(column[told]).any()]
    return phase_vocabulary(measured).words


def _words(recording: Recording, family: str, column: str) -> tuple[str, ...]:
    """Return the operation names in one table of a recording."""
    text = recording.tables.get(family, {}).get(column)
    return tuple(text.words[code] for code in np.unique(text.codes).tolist()) if isinstance(text, Text) else ()


def vocabularies(found: Sequence[Mapping[str, tuple[str, ...]]]) -> dict[str, tuple[str, ...]]:
    """Return for each family the words of its vocabulary.

    Phases: those that all recordings with step phases measure. Others: the names that most recordings have, in
    alphabetical order.
    """
    phases = [set(one["phases"]) for one in found if one["phases"]]
    words = {"phases": phase_vocabulary(set.intersection(*phases)).words if phases else ()}
    for family in _WORD_COLUMNS:
        counts = Counter(word for one in found for word in one[family] if word not in ("", OTHER))
        words[family] = tuple(sorted(sorted(counts, key=lambda word: (-counts[word], word))[:MAX_WORDS]))
    return {family: words[family] for family in FAMILIES if words[family]}


def train_networks(
    cuts: Sequence[Cut], words: Mapping[str, tuple[str, ...]], config: OcnnTraining, on_progress: Progress | None
) -> tuple[Networks, tuple[str, ...]]:
    """Train a network for each family with enough data; return them and notes."""
    networks: dict[str, OcnnModel] = {}
    notes: list[str] = []
    refused: ModelRefusedError | None = None
    for family in words:
        parts = [cut[family] for cut in cuts if len(cut[family].sequences)]
        normal = _split(parts, config.seed)
        least = round(1 / config.nu_ratio)
        if normal is None or min(len(normal.training), len(normal.held_out)) < least:
            count = sum(len(part.sequences) for part in parts)
            text = f"{count} healthy sequences of {SEQUENCE_COUNT} windows in {len(parts)} recordings"
            notes.append(f"{family}: no network: {text}, it takes two recordings with {least} each")
            continue
        try:
            networks[family] = _not_collapsed(family, normal, Vocabulary(words[family]), config, on_progress)
        except ModelRefusedError as error:
            refused = refused or error
            notes.append(str(error))
            continue
        notes.append(f"{family}: taught by {len(normal.training)} sequences, checked on {len(normal.held_out)} others")
    if networks:
        return networks, tuple(notes)
    if refused is not None:
        raise refused
    raise RecordingError("recordings", "; ".join(notes) or "no operation is named in them, no step has its phases")


def _split(parts: Sequence[FamilyCut], seed: int) -> NormalData | None:
    """Return the recordings' sequences split into training and held-out ones; None with fewer than two recordings."""
    if len(parts) < 2:
        return None
    order = np.random.default_rng(seed).permutation(len(parts)).tolist()
    count = max(1, len(parts) // _HELD_OUT_SHARE)
    held_out, training = order[:count], sorted(order[count:])
    return NormalData(
        np.concatenate([parts[index].sequences for index in training]),
        np.concatenate([parts[index].sequences for index in held_out]),
        sum(parts[index].independent_count for index in held_out),
    )


def _not_collapsed(
    family: str, normal: NormalData, vocabulary: Vocabulary, config: OcnnTraining, on_progress: Progress | None
) -> OcnnModel:
    """Train a network, with retries because quiet jobs vary little and networks collapse easily.

    Return the first good one.
    """
    reason, text = "", ""
    for factor, offset in TRIES:
        tried = replace(config, anchor_weight=config.anchor_weight * factor, seed=config.seed + offset)
        try:
            return _network(family, normal, vocabulary, tried, on_progress)
        except ModelRefusedError as error:
            reason, text = error.reason, str(error)
    raise ModelRefusedError(reason, f"{family}: no network: {reason}: {text} (the last of {len(TRIES)} tries)")


def _network(
    family: str, normal: NormalData, vocabulary: Vocabulary, config: OcnnTraining, on_progress: Progress | None
) -> OcnnModel:
    """Train one network with progress reports."""

    def on_turn(turn: AlternationRound) -> None:
        if on_progress is not None:
            on_progress(f"network of {family}", turn.index + 1, config.turn_count)

    return train(normal, vocabulary, config, on_turn)


def _with_line(networks: Networks, factor: float) -> dict[str, OcnnModel]:
    """Return the networks with their alarm lines multiplied by a factor."""
    return {family: replace(one, line_factor=one.line_factor * factor) for family, one in networks.items()}
