"""Who may ask the ClickHouse endpoint of a cluster: one who writes, one who reads, each with a password of its own."""

from __future__ import annotations

import json
import os
import secrets
from pathlib import Path
from typing import Final
from urllib.parse import quote

from tocsin.schemas.errors import EngineError

WRITER: Final = "tocsin"
"""Makes the tables and fills them: the consumer."""
READER: Final = "reader"
"""Asks: ``tocsin incidents``, ``tocsin sql``."""
_ROLES: Final = {WRITER: "admin", READER: "reader"}


def make_users(folder: Path) -> Path:
    """Return the endpoint's file of users; passwords are drawn where the folder has none yet.

    Every file is its owner's alone (0600), and so is the folder (0700).

    Args:
        folder: where the files lie.

    Raises:
        EngineError: they cannot be written.
    """
    try:
        folder.mkdir(parents=True, exist_ok=True)
        folder.chmod(0o700)
        users = {}
        for name, role in _ROLES.items():
            file = password_file(folder, name)
            if not file.is_file():
                _write(file, secrets.token_urlsafe(24))
            users[name] = {"password": file.read_text("utf-8").strip(), "role": role}
        _write(folder / "users.json", json.dumps(users))
    except OSError as error:
        raise EngineError(f"the endpoint's passwords cannot be written to {folder}: {error}") from error
    return folder / "users.json"


def password_file(folder: Path, name: str) -> Path:
    """Return the file with a user's password."""
    return folder / f"{name}.password"


def address_of(url: str, folder: Path, name: str) -> str:
    """Return what ``--clickhouse`` takes for a user: it names the file of the password, not the password.

    Args:
        url: the endpoint's, without a user.
        folder: where ``make_users`` wrote.
        name: the user.
    """
    scheme, _, place = url.partition("://")
    return f"{scheme}://{name}@{place}?password_file={quote(str(password_file(folder, name)), safe='/')}"


def _write(file: Path, text: str) -> None:
    """Write a file that was never open to others; readers see the old one or the new one."""
    part = file.with_name(f".{file.name}.{os.getpid()}")
    part.unlink(missing_ok=True)
    with os.fdopen(os.open(part, os.O_CREAT | os.O_EXCL | os.O_WRONLY | os.O_NOFOLLOW, 0o600), "w") as out:
        out.write(text)
    part.rename(file)
