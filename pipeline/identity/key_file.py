"""Files of keys that processes read again when they change, so that holders come and go without a restart."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Generic, Protocol, TypeVar

from tocsin.pipeline.identity.action_signatures import ActionChecker
from tocsin.pipeline.identity.key_trouble import KeyFileWatch
from tocsin.pipeline.identity.verdict_signatures import VerdictChecker
from tocsin.schemas.actions import Action
from tocsin.schemas.credential_store import CredentialStore
from tocsin.schemas.credentials import Credential


class HasKeys(Protocol):
    """A checker of signatures."""

    @property
    def key_ids(self) -> tuple[str, ...]:
        """Ids of the keys that it knows."""
        ...


Checker = TypeVar("Checker", bound=HasKeys)


class KeyFile(KeyFileWatch, Generic[Checker]):
    """A checker of signatures with the keys that a file holds now; it may be used from several threads.

    Attributes:
        path: the file.
        trouble: what is wrong with the file as it is now, None for nothing.
    """

    def __init__(self, path: str | Path, make: Callable[[Iterable[Credential]], Checker]) -> None:
        """Read the file.

        Args:
            path: file of credentials.
            make: makes the checker of credentials.

        Raises:
            CredentialError: the file cannot be used.
        """
        super().__init__(path)
        self._store, self._make = CredentialStore(Path(path)), make
        self._checker = make(self._store.all())
        self._lock = threading.Lock()

    def now(self) -> Checker:
        """Return the checker with the present keys, or with the last ones that could be read."""
        with self._lock:
            self._look()
            return self._checker

    def _look(self) -> None:
        """Read the file again if it changed, and say what became of it."""
        is_changed = self._store.refresh()
        if is_changed:
            self._checker = self._make(self._store.all())
        self.see(self._store, len(self._checker.key_ids), is_changed=is_changed)


class VerdictKeys(KeyFile[VerdictChecker]):
    """Checks verdicts against the public keys of engines in a file."""

    def __init__(self, path: str | Path) -> None:
        """Read the file.

        Raises:
            CredentialError: the file cannot be used.
        """
        super().__init__(path, VerdictChecker)

    def __call__(self, value: bytes, header: bytes | None, detected_ns: int) -> str:
        """Return the id of the key that signed a verdict.

        A revoked key counts no more, whatever time its thief writes into a verdict.

        Raises:
            IdentityError: the verdict is unsigned, or signed with an unknown, revoked or wrong key.
        """
        return self.now().check(value, header, max(detected_ns, time.time_ns()))


class ActionKeys(KeyFile[ActionChecker]):
    """Checks actions against the public keys of controllers in a file."""

    def __init__(self, path: str | Path) -> None:
        """Read the file.

        Raises:
            CredentialError: the file cannot be used.
        """
        super().__init__(path, ActionChecker)

    def admit(self, value: bytes, header: bytes | None, now_ns: int) -> Action:
        """See ``ActionChecker.admit``."""
        return self.now().admit(value, header, now_ns)

    def check(self, value: bytes, header: bytes | None, now_ns: int) -> str:
        """See ``MessageChecker.check``."""
        return self.now().check(value, header, now_ns)
