"""The attempts of the drill's job: where each runs, and from which checkpoint."""

from __future__ import annotations

import subprocess
import time
from collections.abc import Collection, Sequence
from multiprocessing.context import ForkServerContext
from pathlib import Path
from typing import Final

from tocsin.cli.drill.act.settings import CHECKPOINT_STEPS, JOB_ID, ControllerSettings
from tocsin.cli.drill.checkpoint_files import last_checkpoint
from tocsin.cli.drill.engine import DrillError
from tocsin.cli.drill.faults import KINDS
from tocsin.cli.drill.launcher import Attempt, DrillJob
from tocsin.cli.drill.plan import make_plan
from tocsin.cli.drill.rank_config import CheckpointPlan, StepTimes
from tocsin.cli.processes import kill_quietly

_COMPARED_STEPS: Final = 60
"""Steps of the undisturbed run."""
_COMPARE_SECONDS: Final = 60.0
_END_SECONDS: Final = 5.0


class ControllerProcesses:
    """Processes that the job controller starts; all are born in the drill's process group.

    Attributes:
        folder: the drill's work folder.
    """

    def __init__(self, folder: Path) -> None:
        """Start nothing yet."""
        self.folder = folder

    def start(self, command: Sequence[str], log: Path) -> subprocess.Popen[bytes]:
        """Start a command, its output appended to a file."""
        with log.open("ab") as output:
            return subprocess.Popen(list(command), stdin=subprocess.DEVNULL, stdout=output, stderr=output)

    def end(self, *, pids: Sequence[int] = (), children: Sequence[subprocess.Popen[bytes]] = ()) -> None:
        """Kill some of them now."""
        for pid in pids:
            kill_quietly(pid)
        for child in children:
            child.kill()
            child.wait(_END_SECONDS)


class GivenHome:
    """Where the agents send, as the drill said."""

    def __init__(self, words: Sequence[str]) -> None:
        """Keep the words of a command line, ``{host}`` in them for the host."""
        self._words = words

    def agent_words(self, host: str) -> Sequence[str]:
        """Return the words of an agent's command line that say where it sends, and with which credential."""
        return [word.replace("{host}", host) for word in self._words]


class DrillAttempts:
    """Starts the job, ends it, and starts it again from its last complete checkpoint.

    Attributes:
        hosts: host of each rank of the newest attempt.
        number: number of the newest attempt.
        job: its processes, None before the first.
    """

    def __init__(self, settings: ControllerSettings, context: ForkServerContext) -> None:
        """Start nothing yet.

        Args:
            settings: settings of the job controller.
            context: forks ranks.
        """
        self._settings, self._context = settings, context
        folder = Path(settings.folder)
        self._processes = ControllerProcesses(folder)
        self._home = GivenHome(settings.agent_words)
        self._plan = make_plan(KINDS["none"], settings.seed, settings.rank_count)
        self._checkpoints = folder / "checkpoints"
        self._checkpoints.mkdir(exist_ok=True)
        self.hosts = tuple(settings.hosts[: settings.rank_count])
        self.number = -1
        self.resumed_step = 0
        self.job: DrillJob | None = None
        self._undisturbed: DrillJob | None = None

    def may_leave_out(self, hosts: Collection[str]) -> bool:
        """Return whether enough hosts are left without some."""
        return len(set(self._settings.hosts) - set(hosts)) >= self._settings.rank_count

    def begin(self, left_out: Collection[str] = ()) -> int:
        """End the running attempt, and start the next one without some hosts; return the step that it goes on from.

        Ranks keep their hosts; only those on a host that is left out move to a spare one.

        Raises:
            DrillError: an agent does not start.
        """
        if self.job is not None:
            self.job.stop()
        spare = [one for one in self._settings.hosts if one not in self.hosts and one not in left_out]
        self.hosts = tuple(one if one not in left_out else spare.pop(0) for one in self.hosts)
        self.number += 1
        self.resumed_step = last_checkpoint(self._checkpoints, self._settings.rank_count)
        self.job = self._start(JOB_ID, self._attempt(self.number, StepTimes()))
        return self.resumed_step

    def _attempt(self, number: int, pace: StepTimes, *, has_agents: bool = True) -> Attempt:
        losses = Path(self._settings.folder) / (f"losses.{number}" if has_agents else "undisturbed")
        losses.mkdir()
        plan = CheckpointPlan(self._checkpoints, losses, CHECKPOINT_STEPS, self.resumed_step)
        return Attempt(number, self.hosts, plan, has_agents, pace)

    def _start(self, name: str, attempt: Attempt) -> DrillJob:
        job = DrillJob(self._plan, name, self._processes, attempt)
        job.start(self._context, self._home)
        return job

    def wait_for_step(self, step: int, seconds: float) -> bool:
        """Wait until all ranks are beyond a step; return whether they are."""
        deadline = time.monotonic() + seconds
        while self.job is not None and time.monotonic() < deadline:
            if min(self.job.board.steps()) > step:
                return True
            if self.job.exits:
                return False
            time.sleep(0.05)
        return False

    def end(self) -> None:
        """Let the job come to its normal end, or end it if it does not."""
        if self.job is None:
            return
        self.job.board.set_last_step(max(self.job.board.steps()) + 2)
        deadline = time.monotonic() + _END_SECONDS
        while not self.job.ended() and time.monotonic() < deadline:
            time.sleep(0.05)
        self.job.end_agents(_END_SECONDS)  # the steps since their last batch
        self.job.stop()
        self.job = None

    def begin_comparison(self) -> None:
        """Start an undisturbed job from the checkpoint that the newest attempt went on from, without agents."""
        attempt = self._attempt(self.number, StepTimes(0.0, 0.0, 0.0, 0.0), has_agents=False)
        self._undisturbed = self._start("undisturbed", attempt)
        self._undisturbed.board.set_last_step(self.resumed_step + _COMPARED_STEPS)

    def end_comparison(self) -> None:
        """Wait until the undisturbed job has come to its end.

        Raises:
            DrillError: it does not.
        """
        job, self._undisturbed = self._undisturbed, None
        deadline = time.monotonic() + _COMPARE_SECONDS
        while job is not None and not job.ended():
            if time.monotonic() > deadline:
                job.stop()
                raise DrillError(f"the undisturbed run did not end: {job.board.steps()}")
            time.sleep(0.05)
        if job is not None:
            job.stop()
