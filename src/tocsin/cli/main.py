"""Entry point of ``tocsin``: finds the command, imports only its module, and runs it.

A command module offers two functions::

    def add_arguments(parser: argparse.ArgumentParser) -> None: ...
    def run(args: argparse.Namespace) -> int: ...

Exit status:

====  =====================================================================
0     done
1     done, and the answer is "no" (a wrong verdict in a drill, for example)
2     wrong usage, or an error that tocsin explains in one line
3     a package is missing; the line on stderr says which extra to install
130   interrupted from the keyboard
====  =====================================================================
"""

import argparse
import difflib
import importlib
import os
import sys
from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import Protocol, cast

from tocsin import __version__
from tocsin.cli import config_file
from tocsin.cli.terminal import guarded
from tocsin.schemas.errors import TocsinError
from tocsin.schemas.printable import plain

EXIT_ERROR = 2
EXIT_MISSING_EXTRA = 3
EXIT_INTERRUPTED = 130
EXIT_BROKEN_PIPE = 141

COMMANDS: Mapping[str, tuple[str, str]] = MappingProxyType(
    {
        "serve": ("tocsin.cli.serve", "run the engine: listen for agents, judge, write incidents"),
        "agent": ("tocsin.cli.agent", "run the collectors of this host"),
        "exec": ("tocsin.cli.exec", "run a training command under the agent's eyes"),
        "drill": (
            "tocsin.cli.drill",
            "train a small real job, strike it with a real fault, check the verdict",
        ),
        "incidents": ("tocsin.cli.incidents", "list incidents: what, since when, where, why, what was done"),
        "maintenance": ("tocsin.cli.maintenance", "plan work on a host, leaf switch or job: nobody is paged for it"),
        "feedback": ("tocsin.cli.feedback", "say whether a verdict was right"),
        "actions": ("tocsin.cli.actions", "what the controller decided to do: list, show, approve, deny, cancel"),
        "executor": (
            "tocsin.cli.executor",
            "carry out what was decided: slurm, kubernetes, nvsentinel, job",
        ),
        "preflight": (
            "tocsin.cli.preflight",
            "check machines under load: computation, bandwidths, exchanges, clocks",
        ),
        "ettr": ("tocsin.cli.ettr", "what each job's wall time was spent on: effective training time, and the rest"),
        "sql": ("tocsin.cli.sql", "ask the incident database in SQL"),
        "status": ("tocsin.cli.status", "what reports and what does not: why is there no verdict?"),
        "alerts": ("tocsin.cli.alerts", "who is told: check a routes file, send a test, list what was told"),
        "policy": ("tocsin.cli.policy", "what is done about which verdict: check, explain and replay a policy file"),
        "token": ("tocsin.cli.token", "credentials of hosts: issue, list, rotate, revoke"),
        "causes": ("tocsin.cli.causes", "list the causes that a verdict can name"),
        "flight-recorder": (
            "tocsin.cli.flight_recorder",
            "read PyTorch Flight Recorder dumps: who stands behind",
        ),
        "whatif": ("tocsin.cli.whatif", "why is the job slow? simulates a trace of operations without its stragglers"),
        "startup": ("tocsin.cli.startup", "what a job's start took: its stages, who was late, GPU-hours lost"),
        "placement": (
            "tocsin.cli.placement",
            "how far a job's groups are spread over the network, and what re-placing would gain",
        ),
        "simulate": ("tocsin.cli.simulate", "make recordings of jobs with faults, and the truth about them"),
        "record": ("tocsin.cli.record", "record a job of the running engine into a folder"),
        "replay": ("tocsin.cli.replay", "judge recordings with the operators that judge running jobs"),
        "score": ("tocsin.cli.score", "compare the verdicts of recordings with their truth"),
        "backtest": ("tocsin.cli.backtest", "detector sets side by side on recordings: a table, plots of each case"),
        "topics": ("tocsin.cli.topics", "create the Kafka topics, or say what differs"),
        "sink": ("tocsin.cli.sink", "consume verdicts from Kafka: 'sink clickhouse' writes incidents to a server"),
        "ticker": ("tocsin.cli.ticker", "tick in every partition of the Kafka topics, once a second"),
        "controller": (
            "tocsin.cli.controller",
            "judge the fleet over all jobs, from Kafka; of several one is active",
        ),
        "cluster": ("tocsin.cli.cluster.command", "the distributed engine on this machine: up, status, logs, down"),
        "flink": ("tocsin.cli.flink", "the job on a Flink cluster: submit, status, savepoint, upgrade, cancel"),
        "models": ("tocsin.cli.models", "trained models: list, show, promote, refuse, announce, withdraw"),
        "train": ("tocsin.cli.train", "a detector's model from recordings, with thresholds that keep a budget"),
        "config": ("tocsin.cli.config", "the settings file of serve and agent: 'config check FILE'"),
        "migrate": ("tocsin.cli.migrate", "bring the incident database to this version's tables"),
    }
)
"""Command name -> (module, one line of help). ``tocsin --help`` is made from it without importing any module."""

