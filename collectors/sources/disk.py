"""Fill level of a file system, in a collector of its own: ``statvfs`` of a dead network file system never returns."""

from __future__ import annotations

import os

from tocsin.collectors.api import Collector, NothingHere, Reading
from tocsin.collectors.sources.settings import SourceSettings


class DiskCollector:
    """Reports the share of a file system's space that an ordinary user cannot write to any more."""

    name = "disk"

    def __init__(self, path: str, period_seconds: float = 1.0) -> None:
        """Create a collector for the file system that holds ``path``; nothing is read yet."""
        self.period_seconds = period_seconds
        self._path = path

    def collect(self, now_ns: int) -> Reading:
        """Return the fill level now."""
        del now_ns
        try:
            found = os.statvfs(self._path)
        except FileNotFoundError as error:
            raise NothingHere(f"{self._path} does not exist") from error
        if not found.f_blocks:
            raise NothingHere(f"{self._path} has no blocks (a virtual file system)")
        return Reading(host={"disk_used_ratio": 1.0 - found.f_bavail / found.f_blocks})


def from_settings(settings: SourceSettings) -> list[Collector]:
    """Return the collector of the file system in the settings."""
    return [DiskCollector(settings.disk_path, settings.period_seconds)]
