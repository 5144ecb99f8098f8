"""The users of a cluster's ClickHouse endpoint: one that writes and one that reads, each with its own password."""

from __future__ import annotations

import json
import os
import secrets
from pathlib import Path
from typing import Final
from urllib.parse import quote

from tocsin.schemas.errors import EngineError

WRITER: Final = "tocsin"
"""User that creates and fills the tables: the consumer."""
READER: Final = "reader"
"""User that only queries: ``tocsin incidents``, ``tocsin sql``."""
_ROLES: Final = {WRITER: "admin", READER: "reader"}


def make_users(folder: Path) -> Path:
    """Write the endpoint's file of users and return its path; passwords that do not exist yet are drawn at random.

    Only the owner can read the files (0600) and the folder (0700).

    Args:
        folder: folder for the files.

    Raises:
        EngineError: the files cannot be written.
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
    """Return the path of the file with a user's password."""
    return folder / f"{name}.password"


def address_of(url: str, folder: Path, name: str) -> str:
    """Return the URL for ``--clickhouse`` for a user; it names the password's file, not the password.

    Args:
        url: the endpoint's URL, without a user.
        folder: the folder given to ``make_users``.
        name: name of the user.
    """
    scheme, _, place = url.partition("://")
    return f"{scheme}://{name}@{place}?password_file={quote(str(password_file(folder, name)), safe='/')}"


def _write(file: Path, text: str) -> None:
    """Write a file atomically, with permissions that let only its owner read it."""
    part = file.with_name(f".{file.name}.{os.getpid()}")
    part.unlink(missing_ok=True)
    with os.fdopen(os.open(part, os.O_CREAT | os.O_EXCL | os.O_WRONLY | os.O_NOFOLLOW, 0o600), "w") as out:
        out.write(text)
    part.rename(file)
