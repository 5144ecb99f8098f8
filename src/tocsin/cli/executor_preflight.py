"""``tocsin executor preflight``: checks machines under load where an action asks for it."""

from __future__ import annotations

import argparse
import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Final

from tocsin.cli.durations import duration_of
from tocsin.cli.paths import data_folder
from tocsin.schemas import preflight_limits as limits
from tocsin.schemas.errors import ConfigError

if TYPE_CHECKING:
    from tocsin.pipeline.actions.executors.signed_actions import SignedActions
    from tocsin.pipeline.actions.executors.target import TargetSystem

_FOLDER: Final = "checks"
_KUBECTL: Final = "kubectl"


def add_preflight_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the flags of checks as a target."""
    text = "how machines are reached: srun (default), kubectl (a Job a node), or here (all on this machine)"
    parser.add_argument("--via", choices=["srun", _KUBECTL, "here"], default="srun", help=text)
    _add_check_arguments(parser)
    text = "time that the scheduler may take to start (default: 2min)"
    parser.add_argument("--start", metavar="DURATION", default="2min", help=text)
    text = "TCP port on the first machine of an action, where all meet (default: 29400)"
    parser.add_argument("--port", metavar="PORT", type=int, default=29_400, help=text)
    parser.add_argument("--image", metavar="IMAGE", default="", help="kubectl: image of the Jobs, with tocsin in it")
    parser.add_argument("--namespace", metavar="NAME", default="default", help="kubectl: namespace of the Jobs")
    parser.add_argument("--gpus", metavar="N", type=int, default=0, help="kubectl: GPUs of each node (default: 0)")
    text = "a host and its node in each line, where the scheduler's names do not say so [env: TOCSIN_NODE_MAP]"
    parser.add_argument("--node-map", metavar="FILE", default=os.environ.get("TOCSIN_NODE_MAP", ""), help=text)


def add_own_host_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the flags of checks of this host alone, whose name the credential has."""
    _add_check_arguments(parser)
    parser.set_defaults(via="here", start="2min", port=29_400, image="", namespace="", gpus=0, node_map="")


def _add_check_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the flags of the checks themselves, and of where their answers are kept."""
    text = f"load of each check (default: {limits.SECONDS_PER_CHECK:g}s)"
    parser.add_argument("--each", metavar="DURATION", default=f"{limits.SECONDS_PER_CHECK:g}s", help=text)
    text = "leave out a check; may be repeated (docs/preflight.md)"
    parser.add_argument("--without", metavar="CHECK", action="append", default=[], help=text)
    text = "folder on the disk that is written and read (default: /var/tmp)"
    parser.add_argument("--folder", metavar="FOLDER", default="/var/tmp", help=text)  # noqa: S108  # a disk, not memory
    text = f"answers are kept there until they are told (default: {_FOLDER} in the data folder)"
    parser.add_argument("--state-dir", metavar="DIR", default="", help=text)


def preflight_target(args: argparse.Namespace, _signed: SignedActions) -> TargetSystem:
    """Return checks as a target for the flags.

    Raises:
        ConfigError: a flag cannot be used.
    """
    from tocsin.cli.preflight import check_named
    from tocsin.pipeline.actions.executors.check_runs import ProgramRuns
    from tocsin.pipeline.actions.executors.preflight import PreflightTarget, PreflightTargetConfig
    from tocsin.pipeline.actions.executors.slurm_nodes import read_node_map

    if args.via == _KUBECTL and not args.image:
        raise ConfigError("--image", "", "given with --via kubectl: an image with tocsin in it")
    if not 0 < args.port < 2**16:
        raise ConfigError("--port", args.port, "a TCP port")
    duration_of(args.each, "--each"), duration_of(args.start, "--start")
    for name in args.without:
        check_named(name)
    nodes = read_node_map(args.node_map) if args.node_map else {}
    folder = Path(args.state_dir) if args.state_dir else data_folder() / _FOLDER
    return PreflightTarget(PreflightTargetConfig(nodes), ProgramRuns(folder, check_command(args)))


def check_command(args: argparse.Namespace) -> list[str]:
    """Return the program that checks the machines of an action, without the file that names them."""
    words = [sys.executable, "-m", "tocsin", "preflight", "--json", "--via", args.via, "--each", args.each]
    words += ["--folder", args.folder, "--start", args.start, "--port", str(args.port)]
    words += [word for name in args.without for word in ("--without", name)]
    if args.via == _KUBECTL:
        words += ["--image", args.image, "--namespace", args.namespace, "--gpus", str(args.gpus)]
    return words
