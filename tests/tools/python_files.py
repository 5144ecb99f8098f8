"""What the lints of this folder share: the files that they read, and what they print."""

import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).resolve().parents[2]


class Finding(NamedTuple):
    """A violation: file, line and what is wrong there."""

    path: Path
    line: int
    sentence: str


def modules(folders: Iterable[Path]) -> Iterator[Path]:
    """Yield the Python files under the folders, in order of their names."""
    for folder in folders:
        yield from sorted(folder.rglob("*.py"))


def shown(path: Path) -> Path:
    """Return a file's path relative to the repository's root, as it is where it lies elsewhere."""
    return path.relative_to(ROOT) if path.is_relative_to(ROOT) else path


def check(
    arguments: Sequence[str],
    rooms: Iterable[str],
    findings: Callable[[Sequence[Path]], Iterable[Finding]],
    sentences: tuple[str, str],
) -> int:
    """Check the folders, print what is wrong, and return the exit status.

    Args:
        arguments: folders to check; none: the rooms.
        rooms: folders of the repository.
        findings: what is wrong in these files.
        sentences: what is printed after the number of findings, and what after the number of modules without one.

    Returns:
        0: nothing is wrong. 1: something is. 2: a folder does not exist.
    """
    folders = [Path(argument) for argument in arguments] or [ROOT / room for room in rooms]
    absent = [folder for folder in folders if not folder.is_dir()]
    if absent:
        print(f"no such folder: {', '.join(map(str, absent))}", file=sys.stderr)
        return 2
    paths = list(modules(folders))
    found = list(findings(paths))
    for path, line, sentence in found:
        print(f"{shown(path)}:{line}: {sentence}")
    wrong, right = sentences
    print(wrong.format(count=len(found)) if found else right.format(count=len(paths)))
    return int(bool(found))
