"""``tocsin backtest RECORDING …``: compares detector sets on recordings, scored like ``tocsin score``, with plots."""

from __future__ import annotations

import argparse
import gc
import os
import re
import signal
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from tocsin.cli.limits import add_limit_arguments, read_limits_of
from tocsin.cli.logs import add_log_arguments, set_up_logs
from tocsin.cli.main import EXIT_ERROR
from tocsin.cli.registry import add_registry_argument, registry_of
from tocsin.cli.score import rows_of
from tocsin.cli.workers import Work, bar_of, in_turn, interrupt, side_by_side
from tocsin.schemas.errors import ConfigError, ModelRefusedError, TocsinError
from tocsin.schemas.printable import json_text, named, readable

if TYPE_CHECKING:
    from tocsin.pipeline.lab.backtest.people import JudgedVerdict
    from tocsin.pipeline.lab.backtest.summary import CaseRow
    from tocsin.pipeline.recording.limits import ReadLimits

RESULT_NAME = "backtest.json"
INDEX_NAME = "index.html"
_PAGE_PREFIX = "case-"
_DEFAULT_SETS = "ours,plain"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the command's arguments to the parser."""
    text = "recording, or a folder that holds some; without truth.json it is judged and not scored"
    parser.add_argument("recordings", metavar="RECORDING", type=Path, nargs="+", help=text)
    text = "sets beside each other: ours, peers, steps, minder, minder-raw, minder-concatenated, minder-integrated, "
    text += "minder-no-continuity, minder-streaming, mahalanobis, plain, entropy, bilstm (%(default)s)"
    parser.add_argument("--detectors", metavar="SET,…", default=_DEFAULT_SETS, help=text)
    text = "a detector's model: a file, a version of 'tocsin models list', or current; repeatable "
    text += "(default: what ships with tocsin)"
    parser.add_argument("--model", metavar="DETECTOR=FILE|VERSION", action="append", default=[], help=text)
    add_registry_argument(parser)
    text = "processes (default: one a processor)"
    parser.add_argument("--jobs", metavar="N", type=int, default=len(os.sched_getaffinity(0)), help=text)
    text = (
        f"write {INDEX_NAME}, a page with plots a case and {RESULT_NAME} there: a new or empty folder, or an earlier "
    )
    text += "one of this command"
    parser.add_argument("--out", metavar="DIR", type=Path, help=text)
    add_limit_arguments(parser)
    text = "also compare with what people said of the verdicts: a file of 'tocsin feedback --export FILE'"
    parser.add_argument("--feedback", metavar="FILE", type=Path, help=text)
    parser.add_argument("--kinds", action="store_true", help="also by kind and by cause")
    parser.add_argument("--json", action="store_true", help="print one JSON object instead of a table")
    add_log_arguments(parser, default_level="warning")


@dataclass(frozen=True, slots=True)
class BacktestJob:
    """One recording to judge, in a form that can be sent to a worker process.

    Attributes:
        folder: folder of the recording.
        sets: names of the detector sets.
        models: payload of the model by detector name.
        page: file that the recording's HTML page is written to, None: no page.
        limits: limits on what is read, None: the default limits.
        judged: verdicts that people judged, None: they are not compared.
    """

    folder: Path
    sets: tuple[str, ...]
    models: Mapping[str, bytes]
    page: Path | None
    limits: ReadLimits | None = None
    judged: Sequence[JudgedVerdict] | None = None


