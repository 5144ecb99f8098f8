"""What ``tocsin startup`` says of NCCL's initialisation lines in logs."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

from tocsin.cli.startup_starts import log_lines
from tocsin.models.startup.nccl_init import CommunicatorInit, communicators
from tocsin.schemas.formats.nccl_init import InitLine, TornLines, init_lines
from tocsin.schemas.printable import counted, plain

MOST_COMMUNICATORS = 20
"""Most communicators that are printed as text; those with somebody late or open come first."""
MOST_RANKS = 8
"""Most ranks that are named in one line."""


@dataclass(frozen=True, slots=True)
class NcclInits:
    """The initialisations in some logs.

    Attributes:
        communicators: in the order of their first line.
        torn: file -> lines that could not be read.
    """

    communicators: tuple[CommunicatorInit, ...]
    torn: dict[str, TornLines]

    @property
    def is_whole(self) -> bool:
        """Whether every line could be read, so that a rank without one has written none."""
        return not self.torn


def nccl_inits(paths: Sequence[Path]) -> NcclInits:
    """Return the initialisations in log files.

    Raises:
        RecordingError: a file cannot be read.
    """
    lines: list[InitLine] = []
    torn: dict[str, TornLines] = {}
    for path in paths:
        missed = TornLines()
        with log_lines(path) as text:
            lines += init_lines(text, missed)
        if missed.count:
            torn[path.name] = missed
    return NcclInits(tuple(communicators(lines)), torn)


def text_of(found: NcclInits) -> str:
    """Return the initialisations as text."""
    told = [(one, _sentences(one, is_whole=found.is_whole)) for one in found.communicators]
    told.sort(key=lambda pair: not pair[1])
    lines = [f"NCCL's initialisation of {counted(len(told), 'communicator')}"]
    for one, sentences in told[:MOST_COMMUNICATORS]:
        lines += [_head(one), *(f"  {sentence}" for sentence in sentences)]
    if len(told) > MOST_COMMUNICATORS:
        lines.append(f"… {len(told) - MOST_COMMUNICATORS} more, in which nobody is late")
    lines += [
        plain(f"left out of {name}: {torn.count} x torn or mixed line (first: line {torn.first_line})")
        for name, torn in found.torn.items()
    ]
    return "\n".join(lines)


def as_json(found: NcclInits) -> list[dict[str, object]]:
    """Return the communicators for programs."""
    return [
        {
            "name": one.name,
            "ranks": one.rank_count,
            "seen": len(one.ranks),
            "hosts": sorted({rank.host for rank in one.ranks.values()}),
            "total_seconds": one.total_seconds,
            "median_part_seconds": one.median_parts(),
            "open_ranks": one.open_ranks,
            "missing_ranks": one.missing_ranks if found.is_whole else [],
            "stragglers": [{"kind": "host", "name": late.node, **asdict(late)} for late in one.late()],
        }
        for one in found.communicators
    ]


def _head(one: CommunicatorInit) -> str:
    """Return the line of one communicator."""
    hosts = {rank.host for rank in one.ranks.values()}
    done = sum(rank.is_complete for rank in one.ranks.values())
    seen = f"{len(one.ranks)} of {counted(one.rank_count, 'rank')} seen on {counted(len(hosts), 'host')}"
    parts = ", ".join(f"{name} {seconds:.2f}" for name, seconds in one.median_parts().items() if seconds >= 0.01)
    total = one.total_seconds
    took = "" if total is None else f", {total:.2f} s" + (f" (medians: {parts})" if parts else "")
    return plain(f"{one.name}: {seen}, {done} complete{took}")


def _sentences(one: CommunicatorInit, *, is_whole: bool) -> list[str]:
    """Return who is late, has not finished, or has not begun."""
    lines = [
        f"host {plain(late.node)} delayed the others: {late.seconds:.1f} s after the first rank came it had come and "
        f"done its part, the median host after {late.median_seconds:.1f} s (limit {late.limit_seconds:.1f} s)."
        for late in one.late()
    ]
    if not is_whole:
        return lines
    if one.missing_ranks:
        lines.append(f"{_ranks(one.missing_ranks)} not begun; the others wait for them.")
    if one.open_ranks and not one.missing_ranks:
        lines.append(f"{_ranks(one.open_ranks)} begun and not finished.")
    return lines


def _ranks(ranks: Iterable[int]) -> str:
    """Return ranks with their verb."""
    listed = list(ranks)
    names = ", ".join(map(str, listed[:MOST_RANKS])) + (" …" if len(listed) > MOST_RANKS else "")
    return f"{counted(len(listed), 'rank')} ({names}) {'has' if len(listed) == 1 else 'have'}"
