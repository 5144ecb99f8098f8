"""Opening of files strictly below a folder: no ``..``, no symbolic link, no other mount, whatever a path says.

Linux 5.6 does it in one call, ``openat2``. Where the kernel (or a filter of system calls) does not have it, the path is
walked part by part, each opened relative to the one before, with ``O_NOFOLLOW``.
"""

from __future__ import annotations

import contextlib
import errno
import os
import stat
import struct
from typing import Final

_OPENAT2: Final = 437  # the same number on all architectures that have had it
_NO_XDEV: Final = 0x01
_NO_MAGICLINKS: Final = 0x02
_NO_SYMLINKS: Final = 0x04
_BENEATH: Final = 0x08
_HOW: Final = struct.Struct("=QQQ")
"""``struct open_how`` of linux/openat2.h: flags, mode, resolve."""
WITHOUT_CALL: Final = frozenset({errno.ENOSYS, errno.EPERM, errno.EINVAL, errno.E2BIG})
"""Errors of ``openat2`` in a kernel that does not have the call, or a container that forbids it."""
_FLAGS: Final = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
"""Flags for opening a file; ``O_NONBLOCK`` so that a pipe cannot block the agent."""
_MAX_PARTS: Final = 64


def open_root(folder: str) -> int:
    """Return a descriptor of a folder below which files are read.

    Raises:
        OSError: the folder cannot be opened, is a symbolic link or no folder.
    """
    return os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)


def open_beneath(root_fd: int, relative: str) -> int:
    """Open a file below a folder for reading and return its descriptor.

    Args:
        root_fd: descriptor of the folder.
        relative: path of the file from there.

    Raises:
        OSError: the file is missing, or its path has a link, leads upwards or into another mount.
    """
    parts = relative.split("/")
    if len(parts) > _MAX_PARTS or any(part in {"", ".", ".."} or "\0" in part for part in parts):
        raise PermissionError(errno.EACCES, "not a plain path below its folder", relative)
    try:
        return openat2(root_fd, relative)
    except OSError as error:
        if error.errno not in WITHOUT_CALL:
            raise
    return walk_beneath(root_fd, parts)


def openat2(root_fd: int, relative: str) -> int:
    """Open a file below a folder by the kernel's own call, which follows no link and leaves the folder nowhere."""
    import ctypes  # a dump is seldom, and the module costs memory

    how = _HOW.pack(_FLAGS, 0, _BENEATH | _NO_SYMLINKS | _NO_MAGICLINKS | _NO_XDEV)
    syscall = ctypes.CDLL(None, use_errno=True).syscall
    found = syscall(
        ctypes.c_long(_OPENAT2),
        ctypes.c_int(root_fd),
        ctypes.c_char_p(os.fsencode(relative)),
        ctypes.create_string_buffer(how, _HOW.size),
        ctypes.c_size_t(_HOW.size),
    )
    if found < 0:
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number), relative)
    return int(found)


def walk_beneath(root_fd: int, parts: list[str]) -> int:
    """Open a file below a folder part by part, for kernels without ``openat2``.

    Args:
        root_fd: descriptor of the folder.
        parts: parts of the relative path.

    Raises:
        OSError: as for ``open_beneath``.
    """
    device = os.fstat(root_fd).st_dev
    at = os.dup(root_fd)
    try:
        for part in parts[:-1]:
            below = os.open(part, os.O_PATH | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC, dir_fd=at)
            os.close(at)
            at = below
        found = os.open(parts[-1], _FLAGS, dir_fd=at)
    finally:
        os.close(at)
    if os.fstat(found).st_dev != device:
        os.close(found)
        raise OSError(errno.EXDEV, os.strerror(errno.EXDEV), "/".join(parts))
    return found


def read_owned(descriptor: int, uid: int, limit_bytes: int) -> bytes:
    """Return a file's content and close its descriptor.

    Args:
        descriptor: result of ``open_beneath``.
        uid: user who must own the file.
        limit_bytes: largest size that is read.

    Raises:
        OSError: the file cannot be read.
        ValueError: it is no regular file of that user, has a second name, or is too large.
    """
    with open(descriptor, "rb") as file:
        found = os.fstat(descriptor)
        if not stat.S_ISREG(found.st_mode) or found.st_uid != uid or found.st_nlink > 1:
            raise ValueError(f"no plain file of user {uid} with one name")
        if found.st_size > limit_bytes:
            raise ValueError(f"{found.st_size} bytes: at most {limit_bytes} are sent")
        return file.read(limit_bytes)


class DumpFolders:
    """The folders below which hooks' dumps are read."""

    def __init__(self, folder: str) -> None:
        """Allow ``folder`` ("" for none) and a folder inside it that is created for requested dumps."""
        self._folder = os.path.abspath(folder) if folder else ""
        self._asked = ""

    def prepare(self) -> None:
        """Create the dump folder if it is missing; any user may write into it but not remove others' files."""
        if self._folder:
            with contextlib.suppress(OSError):  # no room or no right: then hooks' dumps are not read
                os.makedirs(os.path.dirname(self._folder), exist_ok=True)
                os.mkdir(self._folder)
                self._open_for_all(self._folder)

    @staticmethod
    def _open_for_all(folder: str) -> None:
        """Let all users write into a folder of ours; something put in its place meanwhile is left unchanged.

        Raises:
            OSError: the path is no longer a folder of this user.
        """
        descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
        try:
            if os.fstat(descriptor).st_uid != os.geteuid():
                raise PermissionError(f"{folder} belongs to somebody else by now")
            os.fchmod(descriptor, 0o1733)  # sticky, writable for all, listed by its owner only
        finally:
            os.close(descriptor)

    def asked(self) -> str:
        """Return the folder into which hooks are asked to write, created on first use.

        Raises:
            OSError: it cannot be created.
        """
        if not self._asked:
            import tempfile  # seldom needed

            is_there = bool(self._folder) and os.path.isdir(self._folder) and not os.path.islink(self._folder)
            made = tempfile.mkdtemp(prefix="tocsin-dumps-", dir=self._folder if is_there else None)
            self._open_for_all(made)
            self._asked = made
        return self._asked

    def read(self, path: str, uid: int, limit_bytes: int) -> bytes:
        """Return the content of a dump.

        Args:
            path: absolute path that the hook stated.
            uid: the hook's user, as the kernel reports it.
            limit_bytes: largest size that is read.

        Raises:
            OSError: the file cannot be opened, or is not below one of the folders.
            ValueError: it is no regular file of that user, or too large.
        """
        for root in (self._asked, self._folder):
            if root and path.startswith(root + "/"):
                root_fd = open_root(root)
                try:
                    return read_owned(open_beneath(root_fd, path[len(root) + 1 :]), uid, limit_bytes)
                finally:
                    os.close(root_fd)
        raise PermissionError(errno.EACCES, f"not below {self._folder or 'a folder of dumps'} (--dump-dir)", path)

    def remove(self, path: str) -> None:
        """Remove a requested dump after it was read; other files are left alone."""
        folder, name = os.path.split(path)
        if folder and folder == self._asked:
            with contextlib.suppress(OSError):
                root_fd = open_root(folder)
                try:
                    os.unlink(name, dir_fd=root_fd)
                finally:
                    os.close(root_fd)

    def close(self) -> None:
        """Remove the folder for requested dumps if it is empty."""
        if self._asked:
            with contextlib.suppress(OSError):
                os.rmdir(self._asked)
