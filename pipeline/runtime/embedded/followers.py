"""Parts of the service that follow the engine's verdicts, such as the fleet view and the sender of alerts."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from typing import Any, Final, Protocol

from tocsin.pipeline.runtime.embedded.control_socket import Handler
from tocsin.pipeline.runtime.embedded.supervised_thread import SupervisedThread
from tocsin.schemas.formats.prometheus_text import Family
from tocsin.schemas.verdicts import Verdict

_PARTS: Final = "follower/"


class Follower(Protocol):
    """A part of the service that sees each verdict line once it is numbered, in stream order.

    The ticking thread calls ``on_verdicts``, ``snapshot`` and ``restore``; they must be quick and do no network I/O.
    After a restart the journal is replayed, so a line may come again with the same id and the same update; with a
    higher update where the last snapshot was lost. A follower must not count or tell it twice.

    Attributes:
        name: a word, unique in the service.
    """

    name: str

    def on_verdicts(self, verdicts: Sequence[Verdict], now_ns: int) -> Sequence[Verdict]:
        """Take the verdict lines of one tick, also where there are none; return lines of its own.

        Lines that it returns are published and stored as the engine's are, and followers after it see them.

        Args:
            verdicts: the lines of this tick, with those of followers before this one.
            now_ns: the tick's time.
        """
        ...

    def start(self) -> None:
        """Start the threads, after ``restore``."""
        ...

    def close(self) -> None:
        """Stop the threads and close the files, within a few seconds."""
        ...

    def threads(self) -> Sequence[SupervisedThread]:
        """Return the threads that must live."""
        ...

    def status(self) -> Mapping[str, Any]:
        """Return the state for ``tocsin status``; JSON values only."""
        ...

    def families(self) -> Sequence[Family]:
        """Return the metrics for ``/metrics``."""
        ...

    def handlers(self) -> Mapping[str, Handler]:
        """Return the requests of the control socket that it answers, by name."""
        ...

    def snapshot(self) -> dict[str, bytes]:
        """Return the state as named parts."""
        ...

    def restore(self, parts: Mapping[str, bytes]) -> None:
        """Replace the state by parts that ``snapshot`` returned; an empty mapping: begin without state."""
        ...


class Followers:
    """All followers of one service, in the order in which they see the verdicts.

    Attributes:
        covered_by: returns the id of the fleet incident that stands for a verdict, "" for none; the fleet view sets it.
    """

    def __init__(self, guard: Callable[[str], AbstractContextManager[None]]) -> None:
        """Start without followers.

        Args:
            guard: returns a context manager that catches and counts what the named part raises.
        """
        self._guard = guard
        self._all: list[Follower] = []
        self.covered_by: Callable[[Verdict], str] = lambda _verdict: ""

    def add(self, follower: Follower) -> None:
        """Add a follower; it sees the lines of those that were added before it."""
        self._all.append(follower)

    def on_verdicts(self, verdicts: Sequence[Verdict], now_ns: int) -> list[Verdict]:
        """Give the verdict lines of a tick to all followers; return the lines that they add."""
        added: list[Verdict] = []
        for follower in self._all:
            with self._guard(follower.name):
                added += follower.on_verdicts((*verdicts, *added), now_ns)
        return added

    def start(self) -> None:
        """Start all followers."""
        for follower in self._all:
            follower.start()

    def close(self) -> None:
        """Close all followers; one that raises keeps no other from closing."""
        for follower in self._all:
            with self._guard(follower.name):
                follower.close()

    def threads(self) -> list[SupervisedThread]:
        """Return the threads that must live."""
        return [thread for follower in self._all for thread in follower.threads()]

    def status(self) -> dict[str, Mapping[str, Any]]:
        """Return name -> state, for ``tocsin status``."""
        return {follower.name: follower.status() for follower in self._all}

    def families(self) -> list[Family]:
        """Return the metrics of all followers."""
        return [family for follower in self._all for family in follower.families()]

    def snapshot(self) -> dict[str, bytes]:
        """Return the state of all followers as named parts."""
        return {
            f"{_PARTS}{follower.name}/{name}": data
            for follower in self._all
            for name, data in follower.snapshot().items()
            if data  # an empty part of a snapshot means "unchanged"
        }

    def restore(self, parts: Mapping[str, bytes]) -> None:
        """Restore the followers from parts that ``snapshot`` returned; one that has none begins without state."""
        for follower in self._all:
            prefix = f"{_PARTS}{follower.name}/"
            own = {name.removeprefix(prefix): data for name, data in parts.items() if name.startswith(prefix)}
            follower.restore(own)

    def forget(self) -> None:
        """Let all followers begin without state."""
        self.restore({})
