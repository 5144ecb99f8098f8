"""Secrets of receivers: each is read from a file or an environment variable, whenever something is sent.

A secret never stands in the routes file, in a log line, in an error or in the ``repr`` of an object.
"""

from __future__ import annotations

import os
import re
import stat
from collections.abc import Mapping
from pathlib import Path
from typing import Final

from tocsin.schemas.errors import ConfigError, CredentialError

MAX_SECRET_BYTES: Final = 8192
"""Largest file of a secret."""
_FOR_OTHERS: Final = stat.S_IRWXO
_VARIABLE: Final = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")


class SecretSource:
    """A secret that is read anew at each use, so that a renewed one counts from the next message on.

    Args:
        file: path of the file that holds it; None: it is in a variable.
        variable: name of the environment variable that holds it, if there is no file.
    """

    def __init__(self, file: Path | None = None, variable: str = "") -> None:
        self._file = file
        self._variable = variable

    def __repr__(self) -> str:
        return f"SecretSource({self.place})"

    @property
    def place(self) -> str:
        """Where the secret is, for people: ``file /etc/tocsin/key`` or ``environment variable KEY``."""
        return f"environment variable {self._variable}" if self._file is None else f"file {self._file}"

    def read(self) -> str:
        """Return the secret, without the line end of its file.

        Raises:
            CredentialError: the file or variable is missing, empty or longer than ``MAX_SECRET_BYTES``; or other users
                may read or write the file; or it holds more than one line of printable ASCII.
        """
        if self._file is None:
            content = os.environ.get(self._variable, "").encode("utf-8", "surrogateescape")
        else:
            content = _content(self._file)
        text = content.rstrip(b"\r\n").decode("ascii", "replace")
        if not text:
            raise CredentialError(self.place, "there, and not empty")
        if not text.isascii() or not text.isprintable():
            raise CredentialError(self.place, "one line of printable ASCII characters")
        return text


def secret_of(settings: Mapping[str, object], name: str, where: str) -> SecretSource | None:
    """Return the secret that a receiver's settings name, None if they name none.

    Args:
        settings: the receiver's settings.
        name: what the secret is, e.g. ``token``; the settings are ``token_file`` and ``token_env``.
        where: place of the settings, for errors.

    Raises:
        ConfigError: both settings are there, one is no path or name, or the secret itself stands in the settings.
    """
    refuse_literal(settings, name, where)
    file, variable = settings.get(f"{name}_file"), settings.get(f"{name}_env")
    if file is not None and variable is not None:
        raise ConfigError(f"{where}.{name}_env", variable, f"left out, because {name}_file is given, too")
    if file is not None:
        if not isinstance(file, str) or not file:
            raise ConfigError(f"{where}.{name}_file", file, "the path of a file")
        return SecretSource(file=Path(file).expanduser())
    if variable is not None:
        if not isinstance(variable, str) or not _VARIABLE.fullmatch(variable):
            # A common slip is to write the secret itself here, so the value is not shown.
            raise ConfigError(f"{where}.{name}_env", "(not shown)", "the name of an environment variable")
        return SecretSource(variable=variable)
    return None


def needed_secret(settings: Mapping[str, object], name: str, where: str) -> SecretSource:
    """Return the secret that a receiver's settings must name; see ``secret_of``.

    Raises:
        ConfigError: as for ``secret_of``, or the settings name none.
    """
    found = secret_of(settings, name, where)
    if found is None:
        raise ConfigError(f"{where}.{name}_file", None, f"the path of the {_words(name)}'s file; or give {name}_env")
    return found


def refuse_literal(settings: Mapping[str, object], name: str, where: str) -> None:
    """Refuse a secret that stands in the settings itself.

    Raises:
        ConfigError: the settings have the key ``name``; the error does not show its value.
    """
    if name in settings:
        raise ConfigError(
            f"{where}.{name}",
            "(not shown)",
            f"left out: a secret never stands in the routes file. Name a file ({name}_file) or an environment variable "
            f"({name}_env) that holds it, and take the one that stood here for known",
        )


def _content(path: Path) -> bytes:
    """Return the content of a secret's file.

    Raises:
        CredentialError: it cannot be read, is no regular file, is too long, or other users may use it.
    """
    place = f"file {path}"
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
    except (OSError, ValueError) as error:
        reason = getattr(error, "strerror", None) or "no valid path"
        raise CredentialError(place, f"a file that can be read ({reason})") from None
    with os.fdopen(descriptor, "rb") as file:
        found = os.fstat(file.fileno())
        if not stat.S_ISREG(found.st_mode):
            raise CredentialError(place, "a regular file")
        if found.st_mode & _FOR_OTHERS:
            mode = stat.S_IMODE(found.st_mode)
            raise CredentialError(place, f"closed to other users (chmod o= {path}; its mode is {mode:04o})")
        content = file.read(MAX_SECRET_BYTES + 1)
    if len(content) > MAX_SECRET_BYTES:
        raise CredentialError(place, f"at most {MAX_SECRET_BYTES} bytes long")
    return content


def _words(name: str) -> str:
    """Return the name of a setting as words."""
    return name.replace("_", " ")
