"""``tocsin replay FOLDER …``: judges recordings with the same operators as running jobs."""

import argparse
import contextlib
import gc
import math
import os
import signal
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, BinaryIO

from tocsin.cli.identity import add_signer_argument, signer_of
from tocsin.cli.kafka import add_kafka_arguments, settings_of
from tocsin.cli.limits import add_limit_arguments, read_limits_of
from tocsin.cli.logs import add_log_arguments, set_up_logs
from tocsin.cli.workers import Work, bar_of, interrupt, side_by_side
from tocsin.pipeline.runtime.gc_settings import GC_THRESHOLDS
from tocsin.schemas.credentials import Role
from tocsin.schemas.errors import ConfigError, TocsinError
from tocsin.schemas.printable import counted, named, plain

if TYPE_CHECKING:
    from tocsin.pipeline.recording.limits import ReadLimits

_NS_PER_SECOND = 1_000_000_000
_REDRAW_SECONDS = 0.1
_SHOWN_REASONS = 10
_INPUTS = ("topology", "groups", "host_metrics", "steps", "collectives", "events")


@dataclass(frozen=True, slots=True)
class ReplayJob:
    """One recording to replay, in a form that can be sent to a worker process.

    Attributes:
        folder: folder of the recording.
        verdicts: file that the verdicts are written to.
        shuffle_seed: seed for shuffling the records within the lateness, None: as recorded.
        speed: seconds of the recording per second, 0: as fast as possible.
        bar: whether to draw a progress bar on stderr.
        limits: limits on what is read, None: the default limits.
    """

    folder: Path
    verdicts: Path
    shuffle_seed: int | None
    speed: float
    bar: bool = False
    limits: "ReadLimits | None" = None


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the command's arguments to the parser."""
    _add(
        parser,
        "folders",
        "FOLDER",
        Path,
        "recording (a folder with a manifest.json), or a folder that holds some",
        nargs="+",
    )
    _add(parser, "--jobs", "N", int, "folders replayed side by side", default=1)
    text = "recording seconds per second (1: real time; default: as fast as it can)"
    _add(parser, "--speed", "X", float, text, default=0.0)
    text = "deliver in an order shuffled within the lateness: the verdicts are the same"
    _add(parser, "--shuffle", "SEED", int, text)
    text = "one folder only: write there instead of FOLDER/verdicts.jsonl"
    _add(parser, "--verdicts", "FILE", Path, text)
    text = "judge nothing here: send the records, with ticks in recording time, to these brokers (one folder)"
    add_kafka_arguments(parser, "--to-kafka", text)
    add_signer_argument(parser, Role.PLAYER.value)
    add_limit_arguments(parser)
    add_log_arguments(parser, default_level="warning")


def _add(  # one line an argument
    parser: argparse.ArgumentParser, name: str, metavar: str, kind: Callable[[str], object], text: str, **more: Any
) -> None:
    """Add an argument."""
    parser.add_argument(name, metavar=metavar, type=kind, help=text, **more)


def run(args: argparse.Namespace) -> int:
    """Replay every recording.

    Returns:
        The exit status: 0, or 2 if a recording could not be read or an operator raised (the others are replayed).
    """
    set_up_logs(args)
    from tocsin.pipeline.recording.under import recordings_or_paths

    gc.set_threshold(*GC_THRESHOLDS)
    signal.signal(signal.SIGTERM, interrupt)  # as Ctrl-C: nothing half written stays
    args.folders = recordings_or_paths(args.folders)
    if args.verdicts is not None and len(args.folders) != 1:
        raise ConfigError("--verdicts", str(args.verdicts), f"used with one recording only, not {len(args.folders)}")
    if args.jobs < 1:
        raise ConfigError("--jobs", args.jobs, "at least 1")
    if not 0 <= args.speed < math.inf:
        raise ConfigError("--speed", args.speed, "0 (as fast as possible) or more")
    bar = sys.stderr.isatty()
    if args.kafka:
        return _to_kafka(args, bar=bar)
    alone, limits = len(args.folders) == 1, read_limits_of(args)
    jobs = [
        ReplayJob(folder, args.verdicts or folder / "verdicts.jsonl", args.shuffle, args.speed, bar and alone, limits)
        for folder in args.folders
    ]
    if alone:
        return _report([replay_one(jobs[0])])
    return _report(side_by_side(jobs, Work(replay_one, _not_replayed), args.jobs, bar_of("folders") if bar else None))


def _to_kafka(args: argparse.Namespace, *, bar: bool) -> int:
    """Play one recording into Kafka, and return the exit status 0."""
    if len(args.folders) != 1 or args.verdicts is not None:
        raise ConfigError("--to-kafka", args.kafka, "used with one recording, and without --verdicts")
    settings = settings_of(args)
    from tocsin.pipeline.kafka.replay import play
    from tocsin.pipeline.recording.reader import read_recording
    from tocsin.pipeline.recording.replay import ReplayConfig

    folder = args.folders[0]
    recording = read_recording(folder, read_limits_of(args))
    job = ReplayJob(folder, folder, args.shuffle, args.speed, bar)
    pace = PlaybackClock(recording.manifest.start_ns, recording.manifest.end_ns, job)
    config, signer = ReplayConfig(shuffle_seed=args.shuffle), signer_of(args, Role.PLAYER)
    played = play(recording, settings, args.topic_prefix, config, pace.on_second, signer)
    pace.end()
    sent = f"{played.record_count} records and {played.tick_count} s of ticks sent to {args.topic_prefix}.*"
    print(plain(f"{folder}: {sent}"))
    return 0


