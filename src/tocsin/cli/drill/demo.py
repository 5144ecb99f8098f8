"""``make run``: shows one drill, then the database rows that it wrote, then commands to try next."""

from __future__ import annotations

import argparse
import contextlib
import importlib.util
import os
import sys
import tempfile
import time
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Protocol

from tocsin.cli import incident_text, incidents
from tocsin.cli.database import database
from tocsin.cli.drill import report
from tocsin.cli.drill.faults import KINDS
from tocsin.cli.drill.judge import Heard
from tocsin.cli.drill.launcher import DrillJob
from tocsin.cli.drill.lines import PlainLines, Rates, rates_text, verdict_texts
from tocsin.cli.drill.plan import make_plan
from tocsin.cli.drill.result import DrillResult
from tocsin.cli.drill.runner import DrillGround
from tocsin.schemas.errors import TocsinError

_DEFAULT_KIND = "freeze"
_QUERY = "SELECT what, since, machine, why FROM tocsin.incidents_all"
_STATUS_SECONDS = 0.5
_PLAIN_RATES_SECONDS = 3.0


class DemoDisplay(Protocol):
    """Display of the demo: shows a drill's events and step rates."""

    def say(self, text: str) -> None:
        """Show a line of text."""

    def started(self, job: DrillJob) -> None:
        """Show that the ranks train."""

    def struck(self, job: DrillJob, onset_ns: int) -> None:
        """Show that the fault was injected."""

    def heard(self, item: Heard) -> None:
        """Show a verdict that arrived."""

    def rates(self, rates: Rates) -> None:
        """Show step rates."""


class PlainDisplay(PlainLines):
    """Display of the demo as plain lines, without a terminal."""

    def __init__(self) -> None:
        """Start the display; no rates are shown yet."""
        super().__init__()
        self._next_rates = 0.0

    def heard(self, item: Heard) -> None:
        """Print a verdict that arrived, in full."""
        for text in verdict_texts(item):
            self.say(text)

    def rates(self, rates: Rates) -> None:
        """Print step rates, at most every ``_PLAIN_RATES_SECONDS``."""
        if rates and time.monotonic() > self._next_rates:
            self._next_rates = time.monotonic() + _PLAIN_RATES_SECONDS
            self.say(rates_text(rates))


class _Watcher:
    """Observer of a drill that passes its events to the display and asks the engine for the step rates."""

    def __init__(self, display: DemoDisplay) -> None:
        self._display = display
        self._next_status = 0.0
        self.ground: DrillGround | None = None
        self.started, self.struck, self.heard = display.started, display.struck, display.heard

    def tick(self, job: DrillJob) -> None:
        """Ask the engine for the step rates, twice a second."""
        if self.ground is None or time.monotonic() < self._next_status:
            return
        self._next_status = time.monotonic() + _STATUS_SECONDS
        with contextlib.suppress(TocsinError):  # the engine may not know the job yet
            self._display.rates(self.ground.engine.rank_status(job.job_id))


def run(args: argparse.Namespace) -> int:
    """Show one drill; return the exit status 0 if the verdict is right, else 1."""
    data = Path(tempfile.mkdtemp(prefix="tocsin-demo-"))
    plan = make_plan(KINDS[args.kind or _DEFAULT_KIND], args.seed, args.ranks)
    print(f"A real torch.distributed job of {args.ranks} ranks on this machine, and a fault: {plan.kind.name}.")
    print(f"{report.POSING}\nIncidents go to {data}.\n", flush=True)
    with _display(plain=args.plain) as display:
        watcher = _Watcher(display)
        display.say("starting the engine and the ranks (torch takes some seconds)")
        with DrillGround(watcher, data_folder=data, keep=args.keep, record_folder=args.record) as ground:
            watcher.ground = ground
            result = ground.run(plan)
            rows = _rows(data)
    print("\n" + report.result_line(result) + "\n")
    print(rows)
    print(_what_next(data, result))
    return 0 if result.answer.right else 1


@contextlib.contextmanager
def _display(*, plain: bool) -> Iterator[DemoDisplay]:
    """Context manager that gives the live display on a terminal if rich is installed, else plain lines."""
    dumb = not sys.stdout.isatty() or os.environ.get("TERM") == "dumb"
    if plain or dumb or importlib.util.find_spec("rich") is None:
        yield PlainDisplay()
        return
    from tocsin.cli.drill.live import LiveDisplay  # rich: only here

    with LiveDisplay() as live:
        yield live


def _rows(data: Path) -> str:
    """Return commands that query the drill's incidents, each with its output."""
    with database(data) as ask:
        table = ask(_QUERY, "PrettyCompactNoEscapes").decode()
    found, now = incidents.fetch(data, everything=True), datetime.now(UTC)
    outputs = [(_command("incidents", data, "--all"), incident_text.render(found, now, everything=True))]
    outputs += [  # the first in full
        (_command("incidents", data, f"show {one['verdict_id']}"), incident_text.render_one(one, now))
        for one in found[-1:]
    ]
    outputs.append((_command("sql", data, f'"{_QUERY}"'), table))
    return "\n\n".join(f"$ {command}\n{answer}" for command, answer in outputs)


def _command(name: str, data: Path, argument: str) -> str:
    """Return the command line of a tocsin command on the data folder."""
    return f"{_program()} {name} {argument} --data {data}"


def _program() -> str:
    """Return how this program was called, so that the printed commands work unchanged."""
    called = Path(sys.argv[0])
    if called.name != "tocsin":
        return f"{sys.executable} -m tocsin"
    return str(called) if os.sep in sys.argv[0] else "tocsin"


def _what_next(data: Path, result: DrillResult) -> str:
    """Return the text that suggests commands to try next."""
    others = [name for name in KINDS if name != result.plan.kind.name]
    return "\n".join(
        (
            "Try next (the incidents above stay in the data folder):",
            f"  {_command('incidents', data, '--all')}",
            f"  {_program()} drill --demo --kind slow_compute --seed 1    another fault, another rank",
            f"  {_program()} drill --all --seeds 1 --report report.md     every kind: {', '.join(others)}",
            f"  {_program()} causes                                       the words a verdict can use",
            f"When you have seen enough: rm -r {data}",
        )
    )
