"""``tocsin placement FILE``: how far a job's groups are spread over the network, and what re-placing would gain."""

from __future__ import annotations

import argparse
from pathlib import Path

from tocsin.cli import placement_html, placement_text
from tocsin.cli.database import add_database_arguments, database, database_of
from tocsin.cli.limits import add_limit_arguments, read_limits_of
from tocsin.cli.paths import control_socket
from tocsin.cli.placement_input import (
    PlacedJob,
    Wanted,
    read_cluster,
    read_job,
    read_listed_job,
    read_running_job,
    read_told_job,
)
from tocsin.models.placement.replacement import advise
from tocsin.models.placement.spares import rank_spares
from tocsin.schemas.errors import ConfigError, RecordingError
from tocsin.schemas.formats.topology_json import LeafLabels
from tocsin.schemas.printable import json_text

DEFAULT_ALPHA = 0.3
"""Weight of the data-parallel groups in Arnold's production job, a mixture of experts; 0 for its dense ones."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the command's arguments to the parser."""
    parser.add_argument(
        "file",
        metavar="FILE",
        type=Path,
        help="a recording; the name of a job of the running engine (with --clickhouse: of a distributed one); or a "
        "cluster's topology (topology.conf, scontrol "
        "show topology, topograph's graph, kubectl get nodes -o json), with --hosts for a job on it",
    )
    _add_job_arguments(parser)
    _add_advice_arguments(parser)
    parser.add_argument(
        "--level",
        choices=("minipod", "leaf"),
        help="what a group is spread over (default: minipod, or leaf if no minipod is known)",
    )
    parser.add_argument(
        "--labels",
        metavar="KEY",
        nargs=2,
        help="keys of the node labels that name leaf and minipod (default: those of topograph, AWS, Google, Oracle)",
    )
    parser.add_argument("--json", action="store_true", help="print one JSON object instead of tables")
    parser.add_argument("--html", metavar="FILE", type=Path, help="write a page with a picture: now, and re-placed")
    add_database_arguments(parser)
    add_limit_arguments(parser)


def _add_job_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the arguments that say where the job stands."""
    parser.add_argument("--topology", metavar="FILE", type=Path, help="topology for a recording that names no switches")
    parser.add_argument("--hosts", metavar="LIST", default="", help="the job's hosts in the order of ranks: n[1-16],m5")
    parser.add_argument("--gpus", metavar="N", type=int, default=8, help="GPUs of a host, with --hosts (default: 8)")
    parser.add_argument(
        "--tp", metavar="N", type=int, default=1, help="tensor-parallel size, with --hosts (default: 1)"
    )
    parser.add_argument("--pp", metavar="N", type=int, default=1, help="pipeline stages, with --hosts (default: 1)")


def _add_advice_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the arguments that say what another placement may use, and how placements are weighed."""
    parser.add_argument("--spare", metavar="LIST", default="", help="free hosts that the job could use")
    parser.add_argument("--evict", metavar="HOST", default="", help="rank the spares that could take this host's place")
    parser.add_argument(
        "--alpha",
        metavar="RATIO",
        type=float,
        default=DEFAULT_ALPHA,
        help=f"weight of data-parallel groups, 0 to 1; pipeline groups have the rest (default: {DEFAULT_ALPHA})",
    )
    parser.add_argument(
        "--seconds", metavar="N", type=float, default=30.0, help="time limit of the solver (default: 30)"
    )


def run(args: argparse.Namespace) -> int:
    """Read the placement, print what was found, and return the exit status 0."""
    _check(args)
    wanted = Wanted(args.level, args.spare, LeafLabels(*args.labels) if args.labels else None)
    running = None if args.file.exists() or args.hosts else _running(args, wanted)
    if running is not None:
        job = running
    elif args.file.is_dir():
        job = read_job(args.file, args.topology, wanted, read_limits_of(args))
    elif args.hosts:
        job = read_listed_job(args.file, args.hosts, (args.gpus, args.tp, args.pp), wanted)
    else:
        for name in ("evict", "html", "spare"):
            if getattr(args, name):
                raise ConfigError(f"--{name}", str(getattr(args, name)), "given with a recording or --hosts")
        print(placement_text.of_cluster(read_cluster(args.file, wanted.labels), as_json=args.json))
        return 0
    found = judge(job, args.evict, args.alpha, args.seconds)
    if args.html is not None:
        try:
            args.html.write_text(placement_html.html_of(found), encoding="utf-8")
        except OSError as error:
            raise RecordingError(str(args.html), f"cannot be written ({error.strerror})") from error
    print(json_text(placement_text.as_json(found)) if args.json else placement_text.text_of(found))
    return 0


def _running(args: argparse.Namespace, wanted: Wanted) -> PlacedJob:
    """Return the job of this name: of the engine that runs here, else of the one whose database is named.

    Raises:
        RecordingError: no engine runs, and no database is named.
    """
    name = str(args.file)
    data, address = database_of(args)
    found = None if args.clickhouse else read_running_job(name, control_socket(data), args.topology, wanted)
    if found is None and address is not None:
        with database(data, address) as ask:
            return read_told_job(name, ask, args.topology, wanted)
    if found is None:
        text = "cannot be read (No such file or directory), and no engine runs here that could know such a job"
        raise RecordingError(str(args.file), text)
    return found


def _check(args: argparse.Namespace) -> None:
    """Raise ``ConfigError`` for numbers that mean nothing."""
    if not 0 <= args.alpha <= 1:
        raise ConfigError("--alpha", args.alpha, "from 0 to 1")
    if not 0 <= args.seconds <= 86_400:
        raise ConfigError("--seconds", args.seconds, "from 0 to 86400")
    if args.hosts and args.file.is_dir():
        raise ConfigError("--hosts", args.hosts, "given with a topology; a recording names its hosts")
    if args.topology is not None and args.file.is_file():
        raise ConfigError("--topology", str(args.topology), "given with a recording; FILE is a topology already")
    for name in ("gpus", "tp", "pp"):
        if not 1 <= getattr(args, name) <= 1 << 20:
            raise ConfigError(f"--{name}", getattr(args, name), "a size of 1 or more")


def judge(job: PlacedJob, evicted: str, alpha: float, limit_seconds: float) -> placement_text.JudgedPlacement:
    """Measure a job's spread, look for a better placement, and rank the spares for an eviction.

    Args:
        job: the job.
        evicted: host whose spares are ranked, "" for none.
        alpha: weight of the data-parallel groups.
        limit_seconds: time limit of the solver.

    Raises:
        ConfigError: the evicted host carries no rank.
    """
    if evicted and evicted not in job.hosts:
        raise ConfigError("--evict", evicted, f"one of the job's {len(job.hosts)} hosts")
    advice = advise(job.groups, job.pod, job.spare_pod, alpha, limit_seconds)
    ranked = (
        rank_spares(job.groups, job.pod, job.hosts.index(evicted), job.spare_pod, alpha)
        if evicted and job.spares
        else []
    )
    return placement_text.JudgedPlacement(job, advice, evicted, tuple(ranked))
