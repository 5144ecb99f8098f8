"""Files and folders that other users of the machine must not read, replace or lead elsewhere.

A folder that tocsin makes is its owner's alone (0700). One that exists already keeps its group and mode, and a new
file in it is open to whom the folder is open, but never to all: 0600 in 0700, 0640 in 0750 and in 0755.
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
    """Make a folder of mode 0700 where it is missing; what exists is left as it is.

    Raises:
        OSError: it cannot be made, or something else has its name.
    """
    Path(folder).mkdir(mode=0o700, parents=True, exist_ok=True)


def open_private(path: Path | str, flags: int, *, dir_fd: int | None = None) -> int:
    """Open a plain file of this user; no link is followed, no pipe waited for.

    A file that is made is open to whom its folder is open, never to all; one that was open to all is closed to them.

    Args:
        path: the file; relative to ``dir_fd`` where that is given.
        flags: of ``os.open``.
        dir_fd: descriptor of its folder.

    Returns:
        The descriptor.

    Raises:
        OSError: it cannot be opened, is no plain file, or belongs to another user.
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
    """Open a file for writing, as ``open_private``.

    Args:
        path: the file.
        mode: "w" writes it anew, "a" appends.

    Raises:
        OSError: as ``open_private``.
    """
    flags = os.O_WRONLY | os.O_CREAT | (os.O_APPEND if mode == "a" else os.O_TRUNC)
    return cast("BinaryIO", os.fdopen(open_private(path, flags), f"{mode}b"))


def write_private(path: Path | str, data: bytes) -> None:
    """Write a file anew, as ``open_private``.

    Raises:
        OSError: as ``open_private``.
    """
    with private_file(path, "w") as file:
        file.write(data)


def open_folder(folder: Path | str) -> int:
    """Make a folder where it is missing (0700) and open it, for ``dir_fd``.

    A symbolic link on the way counts where nobody else could have put it there: it belongs to root or to this user,
    or not all may write beside it.

    Raises:
        OSError: it cannot be made or opened, a link of somebody else leads there, or it is another user's and
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
    """Look at the symbolic links on the way to a path.

    Raises:
        PermissionError: another user put one into a folder into which everybody may write.
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
    """Return whether a socket lies at a path, False where nothing does.

    Only what this returns True for may be removed to make room for a new socket.

    Raises:
        FileExistsError: something else lies there: it may be somebody's data.
    """
    try:
        mode = os.lstat(path).st_mode
    except FileNotFoundError:
        return False
    if stat.S_ISSOCK(mode):
        return True
    kind = next((name for matches, name in _KINDS if matches(mode)), "something that is no socket")
    raise FileExistsError(f"{kind} lies at {path} and is left alone: name another path, or remove it yourself")
