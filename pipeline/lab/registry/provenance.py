"""Provenance of models: the version of the code that trained them, and a fingerprint of the recordings."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Iterator
from functools import cache
from importlib import resources
from importlib.resources.abc import Traversable
from pathlib import Path
from typing import Final

from tocsin import __version__
from tocsin.pipeline.recording.replay import VERDICTS_FILE

_ROOMS: Final = ("models", "pipeline", "schemas")
_CHUNK_BYTES: Final = 1 << 20


@cache
def code_version() -> str:
    """Return the program's version and eight digits of the SHA-256 of its sources; equal digits mean equal code."""
    digest = hashlib.sha256()
    for room in _ROOMS:
        for name, file in sorted(_sources(resources.files("tocsin") / room, room)):
            digest.update(f"{name}\0".encode() + hashlib.sha256(file.read_bytes()).digest())
    return f"{__version__}+{digest.hexdigest()[:8]}"


def _sources(folder: Traversable, path: str) -> Iterator[tuple[str, Traversable]]:
    """Yield (path, file) of all Python sources below a folder."""
    for entry in folder.iterdir():
        name = f"{path}/{entry.name}"
        if entry.is_dir():
            yield from _sources(entry, name)
        elif entry.name.endswith(".py"):
            yield name, entry


def fingerprint_of(folders: Iterable[Path]) -> str:
    """Return a SHA-256 over the sorted SHA-256s of the recordings' files; their names and order do not matter.

    Args:
        folders: recordings. Verdict files in them are left out, because they are answers and not data.
    """
    digests = sorted(
        _digest_of(file)
        for folder in folders
        for file in folder.rglob("*")
        if file.is_file() and file.name != VERDICTS_FILE and not file.name.startswith(".")
    )
    return hashlib.sha256(b"".join(digests)).hexdigest()


def _digest_of(file: Path) -> bytes:
    """Return the SHA-256 of a file."""
    digest = hashlib.sha256()
    with file.open("rb") as data:
        while chunk := data.read(_CHUNK_BYTES):
            digest.update(chunk)
    return digest.digest()
