"""The registry's files in a folder or an object store; each is read as a whole, and written atomically."""

from __future__ import annotations

import ctypes
import os
import secrets
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pyarrow as pa
from pyarrow import fs

from tocsin.schemas.errors import ConfigError, RegistryError
from tocsin.schemas.reasons import RegistryRefusal

_RETRY_LIMIT, _RETRY_SECONDS = "retry_limit_seconds", 20


def _never_release(stream: Any) -> None:
    """Keep a failed upload stream alive for ever, also at the program's end.

    pyarrow completes an upload when its stream is released. A write reported as failed would then happen later, and
    block Python meanwhile. A list would be emptied at exit, when pyarrow complains that S3 is gone.
    """
    ctypes.pythonapi.Py_IncRef(ctypes.py_object(stream))


class Files:
    """Access to the files below one place.

    Attributes:
        where: the place as the user named it.
    """

    def __init__(self, system: Any, base: str, where: str) -> None:
        """Use a ``pyarrow.fs.FileSystem``, with ``base`` as the path of the place in it."""
        self._system = system
        self._base = base.rstrip("/")
        self.where = where

    @classmethod
    def open(cls, where: str) -> Files:
        """Open a folder, or an address that pyarrow supports: ``s3://``, ``gs://``, ``file://`` and others.

        Raises:
            ConfigError: the text is neither.
        """
        if not where:
            raise ConfigError("--registry", where, "a folder, or an address such as s3://BUCKET/PATH")
        if "://" not in where:
            place = Path(where).expanduser().absolute()
            if place.exists() and not place.is_dir():
                raise ConfigError("--registry", where, "a folder: it is a file")
            return cls(fs.LocalFileSystem(), str(place), where)
        try:
            system, base = fs.FileSystem.from_uri(_with_retry_limit(where))
        except (pa.ArrowException, OSError, ValueError) as error:
            must = f"a folder, or an address such as s3://BUCKET/PATH ({_first_line(error)})"
            raise ConfigError("--registry", where, must) from error
        return cls(system, base, where)

    def path(self, name: str) -> str:
        """Return a file's full name for messages."""
        return f"{self.where.partition('?')[0].rstrip('/')}/{name}"

    def folders(self, name: str = "") -> list[str]:
        """Return the sorted names of the subfolders of a folder; empty if it does not exist.

        Raises:
            RegistryError: the place cannot be read.
        """
        with self._as_registry_error(name):
            selector = fs.FileSelector(self._full(name), allow_not_found=True)
            try:
                found = self._system.get_file_info(selector)
            except FileNotFoundError:  # made while it was looked at: Arrow finds none, then finds that there is one
                found = []
        return sorted(entry.base_name for entry in found if entry.type == fs.FileType.Directory)

    def read(self, name: str, max_bytes: int) -> bytes | None:
        """Return a file's content, None if it does not exist.

        Raises:
            RegistryError: the file cannot be read, or is longer than ``max_bytes``.
        """
        with self._as_registry_error(name):
            if self._system.get_file_info(self._full(name)).type != fs.FileType.File:
                return None
            try:
                with self._system.open_input_stream(self._full(name), compression=None) as file:
                    data: bytes = file.read(max_bytes + 1)
            except FileNotFoundError:  # gone in between
                return None
        if len(data) > max_bytes:
            text = f"more than {max_bytes} bytes: no such file is ours"
            raise RegistryError(RegistryRefusal.TOO_LARGE.value, self.path(name), text)
        return data

    def write(self, name: str, data: bytes) -> None:
        """Write or replace a file; concurrent readers get the old or the new content.

        Raises:
            RegistryError: the file cannot be written.
        """
        with self._as_registry_error(name):
            if isinstance(self._system, fs.LocalFileSystem):
                _replace(Path(self._full(name)), data)
                return
            # An object appears when its upload is complete; an upload that dies leaves nothing.
            stream = self._system.open_output_stream(self._full(name), compression=None)
            try:
                stream.write(data)
                stream.close()
            except BaseException:
                _never_release(stream)
                raise

    def _full(self, name: str) -> str:
        """Return a file's path in the file system."""
        return f"{self._base}/{name}".strip("/") if not self._base.startswith("/") else f"{self._base}/{name}"

    @contextmanager
    def _as_registry_error(self, name: str) -> Iterator[None]:
        """Convert errors inside the block to ``RegistryError``."""
        try:
            yield
        except (pa.ArrowException, OSError) as error:
            raise RegistryError(RegistryRefusal.UNREACHABLE.value, self.path(name), _first_line(error)) from error


def _with_retry_limit(where: str) -> str:
    """Add a retry limit to an address of Google's store.

    Its client otherwise retries silently for fifteen minutes.
    """
    scheme, _, rest = where.partition("://")
    if scheme not in ("gs", "gcs") or _RETRY_LIMIT in rest.partition("?")[2]:
        return where
    return f"{where}{'&' if '?' in rest else '?'}{_RETRY_LIMIT}={_RETRY_SECONDS}"


def _replace(target: Path, data: bytes) -> None:
    """Write a local file atomically."""
    target.parent.mkdir(parents=True, exist_ok=True)
    part = target.with_name(f".{target.name}.{secrets.token_hex(4)}.part")
    try:
        with part.open("wb") as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        part.replace(target)
    finally:
        part.unlink(missing_ok=True)


def _first_line(error: BaseException) -> str:
    """Return the first line of an error's text."""
    text = str(error).strip()
    return text.splitlines()[0] if text else type(error).__name__
