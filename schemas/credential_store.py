"""Reads and writes a file of credentials: 0600 in a 0700 folder, whole or not at all, read again when it changed.

Who runs for long (engine, agent) calls ``refresh`` now and then and asks ``find``: a credential that was revoked in the
file counts no more without a restart. Commands change the file with ``change``.
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
    """The credentials of one file.

    Attributes:
        path: the file.
        trouble: why the file as it is now is not used; "" = it is. What was read before goes on meanwhile.
    """

    def __init__(self, path: Path, *, may_come_later: bool = False) -> None:
        """Read the file.

        Args:
            path: the file.
            may_come_later: a file that was never there is no trouble; nobody has a credential until it is.

        Raises:
            CredentialError: it is missing, open to others, or not as it must be.
        """
        self.path = path
        self.trouble = ""
        self._may_come_later = may_come_later
        self._stamp: _Stamp | None = None
        self._by_id: dict[str, Credential] = {}
        if not self._is_yet_to_come():
            self._read()

    def _is_yet_to_come(self) -> bool:
        return self._may_come_later and self._stamp is None and not self.path.exists()

    def find(self, key_id: str) -> Credential | None:
        """Return a credential, also one that was revoked (``is_valid`` tells); None: there is none."""
        return self._by_id.get(key_id)

    def all(self) -> tuple[Credential, ...]:
        """Return all of them, in the file's order."""
        return tuple(self._by_id.values())

    def valid(self, now_ns: int) -> tuple[Credential, ...]:
        """Return those that count now, in the file's order."""
        return tuple(one for one in self._by_id.values() if one.is_valid(now_ns))

    def refresh(self) -> bool:
        """Read the file again if it changed; a file that cannot be used is ``trouble``, and changes nothing.

        Returns:
            Whether other credentials count now.
        """
        if self._is_yet_to_come():
            return False
        try:
            if self._stamp is not None and _stamp_of(self.path.stat()) == self._stamp and not self.trouble:
                return False
            before = self._by_id
            self._read()
        except OSError as error:
            self.trouble = f"{self.path}: {error.strerror or error}"
            return False
        except CredentialError as error:
            self.trouble = str(error)
            return False
        self.trouble = ""
        return before != self._by_id

    def _read(self) -> None:
        text, self._stamp = _read_private(self.path)
        self._by_id = {one.key_id: one for one in parse_credentials(text, str(self.path))}


def read_credentials(path: Path) -> tuple[Credential, ...]:
    """Return the credentials of a file.

    Raises:
        CredentialError: it is missing, open to others, or not as it must be.
    """
    return CredentialStore(path).all()


def write_credentials(path: Path, credentials: tuple[Credential, ...]) -> None:
    """Write a file, 0600, whole or not at all; its folder is made 0700 where it is missing.

    Raises:
        CredentialError: it cannot be written.
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
    """Change a file under a lock, so that two commands at once lose nothing; a missing file begins empty.

    Returns:
        What the file holds now.

    Raises:
        CredentialError: it cannot be read or written.
    """
    with _locked(path):
        before = read_credentials(path) if path.exists() else ()
        after = what(before)
        write_credentials(path, after)
    return after


@contextlib.contextmanager
def _locked(path: Path) -> Iterator[None]:
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
    """Return a file's text and stamp, if nobody reads it who should not."""
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
    """Refuse a file that others may read or write.

    It belongs to this user and to nobody's group; or it belongs to root, who lets this process's group read it (a
    Secret that Kubernetes mounts).

    Raises:
        CredentialError: says what to do.
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
    return found.st_dev, found.st_ino, found.st_size, found.st_ctime_ns  # ctime: of the mode, too
