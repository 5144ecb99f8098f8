"""Remember which verdicts this engine has open in a database that other engines write to as well.

Verdicts that nobody renews expire. In its own database an engine may expire all of them. On a shared server it must
leave other engines' verdicts alone, so it stores its own ids in a small file.
"""

from __future__ import annotations

import json
import logging
import os
import threading
from collections.abc import Iterable, Sequence
from pathlib import Path

from tocsin.schemas.errors import StoreError
from tocsin.schemas.private_files import write_private
from tocsin.schemas.verdicts import Verdict, VerdictState

_LOG = logging.getLogger("tocsin.store")
_LIVE = {VerdictState.OPEN, VerdictState.CONFIRMED}


class OpenVerdicts:
    """A set of verdict ids in a file, updated before a verdict's first row is written and after its last.

    Args:
        file: path of the file; created if missing.
    """

    def __init__(self, file: Path) -> None:
        """Read the file if it exists.

        Raises:
            StoreError: the file is damaged.
        """
        self._file = file
        self._lock = threading.Lock()
        self._ids = self._read()

    def ids(self) -> tuple[str, ...]:
        """Return the ids of the verdicts that this engine, or a previous process of it, has open."""
        with self._lock:
            return tuple(sorted(self._ids))

    def forget(self, ids: Iterable[str]) -> None:
        """Remove ids that were closed in the database."""
        self._change(remove=ids)

    def opened(self, verdicts: Sequence[Verdict]) -> None:
        """Add the ids of live verdicts, before their rows are written."""
        self._change(add=(v.verdict_id for v in verdicts if v.state in _LIVE))

    def closed(self, verdicts: Sequence[Verdict]) -> None:
        """Remove the ids of verdicts whose last update here is not live, after their rows are written."""
        last = {v.verdict_id: v.state for v in sorted(verdicts, key=lambda v: v.update)}
        self._change(remove=(verdict_id for verdict_id, state in last.items() if state not in _LIVE))

    def _change(self, add: Iterable[str] = (), remove: Iterable[str] = ()) -> None:
        """Add and remove ids, and rewrite the file if the set changed; a failure is only logged."""
        with self._lock:
            wanted = (self._ids | set(add)) - set(remove)
            if wanted == self._ids:
                return
            self._ids = wanted
            new = self._file.with_suffix(".new")
            try:
                write_private(new, json.dumps({"version": 1, "verdict_ids": sorted(wanted)}).encode())
                os.replace(new, self._file)  # noqa: PTH105  # either the old file or the new one, whatever happens
            except OSError as error:  # a full disk must not keep a verdict from the database
                _LOG.warning("cannot remember open verdicts", extra={"file": str(self._file), "error": str(error)})

    def _read(self) -> set[str]:
        """Return the ids in the file; raise ``StoreError`` if it is damaged."""
        try:
            found = json.loads(self._file.read_text(encoding="utf-8"))
            return {str(verdict_id) for verdict_id in found["verdict_ids"]}
        except FileNotFoundError:
            return set()
        except (OSError, ValueError, KeyError, TypeError) as error:
            raise StoreError(
                f"{self._file} cannot be read ({error}): it names the verdicts that this engine left open;"
                " remove it, and close them by hand where they are still open"
            ) from error
