"""Runs a drill that acts: engine, executor and job controller are processes, and this one only strikes and looks."""

from __future__ import annotations

import os
import signal
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, Protocol, TypeVar

from tocsin.cli.drill.act.forgery import answer_to_forgery
from tocsin.cli.drill.act.ground import ActGround
from tocsin.cli.drill.act.outcome import WANTED_STEPS, ActOutcome
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
from tocsin.cli.drill.act.truth import StruckTimes, ledger_seconds, true_seconds, wrong_parts
from tocsin.cli.drill.board import Board
from tocsin.cli.drill.checkpoint_files import equal_steps, losses_of, times_of
from tocsin.cli.drill.engine import DrillError
from tocsin.cli.drill.faults import Outside
from tocsin.cli.drill.judge import accused
from tocsin.cli.drill.plan import DrillPlan
from tocsin.cli.drill.runner import Onlooker
from tocsin.cli.processes import ProcessGroup
from tocsin.schemas.verdicts import VerdictState

T = TypeVar("T")
_START_SECONDS: Final = 120.0
_STEP_SECONDS: Final = 120.0
_NAMED_SECONDS: Final = 45.0
_ACTED_SECONDS: Final = 95.0
"""Of these, 35 s may pass until the verdict about a silent host is confirmed."""
_OVER_SECONDS: Final = 90.0
_LEDGER_SECONDS: Final = 8.0
_MORE_STEPS: Final = 5
_POLL_SECONDS: Final = 0.1


class ActOnlooker(Onlooker, Protocol):
    """Observer of a drill that acts."""

    def say(self, text: str) -> None:
        """Show a line of text."""


@dataclass(frozen=True, slots=True)
class StruckJob:
    """The attempt that is struck, as an observer sees it.

    Attributes:
        plan: the drill's plan.
        job_id: name of the job.
        board: the page that its ranks share.
    """

    plan: DrillPlan
    job_id: str
    board: Board


@dataclass(frozen=True, slots=True)
class LedgerCheck:
    """What the job's time was spent on.

    Attributes:
        accounts: the rows of the engine's ledger.
        truth: part -> seconds, as the drill measured them.
        wrong: what the ledger has wrong, "" if nothing.
    """

    accounts: list[dict[str, Any]]
    truth: dict[str, float]
    wrong: str


