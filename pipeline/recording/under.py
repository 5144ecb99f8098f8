"""Find the recordings that a command's paths name: each path is a recording, or a folder of recordings."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

from tocsin.pipeline.recording.manifest import is_there, no_folder
from tocsin.schemas.errors import RecordingError

_MANIFEST = "manifest.json"


def recordings_under(paths: Iterable[Path]) -> list[Path]:
    """Return the recordings that the paths name, each once, in the order of the paths.

    Raises:
        RecordingError: a path is neither a recording nor a folder of recordings.
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
    """Return the recordings that the paths name, with repetitions.

    A path that names none is returned unchanged; reading it later gives the error.
    """
    return [one for path in paths for one in ((_recordings_in(path) if path.is_dir() else []) or [path])]


def _recordings_in(folder: Path) -> list[Path]:
    """Return the folder itself if it is a recording, else the recordings directly inside it, sorted."""
    if is_there(folder / _MANIFEST):
        return [folder]
    return sorted(path for path in folder.iterdir() if is_there(path / _MANIFEST))
