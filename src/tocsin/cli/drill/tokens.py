"""The drill's own credentials: one for each simulated host."""

from __future__ import annotations

import time
from pathlib import Path

from tocsin.schemas.credential_store import change, write_credentials
from tocsin.schemas.credentials import Role, new_credential


class DrillTokens:
    """Issues credentials: all in the engine's file, and each host's in a file of its own.

    Attributes:
        engine_file: the credentials file of the drill's engine.
    """

    def __init__(self, folder: Path) -> None:
        """Start without credentials.

        Args:
            folder: the drill's work folder.
        """
        self._folder = folder / "tokens"
        self.engine_file = self._folder / "engine.json"
        write_credentials(self.engine_file, ())

    def file_of(self, host: str) -> Path:
        """Return the file of a host's credential, which is issued if it does not exist yet."""
        path = self._folder / f"{host}.json"
        if not path.exists():
            fresh = new_credential(Role.AGENT, host, time.time_ns())
            change(self.engine_file, lambda before: (*before, fresh))
            write_credentials(path, (fresh,))
        return path
