"""``tocsin drill --act``: chooses the plan, runs the drill, and prints what became of it."""

from __future__ import annotations

import argparse
import sys
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Final

from tocsin.cli.drill.act.drill import ActingDrill, ActOnlooker, LedgerCheck
from tocsin.cli.drill.act.ground import SPARE_COUNT, ActGround, EmbeddedGround
from tocsin.cli.drill.act.outcome import ActOutcome, json_line, outcome_text, what_is_wrong
from tocsin.cli.drill.act.settings import CHECKPOINT_STEPS, JOB_ID
from tocsin.cli.drill.act.truth import comparison_text, ledger_seconds
from tocsin.cli.drill.faults import KINDS
from tocsin.cli.drill.judge import Heard, host_name
from tocsin.cli.drill.lines import PlainLines
from tocsin.cli.drill.plan import DrillPlan, make_plan
from tocsin.cli.ettr import render
from tocsin.cli.processes import ProcessGroup

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


def hosts_of(plan: DrillPlan) -> tuple[str, ...]:
    """Return the hosts that a drill's job may use, spare ones last."""
    return tuple(host_name(rank) for rank in range(plan.rank_count + SPARE_COUNT))


def embedded(plan: DrillPlan, processes: ProcessGroup, data: Path, onlooker: ActOnlooker) -> ActGround:
    """Start an embedded engine that acts.

    Args:
        plan: whom the drill strikes, when and how.
        processes: all processes of the drill.
        data: folder of the engine's data.
        onlooker: is told what happens.
    """
    onlooker.say("the drill's engine acts at once: --act --hold 0 0 (else an eviction waits for 300 s after a start)")
    return EmbeddedGround(processes, data, hosts_of(plan), onlooker.heard)


def distributed(plan: DrillPlan, processes: ProcessGroup, onlooker: ActOnlooker) -> ActGround:
    """Start broker, Flink, ClickHouse and a controller that acts, and wait until they run.

    Args:
        plan: whom the drill strikes, when and how.
        processes: all processes of the drill.
        onlooker: is told what happens.

    Raises:
        DrillError: they do not start.
    """
    from tocsin.cli.drill.act.kafka_ground import KafkaGround  # Kafka's client: only here

    onlooker.say("starting broker, Flink, ClickHouse and the controller of actions (up to two minutes)")
    ground = KafkaGround(processes, hosts_of(plan), onlooker.heard)
    ground.wait_until_ready()
    onlooker.say("they run")
    return ground


def carry_out(
    plan: DrillPlan, processes: ProcessGroup, ground: ActGround, onlooker: ActOnlooker, *, compares: bool
) -> ActReport:
    """Run a drill that acts, and check what became of it.

    Args:
        plan: whom to strike, when and how.
        processes: all processes of the drill; the caller closes them.
        ground: the engine.
        onlooker: is told what happens.
        compares: whether an undisturbed run follows, to compare losses.

    Raises:
        DrillError: the drill could not be carried out.
    """
    drill = ActingDrill(plan, processes, ground, onlooker, hosts_of(plan), compares=compares)
    outcome = drill.run()
    ledger = None if outcome.seconds is None else drill.check_ledger()
    ground.close()
    wrong = what_is_wrong(outcome, WANTED[plan.kind.name])
    return ActReport(drill.onset_ns, tuple(ground.heard()), outcome, ledger, wrong)


def run(args: argparse.Namespace) -> int:
    """Run a drill that acts; return the exit status 0 if all is right, else 1."""
    lines = PlainLines(sys.stderr if args.json else sys.stdout)
    plan = plan_of(args.kind or "freeze", args.seed, args.ranks)
    processes = ProcessGroup(keep_folder=args.keep)
    try:
        lines.say("starting engine, executor and job controller (torch takes some seconds)")
        data = processes.folder / "data"
        ground = distributed(plan, processes, lines) if args.kafka else embedded(plan, processes, data, lines)
        found = carry_out(plan, processes, ground, lines, compares=args.json)
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
