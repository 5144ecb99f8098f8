"""Files and folders that other users of the machine must not read, replace or redirect by links.

A folder that tocsin creates has mode 0700. An existing one keeps its group and mode, and a new file in
it has the folder's rights for the group but none for others: 0600 in 0700, 0640 in 0750 and in 0755.
"""

from __future__ import annotations

import os
import stat
from pathlib import Path
from typing import BinaryIO, Final, cast

_GROUP: Final = 0o060
_OTHERS: Final = 0o007
_WRITE_BY_ALL: Final = 0o002
_KINDS: Final = (
    (stat.S_ISREG, "a file"),
    (stat.S_ISDIR, "a folder"),
    (stat.S_ISLNK, "a symbolic link"),
    (stat.S_ISFIFO, "a pipe"),
)


def make_private_folder(folder: Path | str) -> None:
    """Create a folder with mode 0700 if it is missing; an existing one is left as it is.

    Raises:
        OSError: it cannot be created, or something else has its name.
    """
    Path(folder).mkdir(mode=0o700, parents=True, exist_ok=True)


def open_private(path: Path | str, flags: int, *, dir_fd: int | None = None) -> int:
    """Open a regular file of this user, without following a link or waiting for a pipe.

    A new file has its folder's rights for the group and none for others. Rights for others on an existing file are
    removed if it is opened for writing.

    Args:
        path: the file; relative to ``dir_fd`` if that is given.
        flags: flags of ``os.open``.
        dir_fd: descriptor of the file's folder.

    Returns:
        The file's descriptor.

    Raises:
        OSError: the file cannot be opened, is not regular, has a second name, or belongs to another user.
    """
    at = os.fspath(path)
    folder = os.fstat(dir_fd) if dir_fd is not None else os.stat(os.path.dirname(at) or ".")
    mode = 0o600 | (folder.st_mode & _GROUP)
    safe = flags | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
    descriptor = os.open(at, safe & ~os.O_TRUNC, mode, dir_fd=dir_fd)
    try:
        found = os.fstat(descriptor)
        if not stat.S_ISREG(found.st_mode) or found.st_uid != os.geteuid() or found.st_nlink > 1:
            raise PermissionError(f"{at}: must be a plain file of user {os.geteuid()} with one name")
        if found.st_mode & _OTHERS and flags & (os.O_WRONLY | os.O_RDWR):
            os.fchmod(descriptor, stat.S_IMODE(found.st_mode) & ~_OTHERS)
        if flags & os.O_TRUNC:
            os.ftruncate(descriptor, 0)
    except OSError:
        os.close(descriptor)
        raise
    return descriptor


def private_file(path: Path | str, mode: str) -> BinaryIO:
    """Open a file for binary writing in the manner of ``open_private``.

    Args:
        path: the file.
        mode: "w" truncates, "a" appends.

    Raises:
        OSError: as for ``open_private``.
    """
    flags = os.O_WRONLY | os.O_CREAT | (os.O_APPEND if mode == "a" else os.O_TRUNC)
    return cast("BinaryIO", os.fdopen(open_private(path, flags), f"{mode}b"))


def write_private(path: Path | str, data: bytes) -> None:
    """Replace a file's content, opening it in the manner of ``open_private``.

    Raises:
        OSError: as for ``open_private``.
    """
    with private_file(path, "w") as file:
        file.write(data)


def open_folder(folder: Path | str) -> int:
    """Create a folder with mode 0700 if it is missing, and return its descriptor for ``dir_fd``.

    A symbolic link on the path is accepted where nobody else could have put it there: it belongs to root or to this
    user, or not everybody may write into its folder.

    Raises:
        OSError: the folder cannot be created or opened, a foreign link leads to it, or it belongs to another user and
            everybody may write into it.
    """
    path = os.path.abspath(folder)
    check_links(path)
    make_private_folder(path)
    descriptor = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    found = os.fstat(descriptor)
    if found.st_mode & _WRITE_BY_ALL and found.st_uid != os.geteuid():
        os.close(descriptor)
        raise PermissionError(f"{path}: everybody may write into this folder of user {found.st_uid}")
    return descriptor


def check_links(path: str) -> None:
    """Check the symbolic links on a path.

    Raises:
        PermissionError: another user put a link into a folder into which everybody may write.
    """
    at, parts = "/", [part for part in path.split("/") if part]
    seen = 0
    while parts:
        part = parts.pop(0)
        if part in {".", ".."}:
            at = os.path.dirname(at) if part == ".." else at
            continue
        here = os.path.join(at, part)
        try:
            found = os.lstat(here)
        except OSError:
            return  # missing from here on: there is no link
        if not stat.S_ISLNK(found.st_mode):
            at = here
            continue
        seen += 1
        if seen > 40:  # as many as the kernel follows
            raise PermissionError(f"{path}: too many symbolic links")
        if os.stat(at).st_mode & _WRITE_BY_ALL and found.st_uid not in {0, os.geteuid()}:
            raise PermissionError(f"{here}: a symbolic link of user {found.st_uid} in a folder that is open to all")
        target = os.readlink(here)
        at = "/" if target.startswith("/") else at
        parts = [step for step in target.split("/") if step] + parts


def is_socket(path: Path | str) -> bool:
    """Return whether there is a socket at a path; False where there is nothing.

    Only a path for which this returns True may be removed to make room for a new socket.

    Raises:
        FileExistsError: something else is there, which may be somebody's data.
    """
    try:
        mode = os.lstat(path).st_mode
    except FileNotFoundError:
        return False
    if stat.S_ISSOCK(mode):
        return True
    kind = next((name for matches, name in _KINDS if matches(mode)), "something that is no socket")
    raise FileExistsError(f"{kind} lies at {path} and is left alone: name another path, or remove it yourself")
