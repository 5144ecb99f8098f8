"""A server in a process of its own that keeps its ports over its ends."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import Final

from tocsin.cli.cluster.process import Child
from tocsin.schemas.errors import EngineError

_TRIES: Final = 3
"""Number of times that free ports are chosen: somebody else may take one before the server does."""


class KeptServer(ABC):
    """Keeps its ports and its data over ``stop``, ``crash`` and ``start``.

    Attributes:
        title: what an error calls it, e.g. ``the broker``.
    """

    def __init__(self, title: str) -> None:
        """Start nothing yet."""
        self.title = title
        self._child: Child | None = None

    @property
    def child(self) -> Child:
        """Its process.

        Raises:
            EngineError: it was never started.
        """
        if self._child is None:
            raise EngineError(f"{self.title} was never started")
        return self._child

    def start(self) -> None:
        """Start it and wait until it answers; the data of an earlier run is there again.

        Raises:
            EngineError: something that it needs is missing, or it does not come up.
        """
        if self._has_ports():
            self._run()
            return
        for last in (*[False] * (_TRIES - 1), True):
            may_choose = self._choose_ports()
            try:
                self._run()
            except EngineError:
                # somebody else took a port since it was found free
                if last or not may_choose or not self.child.said("Address already in use"):
                    raise
            else:
                return

    def stop(self) -> None:
        """End it in order."""
        if self._child is not None:
            self._child.stop()

    def crash(self) -> None:
        """Kill it with -9."""
        self.child.crash()

    def is_running(self) -> bool:
        """Return whether its process runs."""
        return self._child is not None and self._child.is_running()

    def _replace_child(self, child: Child) -> Child:
        """Take a new process for the one before, whose watchdog is ended."""
        if self._child is not None:
            self._child.kill()
        self._child = child
        return child

    @abstractmethod
    def _has_ports(self) -> bool:
        """Return whether its ports were chosen: then they stay."""

    @abstractmethod
    def _choose_ports(self) -> bool:
        """Choose its ports; return whether others could be chosen where one of them is taken."""

    @abstractmethod
    def _run(self) -> None:
        """Start its process with the chosen ports, and wait until it is ready."""
