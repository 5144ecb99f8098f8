"""Open and remove files of a state folder safely, even if someone put a pipe or folder in their place."""

from __future__ import annotations

import errno
import logging
import os
import stat
from pathlib import Path
from typing import BinaryIO

_LOG = logging.getLogger("tocsin.state")


def open_regular(path: Path) -> BinaryIO:
    """Open a file for reading; a pipe is refused without waiting for a writer.

    Raises:
        OSError: the file cannot be opened, or is not a regular file.
    """
    fd = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    if not stat.S_ISREG(os.fstat(fd).st_mode):
        os.close(fd)
        raise OSError(errno.EINVAL, "is no regular file", str(path))
    return os.fdopen(fd, "rb")


def read_regular(path: Path) -> bytes:
    """Return the content of a regular file.

    Raises:
        OSError: as ``open_regular``, or the file cannot be read.
    """
    with open_regular(path) as file:
        return file.read()


def remove_old(path: Path) -> None:
    """Remove an obsolete file; a folder of that name is left alone and logged.

    Raises:
        OSError: the disk refuses.
    """
    try:
        path.unlink(missing_ok=True)
    except IsADirectoryError:
        _LOG.warning("a folder has the name of a state file: it is left there", extra={"path": str(path)})
