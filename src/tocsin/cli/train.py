"""``tocsin train RECORDING …``: trains a detector's model on recordings, with thresholds that keep to a budget."""

from __future__ import annotations

import argparse
import contextlib
import math
import os
import signal
import sys
import tempfile
import time
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self

from tocsin.cli.kafka import add_kafka_arguments, settings_of
from tocsin.cli.logs import add_log_arguments, set_up_logs
from tocsin.cli.record import when_ns
from tocsin.cli.registry import add_registry_argument, registry_of
from tocsin.cli.terminal import unguarded
from tocsin.cli.workers import interrupt, shared_out
from tocsin.pipeline.lab.parallel import ROUND
from tocsin.schemas.errors import ConfigError
from tocsin.schemas.printable import counted, plain

if TYPE_CHECKING:
    from tocsin.pipeline.lab.parallel import Executor
    from tocsin.pipeline.lab.training.recordings import TrainingSet
    from tocsin.pipeline.lab.training.train import Trained

DETECTORS = ("peers", "steps", "minder", "entropy", "bilstm")
SHIPPED = ("minder", "bilstm")
"""Detectors whose models ``--defaults`` makes. Of ``entropy`` the program's own alarm line ships."""
_SHOWN_NOTES = 10
_EXIT_NO_MODEL = 1


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the command's arguments to the parser."""
    text = "recordings, or folders that hold some; with truth.json where thresholds are fitted"
    parser.add_argument("recordings", metavar="RECORDING", type=Path, nargs="*", help=text)
    parser.add_argument("--detector", choices=DETECTORS, help="what is trained (peers)")
    text = "false accusations that a machine may cost in a day; inf: none is asked for, the best F1 (%(default)s)"
    parser.add_argument("--budget-per-machine-day", metavar="X", type=float, default=0.01, help=text)
    parser.add_argument("--seed", metavar="S", type=int, default=0, help="the same seed and data give the same model")
    text = "more recordings, with truth.json, that nothing is learned from: their figures go onto the card"
    parser.add_argument("--validate", metavar="RECORDING", type=Path, nargs="+", default=[], help=text)
    text = "processes (default: one a processor)"
    parser.add_argument("--jobs", metavar="N", type=int, default=len(os.sched_getaffinity(0)), help=text)
    add_registry_argument(parser)
    text = (
        "the models that ship with tocsin, or that of --detector alone: simulates the recordings of --seed, learns from"
        " them and from the drills that are part of the program"
    )
    parser.add_argument("--defaults", action="store_true", help=text)
    text = "write DETECTOR/model.bin and card.json there, as the sources keep them, and not into the registry"
    parser.add_argument("--out", metavar="FOLDER", type=Path, help=text)
    group = parser.add_argument_group("out of Kafka, beside or instead of recordings")
    group.add_argument("--from-kafka", metavar="[CLUSTER/]JOB", help="whose records; needs --kafka")
    text = "from this event time: 2026-11-21T10:00 (UTC), or 90m, 2h, 1d ago (default: all that is there)"
    group.add_argument("--since", metavar="WHEN", help=text)
    group.add_argument("--until", metavar="WHEN", help="to before this event time (default: now)")
    text = 'truth.json of that range; {"faults": []}: nothing happened (default: nobody knows)'
    group.add_argument("--truth", metavar="FILE", type=Path, help=text)
    add_kafka_arguments(parser)
    add_log_arguments(parser, default_level="warning")


def run(args: argparse.Namespace) -> int:
    """Train a model and store it; return the exit status, 1 if no setting keeps to the budget."""
    set_up_logs(args)
    signal.signal(signal.SIGTERM, interrupt)  # as Ctrl-C: temporary folders go
    _check(args)
    with (
        tempfile.TemporaryDirectory(prefix="tocsin-train-") as own,
        shared_out(args.jobs) as executor,
        Shown() as shown,
    ):
        return max(_made(args, detector, Path(own), executor, shown) for detector in _detectors(args))


def _detectors(args: argparse.Namespace) -> tuple[str, ...]:
    """Return the detectors whose models are trained."""
    if args.detector is not None:
        return (args.detector,)
    return SHIPPED if args.defaults else ("peers",)


