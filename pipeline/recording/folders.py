"""Which recordings an argument of a command means."""

from __future__ import annotations

import os
from collections.abc import Iterable
from pathlib import Path

_MANIFEST = "manifest.json"


def recordings_in(folders: Iterable[Path]) -> list[Path]:
    """Each folder that is a recording, and of others the recordings directly in them, by name.

    A folder that is neither is kept: whoever reads it says what is wrong.
    """
    found: list[Path] = []
    for folder in folders:
        own = os.path.lexists(folder / _MANIFEST) or not folder.is_dir()
        found += [folder] if own else _inside(folder) or [folder]
    return found


def _inside(folder: Path) -> list[Path]:
    try:
        return sorted(path for path in folder.iterdir() if os.path.lexists(path / _MANIFEST))
    except OSError:  # nobody may look into it: its reader says so
        return []
