"""Runs a drill that acts: engine, executor and job controller are processes, and this one only strikes and looks."""

from __future__ import annotations

import argparse
import json
import os
import signal
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final, TypeVar

from tocsin.cli.action_settings import PUBLIC_FILE
from tocsin.cli.database import database
from tocsin.cli.drill.act.outcome import WANTED_STEPS, ActOutcome, json_line, outcome_text, what_is_wrong
from tocsin.cli.drill.act.settings import (
    JOB_ID,
    SETTINGS_FILE,
    STATUS_FILE,
    ControllerSettings,
    ControllerStatus,
    DoneAction,
    read_status,
    write_object,
)
from tocsin.cli.drill.act.truth import StruckTimes, comparison_text, ledger_seconds, true_seconds, wrong_parts
from tocsin.cli.drill.board import Board
from tocsin.cli.drill.checkpoint_files import equal_steps, losses_of, times_of
from tocsin.cli.drill.engine import DrillEngine, DrillError, VerdictEar
from tocsin.cli.drill.faults import KINDS, Outside
from tocsin.cli.drill.judge import Heard, accused, describe, host_name
from tocsin.cli.drill.launcher import CLUSTER
from tocsin.cli.drill.lines import PlainLines
from tocsin.cli.drill.plan import DrillPlan, make_plan
from tocsin.cli.drill.processes import ProcessGroup
from tocsin.cli.ettr import render
from tocsin.pipeline.identity.message_signatures import new_signing_key
from tocsin.pipeline.stores.ettr_queries import ettr_query
from tocsin.schemas.credential_store import change, write_credentials
from tocsin.schemas.credentials import Role
from tocsin.schemas.verdicts import VerdictState

WANTED: Final = {"freeze": "restart", "host_down": "evict"}
"""Kind of drill -> kind of the action that is right."""
SPARE_COUNT: Final = 1
T = TypeVar("T")
_EXECUTOR: Final = "job-executor"
_START_SECONDS: Final = 120.0
_STEP_SECONDS: Final = 120.0
_NAMED_SECONDS: Final = 45.0
_ACTED_SECONDS: Final = 60.0
_OVER_SECONDS: Final = 90.0
_LEDGER_SECONDS: Final = 8.0
_POLL_SECONDS: Final = 0.1


