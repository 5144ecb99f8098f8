"""Injects the fault, from inside (an order on the shared page) or from outside (signals, the relay)."""

from __future__ import annotations

import os
import signal
import threading
import time
from collections.abc import Callable

from tocsin.cli.drill.board import RankOrder
from tocsin.cli.drill.engine import DrillError
from tocsin.cli.drill.faults import Outside
from tocsin.cli.drill.launcher import DrillJob
from tocsin.cli.drill.orders import OrderKind
from tocsin.cli.processes import signal_quietly

_THROTTLE_PERIOD_SECONDS = 0.1
_OBEY_SECONDS = 20.0


class Throttle:
    """Lets a process run for only a part of each period."""

    def __init__(self, pid: int, running_ratio: float) -> None:
        """Begin to throttle.

        Args:
            pid: the process.
            running_ratio: part of the time in which it may run, 0 to 1.
        """
        self._pid, self._running_ratio = pid, running_ratio
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._cycle, name="throttle", daemon=True)
        self._thread.start()

    def stop(self) -> None:
        """Let the process run freely again."""
        self._over.set()
        self._thread.join()
        signal_quietly(self._pid, signal.SIGCONT)

    def _cycle(self) -> None:
        """Stop and continue the process in turn."""
        running = _THROTTLE_PERIOD_SECONDS * self._running_ratio
        stopped = _THROTTLE_PERIOD_SECONDS - running
        while not self._over.is_set() and signal_quietly(self._pid, signal.SIGSTOP):
            time.sleep(stopped)
            signal_quietly(self._pid, signal.SIGCONT)
            self._over.wait(running)


def _nothing() -> None:
    return None


class Strike:
    """The fault of a plan, injected into a job."""

    def __init__(self, job: DrillJob) -> None:
        """Inject the fault now.

        Args:
            job: the job.
        """
        self._job = job
        self._undo: Callable[[], None] = _nothing
        self.onset_ns = self._act()

    def end(self) -> None:
        """Undo what would outlive the job's end (a frozen or throttled process)."""
        self._undo()

    def _act(self) -> int:
        """Inject the fault and return its onset in nanoseconds."""
        plan = self._job.plan
        if plan.order is not OrderKind.NOTHING:
            return self._give_orders()
        if plan.kind.outside is Outside.KILL:
            return _signal_at(self._job.pid(plan.rank), signal.SIGKILL)
        if plan.kind.outside is Outside.FREEZE:
            return _signal_at(self._job.pid(plan.rank), signal.SIGSTOP)
        if plan.kind.outside is Outside.HOST_DOWN:
            now_ns = _signal_at(self._job.agent_pid(plan.rank), signal.SIGKILL)
            _signal_at(self._job.pid(plan.rank), signal.SIGKILL)
            return now_ns
        if plan.kind.outside is Outside.KILL_AGENT:
            return _signal_at(self._job.agent_pid(plan.rank), signal.SIGKILL)
        if plan.kind.outside is Outside.THROTTLE:
            now_ns = time.time_ns()
            self._undo = Throttle(self._job.pid(plan.rank), plan.magnitude).stop
            return now_ns
        now_ns = time.time_ns()
        if plan.kind.outside is Outside.SLOW_RELAY:
            self._job.delay_traffic(plan.magnitude / 1000.0)
        return now_ns

    def _give_orders(self) -> int:
        """Give the order to the affected ranks, and return the time when the first rank carried it out: the onset."""
        plan, board = self._job.plan, self._job.board
        affected = plan.affected_ranks
        for rank in affected:
            board.give_order(rank, RankOrder(int(plan.order), plan.magnitude))
        deadline = time.monotonic() + _OBEY_SECONDS
        while time.monotonic() < deadline:
            applied = [at_ns for rank in affected if (at_ns := board.applied_ns(rank)) > 0]
            if applied:
                return min(applied)
            time.sleep(0.005)
        raise DrillError(f"rank {plan.rank} did not obey within {_OBEY_SECONDS:.0f} s: is the job alive?")


def _signal_at(pid: int, number: signal.Signals) -> int:
    """Send a signal to a process and return the time just before."""
    now_ns = time.time_ns()
    os.kill(pid, number)
    return now_ns
