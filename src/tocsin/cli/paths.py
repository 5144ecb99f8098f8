"""The paths of a user's data, and of the sockets and files of the engine that uses it."""

from __future__ import annotations

import argparse
import hashlib
import os
from pathlib import Path

from tocsin.schemas.errors import ConfigError

MAX_SOCKET_PATH_BYTES = 100
"""Longest path of a unix socket that is used; the kernel allows 107 bytes, and users append to names."""


def add_data_argument(parser: argparse.ArgumentParser) -> None:
    """Add the flag ``--data DIR``, which is the same for every command."""
    parser.add_argument(
        "--data",
        type=Path,
        metavar="DIR",
        help="data folder [env: TOCSIN_DATA; default: $XDG_DATA_HOME/tocsin or ~/.local/share/tocsin]",
    )


def data_folder(named: Path | None = None) -> Path:
    """Return the data folder: ``named``, else ``TOCSIN_DATA``, else the user's own data folder.

    Returns:
        An absolute path with links resolved, so that every command derives the same socket from it. No folder is
        created.
    """
    chosen = named or _environment_path("TOCSIN_DATA")
    if chosen is None:
        home = _environment_path("XDG_DATA_HOME")
        # The XDG rules say to ignore a relative path.
        chosen = (home if home and home.is_absolute() else _home() / ".local" / "share") / "tocsin"
    return chosen.expanduser().resolve()


def database_folder(data: Path) -> Path:
    """Return the folder of the incident database in a data folder."""
    return data / "chdb"


def control_socket(data: Path) -> Path:
    """Return the path of the engine's control socket for a data folder; server and client derive the same one.

    The kernel limits the length of a unix socket's path. If the data folder's path is too long, the socket is in the
    user's runtime folder, named after the hash of the data folder's path.
    """
    data = data.resolve()
    path = data / "control.sock"
    if len(os.fsencode(path)) <= MAX_SOCKET_PATH_BYTES:
        return path
    digest = hashlib.sha256(os.fsencode(data)).hexdigest()[:16]
    return runtime_folder() / f"tocsin-{digest}.sock"


def runtime_folder() -> Path:
    """Return a folder with a short path that only this user can access; it is created if necessary.

    Raises:
        ConfigError: the folder in /tmp belongs to another user, or others can access it.
    """
    # A service may lack XDG_RUNTIME_DIR where a shell has it: the folder itself is looked for too.
    named = _environment_path("XDG_RUNTIME_DIR")
    own = Path(f"/run/user/{os.getuid()}")
    for folder in (named, own):
        if folder and folder.is_dir() and len(os.fsencode(folder)) < MAX_SOCKET_PATH_BYTES - 32:
            return folder
    shared = Path(f"/tmp/tocsin-{os.getuid()}")  # noqa: S108  # made for the owner only, and checked
    shared.mkdir(mode=0o700, exist_ok=True)
    found = shared.lstat()
    if found.st_uid != os.getuid() or found.st_mode & 0o077:
        raise ConfigError("runtime folder", str(shared), "yours alone (mode 0700): remove it or set XDG_RUNTIME_DIR")
    return shared


def credentials_file(data: Path) -> Path:
    """Return the file of all hosts' credentials in an engine's data folder."""
    return data / "credentials.json"


def local_token_files(port: int) -> tuple[Path, ...]:
    """Return the files in which an engine on a TCP port may leave the token for agents of its own user.

    The engine uses the first that it can write, agents the first that exists.
    """
    name = f"engine-{port}.json"
    named, own = _environment_path("XDG_RUNTIME_DIR"), Path(f"/run/user/{os.getuid()}")
    folders = [folder / "tocsin" for folder in (named, own) if folder and folder.is_absolute() and folder.is_dir()]
    shared = Path(f"/tmp/tocsin-{os.getuid()}")  # noqa: S108  # made for the owner only, and checked
    return tuple(dict.fromkeys(folder / name for folder in (*folders, Path("/run/tocsin"), shared)))


def _environment_path(name: str) -> Path | None:
    """Return the path in an environment variable, None: it is not set."""
    value = os.environ.get(name, "")
    return Path(value) if value else None


def _home() -> Path:
    """Return the user's home folder."""
    try:
        return Path.home()
    except RuntimeError as error:
        raise ConfigError("HOME", "", "set, or name a data folder with --data or TOCSIN_DATA") from error