def _made(args: argparse.Namespace, detector: str, own: Path, executor: Executor, shown: Shown) -> int:
    """Train the model of one detector, store it, and return the exit status."""
    begun = os.times()
    trained = _train(args, detector, own, executor, shown)
    for line in trained.lines:
        print(plain(line))
    return _keep(args, trained, begun)


def _check(args: argparse.Namespace) -> None:
    """Check the flags; raise ConfigError if they are out of range or contradict each other."""
    from tocsin.pipeline.lab.training.budget import check_budget

    check_budget(args.budget_per_machine_day)
    if args.jobs < 1:
        raise ConfigError("--jobs", args.jobs, "at least 1")
    if args.seed < 0:
        raise ConfigError("--seed", args.seed, "0 or more")
    given = [
        name for name, value in (("--since", args.since), ("--until", args.until), ("--truth", args.truth)) if value
    ]
    if given and not args.from_kafka:
        raise ConfigError(given[0], str(getattr(args, given[0][2:])), "used with --from-kafka")
    if args.defaults and (args.recordings or args.from_kafka):
        raise ConfigError("--defaults", "RECORDING", "used alone: it simulates its own recordings")
    if not (args.recordings or args.from_kafka or args.defaults):
        raise ConfigError("RECORDING", "none", "given, or --from-kafka, or --defaults")
    if args.defaults and args.detector not in (None, *SHIPPED):
        raise ConfigError("--detector", args.detector, f"{' or '.join(SHIPPED)} with --defaults: only these ship")


def _train(args: argparse.Namespace, detector: str, own: Path, executor: Executor, shown: Shown) -> Trained:
    """Collect the recordings, train on them, and return the model."""
    from tocsin.pipeline.lab.training.recordings import look_at_all
    from tocsin.pipeline.lab.training.train import TrainingConfig, train

    paths, source = list(args.recordings), [str(path) for path in args.recordings]
    budget = args.budget_per_machine_day
    if args.defaults:
        paths = [_default_recordings(detector, own / detector, args.seed, executor, shown)]
        source = [f"tocsin train --defaults --detector {detector} --seed {args.seed}"]
        if detector == "minder":  # the published baseline: its thresholds are those with the best F1
            budget = math.inf
    if args.from_kafka:
        paths.append(_from_kafka(args, own / "kafka"))
        since, until = args.since or "all", args.until or "now"
        source.append(f"kafka {args.topic_prefix}.* {args.from_kafka} {since} to {until}")
    data = look_at_all(paths, executor, source)
    validation = look_at_all(args.validate, executor) if args.validate else None
    shown.say(f"{detector}: {_size_of(data)}")
    if validation is not None:
        shown.say(f"validation: {_size_of(validation)}")
    _notes(data, shown)
    config = TrainingConfig(detector, budget, args.seed)
    now = datetime.now(UTC).isoformat(timespec="seconds")
    return train(data, config, now, executor, validation=validation, on_progress=shown.on_progress)


def _default_recordings(detector: str, folder: Path, seed: int, executor: Executor, shown: Shown) -> Path:
    """Write the recordings from which a detector's default model is trained, and return their folder."""
    from tocsin.pipeline.lab.training.drills import write_drills
    from tocsin.pipeline.lab.training.simulated import write_defaults, write_step_defaults

    shown.say(f"{detector}: simulating recordings")
    if detector == "minder":
        write_defaults(folder, seed, executor, on_progress=shown.on_progress)
        return folder
    write_step_defaults(folder, seed, executor, on_progress=shown.on_progress)
    drills = write_drills(folder)
    shown.say(f"{detector}: {counted(len(drills), 'recorded drill')} beside them")
    return folder


def _size_of(data: TrainingSet) -> str:
    """Return the size of a training set as text."""
    count, labelled = len(data.members), len(data.labelled)
    without = f" ({count - labelled} without truth.json)" if labelled < count else ""
    faults = counted(data.fault_count, "fault")
    return f"{counted(count, 'recording')}{without}, {data.machine_days:.3g} machine-days, {faults}"


