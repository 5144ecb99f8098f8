"""Which verdicts this engine has open in a database that others write, too.

What an engine left open and nobody renews expires when its time is over. In a folder of its own that is everything;
on a server it must not touch the verdicts of other engines, so it remembers its own in a small file.
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
    """A set of verdict ids in a file, written before a verdict's first row and after its last.

    Args:
        file: made where it is missing.
    """

    def __init__(self, file: Path) -> None:
        """Read what is there.

        Raises:
            StoreError: the file is not what this wrote.
        """
        self._file = file
        self._lock = threading.Lock()
        self._ids = self._read()

    def ids(self) -> tuple[str, ...]:
        """What this engine, or one before it, has open."""
        with self._lock:
            return tuple(sorted(self._ids))

    def forget(self, ids: Iterable[str]) -> None:
        """Those are closed in the database."""
        self._change(remove=ids)

    def opened(self, verdicts: Sequence[Verdict]) -> None:
        """Remember, before the rows are written."""
        self._change(add=(v.verdict_id for v in verdicts if v.state in _LIVE))

    def closed(self, verdicts: Sequence[Verdict]) -> None:
        """Forget, after the rows are written; the last update of each counts."""
        last = {v.verdict_id: v.state for v in sorted(verdicts, key=lambda v: v.update)}
        self._change(remove=(verdict_id for verdict_id, state in last.items() if state not in _LIVE))

    def _change(self, add: Iterable[str] = (), remove: Iterable[str] = ()) -> None:
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
