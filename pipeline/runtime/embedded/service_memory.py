"""State of the engine's service beside the operators: verdict lines for clients, proposed actions, health minutes.

It is part of the engine's snapshots. Verdict lines are stored in pages, which no longer change once they are full.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Collection, Iterator, Mapping
from typing import Any, Final

from tocsin.pipeline.core.operator import UNCHANGED, pack_state, unpack_state
from tocsin.pipeline.incidents.proposals import ProposalBook
from tocsin.pipeline.runtime.embedded.followers import Followers
from tocsin.pipeline.runtime.health import HealthMinutes
from tocsin.schemas.cloudevents import decode_verdict, encode_verdict
from tocsin.schemas.verdicts import Verdict

_PART: Final = "service/memory"
_PAGES: Final = "service/lines/"
_PAGE_LINES: Final = 100
_OPEN: Final = "+"
"""Suffix of the name of a page that is not full yet; the full page is another part."""
_QUIET_COUNT: Final = 10
"""Number of empty lines from one sign of life to the next."""
_KEPT_AGAIN: Final = 10_000
"""Maximum number of verdicts whose evidence waits to be written again."""


class ServiceMemory:
    """The service's state; modified by the ticking thread, and ``lines`` read by client threads under ``line_added``.

    Attributes:
        lines: the latest verdict lines.
        dropped_count: number of earlier lines that were dropped.
        line_added: condition that is notified when a line is added.
        proposals: the proposed and waiting actions.
        again: (time, verdict) pairs: when to write which verdict's evidence again.
        minutes: health minutes that are not complete yet.
        followers: parts that see each verdict line; their state is part of this one.
        floors: verdict id -> last update number by an engine that lost its state; new updates continue from it.
    """

    def __init__(self, kept_lines_count: int, proposals: ProposalBook, followers: Followers | None = None) -> None:
        """Start empty.

        Args:
            kept_lines_count: number of lines kept for clients that connect later.
            proposals: the proposed and waiting actions.
            followers: parts that see each verdict line; None: there are none.
        """
        self.proposals = proposals
        self.followers = followers
        self._kept_lines_count = kept_lines_count
        self.line_added = threading.Condition()
        self.forget()

    def forget(self) -> None:
        """Drop everything."""
        with self.line_added:
            self.lines: list[dict[str, Any]] = []
            self.dropped_count = 0
        self.proposals.clear()
        if self.followers is not None:
            self.followers.forget()
        self.again: deque[tuple[int, Verdict]] = deque(maxlen=_KEPT_AGAIN)
        self.minutes = HealthMinutes()
        self.floors: dict[str, int] = {}

    def add_line(self, line: dict[str, Any]) -> None:
        """Add a verdict line, drop the oldest beyond the bound, and notify waiting clients."""
        with self.line_added:
            self.lines.append(line)
            too_many = len(self.lines) - self._kept_lines_count
            if too_many > 0:
                self.dropped_count += too_many
                del self.lines[:too_many]
            self.line_added.notify_all()

    def follow(self, after_count: int, stopping: threading.Event) -> Iterator[dict[str, Any]]:
        """Yield verdict lines, then each new one as it is added; an empty one at least every half second.

        Args:
            after_count: lines that the client has already; they are left out.
            stopping: ends the iteration when set.
        """
        at = after_count
        while not stopping.is_set():
            with self.line_added:
                first = max(0, at - self.dropped_count)
                lines = self.lines[first:]
                at = self.dropped_count + len(self.lines)
                if not lines:
                    self.line_added.wait(0.5)
            yield from lines
            if not lines:
                yield {}

    def snapshot(self, known: Collection[str] = ()) -> dict[str, bytes]:
        """Return the state as named parts; full pages named in ``known`` are given as ``UNCHANGED``."""
        state = {
            "dropped_count": self.dropped_count,
            "lines_count": len(self.lines),
            "proposals": self.proposals.to_state(),
            "again": [[due_ns, encode_verdict(verdict).decode()] for due_ns, verdict in self.again],
            "minutes": self.minutes.to_state(),
            "floors": self.floors,
        }
        parts = {_PART: pack_state(state), **({} if self.followers is None else self.followers.snapshot())}
        end = self.dropped_count + len(self.lines)
        for first in range(self.dropped_count // _PAGE_LINES * _PAGE_LINES, end, _PAGE_LINES):
            is_full = first + _PAGE_LINES <= end
            name = f"{_PAGES}{first}" if is_full else f"{_PAGES}{first}{_OPEN}"
            if is_full and name in known:
                parts[name] = UNCHANGED
                continue
            # the first page may have lost some of its lines: they count from the end
            begin = max(0, first - self.dropped_count)
            parts[name] = pack_state(self.lines[begin : first + _PAGE_LINES - self.dropped_count])
        return parts

    def restore(self, parts: Mapping[str, bytes]) -> None:
        """Replace the state by the parts that ``snapshot`` returned.

        Raises:
            SnapshotError: a part is missing, damaged or of another version.
        """
        state = unpack_state(parts, _PART)
        pages = (name for name in parts if name.startswith(_PAGES))
        names = sorted((int(name.removeprefix(_PAGES).removesuffix(_OPEN)), name) for name in pages)
        lines = [line for _, name in names for line in unpack_state(parts, name)]
        with self.line_added:
            self.dropped_count = state["dropped_count"]
            self.lines = lines[len(lines) - state["lines_count"] :]
        self.proposals.load_state(state["proposals"])
        self.again.clear()
        self.again.extend((due_ns, decode_verdict(text.encode())) for due_ns, text in state["again"])
        self.minutes.load_state(state["minutes"])
        self.floors = dict(state["floors"])
        if self.followers is not None:
            self.followers.restore(parts)


def marked(lines: Iterator[dict[str, Any]]) -> Iterator[dict[str, Any]]:
    """Yield lines of ``ServiceMemory.follow`` with ``{"caught_up": true}`` where there are no more for now.

    It comes after the lines that are there at the begin, and then about every five seconds without a line, so that the
    client can tell a quiet engine from one that hangs.

    Args:
        lines: verdict lines; empty ones mean that there is nothing new, about every half second.
    """
    quiet_count = 0
    for line in lines:
        is_due = not line and quiet_count % _QUIET_COUNT == 0
        quiet_count = 0 if line else quiet_count + 1
        yield {"caught_up": True} if is_due else line
