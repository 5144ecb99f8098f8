"""Where a user's data lies, and where the engine of that data listens."""

from __future__ import annotations

import argparse
import hashlib
import os
from pathlib import Path

from tocsin.schemas.errors import ConfigError

MAX_SOCKET_PATH_BYTES = 100
"""Longest path of a unix socket that we use: the kernel takes 107, and people append to names."""


def add_data_argument(parser: argparse.ArgumentParser) -> None:
    """Declare ``--data DIR``, the same for every command that has it."""
    parser.add_argument(
        "--data",
        type=Path,
        metavar="DIR",
        help="data folder [env: TOCSIN_DATA; default: $XDG_DATA_HOME/tocsin or ~/.local/share/tocsin]",
    )


def data_folder(named: Path | None = None) -> Path:
    """The data folder: ``--data``, else ``TOCSIN_DATA``, else the user's own data folder.

    Returns:
        An absolute path, links resolved, so that every command derives the same socket from it.
        Nothing is made.
    """
    chosen = named or _environment_path("TOCSIN_DATA")
    if chosen is None:
        home = _environment_path("XDG_DATA_HOME")
        # The XDG rules say to ignore a relative path.
        chosen = (home if home and home.is_absolute() else _home() / ".local" / "share") / "tocsin"
    return chosen.expanduser().resolve()


def database_folder(data: Path) -> Path:
    """The folder of the incident database in a data folder."""
    return data / "chdb"


def control_socket(data: Path) -> Path:
    """The engine's control socket of a data folder, the same for server and client.

    A unix socket's path is short by the kernel's rule; a data folder's may be long. Then the
    socket lies in the user's runtime folder, under a name made of the data folder's path.
    """
    data = data.resolve()
    path = data / "control.sock"
    if len(os.fsencode(path)) <= MAX_SOCKET_PATH_BYTES:
        return path
    digest = hashlib.sha256(os.fsencode(data)).hexdigest()[:16]
    return runtime_folder() / f"tocsin-{digest}.sock"


def runtime_folder() -> Path:
    """A short folder that belongs to this user alone.

    Raises:
        ConfigError: the folder in /tmp exists and belongs to somebody else, or is open to others.
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
    """The file of all hosts' credentials in an engine's data folder."""
    return data / "credentials.json"


def local_token_files(port: int) -> tuple[Path, ...]:
    """Where an engine that listens on a TCP port leaves the token for agents of its own user.

    The engine takes the first that it can write, agents the first that exists.
    """
    name = f"engine-{port}.json"
    named, own = _environment_path("XDG_RUNTIME_DIR"), Path(f"/run/user/{os.getuid()}")
    folders = [folder / "tocsin" for folder in (named, own) if folder and folder.is_absolute() and folder.is_dir()]
    shared = Path(f"/tmp/tocsin-{os.getuid()}")  # noqa: S108  # made for the owner only, and checked
    return tuple(dict.fromkeys(folder / name for folder in (*folders, Path("/run/tocsin"), shared)))


def _environment_path(name: str) -> Path | None:
    value = os.environ.get(name, "")
    return Path(value) if value else None


def _home() -> Path:
    try:
        return Path.home()
    except RuntimeError as error:
        raise ConfigError("HOME", "", "set, or name a data folder with --data or TOCSIN_DATA") from error
