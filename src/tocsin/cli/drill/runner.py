"""Runs one drill from start to answer, or several on the same engine."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Sequence
from multiprocessing.context import ForkServerContext
from pathlib import Path
from types import TracebackType
from typing import Protocol, Self

from tocsin.cli.drill.engine import DrillEngine, DrillError, VerdictEar
from tocsin.cli.drill.faults import ExpectedVerdict, Outside, Target
from tocsin.cli.drill.judge import Answer, Heard, VerdictLine, accused, is_live, judge
from tocsin.cli.drill.launcher import DrillJob, warm_up
from tocsin.cli.drill.lines import ShownJob
from tocsin.cli.drill.plan import DrillPlan
from tocsin.cli.drill.recording import DrillRecording
from tocsin.cli.drill.result import DrillResult
from tocsin.cli.drill.strike import Strike
from tocsin.cli.drill_mark import leave_drill_mark
from tocsin.cli.processes import ProcessGroup

_START_SECONDS = 90.0
_STALL_SECONDS = 60.0
_CONFIRM_SECONDS = 60.0
"""Longest time until a verdict is confirmed. (Verdicts still open when the job ends are cancelled, as jobs end
unevenly.)"""
_SETTLE_SECONDS = 6.0
"""Further wait after the right verdict, in which a wrong one against a victim could come."""
_END_SECONDS = 20.0
_LAST_LINES_SECONDS = 3.0
_LAST_STEPS = 10
_POLL_SECONDS = 0.1


class Onlooker(Protocol):
    """Observer of a drill (the plain lines, the live display)."""

    def started(self, job: ShownJob) -> None:
        """Called when the ranks train."""

    def struck(self, job: ShownJob, onset_ns: int) -> None:
        """Called when the fault was injected."""

    def heard(self, item: Heard) -> None:
        """Called from a thread for each verdict line that arrives."""

    def tick(self, job: ShownJob) -> None:
        """Called ten times a second while a drill waits."""


class DrillGround:
    """The engine, the forkserver and the process group that all drills of a run share."""

    def __init__(
        self, onlooker: Onlooker, *, data_folder: Path | None, keep: bool, record_folder: Path | None = None
    ) -> None:
        """Start the engine and the forkserver, and wait until the engine answers.

        Args:
            onlooker: observer of the drills.
            data_folder: folder that incidents are written to, None: in the work folder.
            keep: whether the work folder is kept.
            record_folder: folder below which each drill is recorded, under its job's name; None: no recordings.
        """
        self._record_folder = record_folder
        self.onlooker = onlooker
        self.processes = ProcessGroup(keep_folder=keep)
        self._count = 0
        try:
            self.engine = DrillEngine(self.processes, data_folder or self.processes.folder / "data")
            self._context: ForkServerContext = warm_up(self.processes.folder, self.processes.group)
            self.engine.wait_until_ready()
            self._verdicts = VerdictEar(self.engine.control, onlooker.heard)
        except BaseException:
            self.processes.close()
            raise

    def __enter__(self) -> Self:
        """Return itself."""
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        """End all processes; if there was no error, mark the data folder as that of a finished drill."""
        self.processes.close()
        if error is None and self.engine.data_folder.is_dir():
            leave_drill_mark(self.engine.data_folder)

    def run(self, plan: DrillPlan) -> DrillResult:
        """Carry out one drill and return its result.

        Raises:
            DrillError: it could not be carried out.
        """
        self._count += 1
        job = DrillJob(plan, f"{plan.kind.name.replace('_', '-')}-{self._count}", self.processes)
        recording = None
        if self._record_folder is not None:
            recording = DrillRecording(self.engine.client, self._record_folder / job.job_id, job.job_id)
        try:
            job.start(self._context, self.engine)
            result = self._run_job(plan, job)
            if recording is not None:
                recording.tell(result, recording.end())
            return result
        except DrillError as error:
            raise DrillError(f"{error}{named_meanwhile(self._verdicts.of_job(job.job_id))}") from error
        finally:
            job.stop()

    def _run_job(self, plan: DrillPlan, job: DrillJob) -> DrillResult:
        """Wait for the onset step, inject the fault, wait for the answer, and judge it."""
        if plan.kind.outside is Outside.LATE_START:
            return self._run_late_start(plan, job)
        self._wait_for_step(job, 1, _START_SECONDS)
        self.onlooker.started(job)
        began, cpu, first = time.monotonic(), self._cpu_seconds(), job.board.step(plan.rank)
        self._wait_for_step(job, plan.onset_step, plan.onset_step * 0.2 + _STALL_SECONDS)
        if plan.kind.target is not Target.NOBODY and self._wait(
            job, lambda: bool(job.exits), began + plan.healthy_seconds - time.monotonic()
        ):
            raise DrillError(f"a rank ended before the fault: {job.exits[0]}")
        elapsed = time.monotonic() - began
        step_seconds = elapsed / max(1, job.board.step(plan.rank) - first)
        cpu_cores = (self._cpu_seconds() - cpu) / elapsed
        strike = Strike(job)
        self.onlooker.struck(job, strike.onset_ns)
        ends = time.monotonic() + plan.fault_seconds
        self._wait_for_answer(plan, job, strike.onset_ns)
        self._wait(job, lambda: bool(job.exits), ends - time.monotonic())
        if not plan.kind.ends_job:
            self._end_in_order(job)
        strike.end()
        heard = self._verdicts.of_job(job.job_id)
        return DrillResult(
            plan=plan,
            job_id=job.job_id,
            onset_ns=strike.onset_ns,
            answer=judge(plan, strike.onset_ns, heard),
            heard=tuple(heard),
            exits=tuple(job.exits),
            step_seconds=step_seconds,
            cpu_cores=cpu_cores,
        )

    def _run_late_start(self, plan: DrillPlan, job: DrillJob) -> DrillResult:
        """Wait for the answer while the job starts, then let it train some steps, and judge it."""
        onset_ns = time.time_ns()
        self.onlooker.struck(job, onset_ns)
        self._wait_for_answer(plan, job, onset_ns)
        self._wait_for_step(job, 1, _START_SECONDS + plan.magnitude)
        began, cpu = time.monotonic(), self._cpu_seconds()
        self._wait_for_step(job, 1 + _LAST_STEPS, _STALL_SECONDS)
        elapsed, cpu_seconds = time.monotonic() - began, self._cpu_seconds() - cpu
        self._end_in_order(job)
        heard = self._verdicts.of_job(job.job_id)
        answer = judge(plan, onset_ns, heard)
        exits = tuple(job.exits)
        steps = elapsed / _LAST_STEPS
        return DrillResult(plan, job.job_id, onset_ns, answer, tuple(heard), exits, steps, cpu_seconds / elapsed)

    def _wait(self, job: DrillJob, until: Callable[[], bool], seconds: float) -> bool:
        """Wait until a condition holds, and call the observer meanwhile; return False after ``seconds``."""
        deadline = time.monotonic() + seconds
        while not until():
            if time.monotonic() > deadline:
                return False
            self.onlooker.tick(job)
            time.sleep(_POLL_SECONDS)
        return True

    def _wait_for_step(self, job: DrillJob, step: int, seconds: float) -> None:
        """Wait until all ranks reach a step; raise DrillError if a rank ends or they take too long."""
        done = self._wait(job, lambda: min(job.board.steps()) >= step or bool(job.exits), seconds)
        if job.exits:
            first = job.exits[0]
            raise DrillError(f"rank {first.rank} ended by itself (status {first.code}): {first.stderr_tail[-600:]}")
        if not done:
            raise DrillError(f"the job did not reach step {step} within {seconds:.0f} s: {job.board.steps()}")

    def _wait_for_answer(self, plan: DrillPlan, job: DrillJob, onset_ns: int) -> None:
        """Wait for the right verdict, its confirmation and some seconds more.

        If no accusation is expected, wait the whole observation time.
        """
        wanted = plan.kind.wanted
        if wanted in {ExpectedVerdict.SILENCE, ExpectedVerdict.NO_ACCUSATION}:
            if self._wait(job, lambda: bool(job.exits), plan.healthy_seconds or plan.kind.watch_seconds):
                raise DrillError(f"a rank of a healthy job ended by itself: {job.exits[0]}")
            return

        def lines() -> list[VerdictLine]:
            return [item.line for item in self._verdicts.of_job(job.job_id) if item.at_ns >= onset_ns]

        def answers() -> set[str]:
            live = [line for line in lines() if is_live(line)]
            if wanted is ExpectedVerdict.ACCUSE:
                return {line["id"] for line in live if accused(line)}
            return {line["id"] for line in live if not accused(line) and line["cause"] in plan.kind.causes}

        def settled() -> bool:
            ids = answers()
            return any(line["id"] in ids and line["state"] != "open" for line in lines())

        late_seconds = plan.magnitude if plan.kind.outside is Outside.LATE_START else 0.0
        if self._wait(job, lambda: bool(answers()), plan.kind.answer_seconds + late_seconds):
            self._wait(job, settled, _CONFIRM_SECONDS)
            self._wait(job, lambda: False, _SETTLE_SECONDS)

    def _end_in_order(self, job: DrillJob) -> None:
        """Let the job reach its normal end, which must not lead to a verdict either."""
        job.board.set_last_step(max(job.board.steps()) + _LAST_STEPS)
        if not self._wait(job, job.ended, _END_SECONDS + _longest_pause(job.plan)):
            raise DrillError(f"the job did not end in order: {job.board.steps()}, {len(job.exits)} ranks ended")
        broken = [item for item in job.exits if item.code != 0]
        if broken:
            raise DrillError(f"rank {broken[0].rank} did not end in order: {broken[0]}")
        self._wait(job, lambda: False, _LAST_LINES_SECONDS)

    def _cpu_seconds(self) -> float:
        """Return the CPU time that the running processes of the drill have used."""
        return sum(_cpu_seconds_of(pid) for pid in self.processes.members())


def named_meanwhile(heard: Sequence[Heard]) -> str:
    """Return the end of a sentence that says whom the engine accused until a drill failed; "" if nobody."""
    names = sorted({name for item in heard for name in accused(item.line)})
    return f" (the engine named {', '.join(names)} before)" if names else ""


def _longest_pause(plan: DrillPlan) -> float:
    """Return the duration of the plan's longest pause, in seconds."""
    return max((pause.seconds for pause in plan.pauses), default=0.0)


def _cpu_seconds_of(pid: int) -> float:
    """Return the CPU time of a process in seconds, 0 if it has ended."""
    try:
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return 0.0  # ended since
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def run_all(
    ground: DrillGround, plans: Sequence[DrillPlan], on_result: Callable[[DrillResult], None]
) -> list[DrillResult]:
    """Carry out drills one after another; a drill that fails counts as a wrong answer.

    Args:
        ground: what the drills share.
        plans: plans of the drills.
        on_result: called after each drill.

    Returns:
        The results, in order.
    """
    results = []
    for plan in plans:
        try:
            result = ground.run(plan)
        except DrillError as error:  # the others are worth their while
            answer = Answer(right=False, why=f"the drill failed: {error}")
            result = DrillResult(plan, f"{plan.kind.name} (failed)", 0, answer, (), (), 0.0, 0.0)
        on_result(result)
        results.append(result)
    return results
