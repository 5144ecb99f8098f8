"""``make run``: shows one drill, then the database rows that it wrote, then commands to try next.

A drill whose right answer starts the job again goes on until the job trains again: the engine acts.
"""

from __future__ import annotations

import argparse
import contextlib
import importlib.util
import os
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import NamedTuple, Protocol

from tocsin.cli import incident_text, incidents
from tocsin.cli.database import database
from tocsin.cli.drill import report
from tocsin.cli.drill.act import command as acting
from tocsin.cli.drill.act.outcome import outcome_text
from tocsin.cli.drill.act.settings import JOB_ID
from tocsin.cli.drill.engine import rank_status
from tocsin.cli.drill.faults import KINDS
from tocsin.cli.drill.judge import Heard, judge
from tocsin.cli.drill.lines import PlainLines, Rates, ShownJob, rates_text, verdict_texts
from tocsin.cli.drill.plan import make_plan
from tocsin.cli.drill.runner import DrillGround
from tocsin.cli.drill_mark import leave_drill_mark
from tocsin.cli.ettr import render
from tocsin.cli.paths import control_socket
from tocsin.cli.processes import ProcessGroup
from tocsin.pipeline.runtime.embedded.control_socket import ControlClient
from tocsin.schemas.errors import TocsinError

_DEFAULT_KIND = "freeze"
_QUERY = "SELECT what, since, machine, why FROM tocsin.incidents_all"
_ACTIONS = (
    "SELECT kind, hosts, state, holder AS executor, changed FROM tocsin.action_changes WHERE kind != 'notify'"
    " ORDER BY changed"
)
_STATUS_SECONDS = 0.5
_PLAIN_RATES_SECONDS = 3.0


class DemoDisplay(Protocol):
    """Display of the demo: shows a drill's events and step rates."""

    def say(self, text: str) -> None:
        """Show a line of text."""

    def started(self, job: ShownJob) -> None:
        """Show that the ranks train."""

    def struck(self, job: ShownJob, onset_ns: int) -> None:
        """Show that the fault was injected."""

    def heard(self, item: Heard) -> None:
        """Show a verdict that arrived."""

    def rates(self, rates: Rates) -> None:
        """Show step rates."""


class PlainDisplay(PlainLines):
    """Display of the demo as plain lines, without a terminal."""

    def __init__(self, *, acts: bool = False) -> None:
        """Start the display; no rates are shown yet.

        Args:
            acts: whether what is proposed is carried out.
        """
        super().__init__()
        self._acts = acts
        self._next_rates = 0.0

    def heard(self, item: Heard) -> None:
        """Print a verdict that arrived, in full."""
        for text in verdict_texts(item, acts=self._acts):
            self.say(text)

    def rates(self, rates: Rates) -> None:
        """Print step rates, at most every ``_PLAIN_RATES_SECONDS``."""
        if rates and time.monotonic() > self._next_rates:
            self._next_rates = time.monotonic() + _PLAIN_RATES_SECONDS
            self.say(rates_text(rates))


class _Shown(NamedTuple):
    """What is shown after a drill: its result, whether it is right, and the rows that it left."""

    results: list[str]
    right: bool
    rows: str


class _Watcher:
    """Observer of a drill that passes its events to the display and asks the engine for the step rates."""

    def __init__(self, display: DemoDisplay) -> None:
        self._display = display
        self._next_status = 0.0
        self.client: ControlClient | None = None
        self.say, self.started, self.struck, self.heard = display.say, display.started, display.struck, display.heard

    def tick(self, job: ShownJob) -> None:
        """Ask the engine for the step rates, twice a second."""
        if self.client is None or time.monotonic() < self._next_status:
            return
        self._next_status = time.monotonic() + _STATUS_SECONDS
        with contextlib.suppress(TocsinError):  # the engine may not know the job yet
            self._display.rates(rank_status(self.client, job.job_id))


def run(args: argparse.Namespace) -> int:
    """Show one drill; return the exit status 0 if all is right, else 1."""
    data = Path(tempfile.mkdtemp(prefix="tocsin-demo-"))
    kind = args.kind or _DEFAULT_KIND
    acts = kind in acting.WANTED and args.record is None
    print(f"A real torch.distributed job of {args.ranks} ranks on this machine, and a fault: {kind}.")
    print(f"{report.POSING}\nIncidents go to {data}.\n", flush=True)
    with _display(plain=args.plain, acts=acts) as display:
        watcher = _Watcher(display)
        display.say("starting the engine and the ranks (torch takes some seconds)")
        results, right, rows = _act(args, kind, data, watcher) if acts else _strike(args, kind, data, watcher)
    print("\n" + "\n".join(results) + "\n")
    print(rows)
    print(_what_next(data, kind))
    return 0 if right else 1


def _strike(args: argparse.Namespace, kind: str, data: Path, watcher: _Watcher) -> _Shown:
    """Run a drill up to its verdict."""
    plan = make_plan(KINDS[kind], args.seed, args.ranks)
    with DrillGround(watcher, data_folder=data, keep=args.keep, record_folder=args.record) as ground:
        watcher.client = ground.engine.client
        result = ground.run(plan)
        return _Shown([report.result_line(result)], result.answer.right, _rows(data, (_QUERY,)))


def _act(args: argparse.Namespace, kind: str, data: Path, watcher: _Watcher) -> _Shown:
    """Run a drill until its job trains again."""
    plan = make_plan(KINDS[kind], args.seed, args.ranks)
    processes = ProcessGroup(keep_folder=args.keep)
    watcher.client = ControlClient(control_socket(data), timeout_seconds=10.0)
    try:
        ground = acting.embedded(plan, processes, data, watcher)
        found = acting.carry_out(plan, processes, ground, watcher, compares=False)
        rows = _rows(data, (_QUERY, _ACTIONS))
    finally:
        processes.close()
    leave_drill_mark(data)
    answer = judge(plan, found.onset_ns, found.heard)
    lines = [report.answer_line(plan, answer), outcome_text(found.outcome, found.wrong)]
    if found.ledger is not None:
        lines += ["", *render(found.ledger.accounts, JOB_ID).splitlines()]
    return _Shown(lines, answer.right and not found.wrong, rows)


@contextlib.contextmanager
def _display(*, plain: bool, acts: bool) -> Iterator[DemoDisplay]:
    """Context manager that gives the live display on a terminal if rich is installed, else plain lines."""
    dumb = not sys.stdout.isatty() or os.environ.get("TERM") == "dumb"
    if plain or dumb or importlib.util.find_spec("rich") is None:
        yield PlainDisplay(acts=acts)
        return
    from tocsin.cli.drill.live import LiveDisplay  # rich: only here

    with LiveDisplay(acts=acts) as live:
        yield live


def _rows(data: Path, queries: Sequence[str]) -> str:
    """Return commands that query what the drill left, each with its output."""
    with database(data) as ask:
        tables = [(query, ask(query, "PrettyCompactNoEscapes").decode()) for query in queries]
    found, now = incidents.fetch(data, everything=True), datetime.now(UTC)
    outputs = [(_command("incidents", data, "--all"), incident_text.render(found, now, everything=True))]
    outputs += [  # the first in full
        (_command("incidents", data, f"show {one['verdict_id']}"), incident_text.render_one(one, now))
        for one in found[-1:]
    ]
    outputs += [(_command("sql", data, f'"{query}"'), table) for query, table in tables]
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


def _what_next(data: Path, kind: str) -> str:
    """Return the text that suggests commands to try next."""
    others = [name for name in KINDS if name != kind]
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
