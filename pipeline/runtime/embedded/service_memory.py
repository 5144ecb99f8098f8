"""What the engine's service remembers beside the operators: lines for its clients, standing actions, minutes.

Part of the engine's snapshots. The lines come in pages that do not change any more once they are full.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Collection, Iterator, Mapping
from typing import Any, Final

from tocsin.pipeline.core.operator import UNCHANGED, pack_state, unpack_state
from tocsin.pipeline.incidents.proposals import ProposalBook
from tocsin.pipeline.runtime.health import HealthMinutes
from tocsin.schemas.cloudevents import decode_verdict, encode_verdict
from tocsin.schemas.verdicts import Verdict

_PART: Final = "service/memory"
_PAGES: Final = "service/lines/"
_PAGE_LINES: Final = 100
_OPEN: Final = "+"
"""Ends the name of a page that is not full: a full one of the same lines is another part."""
_KEPT_AGAIN: Final = 10_000
"""Verdicts whose evidence is written once more."""


class ServiceMemory:
    """Changed by the thread that ticks; ``lines`` under ``spoken``, as clients' threads read them.

    Attributes:
        lines: the last verdict lines.
        dropped_count: how many there were before them.
        spoken: told when lines are added.
        proposals: what verdicts propose now, and what waits.
        again: when which verdict's evidence is to be written again.
        minutes: how well hosts were watched.
        floors: verdict -> its last update by an engine whose state is lost: its numbers go on from there.
    """

    def __init__(self, kept_lines_count: int, proposals: ProposalBook) -> None:
        """Remember nothing yet.

        Args:
            kept_lines_count: lines kept for clients that come later.
            proposals: what is proposed, and what waits.
        """
        self.proposals = proposals
        self._kept_lines_count = kept_lines_count
        self.spoken = threading.Condition()
        self.forget()

    def forget(self) -> None:
        """Begin anew."""
        with self.spoken:
            self.lines: list[dict[str, Any]] = []
            self.dropped_count = 0
        self.proposals.clear()
        self.again: deque[tuple[int, Verdict]] = deque(maxlen=_KEPT_AGAIN)
        self.minutes = HealthMinutes()
        self.floors: dict[str, int] = {}

    def speak(self, line: dict[str, Any]) -> None:
        """Add a line, and tell who waits."""
        with self.spoken:
            self.lines.append(line)
            too_many = len(self.lines) - self._kept_lines_count
            if too_many > 0:
                self.dropped_count += too_many
                del self.lines[:too_many]
            self.spoken.notify_all()

    def follow(self, after_count: int, stopping: threading.Event) -> Iterator[dict[str, Any]]:
        """Yield verdict lines, then each new one as it is added; an empty one at least every half second.

        Args:
            after_count: lines that the client has already; they are left out.
            stopping: ends the iteration when set.
        """
        at = after_count
        while not stopping.is_set():
            with self.spoken:
                first = max(0, at - self.dropped_count)
                lines = self.lines[first:]
                at = self.dropped_count + len(self.lines)
                if not lines:
                    self.spoken.wait(0.5)
            yield from lines
            if not lines:
                yield {}

    def snapshot(self, known: Collection[str] = ()) -> dict[str, bytes]:
        """State as named parts; full pages that the caller has are ``UNCHANGED``."""
        state = {
            "dropped_count": self.dropped_count,
            "lines_count": len(self.lines),
            "proposals": self.proposals.to_state(),
            "again": [[due_ns, encode_verdict(verdict).decode()] for due_ns, verdict in self.again],
            "minutes": self.minutes.to_state(),
            "floors": self.floors,
        }
        parts = {_PART: pack_state(state)}
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
        """Take back what ``snapshot`` gave.

        Raises:
            SnapshotError: a part is missing, damaged or of another version.
        """
        state = unpack_state(parts, _PART)
        pages = (name for name in parts if name.startswith(_PAGES))
        names = sorted((int(name.removeprefix(_PAGES).removesuffix(_OPEN)), name) for name in pages)
        lines = [line for _, name in names for line in unpack_state(parts, name)]
        with self.spoken:
            self.dropped_count = state["dropped_count"]
            self.lines = lines[len(lines) - state["lines_count"] :]
        self.proposals.load_state(state["proposals"])
        self.again.clear()
        self.again.extend((due_ns, decode_verdict(text.encode())) for due_ns, text in state["again"])
        self.minutes.load_state(state["minutes"])
        self.floors = dict(state["floors"])