@dataclass(frozen=True, slots=True)
class ReplayResult:
    """Result of replaying one recording.

    Attributes:
        folder: folder of the recording.
        line_count: number of verdict lines written.
        error: why it could not be replayed, "": it was.
        absent: inputs that the recording does not have; detectors that need them did not judge.
        notes: what was skipped, one sentence each.
        reason: why nothing in it could be judged, "": something was.
        failures: seconds at which an operator raised; the job's state was reset there, as with a running job.
    """

    folder: Path
    line_count: int
    error: str
    absent: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()
    reason: str = ""
    failures: tuple[str, ...] = ()


def _report(results: Sequence[ReplayResult]) -> int:
    """Print the results, and return the exit status."""
    for result in results:
        for note in result.notes:
            print(plain(f"tocsin replay: {result.folder}: {note}"), file=sys.stderr)
        if result.error:
            print(plain(f"tocsin replay: {named(result.folder, result.error)}"), file=sys.stderr)
            continue
        for failure in result.failures[:_SHOWN_REASONS]:
            print(plain(f"tocsin replay: {result.folder}: operator_failed: {failure}"), file=sys.stderr)
        print(plain(f"{result.folder}: {counted(result.line_count, 'verdict line')}{_how_judged(result)}"))
    return 2 if any(result.error or result.failures for result in results) else 0


def _how_judged(result: ReplayResult) -> str:
    """Return a note for the number of verdicts: whether anything was judged, and which inputs were absent."""
    absent = ", ".join(result.absent)
    if result.reason:
        return f" (not judged: {result.reason}{f'; without {absent}' if absent else ''})"
    return f" (judged without {absent})" if absent else ""


def replay_one(job: ReplayJob) -> ReplayResult:
    """Replay one recording, write its verdicts and return the result; errors are returned in it."""
    from tocsin.pipeline.recording.import_warnings import notes_of
    from tocsin.pipeline.recording.limits import DEFAULT_LIMITS
    from tocsin.pipeline.recording.replay import ReplayConfig, replay_whole, verdict_lines
    from tocsin.pipeline.recording.traced_causes import read_with_traces

    refused = Counter[str]()
    try:
        recording = read_with_traces(job.folder, job.limits or DEFAULT_LIMITS)
        with _file_for(job.verdicts) as file:
            pace = PlaybackClock(recording.manifest.start_ns, recording.manifest.end_ns, job)
            config = ReplayConfig(shuffle_seed=job.shuffle_seed)
            replayed = replay_whole(recording, config, pace.on_second, refused)
            pace.end()
            file.write(verdict_lines(replayed.verdicts).encode())
    except (TocsinError, OSError) as error:
        return ReplayResult(job.folder, 0, str(error))
    left_out = (f"{count} records are left out: {text}" for text, count in refused.most_common(_SHOWN_REASONS))
    notes = (*notes_of(recording), *left_out)
    absent = tuple(name for name in _INPUTS if name not in recording.tables)
    reason = "" if replayed.reason is None else replayed.reason.value
    return ReplayResult(job.folder, len(replayed.verdicts), "", absent, notes, reason, replayed.failures)


@contextlib.contextmanager
def _file_for(target: Path) -> Iterator[BinaryIO]:
    """Context manager that gives a file which replaces ``target`` at the end, unless there is an error.

    It is opened before the work begins, so that a folder without write access is noticed at once.
    """
    if target.exists() and not target.is_file():  # a pipe, a terminal (or a folder, which is refused)
        with target.open("wb") as plain:
            yield plain
        return
    part = target.with_name(f".{target.name}.{os.getpid()}.part")
    try:
        file = part.open("wb")
    except OSError as error:
        raise ConfigError("verdicts", str(target), f"in a folder that can be written to ({error.strerror})") from error
    try:
        with file:
            yield file
        part.replace(target)
    finally:
        part.unlink(missing_ok=True)


def _not_replayed(job: ReplayJob, why: str) -> ReplayResult:
    """Return the result of a recording that could not be replayed."""
    return ReplayResult(job.folder, 0, why)


class PlaybackClock:
    """Slows a replay to the wanted speed, and draws the progress bar."""

    def __init__(self, start_ns: int, end_ns: int, job: ReplayJob) -> None:
        """Start the clock now."""
        self._start_ns, self._end_ns = start_ns, end_ns
        self._speed = job.speed
        self._begun_seconds = self._drawn_seconds = time.monotonic()
        self._draw = bar_of(job.folder.name) if job.bar else None

    def on_second(self, now_ns: int) -> None:
        """Called when one second of the recording is done: wait until it is due, and redraw the bar."""
        if self._speed:
            due = self._begun_seconds + (now_ns - self._start_ns) / _NS_PER_SECOND / self._speed
            time.sleep(max(0.0, due - time.monotonic()))
        if self._draw is not None and time.monotonic() - self._drawn_seconds >= _REDRAW_SECONDS:
            self._drawn_seconds = time.monotonic()
            self._draw((now_ns - self._start_ns) / max(1, self._end_ns - self._start_ns))

    def end(self) -> None:
        """Draw the bar as complete."""
        if self._draw is not None:
            self._draw(1.0)
            print(file=sys.stderr)
