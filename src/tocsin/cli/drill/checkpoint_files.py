"""Names of a drill's checkpoints and losses, and what can be read from them without torch."""

from __future__ import annotations

from pathlib import Path


def part_file(folder: Path, step: int, rank: int) -> Path:
    """Return the file of one rank's part of the checkpoint that a step goes on from."""
    return folder / f"step{step}" / f"rank{rank}.pt"


def losses_file(folder: Path, rank: int) -> Path:
    """Return the file of one rank's losses."""
    return folder / f"losses{rank}"


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