def _notes(data: TrainingSet, shown: Shown) -> None:
    """Show the first notes about recordings."""
    notes = [f"{one.folder}: {note}" for one in data.members for note in one.notes]
    for note in notes[:_SHOWN_NOTES]:
        shown.say(note)
    if len(notes) > _SHOWN_NOTES:
        shown.say(f"and {len(notes) - _SHOWN_NOTES} more such notes")


def _from_kafka(args: argparse.Namespace, folder: Path) -> Path:
    """Record the range from Kafka, as ``tocsin record --from-kafka`` does, and return the recording's folder."""
    from tocsin.pipeline.kafka.record import RecordRequest, record
    from tocsin.pipeline.recording.manifest import read_truth

    settings, now_ns = settings_of(args), time.time_ns()
    cluster, _, job_id = args.from_kafka.rpartition("/")
    if not job_id:
        raise ConfigError("--from-kafka", args.from_kafka, "JOB or CLUSTER/JOB")
    since_ns = when_ns("--since", args.since, now_ns) if args.since else 0
    until_ns = when_ns("--until", args.until, now_ns) if args.until else None
    if until_ns is not None and until_ns <= since_ns:
        raise ConfigError("--until", args.until, "later than --since")
    record(settings, args.topic_prefix, folder, RecordRequest(job_id, cluster, since_ns, until_ns))
    if args.truth is not None:
        try:
            (folder / "truth.json").write_bytes(args.truth.read_bytes())
        except OSError as error:
            raise ConfigError("--truth", str(args.truth), f"a file that can be read ({error.strerror})") from error
        read_truth(folder)
    return folder


def _keep(args: argparse.Namespace, trained: Trained, begun: os.times_result) -> int:
    """Store the model in the registry or the output folder, print where, and return the exit status."""
    from tocsin.pipeline.lab.registry.builtin import save_builtin
    from tocsin.pipeline.lab.training.budget import BudgetReason

    now = os.times()
    cpu_seconds = sum(now[:4]) - sum(begun[:4])
    size = f"{len(trained.payload)} bytes; {now.elapsed - begun.elapsed:.0f} s, {cpu_seconds:.0f} s of processors"
    if trained.reason is BudgetReason.BUDGET_EXCEEDED:
        print(f"{trained.card.detector}: no model ({trained.reason.value}); allow more, or mend what accuses")
        return _EXIT_NO_MODEL
    if args.out is not None:
        save_builtin(trained.card, trained.payload, args.out)
        print(f"{trained.card.detector}: written to {args.out / trained.card.detector} ({size})")
        return 0
    registry = registry_of(args)
    card = registry.add(trained.card, trained.payload)
    print(f"{card.detector} {card.version}: added to {registry.where} ({size})")
    print(f"not promoted: tocsin models promote {card.detector} {card.version} --validate RECORDING...")
    return 0


class Shown(contextlib.AbstractContextManager["Shown"]):
    """Progress of the training: bars on a terminal, else one line per stage."""

    def __init__(self) -> None:
        """Create the display; nothing is shown yet."""
        self._bars: Any = None
        self._tasks: dict[str, Any] = {}

    def __enter__(self) -> Self:
        """Start the bars if stderr is a terminal."""
        if sys.stderr.isatty():
            from rich.console import Console
            from rich.progress import Progress

            self._bars = Progress(console=Console(file=unguarded(sys.stderr)))
            self._bars.start()
        return self

    def __exit__(self, *_: object) -> None:
        """Stop the bars; they stay on the terminal."""
        if self._bars is not None:
            self._bars.stop()

    def say(self, text: str) -> None:
        """Show one line of text."""
        if self._bars is not None:
            self._bars.console.print(plain(text), markup=False, highlight=False)
        else:
            print(text, file=sys.stderr, flush=True)

    def on_progress(self, what: str, done: int, total: int) -> None:
        """Show that ``done`` of ``total`` parts of the stage ``what`` are done."""
        if self._bars is None:
            if done == total and what != ROUND:
                self.say(f"{what}: done")
            return
        if what not in self._tasks:
            self._tasks[what] = self._bars.add_task(what, total=total)
        self._bars.update(self._tasks[what], completed=done, total=total)
