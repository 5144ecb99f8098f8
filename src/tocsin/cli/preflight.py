"""``tocsin preflight``: checks machines under load before they train, or after they failed."""

from __future__ import annotations

import argparse
import json
import socket
from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING

from tocsin.cli.durations import duration_of
from tocsin.cli.preflight_report import add_report_arguments, report, reporter_of
from tocsin.schemas import preflight_limits as limits
from tocsin.schemas.errors import ConfigError, FieldError
from tocsin.schemas.preflight import CheckName, CheckOutcome, CheckReason, HostAnswer, PreflightResult, answer_of
from tocsin.schemas.printable import counted, json_text, plain, readable

if TYPE_CHECKING:
    from tocsin.collectors.preflight.checks import PreflightConfig

MAX_FILE_BYTES = 64 * 2**20
_HERE = frozenset({"localhost", "127.0.0.1", "::1"})
_UNITS = {"bytes_per_second": ("GB/s", 1e9), "flop_per_second": ("TFLOP/s", 1e12), "hertz": ("MHz", 1e6)}
_SIGNS = {CheckOutcome.PASSED: "ok", CheckOutcome.FAILED: "FAILED", CheckOutcome.SKIPPED: "-"}


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the command's arguments to the parser."""
    parser.add_argument("host", metavar="HOST", nargs="?", help="this host's name, the default")
    text = f"load of each check (default: {limits.SECONDS_PER_CHECK:g}s)"
    parser.add_argument("--each", metavar="DURATION", default=f"{limits.SECONDS_PER_CHECK:g}s", help=text)
    text = "folder on the disk that is written and read (default: /var/tmp)"
    parser.add_argument("--folder", metavar="FOLDER", default="/var/tmp", help=text)  # noqa: S108  # a disk, not memory
    text = "most that is written there, in MiB (default: 1024)"
    parser.add_argument("--disk-mib", metavar="N", type=int, default=limits.DISK_BYTES // 2**20, help=text)
    text = "earlier results (--json) of this and other hosts, to compare with; may be repeated"
    parser.add_argument("--peers", metavar="FILE", action="append", default=[], help=text)
    names = ", ".join(sorted(set(CheckName) - {CheckName.ANSWER}))
    text = f"leave out a check; may be repeated: {names}"
    parser.add_argument("--without", metavar="CHECK", action="append", default=[], help=text)
    text = "end at the first failure: what comes after it is skipped"
    parser.add_argument("--first-failure", action="store_true", help=text)
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    _add_group_arguments(parser)
    add_report_arguments(parser)


def _add_group_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the flags of a check of many hosts."""
    text = "check the hosts of this file at once, a name a line, and the exchange between them"
    parser.add_argument("--group", metavar="FILE", help=text)
    text = "how a group's hosts are reached: srun (default), kubectl (a Job a node), or here (all on this machine)"
    parser.add_argument("--via", choices=["srun", "kubectl", "here"], default="srun", help=text)
    text = "TCP port on the group's first host, where all meet (default: 29400)"
    parser.add_argument("--port", metavar="PORT", type=int, default=29_400, help=text)
    text = "time that the scheduler may take to start (default: 2min)"
    parser.add_argument("--start", metavar="DURATION", default="2min", help=text)
    parser.add_argument("--image", metavar="IMAGE", help="kubectl: image of the Jobs, with tocsin in it")
    parser.add_argument("--namespace", metavar="NAME", default="default", help="kubectl: namespace of the Jobs")
    parser.add_argument("--gpus", metavar="N", type=int, default=0, help="kubectl: GPUs of each node (default: 0)")
    text = "print what would be run (srun's command line, the Jobs), and run nothing"
    parser.add_argument("--show", action="store_true", help=text)
    parser.add_argument("--member", help=argparse.SUPPRESS)  # what a group's own members are started with


def run(args: argparse.Namespace) -> int:
    """Check this host, or a group; return 0 if nothing failed, 1 if something did.

    Raises:
        ConfigError: a flag's value cannot be used, or the host is another one.
        EngineError: Kubernetes refuses the group's Jobs, or nobody takes the report.
    """
    from tocsin.cli.preflight_group import check_group, run_member
    from tocsin.collectors.preflight.checks import HostChecks
    from tocsin.collectors.preflight.judge import judged

    config = config_of(args)
    if args.member:
        return run_member(args.member, config)
    reporter = reporter_of(args)
    earlier = [answer for path in args.peers for answer in answers_in(path)]
    found = check_group(args, config) if args.group else [HostChecks(config).run()]
    if found is None:
        return 0
    answers = judged(found, earlier)
    show(answers, as_json=args.json)
    if reporter is not None:
        report(reporter, answers, args)
    return int(any(answer.is_failed for answer in answers))


def config_of(args: argparse.Namespace) -> PreflightConfig:
    """Return the checks' settings from the flags.

    Raises:
        ConfigError: a flag's value cannot be used.
    """
    from tocsin.collectors.preflight.checks import PreflightConfig

    own = socket.gethostname()
    if args.group and (args.host or args.first_failure):
        setting = "HOST" if args.host else "--first-failure"
        raise ConfigError(setting, args.host or "", "left out with --group: the others wait for each host")
    if args.show and not args.group:
        raise ConfigError("--show", "", "given with --group")
    if args.host is not None and args.host not in {own, own.partition(".")[0], *_HERE}:
        raise ConfigError("HOST", args.host, f"this host, {own}")
    if args.disk_mib < limits.DISK_BLOCK_BYTES // 2**20:
        raise ConfigError("--disk-mib", args.disk_mib, f"at least {limits.DISK_BLOCK_BYTES // 2**20}")
    if not args.group and not Path(args.folder).is_dir():
        raise ConfigError("--folder", args.folder, "an existing folder")
    return PreflightConfig(
        host=own,
        seconds=duration_of(args.each, "--each"),
        folder=args.folder,
        disk_bytes=args.disk_mib * 2**20,
        left_out=frozenset(check_named(name) for name in args.without),
        ends_at_failure=args.first_failure,
    )


def check_named(name: str) -> CheckName:
    """Return the check of a name.

    Raises:
        ConfigError: there is none.
    """
    try:
        return CheckName(name)
    except ValueError:
        raise ConfigError("--without", name, "one of " + ", ".join(CheckName)) from None


def answers_in(path: str) -> list[HostAnswer]:
    """Return the hosts' answers in a file that ``--json`` printed.

    Raises:
        ConfigError: it cannot be read, or is no such file; the message names the field.
    """
    file = Path(path)
    try:
        if file.stat().st_size > MAX_FILE_BYTES:
            raise ConfigError("--peers", path, f"a file of at most {MAX_FILE_BYTES} bytes")
        value = json.loads(file.read_bytes())
    except OSError as error:
        raise ConfigError("--peers", path, f"a file that can be read ({error.strerror})") from error
    except (ValueError, RecursionError) as error:
        raise ConfigError("--peers", path, f"JSON ({error})") from error
    hosts = value.get("hosts") if isinstance(value, dict) else None
    if not isinstance(hosts, list):
        raise ConfigError("--peers", path, "what tocsin preflight --json printed: an object with a list 'hosts'")
    try:
        return [answer_of(host, f"hosts[{index}]") for index, host in enumerate(hosts)]
    except FieldError as error:
        raise ConfigError("--peers", path, f"what tocsin preflight --json printed ({error})") from error


def show(answers: Iterable[HostAnswer], *, as_json: bool) -> None:
    """Print the answers: as one JSON object, or as a line for each check."""
    answers = list(answers)
    failed_hosts = [answer.host for answer in answers if answer.is_failed]
    if as_json:
        outcome = CheckOutcome.FAILED if failed_hosts else CheckOutcome.PASSED
        hosts = [answer.to_json() for answer in answers]
        print(json_text(readable({"outcome": str(outcome), "failed_hosts": failed_hosts, "hosts": hosts}), indent=1))
        return
    for answer in answers:
        print(plain(f"{answer.host}, {answer.seconds:.0f} s"))
        for check in answer.checks:
            if check.reason is not CheckReason.NOT_ASKED:
                print(plain(line_of(check)))
    if failed_hosts:
        print(plain(f"{counted(len(failed_hosts), 'host')} failed: {', '.join(failed_hosts)}"))


def line_of(check: PreflightResult) -> str:
    """Return a result as one line of text."""
    figure = "" if check.figure is None else figure_text(check.figure, check.unit)
    if check.peers_median is not None:
        figure += f" (peers {figure_text(check.peers_median, check.unit)})"
    detail = f": {check.detail}" if check.detail else ""
    return f"  {_SIGNS[check.outcome]:<6}  {check.name:<20}  {figure:<14}  {check.reason}{detail}".rstrip()


def figure_text(figure: float, unit: str) -> str:
    """Return a figure with the unit that people use.

    >>> figure_text(1.5e9, "bytes_per_second")
    '1.5 GB/s'
    """
    shown, divisor = _UNITS.get(unit, (unit.replace("_per_second", "/s"), 1.0))
    return f"{figure / divisor:.3g} {shown}"
