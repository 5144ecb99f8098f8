"""The recordings that a command's paths name: each a recording, or a folder that holds some."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

from tocsin.pipeline.recording.manifest import is_there, no_folder
from tocsin.schemas.errors import RecordingError

_MANIFEST = "manifest.json"


def recordings_under(paths: Iterable[Path]) -> list[Path]:
    """Recordings that paths name: each a recording, or a folder that holds some. Sorted, each once.

    Raises:
        RecordingError: a path is neither.
    """
    found: dict[Path, None] = {}
    for path in paths:
        if not path.is_dir():
            raise RecordingError(str(path), no_folder(path))
        inside = _recordings_in(path)
        if not inside:
            text = f"neither a recording (it has no {_MANIFEST}) nor a folder that holds recordings"
            raise RecordingError(str(path), text)
        found.update(dict.fromkeys(inside))
    return list(found)


def recordings_or_paths(paths: Iterable[Path]) -> list[Path]:
    """The same, each as often as it is named; a path that names none stays: who reads it says what is wrong with it."""
    return [one for path in paths for one in ((_recordings_in(path) if path.is_dir() else []) or [path])]


def _recordings_in(folder: Path) -> list[Path]:
    if is_there(folder / _MANIFEST):
        return [folder]
    return sorted(path for path in folder.iterdir() if is_there(path / _MANIFEST))