class ActingDrill:
    """One drill with the engine, an executor and a job controller."""

    def __init__(
        self, plan: DrillPlan, processes: ProcessGroup, data: Path, lines: PlainLines, *, compares: bool
    ) -> None:
        """Start the engine, the job controller, and the executor between them.

        Args:
            plan: whom to strike, when and how.
            processes: all processes of the drill.
            data: folder of the engine's data.
            lines: where it says what happens.
            compares: whether an undisturbed run follows, to compare losses.

        Raises:
            DrillError: the engine does not start.
        """
        self._plan, self._processes, self._lines = plan, processes, lines
        lines.say("the drill's engine acts at once: --act --hold 0 0 (else an eviction waits for 300 s after a start)")
        more = ["--act", "--hold", "0", "0", "--spares", str(SPARE_COUNT)]
        self._engine = DrillEngine(processes, data, more)
        self._folder = processes.folder
        hosts = tuple(host_name(rank) for rank in range(plan.rank_count + SPARE_COUNT))
        for host in hosts:
            self._engine.tokens.file_of(host)
        token_file = self._issue_executor()
        keys_file = data / PUBLIC_FILE
        settings = ControllerSettings(
            folder=str(self._folder),
            listen=str(self._engine.listen),
            keys_file=str(keys_file),
            seed=plan.seed,
            rank_count=plan.rank_count,
            hosts=hosts,
            compares=compares,
        )
        write_object(self._folder / SETTINGS_FILE, settings)
        module = "tocsin.cli.drill.act.controller"
        command = [sys.executable, "-m", module, str(self._folder / SETTINGS_FILE)]
        self._controller = processes.start(command, self._folder / "job-controller.log")
        self._engine.wait_until_ready()
        self._ear = VerdictEar(self._engine.control, self._heard)
        port = self._wait(lambda: self._status().port, _START_SECONDS, "the job controller does not start")
        processes.start(
            [
                *(sys.executable, "-m", "tocsin", "executor", "job"),
                *("--url", f"http://127.0.0.1:{port}"),
                *("--engine", f"unix:{self._engine.listen}"),
                *("--token-file", str(token_file)),
                *("--controller-keys", str(keys_file)),
                *("--cluster", CLUSTER),
            ],
            self._folder / "executor.log",
        )

    def run(self) -> ActOutcome:
        """Strike the job and watch what becomes of it.

        Raises:
            DrillError: the drill could not be carried out.
        """
        plan = self._plan
        first = self._attempt(0, _START_SECONDS)
        self._lines.say(f"{plan.rank_count} ranks train; a checkpoint every 20 steps")
        self._wait_for_step(first, plan.onset_step, _STEP_SECONDS)
        struck = first.hosts[plan.rank]
        onset_ns = time.time_ns()
        self._strike(first)
        self._lines.say(f"struck: {plan.sentence()} ({struck})")
        named = self._named(onset_ns)
        done = self._done()
        if done is None:
            return ActOutcome(struck, named)
        second = self._attempt(done.attempt, _ACTED_SECONDS)
        self._lines.say(f"the job controller carried out {done.kind} {done.action_id[:12]}: attempt {done.attempt}")
        self._wait_for_step(second, done.checkpoint_step, _STEP_SECONDS)
        seconds = (time.time_ns() - onset_ns) / 1e9
        self._lines.say(f"the job trains again from step {done.checkpoint_step}, {seconds:.1f} s after the strike")
        equal = self._compare(second, done)
        wrong_ledger = self._check_ledger(self._struck_times(onset_ns), done.attempt)
        return ActOutcome(
            struck=struck,
            named=named,
            action_id=done.action_id,
            kind=done.kind,
            left_out=done.left_out,
            checkpoint_step=done.checkpoint_step,
            equal_steps=equal,
            seconds=round(seconds, 1),
            wrong_ledger=wrong_ledger,
        )

    def _strike(self, status: ControllerStatus) -> None:
        """Strike the rank, and with it what its host has."""
        rank = self._plan.rank
        if self._plan.kind.outside is Outside.HOST_DOWN:
            os.kill(status.agent_pids[rank], signal.SIGKILL)
            os.kill(status.rank_pids[rank], signal.SIGKILL)
        else:
            os.kill(status.rank_pids[rank], signal.SIGSTOP)

    def _named(self, onset_ns: int) -> tuple[str, ...]:
        """Return the hosts that verdicts accuse after the onset, empty if none comes in time."""

        def names() -> tuple[str, ...]:
            heard = [one for one in self._ear.of_job(JOB_ID) if one.at_ns >= onset_ns]
            return tuple(sorted({name for one in heard for name in accused(one.line)}))

        return self._wait(names, _NAMED_SECONDS, "")

    def _done(self) -> DoneAction | None:
        """Return the action that the job controller carried out, None if none comes in time."""
        found = self._wait(lambda: self._status().actions, _ACTED_SECONDS, "")
        return found[0] if found else None

    def _compare(self, status: ControllerStatus, done: DoneAction) -> int | None:
        """Let the job train on, end it, and return how many steps equal an undisturbed run's, None: not compared."""
        self._wait_for_step(status, done.checkpoint_step + WANTED_STEPS + 5, _STEP_SECONDS)
        self._controller.send_signal(signal.SIGTERM)
        over = "the job controller does not end"
        self._wait(lambda: self._status().is_over, _OVER_SECONDS, over)
        count = self._plan.rank_count
        undisturbed = losses_of(self._folder / "undisturbed", count)
        if not undisturbed:
            return None
        return equal_steps(losses_of(self._folder / f"losses.{done.attempt}", count), undisturbed, done.checkpoint_step)

    def _struck_times(self, onset_ns: int) -> StruckTimes:
        """Return when the job was struck, and when this process heard that it is known and confirmed."""
        heard = [one for one in self._ear.of_job(JOB_ID) if one.at_ns >= onset_ns]
        named_ns = next(one.at_ns for one in heard if accused(one.line))
        confirmed = (one.at_ns for one in heard if one.line["state"] == VerdictState.CONFIRMED)
        return StruckTimes(onset_ns, named_ns, next(confirmed, named_ns))

    def _check_ledger(self, struck: StruckTimes, last_attempt: int) -> str:
        """Show what the job's time was spent on, as the engine's ledger says and as this drill measured it.

        Returns:
            What the ledger has wrong, "" if nothing.
        """
        accounts = self._wait(self._accounts, _LEDGER_SECONDS, "") or self._accounts(is_all_over=False)
        count = self._plan.rank_count
        folders = [self._folder / f"losses.{number}" for number in range(last_attempt + 1)]
        truth = true_seconds([times_of(one, count) for one in folders], struck)
        ledger = ledger_seconds(accounts)
        for line in (*render(accounts, JOB_ID).splitlines(), *comparison_text(ledger, truth)):
            self._lines.say(line)
        return wrong_parts(ledger, truth)

    def _accounts(self, *, is_all_over: bool = True) -> list[dict[str, Any]]:
        """Return the ledger's account of each attempt; none while one runs, unless those count, too."""
        with database(self._engine.data_folder) as ask:
            found = [json.loads(line) for line in ask(ettr_query(JOB_ID), "JSONEachRow").splitlines()]
        return found if not is_all_over or all(one["is_over"] for one in found) else []

    def _attempt(self, number: int, seconds: float) -> ControllerStatus:
        def found() -> ControllerStatus | None:
            status = self._status()
            return status if status.attempt >= number and status.rank_pids else None

        return self._wait(found, seconds, f"attempt {number} of the job does not start") or ControllerStatus()

    def _wait_for_step(self, status: ControllerStatus, step: int, seconds: float) -> None:
        board = Board(Path(status.folder) / "board", self._plan.rank_count)
        try:
            text = f"the job does not go beyond step {step}"
            self._wait(lambda: min(board.steps()) > step, seconds, text)
        finally:
            board.close()

    def _status(self) -> ControllerStatus:
        return read_status(self._folder / STATUS_FILE)

    def _wait(self, found: Callable[[], T], seconds: float, complaint: str) -> T:
        """Return what is found as soon as it is true, else after ``seconds``.

        Raises:
            DrillError: nothing was found, and there is a complaint.
        """
        deadline = time.monotonic() + seconds
        while not (result := found()) and time.monotonic() < deadline:
            if self._controller.poll() is not None and not self._status().is_over:
                raise DrillError(f"the job controller ended: {self._last_words()}")
            time.sleep(_POLL_SECONDS)
        if not result and complaint:
            raise DrillError(f"{complaint}: {self._last_words()}")
        return result

    def _last_words(self) -> str:
        texts = [self._folder / name for name in ("job-controller.log", "executor.log")]
        return " | ".join(one.read_text(errors="replace")[-600:].strip() for one in texts if one.exists())

    def _heard(self, item: Heard) -> None:
        self._lines.say(f"verdict: {describe(item.line)}")

    def _issue_executor(self) -> Path:
        """Make the executor's key pair, known to the engine; return its file."""
        fresh = new_signing_key(Role.EXECUTOR, _EXECUTOR, time.time_ns())
        change(self._engine.tokens.engine_file, lambda before: (*before, fresh))
        path = self._folder / "tokens" / f"{_EXECUTOR}.json"
        write_credentials(path, (fresh,))
        return path


def run(args: argparse.Namespace) -> int:
    """Run a drill that acts; return the exit status 0 if all is right, else 1."""
    kind = args.kind or "freeze"
    lines = PlainLines(sys.stderr if args.json else sys.stdout)
    plan = make_plan(KINDS[kind], args.seed, args.ranks)
    processes = ProcessGroup(keep_folder=args.keep)
    try:
        lines.say("starting engine, executor and job controller (torch takes some seconds)")
        drill = ActingDrill(plan, processes, processes.folder / "data", lines, compares=args.json)
        outcome = drill.run()
    finally:
        processes.close()
    wrong = what_is_wrong(outcome, WANTED[kind])
    lines.say(outcome_text(outcome, wrong))
    if args.keep:
        lines.say(f"kept: {processes.folder}")
    if args.json:
        print(json_line(outcome), flush=True)
    return 1 if wrong else 0
