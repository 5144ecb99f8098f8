"""Parser of the lines in which NCCL tells of a communicator's initialisation (``NCCL_DEBUG=INFO``).

::

    n03:812:1257 [4] NCCL INFO ncclCommInitRankConfig comm 0x557f rank 36 nranks 64 ... commId 0x5ae7 - Init START
    n03:812:1257 [4] NCCL INFO ncclCommInitRankConfig comm 0x557f rank 36 nranks 64 ... commId 0x5ae7 - Init COMPLETE
    n03:812:1257 [4] NCCL INFO Init timings - ncclCommInitRankConfig: rank 36 nranks 64 total 3.82 (kernels 0.34, ...)

Older versions name no function and no ``commId``, and print no timings. Lines of two processes that were mixed are
skipped and counted: their host may be a piece of another word.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Final

MARKER: Final = "NCCL INFO "
MAX_LINE_CHARACTERS: Final = 1 << 16
"""Maximum length of a line that is read."""
MAX_RANKS: Final = 1_000_000
_WHO: Final = r"(?:^|[\s\]])(?P<host>[A-Za-z0-9][\w.\-]*):(?P<pid>\d{1,10}):(?P<tid>\d{1,10}) \[\d+\] NCCL INFO "
_EDGE: Final = re.compile(
    _WHO + r"(?:\w+ )?comm 0x[0-9a-f]+ rank (?P<rank>\d{1,7}) n[rR]anks (?P<count>\d{1,7}) "
    r"(?P<rest>.*)- Init (?P<edge>START|COMPLETE)\s*$"
)
_COMM: Final = re.compile(r"\bcommId (0x[0-9a-f]+)")
_COLOR: Final = re.compile(r"\bcolor (-?\d+)")
_TIMINGS: Final = re.compile(
    _WHO + r"Init timings - \w+: rank (?P<rank>\d{1,7}) nranks (?P<count>\d{1,7}) "
    r"total (?P<total>\d{1,7}\.?\d*) \((?P<parts>[^()]*)\)\s*$"
)
_PART: Final = re.compile(r"(\w+) (\d{1,7}\.?\d*)")


class InitEdge(StrEnum):
    """What a line tells."""

    START = "START"
    COMPLETE = "COMPLETE"
    TIMINGS = "timings"


@dataclass(frozen=True, slots=True)
class InitLine:
    """One line about one rank of a communicator.

    Attributes:
        edge: begin, end, or the durations, which follow the end.
        process: host, process id and thread id.
        comm: name of the communicator, the same on all its ranks, "" if the line has none.
        rank: rank in the communicator.
        rank_count: number of its ranks.
        total_seconds: duration of the whole call; 0 but for ``TIMINGS``.
        part_seconds: name of a part -> its duration; empty but for ``TIMINGS``.
    """

    edge: InitEdge
    process: tuple[str, str, str]
    comm: str
    rank: int
    rank_count: int
    total_seconds: float = 0.0
    part_seconds: Mapping[str, float] = field(default_factory=dict)

    @property
    def host(self) -> str:
        """Name of the host."""
        return self.process[0]


@dataclass
class TornLines:
    """Lines about an initialisation that could not be read.

    Attributes:
        count: how many.
        first_line: number of the first one, from 1; 0 if there is none.
    """

    count: int = 0
    first_line: int = 0

    def add(self, number: int) -> None:
        """Count a line."""
        self.count += 1
        self.first_line = self.first_line or number


def init_lines(lines: Iterable[str], torn: TornLines) -> Iterator[InitLine]:
    """Yield the lines about initialisations, in their order; foreign lines are left out.

    Args:
        lines: the log's lines, with or without line ends.
        torn: takes lines that are cut or mixed.
    """
    for number, line in enumerate(lines, 1):
        if MARKER not in line or not ("- Init " in line or "Init timings" in line):
            continue
        found = None if line.count(MARKER) > 1 or len(line) > MAX_LINE_CHARACTERS else _line(line)
        if found is None:
            torn.add(number)
        else:
            yield found


def _line(text: str) -> InitLine | None:
    """Return what a line tells, None if it is not whole."""
    found = _EDGE.search(text) or _TIMINGS.search(text)
    if found is None:
        return None
    rank, count = int(found["rank"]), int(found["count"])
    if not rank < count <= MAX_RANKS:
        return None
    process = found["host"], found["pid"], found["tid"]
    if found.re is _EDGE:
        comm, color = _COMM.search(found["rest"]), _COLOR.search(found["rest"])
        name = comm[1] if comm else f"color {color[1]}" if color else ""
        return InitLine(InitEdge(found["edge"]), process, name, rank, count)
    parts = {name: float(seconds) for name, seconds in _PART.findall(found["parts"])}
    return InitLine(InitEdge.TIMINGS, process, "", rank, count, float(found["total"]), parts)
