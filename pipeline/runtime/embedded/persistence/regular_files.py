"""Files of a state folder that may be something else than a file: a pipe, a folder, a link to nothing."""

from __future__ import annotations

import errno
import logging
import os
import stat
from pathlib import Path
from typing import BinaryIO

_LOG = logging.getLogger("tocsin.state")


def open_regular(path: Path) -> BinaryIO:
    """Open a file to read it; a pipe is refused, and not waited for.

    Raises:
        OSError: it cannot be opened, or is no regular file.
    """
    fd = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    if not stat.S_ISREG(os.fstat(fd).st_mode):
        os.close(fd)
        raise OSError(errno.EINVAL, "is no regular file", str(path))
    return os.fdopen(fd, "rb")


def read_regular(path: Path) -> bytes:
    """All of a file.

    Raises:
        OSError: as ``open_regular``, or it cannot be read.
    """
    with open_regular(path) as file:
        return file.read()


def remove_old(path: Path) -> None:
    """Remove a file that is of no use any more; what is a folder stays, and harms nothing.

    Raises:
        OSError: the disk refuses.
    """
    try:
        path.unlink(missing_ok=True)
    except IsADirectoryError:
        _LOG.warning("a folder has the name of a state file: it is left there", extra={"path": str(path)})
