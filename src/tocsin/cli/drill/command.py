"""Runs the command: chooses the drills, runs them and prints the results."""

from __future__ import annotations

import argparse
import math
import signal
import sys

from tocsin.cli.drill import report
from tocsin.cli.drill.faults import KINDS, DrillKind, ExpectedVerdict, Outside
from tocsin.cli.drill.lines import PlainLines
from tocsin.cli.drill.plan import DrillPlan, make_plan
from tocsin.cli.drill.result import DrillResult
from tocsin.cli.drill.runner import DrillGround, run_all
from tocsin.schemas.errors import ConfigError

_DEFAULT_KIND = "kill"
ACTING_KINDS = ("freeze", "host_down")
"""Kinds that a drill that acts has."""


def run(args: argparse.Namespace) -> int:
    """Run the drills that the arguments ask for; return the exit status 0 if every verdict is right, else 1."""
    check(args)
    signal.signal(signal.SIGTERM, _interrupt)  # so that `with` blocks clean up, as after Ctrl-C
    if args.act:
        from tocsin.cli.drill.act import command as acting

        return acting.run(args)
    if args.demo:
        from tocsin.cli.drill import demo

        return demo.run(args)
    lines = PlainLines()
    plans = plans_of(args)
    if left_out := sorted(set(KINDS) - {plan.kind.name for plan in plans}) if args.all else []:
        lines.say(f"left out, as they need stages with two replicas each (--ranks 4, 6, ...): {', '.join(left_out)}")
    lines.say("starting the engine and the ranks' forkserver (torch takes some seconds)")
    with DrillGround(lines, data_folder=None, keep=args.keep, record_folder=args.record) as ground:
        results = run_all(ground, plans, lambda result: lines.say(report.result_line(result)))
        if args.record is not None:
            lines.say(f"recorded: {args.record} (tocsin replay, tocsin score)")
        if args.keep:
            lines.say(f"kept: {ground.processes.folder}")
    return _finish(args, results, lines)


def check(args: argparse.Namespace) -> None:
    """Check, before anything starts, for arguments that contradict each other and for a report that cannot be written.

    Raises:
        ConfigError: one of these is the case.
    """
    if args.all and args.kind:
        raise ConfigError("--kind", args.kind, "left out with --all, which runs every kind")
    _check_minutes(args)
    if args.kind and not KINDS[args.kind].fits(args.ranks):
        raise ConfigError(
            "--ranks", args.ranks, f"even and at least 4 with --kind {args.kind}: a pipeline of two stages"
        )
    if args.json and not args.act:
        raise ConfigError("--json", args.json, "used with --act only")
    if args.kafka and not args.act:
        raise ConfigError("--kafka", args.kafka, "used with --act only")
    if args.act:
        _check_act(args)
    if args.report is not None:
        try:
            args.report.touch()
        except OSError as error:
            raise ConfigError("--report", str(args.report), f"a file that can be written ({error.strerror})") from error


def _check_minutes(args: argparse.Namespace) -> None:
    """Check the times of a long drill; raise ConfigError if they are negative, or given to a drill that has none."""
    for name, minutes in (("--healthy-minutes", args.healthy_minutes), ("--fault-minutes", args.fault_minutes)):
        if not 0 <= minutes < math.inf:
            raise ConfigError(name, minutes, "a number, 0 or more")
        if minutes and (args.all or args.act or args.kind is None):
            raise ConfigError(name, minutes, "used with --kind, and without --all and --act")
    if args.fault_minutes and not _stays(KINDS[args.kind]):
        survived = " ".join(name for name, kind in KINDS.items() if _stays(kind))
        raise ConfigError("--fault-minutes", args.fault_minutes, f"used with one of --kind {survived}")


def _stays(kind: DrillKind) -> bool:
    """Return whether a job goes on with a fault of this kind."""
    is_lasting = not kind.ends_job and kind.outside is not Outside.LATE_START
    return is_lasting and kind.wanted in {ExpectedVerdict.ACCUSE, ExpectedVerdict.EXPLAIN}


def _check_act(args: argparse.Namespace) -> None:
    """Check for what a drill that acts cannot do; raise ConfigError if it is asked for."""
    others = {"--all": args.all, "--demo": args.demo, "--report": args.report, "--record": args.record}
    for name, value in others.items():
        if value:
            raise ConfigError(name, str(value), "left out with --act")
    if args.kind is not None and args.kind not in ACTING_KINDS:
        raise ConfigError("--kind", args.kind, f"{' or '.join(ACTING_KINDS)} with --act")


def plans_of(args: argparse.Namespace) -> list[DrillPlan]:
    """Return the plans of the drills that the arguments ask for."""
    if args.all:
        return [
            make_plan(kind, seed, args.ranks)
            for kind in KINDS.values()
            if kind.fits(args.ranks)
            for seed in range(args.seed, args.seed + args.seeds)
        ]
    kind = KINDS[args.kind or _DEFAULT_KIND]
    return [make_plan(kind, args.seed, args.ranks, args.healthy_minutes * 60, args.fault_minutes * 60)]


def _finish(args: argparse.Namespace, results: list[DrillResult], lines: PlainLines) -> int:
    """Write the report if one is wanted, print the summary, and return the exit status."""
    if args.report is not None:
        args.report.write_text(report.markdown(results))
        lines.say(f"report: {args.report}")
    lines.say(report.summary_line(results))
    return 0 if all(result.answer.right for result in results) else 1


def _interrupt(_number: int, _frame: object) -> None:
    """Signal handler: exit with the status of SIGTERM."""
    sys.exit(128 + signal.SIGTERM)
