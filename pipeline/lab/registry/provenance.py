"""Where a model comes from: the code that trained it, and the recordings that it was trained on."""

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
    """The program's version and eight digits of the SHA-256 of its sources: the same digits, the same code."""
    digest = hashlib.sha256()
    for room in _ROOMS:
        for name, file in sorted(_sources(resources.files("tocsin") / room, room)):
            digest.update(f"{name}\0".encode() + hashlib.sha256(file.read_bytes()).digest())
    return f"{__version__}+{digest.hexdigest()[:8]}"


def _sources(folder: Traversable, path: str) -> Iterator[tuple[str, Traversable]]:
    for entry in folder.iterdir():
        name = f"{path}/{entry.name}"
        if entry.is_dir():
            yield from _sources(entry, name)
        elif entry.name.endswith(".py"):
            yield name, entry


def fingerprint_of(folders: Iterable[Path]) -> str:
    """SHA-256 over the sorted SHA-256s of the recordings' files: whatever they are called, in whatever order.

    Args:
        folders: recordings. Verdicts in them do not count: they are answers, not data.
    """
    digests = sorted(
        _digest_of(file)
        for folder in folders
        for file in folder.rglob("*")
        if file.is_file() and file.name != VERDICTS_FILE and not file.name.startswith(".")
    )
    return hashlib.sha256(b"".join(digests)).hexdigest()


def _digest_of(file: Path) -> bytes:
    digest = hashlib.sha256()
    with file.open("rb") as data:
        while chunk := data.read(_CHUNK_BYTES):
            digest.update(chunk)
    return digest.digest()