class ActingDrill:
    """One drill with an engine that acts, an executor and a job controller.

    Attributes:
        onset_ns: when it struck, 0 = not yet.
    """

    def __init__(
        self,
        plan: DrillPlan,
        processes: ProcessGroup,
        ground: ActGround,
        onlooker: ActOnlooker,
        hosts: tuple[str, ...],
        *,
        compares: bool,
    ) -> None:
        """Start the job controller, and the executor between it and the engine.

        Args:
            plan: whom to strike, when and how.
            processes: all processes of the drill.
            ground: the engine.
            onlooker: is told what happens.
            hosts: hosts that the job may use, spare ones last.
            compares: whether an undisturbed run follows, to compare losses.

        Raises:
            DrillError: the engine or the job controller does not start.
        """
        self._plan, self._ground, self._onlooker, self._compares = plan, ground, onlooker, compares
        self._folder = processes.folder
        self._struck: StruckJob | None = None
        self.onset_ns = 0
        settings = ControllerSettings(
            folder=str(self._folder),
            agent_words=ground.agent_words,
            keys_file=str(ground.keys_file),
            facts_key_file=str(ground.facts_key_file),
            seed=plan.seed,
            rank_count=plan.rank_count,
            hosts=hosts,
            compares=compares,
        )
        write_object(self._folder / SETTINGS_FILE, settings)
        module = "tocsin.cli.drill.act.controller"
        command = [sys.executable, "-m", module, str(self._folder / SETTINGS_FILE)]
        self._controller = processes.start(command, self._folder / "job-controller.log")
        ground.wait_until_ready()
        port = self._wait(lambda: self._status().port, _START_SECONDS, "the job controller does not start")
        self._port = port
        ground.start_executor(f"http://127.0.0.1:{port}")

    def run(self) -> ActOutcome:
        """Strike the job and watch what becomes of it, up to its end.

        Raises:
            DrillError: the drill could not be carried out.
        """
        plan = self._plan
        first = self._attempt(0, _START_SECONDS)
        self._struck = StruckJob(plan, JOB_ID, Board(Path(first.folder) / "board", plan.rank_count))
        self._wait_for_step(first, 0, _START_SECONDS)
        self._onlooker.started(self._struck)
        self._wait_for_step(first, plan.onset_step, _STEP_SECONDS)
        host, struck_step = first.hosts[plan.rank], self._struck.board.step(plan.rank)
        self._forge(host)
        self.onset_ns = time.time_ns()
        self._strike(first)
        self._onlooker.struck(self._struck, self.onset_ns)
        named = self._wait(self._names, _NAMED_SECONDS, "")
        done = self._done()
        if done is None:
            return ActOutcome(host, named)
        second = self._attempt(done.attempt, _ACTED_SECONDS)
        without = f" without {', '.join(done.left_out)}" if done.left_out else ""
        self._onlooker.say(f"the job controller carried out {done.kind}{without} (action {done.action_id[:12]})")
        self._wait_for_step(second, done.checkpoint_step, _STEP_SECONDS)
        seconds = (time.time_ns() - self.onset_ns) / 1e9
        self._onlooker.say(f"the job trains again from step {done.checkpoint_step}, {seconds:.1f} s after the strike")
        equal = self._finish(second, done, struck_step)
        return ActOutcome(
            struck=host,
            named=named,
            action_id=done.action_id,
            kind=done.kind,
            left_out=done.left_out,
            checkpoint_step=done.checkpoint_step,
            equal_steps=equal,
            seconds=round(seconds, 1),
        )

    def check_ledger(self) -> LedgerCheck:
        """Return what the engine's ledger says, and what was measured.

        The engine writes an account at once when an attempt ends, and again when its last steps arrive; so a ledger
        that is not right yet is read again for some seconds.
        """
        heard = [one for one in self._ground.heard() if one.at_ns >= self.onset_ns]
        named_ns = next(one.at_ns for one in heard if accused(one.line))
        confirmed = (one.at_ns for one in heard if one.line["state"] == VerdictState.CONFIRMED)
        struck = StruckTimes(self.onset_ns, named_ns, next(confirmed, named_ns))
        folders = [self._folder / f"losses.{number}" for number in range(self._status().actions[0].attempt + 1)]
        truth = true_seconds([times_of(one, self._plan.rank_count) for one in folders], struck)

        def check() -> LedgerCheck:
            accounts = self._ground.accounts()
            if not all(one["is_over"] for one in accounts):
                return LedgerCheck(accounts, truth, "an attempt is not over in the ledger")
            return LedgerCheck(accounts, truth, wrong_parts(ledger_seconds(accounts), truth))

        def right() -> LedgerCheck | None:
            found = check()
            return None if found.wrong else found

        return self._wait(right, _LEDGER_SECONDS, "") or check()

    def _forge(self, host: str) -> None:
        """Ask the job controller for a restart that nobody decided.

        Raises:
            DrillError: it takes it.
        """
        reason = answer_to_forgery(self._port, host)
        if not reason:
            raise DrillError("the job controller took a forged action")
        self._onlooker.say(f"a forged restart is refused by the job controller: {reason}")

    def _strike(self, status: ControllerStatus) -> None:
        """Strike the rank, and with it what its host has."""
        rank = self._plan.rank
        if self._plan.kind.outside is Outside.HOST_DOWN:
            os.kill(status.agent_pids[rank], signal.SIGKILL)
            os.kill(status.rank_pids[rank], signal.SIGKILL)
        else:
            os.kill(status.rank_pids[rank], signal.SIGSTOP)

    def _names(self) -> tuple[str, ...]:
        """Return the hosts that verdicts accuse since the onset."""
        heard = [one for one in self._ground.heard() if one.at_ns >= self.onset_ns]
        return tuple(sorted({name for one in heard for name in accused(one.line)}))

    def _done(self) -> DoneAction | None:
        """Return the action that the job controller carried out, None if none comes in time."""
        found = self._wait(lambda: self._status().actions, _ACTED_SECONDS, "")
        return found[0] if found else None

    def _finish(self, status: ControllerStatus, done: DoneAction, struck_step: int) -> int | None:
        """Let the job train on, beyond what it lost, and end it.

        Returns:
            How many steps equal an undisturbed run's, None: not compared.
        """
        until = done.checkpoint_step + WANTED_STEPS if self._compares else struck_step
        self._wait_for_step(status, until + _MORE_STEPS, _STEP_SECONDS)
        self._controller.send_signal(signal.SIGTERM)
        over = "the job controller does not end"
        self._wait(lambda: self._status().is_over, _OVER_SECONDS, over)
        count = self._plan.rank_count
        undisturbed = losses_of(self._folder / "undisturbed", count)
        if not undisturbed:
            return None
        return equal_steps(losses_of(self._folder / f"losses.{done.attempt}", count), undisturbed, done.checkpoint_step)

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
        """Return what is found as soon as it is true, else after ``seconds``; the observer looks meanwhile.

        Raises:
            DrillError: nothing was found, and there is a complaint.
        """
        deadline = time.monotonic() + seconds
        while not (result := found()) and time.monotonic() < deadline:
            if self._controller.poll() is not None and not self._status().is_over:
                raise DrillError(f"the job controller ended: {self._last_words()}")
            if self._struck is not None:
                self._onlooker.tick(self._struck)
            time.sleep(_POLL_SECONDS)
        if not result and complaint:
            raise DrillError(f"{complaint}: {self._last_words()}")
        return result

    def _last_words(self) -> str:
        texts = [self._folder / name for name in ("job-controller.log", "executor.log")]
        return " | ".join(one.read_text(errors="replace")[-600:].strip() for one in texts if one.exists())
