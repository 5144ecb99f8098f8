"""Makes the tasks of an executor's core on its target, one after the other."""

from __future__ import annotations

from collections.abc import Callable

from tocsin.pipeline.actions.executors.core import ExecutorCore, Task
from tocsin.pipeline.actions.executors.target import TargetSystem
from tocsin.schemas.action_events import Ack
from tocsin.schemas.errors import TargetError

TASKS = 8
"""Most tasks between two readings of the controller's messages."""


class ExecutorWorker:
    """Drives a core: looks, effects, and what the core wants to say about them."""

    def __init__(
        self, core: ExecutorCore, target: TargetSystem, clock: Callable[[], int], say: Callable[[list[Ack]], None]
    ) -> None:
        """Do nothing yet.

        Args:
            core: whose tasks are made.
            target: where.
            clock: returns the time in Unix ns.
            say: sends messages to the controller, in their order; it returns when they are safe.
        """
        self._core = core
        self._target = target
        self._clock = clock
        self._say = say

    def work(self) -> int:
        """Ask for what is free, and make what is due, at most ``TASKS`` tasks; returns their number.

        Messages of the controller are to be read between two calls: one of them may be a cancel.
        """
        for count in range(TASKS):
            self._say(self._core.on_time(self._clock()))
            task = self._core.next_task(self._clock())
            if task is None:
                return count
            self._say(self.make(task))
        return TASKS

    def make(self, task: Task) -> list[Ack]:
        """Make one task; returns what to say of it."""
        try:
            if task.look is None:
                look = self._target.look_back(task.action) if task.is_back else self._target.look(task.action)
                return self._core.on_look(task, look, self._clock())
            if not self._core.may_make(task, self._clock()):
                self._core.on_dropped(task, self._clock())
                return []
            self._target.make(task.action, task.look)
        except TargetError as error:
            return self._core.on_trouble(task, error, self._clock())
        self._core.on_made(task, self._clock())
        return []
