"""Reading and writing of a credential file: mode 0600 in a 0700 folder, replaced atomically, reread after a change.

A long-running process (engine, agent) calls ``refresh`` now and then and asks ``find``, so that a credential revoked
in the file is refused without a restart. Commands change the file with ``change``.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import stat
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Final

from tocsin.schemas.credentials import Credential, format_credentials, parse_credentials
from tocsin.schemas.errors import CredentialError

MAX_FILE_BYTES: Final = 128 * 1024 * 1024
_Stamp = tuple[int, int, int, int]


class CredentialStore:
    """The credentials of one file, kept up to date.

    Attributes:
        path: the file.
        trouble: why the present file cannot be used, "" if it can. The credentials read before stay in use meanwhile.
    """

    def __init__(self, path: Path, *, may_come_later: bool = False) -> None:
        """Read the file.

        Args:
            path: the file.
            may_come_later: True: a missing file is no error; there are no credentials until it appears.

        Raises:
            CredentialError: the file is missing, accessible to others, or malformed.
        """
        self.path = path
        self.trouble = ""
        self._may_come_later = may_come_later
        self._stamp: _Stamp | None = None
        self._refused: _Stamp | None = None
        """Stamp of the file that could not be used, if there is trouble."""
        self._by_id: dict[str, Credential] = {}
        if not self._is_yet_to_come():
            self._read()

    def _is_yet_to_come(self) -> bool:
        """Return whether the file may come later, was never read and does not exist."""
        return self._may_come_later and self._stamp is None and not self.path.exists()

    def find(self, key_id: str) -> Credential | None:
        """Return the credential with this key id, also a revoked one (see ``is_valid``); None if there is none."""
        return self._by_id.get(key_id)

    def all(self) -> tuple[Credential, ...]:
        """Return all credentials, in the file's order."""
        return tuple(self._by_id.values())

    def valid(self, now_ns: int) -> tuple[Credential, ...]:
        """Return the credentials that are valid at this time, in the file's order."""
        return tuple(one for one in self._by_id.values() if one.is_valid(now_ns))

    def refresh(self) -> bool:
        """Read the file again if it changed.

        A file that cannot be used sets ``trouble`` and leaves the credentials as they are; it is read again when it
        changes once more.

        Returns:
            Whether the credentials changed.
        """
        if self._is_yet_to_come():
            return False
        try:
            found = _stamp_of(self.path.stat())
            if self._stamp is not None and found == (self._refused if self.trouble else self._stamp):
                return False
            self._refused = found
            before = self._by_id
            self._read()
        except OSError as error:
            self._refused = None
            self.trouble = f"{self.path}: {error.strerror or error}"
            return False
        except CredentialError as error:
            self.trouble = str(error)
            return False
        self.trouble = ""
        return before != self._by_id

    def _read(self) -> None:
        """Read the file and replace the credentials and the stamp."""
        text, self._stamp = _read_private(self.path)
        self._by_id = {one.key_id: one for one in parse_credentials(text, str(self.path))}


def read_credentials(path: Path) -> tuple[Credential, ...]:
    """Return the credentials of a file.

    Raises:
        CredentialError: the file is missing, accessible to others, or malformed.
    """
    return CredentialStore(path).all()


def write_credentials(path: Path, credentials: tuple[Credential, ...]) -> None:
    """Write a credential file atomically with mode 0600; a missing folder is created with 0700.

    Raises:
        CredentialError: the file cannot be written.
    """
    partial = path.with_name(f".{path.name}.{os.getpid()}.partial")
    try:
        path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        partial.unlink(missing_ok=True)
        flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
        with os.fdopen(os.open(partial, flags, 0o600), "w", encoding="utf-8") as file:
            file.write(format_credentials(credentials))
            file.flush()
            os.fsync(file.fileno())
        partial.replace(path)
    except OSError as error:
        with contextlib.suppress(OSError):
            partial.unlink(missing_ok=True)
        raise CredentialError(str(path), f"a file that can be written ({error.strerror or error})") from error


def change(path: Path, what: Callable[[tuple[Credential, ...]], tuple[Credential, ...]]) -> tuple[Credential, ...]:
    """Change a credential file under a lock, so that concurrent commands lose no change; a missing file begins empty.

    Args:
        path: the file.
        what: function from the present credentials to the new ones.

    Returns:
        The credentials in the file after the change.

    Raises:
        CredentialError: the file cannot be read or written.
    """
    with _locked(path):
        before = read_credentials(path) if path.exists() else ()
        after = what(before)
        write_credentials(path, after)
    return after


@contextlib.contextmanager
def _locked(path: Path) -> Iterator[None]:
    """Hold an exclusive lock on the file's lock file inside the block; the folder is created if missing."""
    try:
        path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        flags = os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC
        lock = os.open(path.with_name(f".{path.name}.lock"), flags, 0o600)
    except OSError as error:
        raise CredentialError(str(path), f"in a folder that can be written ({error.strerror or error})") from error
    try:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield
    finally:
        os.close(lock)


def _read_private(path: Path) -> tuple[str, _Stamp]:
    """Return a file's text and stamp; refuse one that other users may read or write."""
    try:
        # not O_NOFOLLOW: a mounted Kubernetes Secret is a link; what the link leads to is checked
        descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
        with os.fdopen(descriptor, "rb") as file:
            found = os.fstat(file.fileno())
            check_private(found, str(path))
            data = file.read(MAX_FILE_BYTES + 1)
    except OSError as error:
        raise CredentialError(str(path), f"a file that can be read ({error.strerror or error})") from error
    if len(data) > MAX_FILE_BYTES:
        raise CredentialError(str(path), f"at most {MAX_FILE_BYTES} bytes")
    try:
        return data.decode(), _stamp_of(found)
    except UnicodeDecodeError:
        raise CredentialError(str(path), "UTF-8 text") from None


def check_private(found: os.stat_result, file: str) -> None:
    """Refuse a file that other users may read or write.

    Allowed are a file of this user without rights for group and others, and a file of root that this process's group
    may read (a Secret mounted by Kubernetes).

    Args:
        found: status of the file.
        file: its name, for the error.

    Raises:
        CredentialError: the file is too open, belongs to another user, or is no regular file; says what to do.
    """
    if not stat.S_ISREG(found.st_mode):
        raise CredentialError(file, "a regular file")
    own = os.geteuid()
    if found.st_uid not in (own, 0):
        raise CredentialError(file, f"a file of this user ({own}) or of root (it belongs to user {found.st_uid})")
    allowed = 0o740 if found.st_uid != own or own == 0 else 0o700
    if stat.S_IMODE(found.st_mode) & 0o777 & ~allowed:
        mode = stat.S_IMODE(found.st_mode)
        raise CredentialError(file, f"closed to others: its mode is {mode:04o}, chmod 600 it and issue it anew")


def _stamp_of(found: os.stat_result) -> _Stamp:
    """Return device, inode, size and change time of a file, which differ after any change."""
    return found.st_dev, found.st_ino, found.st_size, found.st_ctime_ns  # ctime: of the mode, too
