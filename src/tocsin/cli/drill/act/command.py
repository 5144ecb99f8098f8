"""``tocsin drill --act``: chooses the plan, runs the drill, and prints what became of it."""

from __future__ import annotations

import argparse
import sys
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Final

from tocsin.cli.drill.act.drill import ActingDrill, ActOnlooker, LedgerCheck
from tocsin.cli.drill.act.ground import SPARE_COUNT, EmbeddedGround
from tocsin.cli.drill.act.outcome import ActOutcome, json_line, outcome_text, what_is_wrong
from tocsin.cli.drill.act.settings import CHECKPOINT_STEPS, JOB_ID
from tocsin.cli.drill.act.truth import comparison_text, ledger_seconds
from tocsin.cli.drill.faults import KINDS
from tocsin.cli.drill.judge import Heard, host_name
from tocsin.cli.drill.lines import PlainLines
from tocsin.cli.drill.plan import DrillPlan, make_plan
from tocsin.cli.drill.processes import ProcessGroup
from tocsin.cli.ettr import render

WANTED: Final = {"freeze": "restart", "host_down": "evict"}
"""Kind of drill -> kind of the action that is right."""


@dataclass(frozen=True, slots=True)
class ActReport:
    """What became of a drill that acts.

    Attributes:
        onset_ns: when it struck.
        heard: every verdict line of the job.
        outcome: what became of it.
        ledger: what the job's time was spent on, None: it does not train again.
        wrong: one sentence about what is wrong, the ledger apart; "" if nothing.
    """

    onset_ns: int
    heard: tuple[Heard, ...]
    outcome: ActOutcome
    ledger: LedgerCheck | None
    wrong: str


def plan_of(kind: str, seed: int, rank_count: int) -> DrillPlan:
    """Return the plan of a drill that acts: it strikes early, a few steps after the first checkpoint."""
    plan = make_plan(KINDS[kind], seed, rank_count)
    return replace(plan, onset_step=CHECKPOINT_STEPS + 4 + plan.onset_step % CHECKPOINT_STEPS)


def carry_out(
    plan: DrillPlan, processes: ProcessGroup, data: Path, onlooker: ActOnlooker, *, compares: bool
) -> ActReport:
    """Run a drill that acts, and check what became of it.

    Args:
        plan: whom to strike, when and how.
        processes: all processes of the drill; the caller closes them.
        data: folder of the engine's data.
        onlooker: is told what happens.
        compares: whether an undisturbed run follows, to compare losses.

    Raises:
        DrillError: the drill could not be carried out.
    """
    onlooker.say("the drill's engine acts at once: --act --hold 0 0 (else an eviction waits for 300 s after a start)")
    hosts = tuple(host_name(rank) for rank in range(plan.rank_count + SPARE_COUNT))
    ground = EmbeddedGround(processes, data, hosts, onlooker.heard)
    drill = ActingDrill(plan, processes, ground, onlooker, hosts, compares=compares)
    outcome = drill.run()
    ledger = None if outcome.seconds is None else drill.check_ledger()
    wrong = what_is_wrong(outcome, WANTED[plan.kind.name])
    return ActReport(drill.onset_ns, tuple(ground.heard()), outcome, ledger, wrong)


def run(args: argparse.Namespace) -> int:
    """Run a drill that acts; return the exit status 0 if all is right, else 1."""
    lines = PlainLines(sys.stderr if args.json else sys.stdout)
    plan = plan_of(args.kind or "freeze", args.seed, args.ranks)
    processes = ProcessGroup(keep_folder=args.keep)
    try:
        lines.say("starting engine, executor and job controller (torch takes some seconds)")
        found = carry_out(plan, processes, processes.folder / "data", lines, compares=args.json)
    finally:
        processes.close()
    wrong = found.wrong
    if found.ledger is not None:
        wrong = wrong or found.ledger.wrong
        table = comparison_text(ledger_seconds(found.ledger.accounts), found.ledger.truth)
        for line in (*render(found.ledger.accounts, JOB_ID).splitlines(), *table):
            lines.say(line)
    lines.say(outcome_text(found.outcome, wrong))
    if args.keep:
        lines.say(f"kept: {processes.folder}")
    if args.json:
        print(json_line(found.outcome), flush=True)
    return 1 if wrong else 0
