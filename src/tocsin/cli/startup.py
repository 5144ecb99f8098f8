"""``tocsin startup JOB|FILE...``: the stages of a job's start, who was late in one, and what the start cost."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from pathlib import Path
from typing import Final

from tocsin.cli import startup_live, startup_nccl, startup_text
from tocsin.cli.database import add_database_arguments
from tocsin.cli.engine_reader import add_engine_arguments
from tocsin.cli.limits import add_limit_arguments, read_limits_of
from tocsin.cli.startup_starts import Start, has_entry, starts_of_logs, starts_of_recording
from tocsin.models.startup.clocks import late_by_both
from tocsin.models.startup.stragglers import StartHistory
from tocsin.pipeline.recording.limits import ReadLimits
from tocsin.schemas.errors import ConfigError
from tocsin.schemas.printable import json_text

_LOG_SUFFIXES: Final = frozenset({".gz", ".log", ".out", ".txt"})


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the command's arguments to the parser."""
    parser.add_argument(
        "files",
        metavar="JOB|FILE",
        type=Path,
        nargs="*",
        help="the name of a job that an engine heard; or logs (MLPerf's ':::MLLOG' lines, also labelled by srun -l; "
        "NCCL's initialisation lines; plain or gzip), or a folder with a recording; logs whose times overlap belong to "
        "one start, earlier starts are the history of later ones",
    )
    parser.add_argument(
        "--days", action="store_true", help="what starts took of each cluster's GPU time, by day (UTC); no JOB or FILE"
    )
    parser.add_argument("--json", action="store_true", help="print one JSON object instead of tables")
    add_database_arguments(parser)
    add_engine_arguments(parser)
    add_limit_arguments(parser)


def run(args: argparse.Namespace) -> int:
    """Read the starts, print what was found, and return the exit status: 1 if no start of the job is known."""
    files: list[Path] = args.files
    if args.days or not files:
        if files or not args.days:
            text = " ".join(map(str, files))
            raise ConfigError("JOB|FILE", text, "the name of a job, or files; or nothing beside --days")
        return startup_live.print_days(args)
    if (job_id := _job_of(files)) is not None:
        return startup_live.print_job(args, job_id)
    logs = [path for path in files if not path.is_dir()]
    inits = startup_nccl.nccl_inits(logs)
    has_only_nccl = bool(inits.communicators) and not any(has_entry(path) for path in logs)
    judged = judge([] if has_only_nccl and logs == files else read(files, read_limits_of(args)))
    if args.json:
        print(json_text({**startup_text.as_json(judged), "communicators": startup_nccl.as_json(inits)}))
        return 0
    blocks = [startup_text.text_of(judged)] if judged.starts else []
    print("\n\n".join([*blocks, *([startup_nccl.text_of(inits)] if inits.communicators else [])]))
    return 0


def _job_of(files: Sequence[Path]) -> str | None:
    """Return the job that is meant; None: files are.

    A name of which no file exists is a job, unless it has a folder or a suffix of logs.
    """
    name = str(files[0])
    is_path = len(files) > 1 or files[0].exists() or "/" in name or files[0].suffix in _LOG_SUFFIXES
    return None if is_path else name


def read(files: Sequence[Path], limits: ReadLimits) -> list[Start]:
    """Return the starts of log files or of one recording, in the order of time.

    Raises:
        ConfigError: logs and folders are mixed, or there are several folders.
        RecordingError: a file cannot be read or shows no stage.
    """
    folders = [path for path in files if path.is_dir()]
    if not folders:
        return starts_of_logs(files)
    if len(files) > 1:
        raise ConfigError("FILE", " ".join(map(str, files)), "log files, or one folder with a recording")
    return starts_of_recording(folders[0], limits)


def judge(starts: Sequence[Start]) -> startup_text.Judged:
    """Compare the nodes of each start with their peers, and each start with those before it."""
    history = StartHistory()
    found = []
    for start in starts:
        shared = [one for table in start.tables if (one := history.shared_slowness(table, start.now_ns)) is not None]
        late = late_by_both(start.tables, start.now_ns, start.told, start.told_now_ns)
        found.append(startup_text.JudgedStart(start, tuple(late), tuple(shared)))
        history.add(start.tables, start.now_ns, late)
    return startup_text.Judged(tuple(found), tuple(history.repeated()))
