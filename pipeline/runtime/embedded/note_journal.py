"""The file that keeps what people told the engine: planned work, and their judgements of verdicts.

Its first line names the version of its form. Each further line is one note as JSON. A note is answered only once its
line is on the disk.
"""

from __future__ import annotations

import json
import logging
import os
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Final

from tocsin.schemas.errors import EngineError, FieldError
from tocsin.schemas.operator_notes import OperatorNote, note_from, note_object
from tocsin.schemas.private_files import private_file

_LOG = logging.getLogger("tocsin.notes")
FILE_NAME: Final = "operator-notes.jsonl"
VERSION: Final = 1
_VERSION: Final = "version"
_MODE: Final = 0o600
"""Rights of the file, in every folder: its notes name people, and only the engine reads them."""


class NoteJournal:
    """The notes of one engine on the disk."""

    def __init__(self, path: Path) -> None:
        """Name the file; nothing is read or written yet."""
        self._path = path
        self._is_whole = False
        """Whether the file exists and ends with a whole line, so that a line may be added."""

    def read(self) -> list[OperatorNote]:
        """Return all notes in the order in which they were told.

        An unfinished last line is left out, because nobody was told that it is kept. Another line that is no note is
        left out and logged.

        Raises:
            EngineError: the file cannot be read, or a newer program wrote it.
        """
        self._is_whole = False
        try:
            lines = self._path.read_bytes().split(b"\n")
        except FileNotFoundError:
            return []
        except OSError as error:
            raise EngineError(f"{self._path} cannot be read: {error.strerror or error}") from error
        if len(lines) < 2:
            return []  # not even its first line was finished
        self._check_version(lines[0])
        notes = []
        for number, line in enumerate(lines[1:-1], 2):
            try:
                notes.append(note_from(json.loads(line)))
            except (ValueError, FieldError) as error:
                told = {"file": str(self._path), "line": number, "error": str(error)}
                _LOG.error("a line of the notes is damaged and left out", extra=told)
        return notes

    def _check_version(self, line: bytes) -> None:
        """Raise ``EngineError`` unless the first line names the version of this program."""
        try:
            found = json.loads(line)[_VERSION]
        except (ValueError, KeyError, TypeError) as error:
            must = f'line 1 must name its form, as {{"{_VERSION}": {VERSION}}}'
            raise EngineError(f"{self._path} is no file of notes: {must}; move it away or mend it") from error
        if found != VERSION:
            text = f"{self._path}: {_VERSION} = {found!r}: must be {VERSION}, the form that this program knows"
            raise EngineError(f"{text}; start the program that wrote it, or move the file away")

    def append(self, note: OperatorNote, kept: Sequence[OperatorNote]) -> None:
        """Add a note; when this returns it is on the disk.

        Args:
            note: the note.
            kept: the notes before it, with which the file is written anew where its last line is not whole.

        Raises:
            OSError: the disk refuses it; the file still holds the notes before it.
        """
        if not self._is_whole:
            self.replace((*kept, note))
            return
        self._is_whole = False
        with private_file(self._path, "a") as file:
            os.fchmod(file.fileno(), _MODE)
            file.write(_line(note))
            file.flush()
            os.fsync(file.fileno())
        self._is_whole = True

    def replace(self, notes: Iterable[OperatorNote]) -> None:
        """Replace the file by one that holds these notes only; when this returns it is on the disk.

        Raises:
            OSError: the disk refuses it; the file is as before.
        """
        fresh = self._path.with_name(f"{self._path.name}.new")
        with private_file(fresh, "w") as file:
            os.fchmod(file.fileno(), _MODE)
            file.write(json.dumps({_VERSION: VERSION}).encode() + b"\n")
            file.writelines(map(_line, notes))
            file.flush()
            os.fsync(file.fileno())
        fresh.replace(self._path)
        folder = os.open(self._path.parent, os.O_RDONLY | os.O_DIRECTORY)
        try:
            os.fsync(folder)
        finally:
            os.close(folder)
        self._is_whole = True


def _line(note: OperatorNote) -> bytes:
    """Return a note as one line of JSON."""
    return json.dumps(note_object(note), separators=(",", ":")).encode() + b"\n"
