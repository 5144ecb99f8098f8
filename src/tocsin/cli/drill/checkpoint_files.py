"""Names of a drill's checkpoints, losses and times, and what can be read from them without torch."""

from __future__ import annotations

from enum import StrEnum
from pathlib import Path
from typing import NamedTuple


class TimeKind(StrEnum):
    """What a rank notes of itself in its file of times."""

    BEGUN = "begun"
    """It begins."""
    STEP = "step"
    """A step."""
    SAVED = "saved"
    """A part of a checkpoint."""
    LEFT = "left"
    """It made its last step."""


class RankTime(NamedTuple):
    """One line of a rank's file of times, by its own clock.

    Attributes:
        kind: what it did.
        begin_ns: begin, Unix ns.
        end_ns: end, Unix ns.
        step: number of the step, -1 = it is none.
    """

    kind: TimeKind
    begin_ns: int
    end_ns: int
    step: int


def part_file(folder: Path, step: int, rank: int) -> Path:
    """Return the file of one rank's part of the checkpoint that a step goes on from."""
    return folder / f"step{step}" / f"rank{rank}.pt"


def losses_file(folder: Path, rank: int) -> Path:
    """Return the file of one rank's losses."""
    return folder / f"losses{rank}"


def times_file(folder: Path, rank: int) -> Path:
    """Return the file in which one rank says what it does when."""
    return folder / f"times{rank}"


def times_of(folder: Path, rank_count: int) -> list[list[RankTime]]:
    """Return the lines of each rank's file of times; a line that is not whole is left out."""
    found: list[list[RankTime]] = []
    for rank in range(rank_count):
        path = times_file(folder, rank)
        lines = path.read_text(encoding="ascii").splitlines() if path.exists() else []
        words = (line.split() for line in lines)
        found.append([RankTime(TimeKind(one[0]), *map(int, one[1:])) for one in words if len(one) == 4])
    return found


def last_checkpoint(folder: Path, rank_count: int) -> int:
    """Return the step that the last complete checkpoint goes on from, 0 if there is none."""
    steps = [int(one.name.removeprefix("step")) for one in folder.glob("step*") if one.name[4:].isdecimal()]
    whole = (step for step in steps if all(part_file(folder, step, rank).exists() for rank in range(rank_count)))
    return max(whole, default=0)


def losses_of(folder: Path, rank_count: int) -> dict[int, tuple[str, ...]]:
    """Return the losses of all ranks, as exact hexadecimal numbers, by step; steps that a rank lacks are left out."""
    ranks: list[dict[int, str]] = []
    for rank in range(rank_count):
        path = losses_file(folder, rank)
        lines = path.read_text(encoding="ascii").splitlines() if path.exists() else []
        pairs = (line.split() for line in lines)
        ranks.append({int(pair[0]): pair[1] for pair in pairs if len(pair) == 2})
    steps = set.intersection(*(set(one) for one in ranks)) if ranks else set()
    return {step: tuple(one[step] for one in ranks) for step in sorted(steps)}


def equal_steps(found: dict[int, tuple[str, ...]], wanted: dict[int, tuple[str, ...]], first_step: int) -> int:
    """Return how many steps from ``first_step`` on have the same losses in both runs, up to the first that differs."""
    count = 0
    while (pair := found.get(first_step + count)) is not None and pair == wanted.get(first_step + count):
        count += 1
    return count