def run(args: argparse.Namespace) -> int:
    """Judge the recordings with each detector set, print the results and write the pages.

    Returns:
        The exit status: 0, or 2 if a recording could not be read (the others are judged nevertheless).
    """
    from tocsin.pipeline.lab.backtest.detector_sets import checked_sets, runner_of
    from tocsin.pipeline.lab.backtest.summary import index_page, to_object

    set_up_logs(args)
    signal.signal(signal.SIGTERM, interrupt)  # as Ctrl-C: the workers end with it
    if args.jobs < 1:
        raise ConfigError("--jobs", args.jobs, "at least 1")
    sets = checked_sets(args.detectors.split(","))
    models = _models(args)
    for name in sets:
        try:
            runner_of(name, models)  # a model that cannot be used is known before the work
        except ModelRefusedError as error:
            raise ConfigError("--model", ", ".join(args.model), f"models that can be used: {error}") from error
    judged = _judged_of(args)
    if args.out is not None:
        _prepare_folder(args.out)
    folders, failed = _folders(args.recordings)
    limits = read_limits_of(args)
    jobs = [
        BacktestJob(folder, sets, models, _page(args.out, number, folder), limits, judged)
        for number, folder in enumerate(folders)
    ]
    cases = [*_judged(jobs, args.jobs), *failed]
    for case in cases:
        if case.trial is None:
            print(f"tocsin backtest: {named(case.folder, case.error)}", file=sys.stderr)
    result = json_text(readable(to_object(cases)))
    if args.out is not None:
        (args.out / RESULT_NAME).write_text(result + "\n", "utf-8", errors="replace")
        (args.out / INDEX_NAME).write_text(index_page(cases), "utf-8")
    print(result if args.json else _shown(cases, args))
    return EXIT_ERROR if any(case.trial is None for case in cases) else 0


def _judged_of(args: argparse.Namespace) -> Sequence[JudgedVerdict] | None:
    """Return the verdicts that people judged, None without ``--feedback``.

    Raises:
        ConfigError: the file cannot be used.
    """
    from tocsin.pipeline.lab.backtest.people import read_judged

    return None if args.feedback is None else read_judged(args.feedback)


def _models(args: argparse.Namespace) -> dict[str, bytes]:
    """Return model payloads by detector: those given with ``--model``, else the shipped ones of sets that need one.

    Raises:
        ConfigError: an argument is wrong.
        RegistryError: a version does not exist, or is damaged.
    """
    from tocsin.pipeline.lab.backtest.detector_sets import ENGINE_DETECTORS, MODELS
    from tocsin.pipeline.lab.registry.builtin import builtin_cards, builtin_payload

    shipped = {name: card for name, card in builtin_cards().items() if name not in ENGINE_DETECTORS and not card.is_own}
    models = {name: builtin_payload(card) for name, card in shipped.items() if name in MODELS}
    for given in args.model:
        detector, _, where = given.partition("=")
        if detector not in MODELS or not where:
            must = f"DETECTOR=FILE or DETECTOR=VERSION, DETECTOR one of {', '.join(MODELS)}"
            raise ConfigError("--model", given, must)
        payload = _payload(args, detector, where)
        models.pop(detector, None)
        if payload:
            models[detector] = payload
    return models


def _payload(args: argparse.Namespace, detector: str, where: str) -> bytes:
    """Return the bytes of a model: from a file, else of a version in the registry.

    B"" for a detector's own settings.
    """
    path = Path(where)
    if path.is_file():
        try:
            payload = path.read_bytes()
        except OSError as error:
            raise ConfigError("--model", where, f"a file that can be read ({error.strerror})") from error
        if not payload:
            raise ConfigError("--model", f"{where}, 0 bytes", "a model: the file is empty")
        return payload
    registry = registry_of(args)
    if where != "current":
        return registry.payload(detector, where)
    current = registry.current(detector)
    if current is None:
        raise ConfigError(
            "--model", f"{detector}=current", f"of a detector whose model was promoted in {registry.where}"
        )
    return registry.payload(detector, current.version)


