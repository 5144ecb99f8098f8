"""What is wrong with files of keys, said when it changes, and as a metric."""

from __future__ import annotations

import logging
from collections.abc import Iterable, Sequence
from enum import StrEnum
from pathlib import Path
from typing import Protocol

from tocsin.schemas.credential_store import CredentialStore
from tocsin.schemas.formats.prometheus_text import Family, Sample

_LOG = logging.getLogger("tocsin.identity")


class KeyFileTrouble(StrEnum):
    """What is wrong with a file of keys; label of a metric and field of logs."""

    UNUSABLE = "key_file_unusable"
    """It is missing, open to others or malformed: the keys that were read before stay in use, to sign as well."""
    WITHOUT_KEYS = "key_file_without_keys"
    """It has no key of the roles that are asked for: nobody is believed, and who signs keeps the key it had."""


class KeyFileWatch:
    """Says what became of a file of keys that its owner reads again when it changes.

    Attributes:
        path: the file.
        trouble: what is wrong with the file as it is now, None for nothing.
    """

    def __init__(self, path: str | Path) -> None:
        """Nothing is wrong with the file yet.

        Args:
            path: the file.
        """
        self.path = str(path)
        self.trouble: KeyFileTrouble | None = None

    def see(self, store: CredentialStore, key_count: int | None, *, is_changed: bool) -> None:
        """Log what a look at the file brought, where it is something new.

        Args:
            store: what the file holds.
            key_count: how many keys of it count, None if it may well be none.
            is_changed: whether its credentials are others than at the last look.
        """
        if is_changed:
            count = len(store.all()) if key_count is None else key_count
            _LOG.info("keys read again", extra={"file": self.path, "key_count": count})
        trouble = KeyFileTrouble.WITHOUT_KEYS if key_count == 0 else None
        if store.trouble:
            trouble = KeyFileTrouble.UNUSABLE
        if trouble is self.trouble:
            return
        self.trouble = trouble
        if trouble is None:
            _LOG.info("the key file can be used again", extra={"file": self.path})
        else:
            extra = {"reason": trouble.value, "file": self.path, "error": store.trouble}
            _LOG.error("a key file is wrong", extra=extra)

    def now(self) -> object:
        """Do nothing: the file's owner reads it again by itself."""
        return None


class AnyKeyFile(Protocol):
    """A file of keys, whatever it checks.

    Attributes:
        path: the file.
        trouble: what is wrong with the file as it is now, None for nothing.
    """

    path: str
    trouble: KeyFileTrouble | None

    def now(self) -> object:
        """Read the file again if it changed."""
        ...


def key_file_families(files: Iterable[AnyKeyFile]) -> Sequence[Family]:
    """Return the metric of a process's key files: for each reason 1 if it holds, else 0."""
    troubles: dict[tuple[str, KeyFileTrouble], bool] = {}
    for one in files:  # two checkers may read one file
        one.now()
        for kind in KeyFileTrouble:
            troubles[one.path, kind] = troubles.get((one.path, kind), False) or one.trouble is kind
    samples = [Sample({"file": path, "reason": kind.value}, int(is_so)) for (path, kind), is_so in troubles.items()]
    return [Family("tocsin_key_file_trouble", "gauge", "1 if a file of keys is wrong, by reason.", tuple(samples))]