GROUPS: Mapping[str, tuple[str, ...]] = MappingProxyType(
    {
        "operators, when something is wrong": (
            "incidents",
            "maintenance",
            "feedback",
            "actions",
            "status",
            "preflight",
            "ettr",
            "sql",
            "causes",
            "flight-recorder",
        ),
        "ML engineers, around a job": ("exec", "record", "drill", "whatif", "startup", "placement"),
        "SREs, who run it": (
            "serve",
            "agent",
            "executor",
            "alerts",
            "policy",
            "config",
            "token",
            "migrate",
            "cluster",
            "topics",
            "ticker",
            "sink",
            "controller",
            "flink",
        ),
        "developers of detectors": ("simulate", "replay", "score", "backtest", "train", "models"),
    }
)
"""Group of users -> their commands, in the order of ``tocsin --help``."""

EXTRA_OF_PACKAGE: Mapping[str, str] = MappingProxyType(
    {
        "chdb": "engine",
        "clickhouse_driver": "engine",
        "google": "nvsentinel",
        "grpc": "nvsentinel",
        "kubernetes": "kubernetes",
        "jsonschema": "engine",
        "numpy": "engine",
        "pyarrow": "engine",
        "rich": "engine",
        "scipy": "engine",
        "tenacity": "engine",
        "urllib3": "engine",
        "yaml": "engine",
        "apache_beam": "flink",
        "pyflink": "flink",
        "sklearn": "train",
        "torch": "train",
    }
)
"""Import name of a package that the base installation lacks -> the extra that installs it."""


class CommandModule(Protocol):
    """The functions of a command's module."""

    def add_arguments(self, parser: argparse.ArgumentParser) -> None:
        """Add the command's arguments to the parser."""

    def run(self, args: argparse.Namespace) -> int:
        """Run the command and return its exit status."""


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command and return its exit status.

    Args:
        argv: the arguments without the program's name; by default those of the process.

    Raises:
        SystemExit: from argparse, for ``--help``, ``--version`` (status 0) and wrong usage (status 2).
    """
    with guarded():
        return _main(list(sys.argv[1:] if argv is None else argv))


def _main(arguments: list[str]) -> int:
    """Run one command; turn expected errors into a line on stderr and an exit status."""
    if not arguments or arguments[0].startswith("-"):
        parser = front_parser()
        parser.parse_args(arguments)
        parser.print_help()
        return 0
    name, *rest = arguments
    if name not in COMMANDS:
        front_parser().error(unknown_command(name))
    try:
        status = run_command(name, rest)
        sys.stdout.flush()
    except BrokenPipeError:
        # `tocsin incidents | head`: the reader has had enough; the interpreter must not complain at exit.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return EXIT_BROKEN_PIPE
    except TocsinError as error:
        return fail(f"tocsin {name}: {error}", EXIT_ERROR)
    except ModuleNotFoundError as error:
        package = (error.name or "").partition(".")[0]
        extra = EXTRA_OF_PACKAGE.get(package)
        if extra is None:
            raise
        return fail(
            f"tocsin {name} needs {package}: in a checkout of tocsin run pip install '.[{extra}]'", EXIT_MISSING_EXTRA
        )
    except KeyboardInterrupt:
        return EXIT_INTERRUPTED
    return status


def run_command(name: str, arguments: Sequence[str]) -> int:
    """Import the module of a command, parse the arguments, run it, and return its exit status."""
    module_name, help_line = COMMANDS[name]
    module = cast("CommandModule", importlib.import_module(module_name))
    parser = argparse.ArgumentParser(prog=f"tocsin {name}", description=help_line)
    module.add_arguments(parser)
    if name in config_file.COMMANDS:
        config_file.with_file_defaults(parser, name, arguments)
    return module.run(parser.parse_args(arguments))


def front_parser() -> argparse.ArgumentParser:
    """Return the parser of ``tocsin`` itself; its help lists the commands without importing their modules."""
    width = max(map(len, COMMANDS))
    lines = []
    for who, names in GROUPS.items():
        lines += ["", f"{who}:", *(f"  {name:<{width}}  {COMMANDS[name][1]}" for name in names)]
    parser = argparse.ArgumentParser(
        prog="tocsin",
        usage="tocsin [-h] [--version] COMMAND ...",
        description="Finds the rank, GPU or host that spoils a training job, and says why.",
        epilog="\n".join([*lines[1:], "", "'tocsin COMMAND --help' explains one of them."]),
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--version", action="version", version=f"tocsin {__version__}")
    return parser


def unknown_command(name: str) -> str:
    """Return the error text for an unknown command, with the nearest known one."""
    near = difflib.get_close_matches(name, COMMANDS, n=1)
    return f"unknown command {name!r}" + (f"; did you mean {near[0]!r}?" if near else "")


def fail(message: str, status: int) -> int:
    """Print an error on stderr and return the exit status."""
    print(plain(message, kept="\n").replace("\n", "\n  "), file=sys.stderr)  # what is quoted begins no line of ours
    return status