def _prepare_folder(out: Path) -> None:
    """Create the output folder and delete the pages of an earlier backtest; never overwrite anything else.

    Raises:
        ConfigError: the folder holds other files, or cannot be created.
    """
    try:
        out.mkdir(parents=True, exist_ok=True)
        if any(out.iterdir()) and not (out / RESULT_NAME).is_file():
            raise ConfigError("--out", str(out), f"a new or empty folder, or one with a {RESULT_NAME}")
        for page in out.glob(f"{_PAGE_PREFIX}*.html"):
            page.unlink()
        (out / RESULT_NAME).write_text("{}\n")  # claimed: also where this run is interrupted
    except OSError as error:
        raise ConfigError("--out", str(out), f"a folder that can be written to ({error.strerror})") from error


def _folders(paths: Sequence[Path]) -> tuple[list[Path], list[CaseRow]]:
    """Return the recordings found under the paths, each once, and one failed row for each path that has none."""
    from tocsin.pipeline.lab.backtest.summary import CaseRow
    from tocsin.pipeline.recording.under import recordings_under

    found: dict[Path, None] = {}
    failed = []
    for path in paths:
        try:
            found.update(dict.fromkeys(recordings_under([path])))
        except (TocsinError, OSError) as error:
            failed.append(CaseRow(str(path), None, str(error)))
    return list(found), failed


def _page(out: Path | None, number: int, folder: Path) -> Path | None:
    """Return the HTML file for a recording: numbered, and named after its folder; None if no pages are written."""
    if out is None:
        return None
    name = re.sub(r"[^A-Za-z0-9._-]+", "-", folder.resolve().name)[:60]
    return out / f"{_PAGE_PREFIX}{number:04d}-{name}.html"


def backtest_one(job: BacktestJob) -> CaseRow:
    """Judge one recording, write its page if one is wanted, and return its row; errors are returned in the row."""
    from tocsin.pipeline.lab.backtest.case_page import case_page
    from tocsin.pipeline.lab.backtest.detector_sets import runner_of
    from tocsin.pipeline.lab.backtest.summary import CaseRow
    from tocsin.pipeline.lab.backtest.trial import judge
    from tocsin.pipeline.recording.limits import DEFAULT_LIMITS
    from tocsin.pipeline.recording.ops import read_with_ops
    from tocsin.pipeline.runtime.gc_settings import GC_THRESHOLDS

    gc.set_threshold(*GC_THRESHOLDS)
    try:
        recording = read_with_ops(job.folder, job.limits or DEFAULT_LIMITS)
        trial = judge(recording, [runner_of(name, job.models) for name in job.sets], job.judged)
        if job.page is not None:
            job.page.write_text(case_page(str(job.folder), recording, trial), "utf-8")
    except (TocsinError, OSError) as error:
        return _failed(job, str(error))
    return CaseRow(str(job.folder), trial, page=job.page.name if job.page is not None else "")


def _judged(jobs: Sequence[BacktestJob], worker_count: int) -> list[CaseRow]:
    """Judge all recordings, in worker processes if there are several, and return their rows in order."""
    bar = bar_of("recordings") if sys.stderr.isatty() else None
    work = Work(backtest_one, _failed)
    if min(worker_count, len(jobs)) <= 1:
        return in_turn(jobs, work, bar)
    return side_by_side(jobs, work, worker_count, bar)


def _failed(job: BacktestJob, why: str) -> CaseRow:
    """Return the row of a recording that could not be judged, with the reason."""
    from tocsin.pipeline.lab.backtest.summary import CaseRow

    return CaseRow(str(job.folder), None, why)


def _shown(cases: Sequence[CaseRow], args: argparse.Namespace) -> str:
    """Return the results as text: a table, with rows by kind and by cause if ``--kinds`` is set."""
    from tocsin.pipeline.lab.backtest.summary import figures_of, headline, table_lines

    figures = figures_of([case.trial for case in cases if case.trial is not None])
    lines = [headline(cases), *table_lines(figures)]
    for one in figures if args.kinds else ():
        lines += ["", f"{one.name}:", *rows_of("kind", one.kinds), "", *rows_of("cause", one.causes)]
    if args.out is not None:
        lines.append(f"pages: {args.out / INDEX_NAME}")
    return "\n".join(lines)
